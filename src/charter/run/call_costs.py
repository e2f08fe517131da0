"""Money of a run's calls to servers, and what its stages took: read from their own files, brought into the ledger."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from charter.artifacts import durable
from charter.ledger import ApiUsage, CallBooks, Ledger
from charter.ledger.attempt import tags_text
from charter.ledger.calls import CALLS_FILE
from charter.ledger.rebuilding import TIMINGS_FILE
from charter.ledger.sums import total_of
from charter.run.graph import PlannedStage
from charter.spec.project import Project
from charter.units import MICRO_USD_PER_USD

TIME_SHARE = 0.05
"""Of the supervisor's time that may go into adding calls up: about a second for a million of them."""


@dataclass(kw_only=True)
class CallCosts:
    """The calls of one stage while an attempt of it runs."""

    project: Project
    stage: PlannedStage
    not_before: float = 0.0
    """Monotonic time of the next look."""
    _books: CallBooks | None = field(default=None, repr=False)

    def look(self, *, at_end: bool = False) -> tuple[ApiUsage, ...]:
        """Return their cost so far; nothing when it is too soon to look again.

        At the end every row is compared with its check; a DataError says that one has changed.
        """
        started = time.monotonic()
        if started < self.not_before and not at_end:
            return ()
        if self._books is None:
            place = self.project.storage.ledger or self.stage.directory / CALLS_FILE
            if isinstance(place, Path) and not place.exists():
                return ()
            self._books = CallBooks.open(place)
        usage = self._books.usage(run=self.project.run_in_ledger, stage=self.stage.name, checked=at_end)
        now = time.monotonic()
        self.not_before = now + (now - started) / TIME_SHARE
        return billed_to(self.project, usage)

    def close(self) -> None:
        """Give back the connections."""
        if self._books is not None:
            self._books.close()
            self._books = None


def billed_to(project: Project, usage: Iterable[ApiUsage]) -> tuple[ApiUsage, ...]:
    """The same calls with the owner and the tags of their project."""
    return tuple(replace(item, owner=project.owner, tags=tags_text(project.tags)) for item in usage)


def record_calls(ledger: Ledger, project: Project, stages: Iterable[PlannedStage]) -> None:
    """Bring the ledger up to date with what earlier runs have called."""
    for stage in stages:
        costs = CallCosts(project=project, stage=stage)
        try:
            ledger.record_usage(costs.look())
        finally:
            costs.close()


def write_timings(ledger: Ledger, project: Project, stage: PlannedStage) -> None:
    """Write `timings.json` from the ledger: all attempts and calls of this stage under this fingerprint."""
    parts = ledger.sums(run=project.run_in_ledger, stage=stage.name, by=("fingerprint",))
    mine = total_of(part for part in parts if part.key["fingerprint"] == stage.asked_fingerprint)
    totals, calls = mine.totals, mine.calls
    durable.write_hint(
        stage.directory / TIMINGS_FILE,
        {
            "run": project.name,
            "finished_at": time.time(),
            "attempts": totals.attempts,
            "seconds": totals.milliseconds / 1000,
            "useful_seconds": totals.useful_milliseconds / 1000,
            "cost_usd": totals.micro_usd / MICRO_USD_PER_USD if totals.fully_priced else None,
            "calls": calls.requests,
            "calls_usd": calls.settled_micro_usd / MICRO_USD_PER_USD,
            "calls_usd_most": calls.most_micro_usd / MICRO_USD_PER_USD,
        },
    )

"""Attempts of runs that somebody else started, as their logs tell them, and as the ledger has them. Pure."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from charter.ledger.account import Totals, account, totals_of
from charter.ledger.attempt import NO_TAGS, Attempt, Outcome

Change = Literal["added", "updated", "known"]
PREFIX = "imported:"
CONTENT_LENGTH = 16
"""Characters of a SHA-256 that a note keeps."""
NOTE = re.compile(
    r"imported from (?P<source>.*) \((?P<format>\w+)\)( at (?P<at>[\d:T-]+)Z)?(; sha256 [0-9a-f]+)?", re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class ImportedAttempt:
    """One process of a foreign run, from its start to its end."""

    key: str
    """Tells it from all others, and stays when its log grows: the id of its import, a colon, its number there."""
    content: str
    """SHA-256 of what it was read from."""
    run: str
    stage: str
    kind: str
    fingerprint: str
    accelerator: str
    count: int
    infra: str
    market: str
    started_at: float
    duration_milliseconds: int
    first_step: int
    last_step: int
    outcome: Outcome
    tokens: int = 0
    price_micro_usd_per_hour: int | None = None
    price_source: str | None = None
    note: str = ""
    owner: str | None = None
    tags: str = NO_TAGS

    @property
    def job_id(self) -> str:
        """Return the ledger's id of the import."""
        return f"{PREFIX}{self.key}"


@dataclass(frozen=True, kw_only=True)
class StoredImport:
    """All attempts of one foreign run, as the ledger has them."""

    import_id: str
    stage: str
    attempts: tuple[Attempt, ...]

    @property
    def totals(self) -> Totals:
        """Return the totals of the attempts."""
        return totals_of(account(self.attempts))

    @property
    def usd(self) -> float | None:
        """Return the cost of the attempts; None without a price."""
        totals = self.totals
        return totals.micro_usd / 1e6 if totals.priced_attempts else None

    @property
    def source(self) -> str:
        """Return the source that was read last; the whole note where it names none."""
        note = self.attempts[-1].note
        match = NOTE.fullmatch(note)
        return note if match is None else match["source"]

    @property
    def format(self) -> str | None:
        """Return the format of the log that was read."""
        match = NOTE.fullmatch(self.attempts[-1].note)
        return None if match is None else match["format"]

    @property
    def imported_at(self) -> float | None:
        """Unix seconds of the last import that changed anything; None where no attempt says so."""
        matches = [NOTE.fullmatch(item.note) for item in self.attempts]
        times = [datetime.fromisoformat(f"{item['at']}+00:00") for item in matches if item and item["at"]]
        return max(times).timestamp() if times else None


def note_of(source: str, format: str, *, at: float) -> str:
    """Return the note of an attempt that names its source.

    >>> note_of("outputs/sft", "trl", at=1_782_896_400.0)
    'imported from outputs/sft (trl) at 2026-07-01T09:00:00Z'
    """
    return f"imported from {source} ({format}) at {datetime.fromtimestamp(int(at), UTC):%Y-%m-%dT%H:%M:%SZ}"


def imports_of(attempts: Iterable[Attempt]) -> tuple[StoredImport, ...]:
    """Imported attempts by the import that they came with, in the order of their first one."""
    by_import: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_import[import_id_of(attempt.job_id or ""), attempt.stage].append(attempt)
    return tuple(
        StoredImport(import_id=import_id, stage=stage, attempts=tuple(group))
        for (import_id, stage), group in by_import.items()
    )


def import_id_of(job_id: str) -> str:
    """The import that an attempt came with.

    >>> import_id_of("imported:abc:1")
    'abc'
    """
    return job_id.removeprefix(PREFIX).rpartition(":")[0]

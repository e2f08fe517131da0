"""How long a finished stage took and what it cost: a sidecar, since hashed outputs hold no time."""

import time

from charter.artifacts import durable
from charter.ledger import Ledger
from charter.ledger.sums import total_of
from charter.pipeline.graph import PlannedStage
from charter.spec.project import Project
from charter.units import MICRO_USD_PER_USD

TIMINGS_FILE = "timings.json"


def write_timings(ledger: Ledger, project: Project, stage: PlannedStage) -> None:
    """Write `timings.json` from the ledger: all attempts and calls of this stage under this fingerprint."""
    parts = ledger.sums(run=project.name, stage=stage.name, by=("fingerprint",))
    mine = total_of(part for part in parts if part.key["fingerprint"] == stage.asked_fingerprint)
    totals, calls = mine.totals, mine.calls
    durable.write_hint(
        stage.directory / TIMINGS_FILE,
        {
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

"""How long a finished stage took and what it cost: a sidecar, since hashed outputs hold no time."""

import time

from charter.artifacts import durable
from charter.ledger import Ledger, totals_of
from charter.ledger.usage import usage_sums
from charter.pipeline.graph import PlannedStage
from charter.spec.project import Project
from charter.units import MICRO_USD_PER_USD

TIMINGS_FILE = "timings.json"


def write_timings(ledger: Ledger, project: Project, stage: PlannedStage) -> None:
    """Write `timings.json` from the ledger: all attempts and calls of this stage under this fingerprint."""
    rows = ledger.accounted(run=project.name)
    mine = [
        row for row in rows if (row.attempt.stage, row.attempt.fingerprint) == (stage.name, stage.asked_fingerprint)
    ]
    totals = totals_of(mine)
    usage = ledger.usage(run=project.name)
    calls = usage_sums(
        item for item in usage if (item.stage, item.fingerprint) == (stage.name, stage.asked_fingerprint)
    )
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

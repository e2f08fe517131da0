"""Attempts of a lost or emptied ledger, made anew from what the directories of finished stages keep of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from charter.errors import loads_json
from charter.ledger.attempt import Attempt, Outcome, tags_text
from charter.units import MICRO_USD_PER_USD, SECONDS_PER_HOUR

TIMINGS_FILE = "timings.json"
"""In the directory of a finished stage: what the ledger had of it when it ended."""
MOST = 1e12
"""Of seconds and dollars that a stage can have taken: 30,000 years."""
SOURCE = "timings.json of the stage: the ledger has lost it"


def rebuilt_attempts(
    directory: Path,
    *,
    run: str,
    stage: str,
    kind: str,
    fingerprint: str,
    owner: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> tuple[Attempt, ...]:
    """The attempts of a finished stage as one that finished it and, before that, one with all that was lost.

    Time and money are those that `timings.json` says (to the millisecond, and to half a micro-USD per hour); how many
    attempts there were, on what and how much they counted is lost. None without the file.
    """
    timings = _timings(directory / TIMINGS_FILE)
    if timings is None:
        return ()
    seconds, useful, usd = timings["seconds"], timings["useful_seconds"], timings["cost_usd"]
    price = None if usd is None or not seconds else round(usd * MICRO_USD_PER_USD * SECONDS_PER_HOUR / seconds)
    lost, begun = max(0.0, seconds - useful), timings["finished_at"] - seconds
    parts = [(begun, lost, Outcome.KILLED)] if lost > 0 else []
    parts.append((begun + lost, min(useful, seconds), Outcome.DONE))
    return tuple(
        Attempt(
            attempt_id=-1,
            run=run,
            stage=stage,
            kind=kind,
            number=number,
            fingerprint=fingerprint,
            accelerator="",
            count=1,
            infra="",
            market="",
            started_at=at,
            duration_milliseconds=round(1000 * part),
            clock="wall",
            last_heartbeat=at + part,
            first_step=0,
            last_step=0,
            outcome=outcome,
            price_micro_usd_per_hour=price,
            price_source=None if price is None else SOURCE,
            note=f"rebuilt from {SOURCE}",
            owner=owner,
            tags=tags_text(tags),
        )
        for number, (at, part, outcome) in enumerate(parts, start=1)
    )


def _timings(path: Path) -> Mapping[str, Any] | None:
    """Return the content of the file; None where it is missing, torn, or not of this kind."""
    try:
        document = loads_json(path.read_bytes())
        usd = document["cost_usd"]
        values = {name: float(document[name]) for name in ("finished_at", "seconds", "useful_seconds")}
        values["cost_usd"] = 0.0 if usd is None else float(usd)
        if not all(0 <= value <= MOST for value in values.values()):
            return None
        return values | {"cost_usd": None if usd is None else values["cost_usd"]}
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None

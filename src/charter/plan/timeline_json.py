"""A timeline as JSON: bands of start and end per stage, and dates where the start is known."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from charter.plan.timeline import Timeline


def timeline_json(lines: Mapping[str, Timeline], start: datetime | None) -> dict[str, object]:
    """By quantile: what `Plan.timeline` says, in the order of the run."""
    names = list(next(iter(lines.values())).start_seconds)
    return {
        "start": None if start is None else start.isoformat(timespec="minutes"),
        "finish": _dates({name: line.total_seconds for name, line in lines.items()}, start),
        "stages": [
            {
                "name": name,
                "start_seconds": {q: round(line.start_seconds[name], 6) for q, line in lines.items()},
                "end_seconds": {q: round(line.end_seconds[name], 6) for q, line in lines.items()},
                "finish": _dates({q: line.end_seconds[name] for q, line in lines.items()}, start),
            }
            for name in names
        ],
    }


def finish_date(seconds: float, start: datetime) -> datetime:
    """Return when something ends, to the minute, rounded up; later than any date gives the last minute of all.

    >>> finish_date(90.0, datetime(2026, 11, 20)).isoformat()
    '2026-11-20T00:02:00'
    """
    minutes = -(-seconds // 60)
    try:
        return start + timedelta(minutes=minutes)
    except OverflowError:
        return datetime.max.replace(second=0, microsecond=0, tzinfo=start.tzinfo)


def _dates(seconds: Mapping[str, float], start: datetime | None) -> dict[str, str] | None:
    if start is None:
        return None
    return {name: finish_date(value, start).isoformat(timespec="minutes") for name, value in seconds.items()}

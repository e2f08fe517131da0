"""Removes from a place what no list names any more, in two steps that lie a day apart.

The first step writes down what nothing names, the second removes what was written down, is still named by nothing and
has not been written since. So neither a listing that lags behind nor a copy that is just being made loses an object.
"""

import json
from dataclasses import dataclass
from typing import Any

from charter.artifacts.checkpoints import PINNED
from charter.artifacts.position import position_of
from charter.artifacts.retention import Held, Retention
from charter.artifacts.sealed import checked_text, sealed_text
from charter.artifacts.store.copy import COPIES, SUMMARY, Copies, Copy
from charter.artifacts.store.objects import OBJECTS
from charter.artifacts.store.place import Kept, Place, PlaceError
from charter.artifacts.whole_dir import MANIFEST
from charter.errors import DataError

DOOMED = "doomed.json"
GRACE_SECONDS = 24 * 3600.0
"""Longer than any upload of one checkpoint, and than stores with delayed listings need to agree (minutes)."""


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What one call has done."""

    removed: tuple[Kept, ...]
    doomed: tuple[Kept, ...]
    """Written down, and removed by a call that comes `GRACE_SECONDS` later."""


def collect(place: Place, *, grace_seconds: float = GRACE_SECONDS, act: bool = True) -> Collected:
    """Remove objects that were doomed by an earlier call, and doom those that nothing names; or only tell."""
    now, named = place.now(), named_objects(place)
    old = [item for item in place.listed(f"{OBJECTS}/") if now - item.written_at >= grace_seconds]
    unnamed = [item for item in old if item.key.rpartition("/")[2] not in named]
    doomed = _doomed(place)
    removed = tuple(item for item in unnamed if now - doomed.get(item.key, now) >= grace_seconds)
    left = tuple(item for item in unnamed if item not in removed)
    if act:
        for item in removed:
            place.remove(item.key)
        content = {"since": {item.key: doomed.get(item.key, now) for item in left}}
        if content["since"] != doomed:
            place.put(DOOMED, sealed_text(content).encode())
    return Collected(removed=removed, doomed=left)


def named_objects(place: Place) -> set[str]:
    """The hashes that any list of any project names; a DataError when one list cannot be read."""
    keys = {item.key for item in place.listed(f"{COPIES}/")}
    summaries = [key for key in keys if key.endswith(f"/{SUMMARY}")]
    for summary in summaries:
        keys |= {f"{summary.removesuffix(SUMMARY)}{name}.json" for name in _content(place, summary).get("names", ())}
    named: set[str] = set()
    for key in sorted(keys - set(summaries)):
        files = _content(place, key).get("files", {})
        named |= {str(fact["sha256"]) for fact in files.values()}
    return named


def prunable(copies: Copies, group: str, retention: Retention) -> list[Copy]:
    """The checkpoints of a stage that retention does not keep in the place, oldest first.

    The newest are read whole until enough are found to be good; without these nothing may go.
    """
    found = {position: item for item in copies.of(group)[0] if (position := position_of(item.name)) is not None}
    held, good = [], 0
    for position in sorted(found, reverse=True):
        verified = good < retention.keep_last and not copies.damage(found[position])
        good += verified
        held.append(
            Held(
                position=position,
                verified=verified,
                metric=_metric(copies, found[position]) if retention.keep_best else None,
                pinned=any(name.endswith(f"/{PINNED}") for name in found[position].files),
            )
        )
    return [found[position] for position in retention.removable(held)]


def _doomed(place: Place) -> dict[str, float]:
    """When each object was first written down to be removed."""
    if (text := place.get(DOOMED)) is None:
        return {}
    try:
        return {str(key): float(since) for key, since in checked_text(DOOMED, text)["since"].items()}
    except (DataError, KeyError, TypeError, ValueError, AttributeError):
        return {}  # they are written down again, which costs a day


def _content(place: Place, key: str) -> dict[str, Any]:
    if (text := place.get(key)) is None:
        return {}
    try:
        return checked_text(f"{place.where}/{key}", text)
    except DataError as error:
        raise DataError(
            f"{error}\n  nothing is removed while it is unknown what it names; `charter ckpt scrub`"
        ) from None


def _metric(copies: Copies, copy: Copy) -> float | None:
    name = next((name for name in copy.files if name.endswith(f"/{MANIFEST}")), None)
    if name is None:
        return None
    value = json.loads(copies.objects.content(copy.files[name])).get("metric")
    return None if value is None else float(value)


def abandoned_uploads(place: Place, *, grace_seconds: float = GRACE_SECONDS) -> list[Kept]:
    """What crashed uploads have left, old enough that nobody is still at it."""
    now = place.now()
    try:
        return [item for item in place.unfinished() if now - item.written_at >= grace_seconds]
    except PlaceError:
        return []  # a store that does not list them keeps none that could be found

"""Records of a spot pool's capacity: read, measured, replayed.

The format is that of the public repository skypilot-org/spot-traces: `{"metadata": {"gap_seconds": n}, "data": [...]}`,
where an entry is the number of machines that were to be had at that tick. Its traces carry no licence, so none is
shipped; the ones in `data/` are synthetic, made by `tools/spot_traces.py` with similar statistics.
"""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from charter.errors import UsageError
from charter.resilience.windows import Periods

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Machines that a pool had, tick by tick."""

    name: str
    gap_seconds: float
    available: tuple[int, ...]

    @property
    def length_seconds(self) -> float:
        """Time from the first tick to the end of the last."""
        return self.gap_seconds * len(self.available)

    def periods(self, nodes: int = 1) -> Periods:
        """When at least `nodes` machines were there at once, for a gang of that size.

        Raises `UsageError` when that never was.
        """
        spans, position = [], 0
        for enough, ticks in groupby(count >= nodes for count in self.available):
            length = sum(1 for _ in ticks)
            if enough:
                spans.append((position * self.gap_seconds, (position + length) * self.gap_seconds))
            position += length
        if not spans:
            raise UsageError(
                f"trace {self.name}: {nodes} machines are never to be had at once; the most is {max(self.available)}\n"
                "  take fewer nodes or another trace"
            )
        starts, ends = zip(*spans, strict=True)
        return Periods(starts=starts, ends=ends, length_seconds=self.length_seconds)


@dataclass(frozen=True, kw_only=True)
class TraceStatistics:
    """What a trace says about a gang: how much of the time, for how long, and how long it waits."""

    availability: float
    preemptions: int
    mean_up_seconds: float
    median_up_seconds: float
    mean_down_seconds: float
    median_down_seconds: float


def trace_statistics(trace: Trace, nodes: int = 1) -> TraceStatistics:
    """Statistics of the spans in which the pool has, or has not, `nodes` machines; both must occur.

    >>> steady = Trace(name="t", gap_seconds=600, available=(1, 1, 1, 0, 1, 0))
    >>> found = trace_statistics(steady)
    >>> round(found.availability, 2), found.preemptions, found.mean_up_seconds
    (0.67, 2, 1200.0)
    """
    up: list[float] = []
    down: list[float] = []
    for enough, ticks in groupby(count >= nodes for count in trace.available):
        (up if enough else down).append(sum(1 for _ in ticks) * trace.gap_seconds)
    if not up or not down:
        raise UsageError(f"trace {trace.name}: {nodes} machines are {'never' if not up else 'always'} to be had")
    ends_up = trace.available[-1] >= nodes
    return TraceStatistics(
        availability=sum(up) / trace.length_seconds,
        preemptions=len(up) - ends_up,
        mean_up_seconds=statistics.fmean(up),
        median_up_seconds=statistics.median(up),
        mean_down_seconds=statistics.fmean(down),
        median_down_seconds=statistics.median(down),
    )


def read_trace(path: Path) -> Trace:
    """The trace in a JSON file; a `UsageError` says what is wrong with it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"trace {path}: {error.strerror}; shipped traces: {', '.join(shipped())}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"trace {path}: not JSON ({error})") from None
    return trace_of(found, name=path.stem)


def trace_of(found: object, *, name: str) -> Trace:
    """A trace from read JSON."""
    wanted = 'a trace is {"metadata": {"gap_seconds": 195}, "data": [1, 1, 0, ...]}'
    metadata = found.get("metadata") if isinstance(found, Mapping) else None
    data = found.get("data") if isinstance(found, Mapping) else None
    gap = metadata.get("gap_seconds") if isinstance(metadata, Mapping) else None
    if not isinstance(gap, int | float) or isinstance(gap, bool) or not gap > 0 or gap == float("inf"):
        raise UsageError(f"trace {name}: metadata.gap_seconds is {gap!r}, not a time above zero; {wanted}")
    if not isinstance(data, list) or not data:
        raise UsageError(f"trace {name}: 'data' is not a list of counts; {wanted}")
    for position, count in enumerate(data):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise UsageError(f"trace {name}: data[{position}] is {count!r}, not a number of machines; {wanted}")
    return Trace(name=name, gap_seconds=float(gap), available=tuple(data))


def shipped() -> tuple[str, ...]:
    """Names of the synthetic traces that come with Charter."""
    return tuple(sorted(path.stem for path in DATA.glob("*.json")))


def find_trace(name: str) -> Trace:
    """A shipped trace by name, or the one in a file.

    >>> find_trace("synthetic-usual").gap_seconds
    600.0
    """
    return read_trace(DATA / f"{name}.json" if name in shipped() else Path(name))

"""When each stage starts and ends, and which chain of stages decides the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Start and end of every stage in seconds from the start of the run."""

    start_seconds: Mapping[str, float]
    end_seconds: Mapping[str, float]
    critical_path: tuple[str, ...]

    @property
    def total_seconds(self) -> float:
        """End of the last stage."""
        return max(self.end_seconds.values(), default=0.0)


def schedule(
    order: Sequence[str],
    needs: Mapping[str, Sequence[str]],
    seconds: Mapping[str, float],
    *,
    max_parallel: int | None = None,
) -> Timeline:
    """Each stage as early as its inputs and, where `max_parallel` is given, a free slot allow; in the given order.

    Source: list scheduling (Graham 1966). `order` must be topological. With one slot the total is the sum of all
    stages; without a limit it is the longest path through the graph.

    >>> line = schedule(["a", "b", "c"], {"c": ["a", "b"]}, {"a": 3.0, "b": 5.0, "c": 1.0})
    >>> line.total_seconds, line.critical_path
    (6.0, ('b', 'c'))
    """
    start: dict[str, float] = {}
    end: dict[str, float] = {}
    waits_for: dict[str, str | None] = {}
    slots: list[str | None] = [None] * (max_parallel or len(order))
    for name in order:
        free = min(range(len(slots)), key=lambda index: (_end(end, slots[index]), index))
        blockers = [*needs.get(name, ()), *([slots[free]] if slots[free] is not None else [])]
        latest = max(blockers, key=lambda other: (_end(end, other), other or ""), default=None)
        start[name] = _end(end, latest)
        end[name] = start[name] + seconds[name]
        waits_for[name] = latest
        slots[free] = name
    return Timeline(start_seconds=start, end_seconds=end, critical_path=_chain(end, waits_for))


def _end(end: Mapping[str, float], name: str | None) -> float:
    return 0.0 if name is None else end[name]


def _chain(end: Mapping[str, float], waits_for: Mapping[str, str | None]) -> tuple[str, ...]:
    chain: list[str] = []
    name = max(end, key=lambda item: end[item], default=None)
    while name is not None:
        chain.append(name)
        name = waits_for[name]
    return tuple(reversed(chain))

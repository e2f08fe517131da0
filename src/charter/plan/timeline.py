"""When each stage starts and ends, and which chain of stages decides the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

NOTHING: Mapping[str, float] = MappingProxyType({})
NO_LAGS: Mapping[tuple[str, str], float] = MappingProxyType({})
SLOT = "slot"


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Start and end of every stage in seconds from the start of the run."""

    start_seconds: Mapping[str, float]
    end_seconds: Mapping[str, float]
    critical_path: tuple[str, ...]
    finish_seconds: float | None = None
    """Of quantiles over draws: that of the last end, which is no stage's own where several may be the last."""

    @property
    def total_seconds(self) -> float:
        """End of the last stage."""
        return max(self.end_seconds.values(), default=0.0) if self.finish_seconds is None else self.finish_seconds


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """What stages that run at the same time share, and what each holds of it while it runs."""

    capacity: Mapping[str, float]
    demand: Mapping[str, Mapping[str, float]]

    def of(self, name: str) -> Mapping[str, float]:
        """What a stage holds."""
        return self.demand.get(name, NOTHING)

    def contend(self, one: str, other: str) -> bool:
        """Whether two stages hold something of the same pool."""
        return any(self.of(one).get(pool) and self.of(other).get(pool) for pool in self.capacity)


def slots(order: Sequence[str], number: int) -> Sharing:
    """Sharing of one machine on which `number` stages may run side by side."""
    return Sharing(capacity={SLOT: number}, demand={name: {SLOT: 1.0} for name in order})


def schedule(
    order: Sequence[str],
    needs: Mapping[str, Sequence[str]],
    seconds: Mapping[str, float],
    *,
    max_parallel: int | None = None,
    lags: Mapping[tuple[str, str], float] = NO_LAGS,
    waits: Mapping[str, float] = NOTHING,
    not_before: Mapping[str, float] = NOTHING,
    sharing: Sharing | None = None,
) -> Timeline:
    """Each stage as early as its inputs, its own wait and what it shares allow; placed in the given order.

    `start = earliest t >= max(max(ends of inputs + lag) + wait, not_before)` such that from t until its end what runs
    holds no more than the capacity of any pool. `lags` are by (input, stage): the transfer of results; `waits` by
    stage: the queue; neither holds capacity. A stage never moves one that comes before it in `order`, which must be
    topological; it may start earlier than one. The order decides who goes first, so with shared capacity another
    order can end sooner.

    Source: serial schedule generation (Kelley 1963), a form of list scheduling (Graham 1966). With one slot the total
    is the sum of all stages; without sharing it is the longest path through the graph.

    >>> line = schedule(["a", "b", "c"], {"c": ["a", "b"]}, {"a": 3.0, "b": 5.0, "c": 1.0})
    >>> line.total_seconds, line.critical_path
    (6.0, ('b', 'c'))
    """
    shared = sharing or (Sharing(capacity={}, demand={}) if max_parallel is None else slots(order, max_parallel))
    start: dict[str, float] = {}
    end: dict[str, float] = {}
    waits_for: dict[str, str | None] = {}
    for name in order:
        arrived = {other: end[other] + lags.get((other, name), 0.0) for other in needs.get(name, ())}
        last = max(arrived, key=lambda other: (arrived[other], other), default=None)
        after = 0.0 if last is None else arrived[last]
        ready = max(after + waits.get(name, 0.0), not_before.get(name, 0.0))
        start[name] = _earliest(name, ready, seconds[name], start, end, shared)
        end[name] = start[name] + seconds[name]
        waits_for[name] = _cause(name, start[name], ready, last, end, shared)
    return Timeline(start_seconds=start, end_seconds=end, critical_path=_chain(end, waits_for))


def _earliest(
    name: str, ready: float, seconds: float, start: Mapping[str, float], end: Mapping[str, float], shared: Sharing
) -> float:
    """The first moment from `ready` on at which the stage fits beside those that are placed, until its end."""
    others = [other for other in end if shared.contend(name, other)]
    moments = sorted({ready, *(end[other] for other in others if end[other] > ready)})
    for moment in moments:
        inside = [moment, *(start[other] for other in others if moment < start[other] < moment + seconds)]
        if all(_fits(name, point, others, start, end, shared) for point in inside):
            return moment
    return moments[-1]


def _fits(
    name: str,
    moment: float,
    others: Sequence[str],
    start: Mapping[str, float],
    end: Mapping[str, float],
    shared: Sharing,
) -> bool:
    running = [other for other in others if start[other] <= moment < end[other]]
    own = shared.of(name)
    return all(
        own.get(pool, 0.0) + sum(shared.of(other).get(pool, 0.0) for other in running) <= most
        for pool, most in shared.capacity.items()
        if own.get(pool)
    )


def _cause(
    name: str, start: float, ready: float, last: str | None, end: Mapping[str, float], shared: Sharing
) -> str | None:
    """The stage that had to end first: one that held capacity if that came after the inputs, else the last input."""
    if start > ready:
        blocking = [other for other in end if other != name and end[other] == start and shared.contend(name, other)]
        return max(blocking, default=last)
    return last


def _chain(end: Mapping[str, float], waits_for: Mapping[str, str | None]) -> tuple[str, ...]:
    chain: list[str] = []
    name = max(end, key=lambda item: end[item], default=None)
    while name is not None:
        chain.append(name)
        name = waits_for[name]
    return tuple(reversed(chain))

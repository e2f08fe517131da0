"""Serial schedule of stages, written down without the search: what the timelines of plans are compared with."""

from collections.abc import Mapping, Sequence

from charter.plan.timeline import NO_LAGS, NOTHING, Sharing, Timeline, slots


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
    others = [other for other in end if _contend(shared, name, other)]
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
        blocking = [other for other in end if other != name and end[other] == start and _contend(shared, name, other)]
        return max(blocking, default=last)
    return last


def _chain(end: Mapping[str, float], waits_for: Mapping[str, str | None]) -> tuple[str, ...]:
    chain: list[str] = []
    name = max(end, key=lambda item: end[item], default=None)
    while name is not None:
        chain.append(name)
        name = waits_for[name]
    return tuple(reversed(chain))


def _contend(shared: Sharing, one: str, other: str) -> bool:
    return any(shared.of(one).get(pool) and shared.of(other).get(pool) for pool in shared.capacity)

"""The choice of a whole plan as a problem in numbers, and the evaluation of many plans at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
P50, P90 = 0, 1
NO_LIMIT = float("inf")
TIE = 1e-9
"""Plans whose figures differ by less than this share are the same."""


@dataclass(frozen=True, kw_only=True)
class Ways:
    """The ways to run one stage; row k of every column is way k."""

    seconds: Array
    """Time that the machines are held: two columns."""
    usd: Array
    """Money that does not depend on other stages: two columns."""
    waits: Array
    """Queue and upload before the start, after the inputs are there: two columns."""
    not_before: Array
    """Earliest start, from when capacity is asked for."""
    site: Indices
    """Where the results lie: row and column of `Move`."""
    demand: Array
    """What is held of each pool."""
    family: Indices
    """Hardware and market, for plans that differ in kind."""

    def __len__(self) -> int:
        return len(self.seconds)

    def take(self, rows: Indices) -> "Ways":
        """Some of the ways."""
        return Ways(**{item.name: getattr(self, item.name)[rows] for item in fields(self)})


@dataclass(frozen=True, kw_only=True)
class Move:
    """Cost of bringing one stage's results to another: from the site in the row to the site in the column."""

    usd: Array
    seconds: Array


@dataclass(frozen=True, kw_only=True)
class ChoiceProblem:
    """Stages in execution order, with their inputs, their ways, and what they share."""

    inputs: tuple[tuple[int, ...], ...]
    ways: tuple[Ways, ...]
    capacity: tuple[float, ...] = ()
    """Of every pool."""
    moves: Mapping[tuple[int, int], Move]
    """(writer, reader) -> transfer, where it is not free."""

    def readers(self, stage: int) -> tuple[int, ...]:
        """Stages that read from a stage."""
        return tuple(reader for reader, inputs in enumerate(self.inputs) if stage in inputs)

    def before(self, stage: int) -> frozenset[int]:
        """Stages that a stage waits for, directly or through others."""
        stages: set[int] = set(self.inputs[stage])
        for earlier in reversed(range(stage)):
            if earlier in stages:
                stages.update(self.inputs[earlier])
        return frozenset(stages)


Minimise = Literal["usd", "seconds", "product"]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Figure to minimise, and limits that must not be exceeded; two numbers are p50 and p90."""

    minimise: Minimise
    """`usd` (p50), `seconds` (p50, then usd) or `product` of both, which is log time + log money."""
    seconds: tuple[float, float] = (NO_LIMIT, NO_LIMIT)
    usd: tuple[float, float] = (NO_LIMIT, NO_LIMIT)

    def key(self, seconds: Array, usd: Array) -> Array:
        """Return the figure to minimise first, and the second where that ties."""
        first = {"usd": usd, "seconds": seconds, "product": seconds * usd}[self.minimise]
        second = seconds if self.minimise == "usd" else usd
        return np.stack([first, second], axis=-1)


@dataclass(frozen=True, kw_only=True)
class PartialPlans:
    """Partial plans: the first stages placed, one plan per row."""

    ways: Indices
    start: Array
    end: Array
    site: Indices
    usd: Array

    def __len__(self) -> int:
        return len(self.usd)

    def take(self, rows: Indices) -> "PartialPlans":
        """Some of the plans."""
        return PartialPlans(**{item.name: getattr(self, item.name)[rows] for item in fields(self)})

    @staticmethod
    def empty(number: int = 1) -> "PartialPlans":
        """Plans without a stage."""
        times = np.zeros((number, 0, 2))
        none = np.zeros((number, 0), dtype=np.intp)
        return PartialPlans(ways=none, start=times, end=times, site=none, usd=np.zeros((number, 2)))


def extend(problem: ChoiceProblem, rows: PartialPlans, parent: Indices, way: Indices) -> PartialPlans:
    """Partial plans with one stage more: plan `parent[m]` going on with `way[m]`."""
    stage = rows.ways.shape[1]
    ways = problem.ways[stage].take(way)
    base = rows.take(parent)
    usd = base.usd + ways.usd
    ready = np.zeros((len(parent), 2))
    for writer in problem.inputs[stage]:
        arrived = base.end[:, writer]
        move = problem.moves.get((writer, stage))
        if move is not None:
            usd = usd + move.usd[base.site[:, writer], ways.site][:, None]
            arrived = arrived + move.seconds[base.site[:, writer], ways.site][:, None]
        ready = np.maximum(ready, arrived)
    ready = np.maximum(ready + ways.waits, ways.not_before[:, None])
    start = _with_capacity(problem, base, ways, ready)
    return PartialPlans(
        ways=np.concatenate([base.ways, way[:, None]], axis=1),
        start=np.concatenate([base.start, start[:, None]], axis=1),
        end=np.concatenate([base.end, (start + ways.seconds)[:, None]], axis=1),
        site=np.concatenate([base.site, ways.site[:, None]], axis=1),
        usd=usd,
    )


def _with_capacity(problem: ChoiceProblem, base: PartialPlans, ways: Ways, ready: Array) -> Array:
    """The first moments at which the pools have room until the stage ends: `timeline.schedule`, many at once."""
    if not problem.capacity or base.ways.shape[1] == 0:
        return ready
    earlier = range(base.ways.shape[1])
    demands = np.stack([problem.ways[stage].demand[base.ways[:, stage]] for stage in earlier], axis=1)
    contends = np.logical_or.reduce((demands > 0) & (ways.demand[:, None] > 0), axis=2)
    begins = np.full_like(ready, np.inf)
    for quantile in (P50, P90):
        start, end = base.start[:, :, quantile], base.end[:, :, quantile]

        def fits(point: Array, start: Array = start, end: Array = end) -> NDArray[np.bool_]:
            """Return True where the stage has room beside what runs at one moment of each plan."""
            running = (start <= point[:, None]) & (end > point[:, None])
            load = (demands * running[:, :, None]).sum(axis=1) + ways.demand
            enough: NDArray[np.bool_] = ((load <= np.asarray(problem.capacity) + TIE) | (ways.demand == 0)).all(axis=1)
            return enough

        at_starts = np.stack([fits(start[:, stage]) for stage in earlier], axis=1)
        moments = [ready[:, quantile], *(np.maximum(end[:, stage], ready[:, quantile]) for stage in earlier)]
        usable = [np.ones(len(ready), dtype=bool), *(contends[:, stage] for stage in earlier)]
        for moment, possible in zip(moments, usable, strict=True):
            until = moment + ways.seconds[:, quantile]
            inside = (start >= moment[:, None]) & ((start < until[:, None]) | (start == moment[:, None]))
            room = possible & fits(moment) & (at_starts | ~inside).all(axis=1)
            begins[:, quantile] = np.where(room, np.minimum(begins[:, quantile], moment), begins[:, quantile])
    return begins


def joined(parts: Sequence[PartialPlans]) -> PartialPlans:
    """Plans of one length, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    return PartialPlans(
        **{item.name: np.concatenate([getattr(part, item.name) for part in parts]) for item in fields(PartialPlans)}
    )


def evaluate(problem: ChoiceProblem, chosen: Sequence[Sequence[int]] | Indices) -> PartialPlans:
    """Whole plans, one per row of `chosen`."""
    table = np.asarray(chosen, dtype=np.intp).reshape(-1, len(problem.ways))
    rows = PartialPlans.empty(len(table))
    for stage in range(len(problem.ways)):
        rows = extend(problem, rows, np.arange(len(table)), table[:, stage])
    return rows

"""Every layout of a stage on many places and node counts: peak bytes and seconds, in a few calls over columns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from charter.physics.columns import Array, Layouts, array
from charter.physics.node import host_terms
from charter.physics.shapes import count_parameters
from charter.physics.step_time import Index, rows_of
from charter.plan.hardware.host_room import node_memory_bytes
from charter.plan.hardware.place import Place
from charter.plan.layouts.evaluate import Task, least_update_seconds, other_seconds, some_rows, update_seconds
from charter.plan.layouts.space import EMPTY, Asked, Space, space
from charter.plan.options.question import Question
from charter.plan.options.tied import tied_limit
from charter.plan.physics.engine_knowledge import engine_knowledge
from charter.plan.physics.fit_many import Devices, Fit, fit_of, least_bytes, waiting_bytes
from charter.plan.work.phase import Workload
from charter.spec.execution import shared_rows
from charter.spec.stage import NATIVE

CHUNK = 1 << 16
"""Layouts that are computed together: the intermediate columns of so many stay below 200 MB."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """One place and number of nodes."""

    place: Place
    num_nodes: int

    @property
    def label(self) -> str:
        """`2 x H100-SXM-80GB:8`."""
        return f"{self.num_nodes} x {self.place.hardware}" if self.num_nodes > 1 else self.place.hardware


@dataclass(frozen=True, kw_only=True)
class Searched:
    """All layouts of one site, with what they need; `inf` seconds where a layout does not fit or was pruned."""

    site: Site
    space: Space
    peak: Array
    """Bytes; where the state alone does not fit, that bound."""
    seconds: Array
    too_slow: Array
    """1 where a bound of the time ruled the layout out; its peak was not computed."""
    capacity: float
    pruned: int

    @property
    def fits(self) -> bool:
        """Return True if any layout fits."""
        return bool(np.any(np.isfinite(self.seconds)))

    def by_need(self) -> Index:
        """The rows, the smallest need first; where only a bound is known, small micro-batches and recomputation first.

        A bound counts state alone, so it is the same for every micro-batch, and 64 sequences would look as lean as one.
        """
        at = self.space.layouts
        return np.lexsort((-at.recompute, at.micro_batch, self.peak))

    @property
    def evaluated(self) -> int:
        """Layouts whose peak was computed."""
        return self.space.size - self.pruned


def search_sites(question: Question, sites: Sequence[Site]) -> Iterator[Searched]:
    """Peak and seconds of every layout of every site."""
    engine = engine_knowledge(question.engine, question.knowledge)
    task = Task(work=question.work, dtype=question.dtype, known=engine, knowledge=question.knowledge)
    limit = tied_limit(question, engine)
    able = question.stage.kind in engine.does.kinds
    spaces = [space(asked(question, site)) if able else EMPTY for site in sites]
    batch: list[tuple[Site, Space]] = []
    for site, candidate_space in zip(sites, spaces, strict=True):
        if batch and sum(each.size for _, each in batch) + candidate_space.size > CHUNK:
            yield from _evaluate(task, batch, limit)
            batch = []
        batch.append((site, candidate_space))
    yield from _evaluate(task, batch, limit)


def asked(question: Question, site: Site) -> Asked:
    """The space of a stage on a site."""
    phase = question.training
    return Asked(
        engine=engine_knowledge(question.engine, question.knowledge).does,
        architecture=question.work.trained[0].architecture,
        num_accelerators=site.num_nodes * site.place.per_node,
        per_node=site.place.per_node,
        batch=phase.batch,
        unit=phase.unit,
        longest=round(phase.longest_tokens),
        fixed=question.fixed,
        together=question.work.together,
        shares=_shares(question),
    )


def _shares(question: Question) -> tuple[tuple[int, int], ...]:
    """Rows that the native engine's data ranks share evenly; other engines say it by `exact_batch`."""
    if question.engine != NATIVE:
        return ()
    stage = question.stage
    return tuple((int(getattr(stage, name)), together) for name, together in shared_rows(stage).items())


def _evaluate(task: Task, batch: Sequence[tuple[Site, Space]], limit: float) -> Iterator[Searched]:
    """The layouts of some sites together."""
    sizes = [layout_space.size for _, layout_space in batch]
    if not sum(sizes):
        yield from (_nothing(task, site, layout_space) for site, layout_space in batch)
        return
    layouts = _joined([layout_space.layouts for _, layout_space in batch if layout_space.size])
    devices = _devices(task, batch)
    evaluated = evaluate(task, layouts, devices, [layout_space for _, layout_space in batch], limit=limit)
    ends = np.cumsum(sizes)
    for number, (site, layout_space) in enumerate(batch):
        rows = slice(int(ends[number]) - layout_space.size, int(ends[number]))
        yield Searched(
            site=site,
            space=layout_space,
            peak=evaluated.peak[rows],
            seconds=evaluated.seconds[rows],
            too_slow=evaluated.too_slow[rows],
            capacity=float(devices.usable[number]),
            pruned=int((evaluated.too_large + evaluated.too_slow)[rows].sum()),
        )


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Memory and time of many layouts."""

    peak: Array
    """Bytes; of a pruned layout a bound below them; `inf` where host memory is too small for what waits there."""
    seconds: Array
    """`inf` where a layout does not fit or was pruned."""
    too_large: Array
    """1 where the state alone does not fit."""
    too_slow: Array
    """1 where the bound of the time ends the near-tied set."""


def evaluate(
    task: Task, layouts: Layouts, devices: Devices, spaces: Sequence[Space], *, limit: float, chunk: int = CHUNK
) -> Evaluated:
    """Bounds first, then memory of what they leave, then time of what fits.

    More than a chunk of layouts (always of one site) are taken in the order of the bound of their time; when the next
    cannot be within `limit` of the fastest so far, the rest cannot either.
    """
    bound = least_bytes(task.work, layouts, devices, dtype=task.dtype, known=task.known)
    if np.any(layouts.offload_optimizer > 0):
        waiting = waiting_bytes(task.work, layouts, devices, dtype=task.dtype, known=task.known)
        bound = array(np.where(waiting > devices.host_room, np.inf, bound))
    left = np.flatnonzero(bound <= devices.room)
    peak, seconds, slow = bound.copy(), np.full(bound.size, np.inf), np.zeros(bound.size)
    least = np.zeros(bound.size)
    if left.size > chunk:
        least[left] = least_update_seconds(task, rows_of(layouts, left), some_rows(devices, left))
        left = left[np.argsort(least[left], kind="stable")]
    for start in range(0, left.size, chunk):
        if least[left[start]] > limit * seconds.min():
            slow[left[start:]] = 1.0
            break
        rows = left[start : start + chunk]
        fitted = fit_of(task.work, rows_of(layouts, rows), some_rows(devices, rows), dtype=task.dtype, known=task.known)
        peak[rows] = fitted.peak
        inside = fitted.peak <= devices.room[rows]
        fitting = rows[inside]
        if fitting.size:
            chosen = Fit(peak=fitted.peak[inside], together={k: v[inside] for k, v in fitted.together.items()})
            seconds[fitting] = _seconds(task, layouts, devices, spaces, chosen, fitting)
    return Evaluated(peak=peak, seconds=seconds, too_large=array(bound > devices.room), too_slow=slow)


def _seconds(task: Task, layouts: Layouts, devices: Devices, spaces: Sequence[Space], fit: Fit, rows: Index) -> Array:
    seconds = update_seconds(task, rows_of(layouts, rows), some_rows(devices, rows))
    if all(phase.work == "train" for phase in task.work.phases):
        return seconds
    starts = np.cumsum([0, *(each.size for each in spaces)])
    owner = np.searchsorted(starts, rows, side="right") - 1
    inside = rows - starts[owner]
    values = [spaces[at].family_of(row).layout for at, row in zip(owner, inside, strict=True)]
    where = [devices.accelerators[number] for number in devices.of_row[rows]]
    return seconds + other_seconds(task, values, where, fit, np.arange(rows.size))


def _devices(task: Task, batch: Sequence[tuple[Site, Space]]) -> Devices:
    accelerators = tuple(site.place.accelerator for site, _ in batch)
    return Devices(
        accelerators=accelerators,
        of_row=np.repeat(np.arange(len(batch)), [layout_space.size for _, layout_space in batch]),
        usable=array([task.known.usable_bytes(one, task.knowledge) for one in accelerators]),
        host=array([host_room(task.work, site.place) for site, _ in batch]),
    )


def host_room(work: Workload, place: Place) -> float:
    """Bytes of system memory per accelerator that are left beside loading, processes and loaders."""
    weights = 2.0 * sum(count_parameters(role.architecture).total for role in work.roles)
    beside = host_terms(loading_bytes=weights, checkpoint_bytes=0.0, offload_bytes=1.0, ranks=place.per_node).total
    return (node_memory_bytes(place) - beside) / place.per_node


def _joined(many: Sequence[Layouts]) -> Layouts:
    return Layouts(**{item.name: np.concatenate([getattr(one, item.name) for one in many]) for item in fields(Layouts)})


def _nothing(task: Task, site: Site, layout_space: Space) -> Searched:
    capacity = task.known.usable_bytes(site.place.accelerator, task.knowledge)
    return Searched(
        site=site,
        space=layout_space,
        peak=array([]),
        seconds=array([]),
        too_slow=array([]),
        capacity=capacity,
        pruned=0,
    )

"""The search over training layouts: every layout of every place in a few calls over columns, ties, and verdicts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import ceil, exp

import numpy as np

from charter.engines import capabilities
from charter.engines.common.capabilities import of_kind, unsupported
from charter.physics.columns import Array, Layouts, array
from charter.physics.constants import context_factor
from charter.physics.node import host_terms
from charter.physics.shapes import count_parameters
from charter.physics.step_time import Index, rows_of
from charter.physics.terms import Term
from charter.plan.knowledge import EngineKnowledge, engine_knowledge, time_group
from charter.plan.layout_space import EMPTY, Family, Space, SpaceRequest, families, space, uneven_rows
from charter.plan.offers import NodeOffer, node_memory_bytes
from charter.plan.option import Missed, Option, Rejected, StageQuestion, TiedLayout, does_not_fit, make_option
from charter.plan.phase import Workload
from charter.plan.stage_memory import (
    Fit,
    LayoutDevices,
    Peak,
    fit_of,
    least_bytes,
    one_device,
    training_peak,
    waiting_bytes,
)
from charter.plan.stage_time import (
    TimedStage,
    least_update_seconds,
    other_seconds,
    some_rows,
    training_terms,
    update_seconds,
)
from charter.spec.layout import Layout
from charter.spec.stage_base import NATIVE
from charter.units import format_ratio, format_seconds

# -------- Ties: when two layouts of one model on one kind of machine count as equally fast, and which is taken.

ALIKE = 1.05
"""Among layouts within 5 % of the fastest the one that splits the model least is taken: it is the easiest to run, and
no prediction tells 5 % apart."""
IN_SIGHT = 1.25
"""Predictions of two layouts lie at most so far apart in the pairs that `RATIO_SHARE` was measured on: nothing is known
of how errors go together beyond, and a layout that is three times as slow is not called as good."""
RATIO_SHARE = 1.08
"""Width of the ratio of two layouts' times against the width of either. Independent errors would give 1.41, errors that
go together wholly 0; 1.08 is a correlation of 0.42. Measured on pairs of layouts of the same model on the same machines
whose predictions lie within 25 % (vTrain's runs, 385 pairs, constants fitted without: benchmarks/plan_regret.py)."""


def splits(layout: Layout) -> tuple[int, ...]:
    """Return how much a layout divides a model, the least first; ties are broken in this order."""
    offload = layout.offload_optimizer + layout.offload_parameters + layout.offload_activations
    parts = (layout.pipeline, layout.tensor, layout.context, layout.expert)
    return (*parts, offload, layout.interleave, layout.replicas, int(layout.zero), int(layout.sequence_parallel))


def tied_limit(question: StageQuestion, engine: EngineKnowledge) -> float:
    """Return how much slower than the fastest a tied layout may be estimated: `exp(share x half-width)`."""
    moe = any(role.architecture.mixture is not None for role in question.work.roles)
    quantity, group = time_group(question.stage, moe=moe)
    return exp(RATIO_SHARE * question.knowledge.half_width(quantity, group))


# -------- Every layout of a stage on many places and node counts: peak bytes and seconds, in a few calls over columns.

CHUNK = 1 << 16
"""Layouts that are computed together: the intermediate columns of so many stay below 200 MB."""


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """One place and number of nodes."""

    place: NodeOffer
    num_nodes: int

    @property
    def label(self) -> str:
        """`2 nodes x 8 H100-SXM-80GB`."""
        return self.place.machines(self.num_nodes)


@dataclass(frozen=True, kw_only=True)
class Searched:
    """All layouts of one site, with what they need; `inf` seconds where a layout does not fit or was pruned."""

    site: NodeGroup
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
        return np.lexsort((-at.offload_activations, -at.recompute, at.micro_batch, self.peak))

    @property
    def evaluated(self) -> int:
        """Layouts whose peak was computed."""
        return self.space.size - self.pruned


def search_sites(question: StageQuestion, sites: Sequence[NodeGroup]) -> Iterator[Searched]:
    """Peak and seconds of every layout of every site."""
    engine = engine_knowledge(question.engine, question.knowledge)
    task = TimedStage(work=question.work, dtype=question.dtype, known=engine, knowledge=question.knowledge)
    limit = tied_limit(question, engine)
    able = question.stage.kind in engine.does.kinds
    spaces = [space(asked(question, site)) if able else EMPTY for site in sites]
    batch: list[tuple[NodeGroup, Space]] = []
    for site, candidate_space in zip(sites, spaces, strict=True):
        if batch and sum(each.size for _, each in batch) + candidate_space.size > CHUNK:
            yield from _evaluate(task, batch, limit)
            batch = []
        batch.append((site, candidate_space))
    yield from _evaluate(task, batch, limit)


def asked(question: StageQuestion, site: NodeGroup) -> SpaceRequest:
    """The space of a stage on a site."""
    phase, able = question.training, of_kind(engine_knowledge(question.engine, question.knowledge).does, question.stage)
    return SpaceRequest(
        engine=able,
        architecture=question.work.trained[0].architecture,
        num_accelerators=site.num_nodes * site.place.per_node,
        per_node=site.place.per_node,
        batch=phase.batch,
        unit=phase.unit,
        longest=round(phase.longest_tokens),
        fixed=question.fixed,
        together=question.work.together,
        undivided=getattr(question.stage, "loss", "") == "kto" and not able.compares_batches,
        shares=_shares(question),
    )


def _shares(question: StageQuestion) -> tuple[tuple[int, int], ...]:
    """Rows that the native engine's data ranks share evenly; other engines say it by `exact_batch`."""
    if question.engine != NATIVE:
        return ()
    stage = question.stage
    return tuple((int(getattr(stage, name)), together) for name, together in stage.shared_rows.items())


def _evaluate(task: TimedStage, batch: Sequence[tuple[NodeGroup, Space]], limit: float) -> Iterator[Searched]:
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
    task: TimedStage,
    layouts: Layouts,
    devices: LayoutDevices,
    spaces: Sequence[Space],
    *,
    limit: float,
) -> Evaluated:
    """Bounds first, then memory of what they leave, then time of what fits.

    More than `CHUNK` layouts (always of one site) are taken in the order of the bound of their time; when the next
    cannot be within `limit` of the fastest so far, the rest cannot either.
    """
    bound = least_bytes(task.work, layouts, devices, dtype=task.dtype, known=task.known)
    if np.any((layouts.offload_optimizer > 0) | (layouts.offload_activations > 0)):
        waiting = waiting_bytes(task.work, layouts, devices, dtype=task.dtype, known=task.known)
        bound = array(np.where((waiting > 0) & (waiting > devices.host_room), np.inf, bound))
    left = np.flatnonzero(bound <= devices.room)
    peak, seconds, slow = bound.copy(), np.full(bound.size, np.inf), np.zeros(bound.size)
    least = np.zeros(bound.size)
    if left.size > CHUNK:
        least[left] = least_update_seconds(task, rows_of(layouts, left), some_rows(devices, left))
        left = left[np.argsort(least[left], kind="stable")]
    for start in range(0, left.size, CHUNK):
        if least[left[start]] > limit * seconds.min():
            slow[left[start:]] = 1.0
            break
        rows = left[start : start + CHUNK]
        fitted = fit_of(task.work, rows_of(layouts, rows), some_rows(devices, rows), dtype=task.dtype, known=task.known)
        peak[rows] = fitted.peak
        inside = fitted.peak <= devices.room[rows]
        fitting = rows[inside]
        if fitting.size:
            chosen = Fit(peak=fitted.peak[inside], together={k: v[inside] for k, v in fitted.together.items()})
            seconds[fitting] = _seconds(task, layouts, devices, spaces, chosen, fitting)
    return Evaluated(peak=peak, seconds=seconds, too_large=array(bound > devices.room), too_slow=slow)


def _seconds(
    task: TimedStage, layouts: Layouts, devices: LayoutDevices, spaces: Sequence[Space], fit: Fit, rows: Index
) -> Array:
    seconds = update_seconds(task, rows_of(layouts, rows), some_rows(devices, rows))
    if all(phase.work == "train" for phase in task.work.phases):
        return seconds
    starts = np.cumsum([0, *(each.size for each in spaces)])
    owner = np.searchsorted(starts, rows, side="right") - 1
    inside = rows - starts[owner]
    values = [spaces[at].family_of(row).layout for at, row in zip(owner, inside, strict=True)]
    where = [devices.accelerators[number] for number in devices.of_row[rows]]
    return seconds + other_seconds(task, values, where, fit, np.arange(rows.size))


def _devices(task: TimedStage, batch: Sequence[tuple[NodeGroup, Space]]) -> LayoutDevices:
    accelerators = tuple(site.place.accelerator for site, _ in batch)
    return LayoutDevices(
        accelerators=accelerators,
        of_row=np.repeat(np.arange(len(batch)), [layout_space.size for _, layout_space in batch]),
        usable=array([task.known.usable_bytes(one, task.knowledge) for one in accelerators]),
        host=array([host_room(task.work, site.place) for site, _ in batch]),
    )


def host_room(work: Workload, place: NodeOffer) -> float:
    """Bytes of system memory per accelerator that are left beside loading, processes and loaders."""
    weights = 2.0 * sum(count_parameters(role.architecture).total for role in work.roles)
    beside = host_terms(loading_bytes=weights, checkpoint_bytes=0.0, offload_bytes=1.0, ranks=place.per_node).total
    return (node_memory_bytes(place) - beside) / place.per_node


def _joined(many: Sequence[Layouts]) -> Layouts:
    return Layouts(**{item.name: np.concatenate([getattr(one, item.name) for one in many]) for item in fields(Layouts)})


def _nothing(task: TimedStage, site: NodeGroup, layout_space: Space) -> Searched:
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


# -------- The layouts of a stage that trains, over many places and node counts at once: all of them, in a few calls.

TIED_SHOWN = 8
"""Families of the near-tied set that an option names."""


def training_options(question: StageQuestion, place: NodeOffer, num_nodes: int) -> tuple[tuple[Option, ...], Missed]:
    """The layout to use on one place and number of nodes, if any fits; else the one that overflows least."""
    return next(iter(options_of(question, [NodeGroup(place=place, num_nodes=num_nodes)])))


def options_of(question: StageQuestion, sites: Sequence[NodeGroup]) -> Iterator[tuple[tuple[Option, ...], Missed]]:
    """The same for many sites, in their order."""
    return options_among(question, list(search_sites(question, sites)))


def options_among(question: StageQuestion, searched: Sequence[Searched]) -> Iterator[tuple[tuple[Option, ...], Missed]]:
    """The same for sites whose layouts are computed."""
    chosen = [result.space.layout(chosen_row(result)) if result.fits else None for result in searched]
    fitting = [(result, layout) for result, layout in zip(searched, chosen, strict=True) if layout is not None]
    options = _options(question, fitting) if fitting else iter(())
    for result, layout in zip(searched, chosen, strict=True):
        counted = Missed(evaluated=result.evaluated, pruned=result.pruned)
        if layout is not None:
            yield (next(options),), counted
        else:
            yield (), _missed(question, result, counted)


def _options(question: StageQuestion, fitting: Sequence[tuple[Searched, Layout]]) -> Iterator[Option]:
    """The options of the layouts that were chosen: what they decode at once, and their time, of all in one go."""
    engine = engine_knowledge(question.engine, question.knowledge)
    task = TimedStage(work=question.work, dtype=question.dtype, known=engine, knowledge=question.knowledge)
    layouts = [layout for _, layout in fitting]
    devices = LayoutDevices(
        accelerators=tuple(searched.site.place.accelerator for searched, _ in fitting),
        of_row=np.arange(len(fitting)),
        usable=array([searched.capacity for searched, _ in fitting]),
    )
    together: dict[str, Array] = {}
    if any(phase.work == "generate" for phase in question.work.phases):
        together = fit_of(question.work, Layouts.of(layouts), devices, dtype=question.dtype, known=engine).together
    times = training_terms(task, layouts, devices, together)
    for row, ((searched, layout), terms) in enumerate(zip(fitting, times, strict=True)):
        at_once = {phase: int(sequences[row]) for phase, sequences in together.items()}
        yield _option(question, searched, layout, terms, at_once)


def _missed(question: StageQuestion, searched: Searched, counted: Missed) -> Missed:
    """Return the reason why nothing fits at a site."""
    if not searched.space.size:
        reason = nothing_to_try(question, searched.site)
        return replace(counted, rejected=(Rejected(option=searched.site.label, reason=reason),))
    if not np.any(np.isfinite(searched.peak)):
        reason = "what is offloaded does not fit the system memory of a node"
        return replace(counted, rejected=(Rejected(option=searched.site.label, reason=reason),))
    layout = searched.space.layout(_leanest(question, searched))
    peak = peak_of(question, searched.site.place, layout)
    device, risk = searched.site.place.accelerator, question.knowledge.memory_risk
    reason = does_not_fit(peak, searched.capacity, device, risk)
    rejected = Rejected(option=f"{searched.site.label} {layout.label}", reason=reason)
    return replace(counted, rejected=(rejected,), peaks=((peak, searched.capacity, device),))


def _leanest(question: StageQuestion, searched: Searched) -> int:
    """The row that needs least where none fits; a bound of the state alone is the same for families that differ."""
    engine = engine_knowledge(question.engine, question.knowledge)
    rows = np.array([row for row in _best(searched, "bytes").values() if np.isfinite(searched.peak[row])])
    devices = LayoutDevices(
        accelerators=(searched.site.place.accelerator,),
        of_row=np.zeros(rows.size, dtype=np.intp),
        usable=array([searched.capacity]),
    )
    layouts = rows_of(searched.space.layouts, rows)
    peaks = fit_of(question.work, layouts, devices, dtype=question.dtype, known=engine).peak
    return int(rows[np.argmin(peaks)])


def nothing_to_try(question: StageQuestion, site: NodeGroup) -> str:
    """Return the reason why the space of a stage is empty at a site."""
    engine = of_kind(capabilities(question.engine), question.stage)
    if question.stage.kind not in engine.kinds:
        return (
            f"the engine {engine.name!r} trains stages of kind {', '.join(engine.kinds)}; this is {question.stage.kind}"
        )
    reasons = [] if question.fixed is None else [reason for _, reason in unsupported(question.fixed, engine)]
    return "; ".join(reasons or _uneven(question, site)) or (
        f"no layout of the engine {engine.name!r} ({engine.does}) divides the model and the batch as the stage's "
        "resources ask"
    )


def _uneven(question: StageQuestion, site: NodeGroup) -> list[str]:
    """Return what is wrong with the rows of a batch where layouts would be left if any number of them would do."""
    request = asked(question, site)
    any_rows = replace(
        request,
        engine=replace(request.engine, exact_batch=False),
        batch=max(request.batch, request.num_accelerators * request.unit),
        shares=(),
    )
    fewest = min((family.data for family in families(any_rows)), default=1)
    return [f"{message}; {hint}" for _, message, hint in uneven_rows(question.stage, fewest)]


def _option(
    question: StageQuestion,
    searched: Searched,
    layout: Layout,
    terms: tuple[Term, ...],
    together: Mapping[str, int],
) -> Option:
    place = searched.site.place
    engine = engine_knowledge(question.engine, question.knowledge)
    peak = peak_of(question, place, layout, together)
    option = make_option(question, place, searched.site.num_nodes, layout, layout.label, peak, terms)
    return replace(
        option,
        engine=question.engine,
        decode_batch=_decode_batch(question, layout, together),
        capacity_bytes=searched.capacity,
        tied_layouts=tied_layouts(question, searched, engine),
        host_bytes=_waiting(question, engine, place, layout, searched.capacity),
    )


def _decode_batch(question: StageQuestion, layout: Layout, together: Mapping[str, int]) -> int:
    """Answers that a replica of the native engine draws at once; 0 where they are its whole share."""
    drawn = [phase for phase in question.work.phases if phase.name in together and not phase.served]
    shares = [(together[phase.name], ceil(phase.batch / layout.data)) for phase in drawn]
    parts = [at_once for at_once, share in shares if at_once < share]
    return min(parts, default=0) if question.engine == NATIVE else 0


def _waiting(
    question: StageQuestion, engine: EngineKnowledge, place: NodeOffer, layout: Layout, usable: float
) -> float:
    """Bytes per accelerator that the chosen layout keeps in host memory."""
    if not (layout.offload_optimizer or layout.offload_activations):
        return 0.0
    devices = one_device(place.accelerator, 1, usable)
    one = Layouts.of([layout])
    return float(waiting_bytes(question.work, one, devices, dtype=question.dtype, known=engine)[0])


def chosen_seconds(searched: Searched) -> float:
    """Seconds of the layout to use; `inf` where none fits."""
    return float(searched.seconds[chosen_row(searched)]) if searched.fits else np.inf


def chosen_row(searched: Searched) -> int:
    """Of the layouts that are about as fast as the fastest, the one that splits the model least."""
    alike = np.flatnonzero(searched.seconds <= ALIKE * searched.seconds.min())
    return int(min(alike, key=lambda row: (*splits(searched.space.layout(int(row))), float(searched.seconds[row]))))


def tied_layouts(question: StageQuestion, searched: Searched, engine: EngineKnowledge) -> tuple[TiedLayout, ...]:
    """The best layout of every family that cannot be told from the fastest, fastest first."""
    limit = min(IN_SIGHT, tied_limit(question, engine)) * float(searched.seconds.min())
    best: dict[int, int] = {}
    waits = sum(term.value for term in question.waits)
    for row in np.argsort(searched.seconds, kind="stable"):
        if searched.seconds[row] > limit or len(best) >= TIED_SHOWN:
            break
        best.setdefault(int(searched.space.family[row]), int(row))
    return tuple(
        TiedLayout(
            label=searched.space.layout(row).label,
            seconds=float(searched.seconds[row]) + waits,
            peak_bytes=float(searched.peak[row]),
        )
        for row in best.values()
    )


def peak_of(
    question: StageQuestion, place: NodeOffer, layout: Layout, together: Mapping[str, int] | None = None
) -> Peak:
    """The fullest moment of a layout, with its terms; the same on every accelerator but for the size of its context.

    A stage that generates fills what its accelerator has left, so there it depends on the accelerator too.
    """
    generates = any(phase.work == "generate" for phase in question.work.phases)
    where = place.accelerator.name if generates else context_factor(place.accelerator.name)
    return question.peak_once(
        (question.engine, layout, where),
        lambda: training_peak(
            question.work,
            layout,
            accelerator=place.accelerator,
            dtype=question.dtype,
            knowledge=question.knowledge,
            engine=question.engine,
            together=together,
        ),
    )


# -------- Reasons for the chosen layout: one per family of layouts on the chosen accelerators.

SHOWN = (12, 6, 4)
"""Families that get a line: the fastest that lost, those nearest to fitting, degrees that do not divide."""


def layout_verdicts(question: StageQuestion | None, option: Option) -> tuple[Rejected, ...]:
    """Return the fate of every other family on the accelerators of a training option; none for other stages.

    PPO has placements instead of families (plan/rl_search.py).
    """
    if question is None or not question.work.trained or option.place.is_cpu or question.stage.ROLLS_OUT:
        return ()
    site = NodeGroup(place=option.place, num_nodes=option.num_nodes)
    searched = next(search_sites(question, [site]))
    parts = (
        list(_fitting(question, searched, option)),
        list(_missing(question, searched)),
        [Rejected(option=f"{site.label} {what}", reason=why) for what, why in indivisible(asked(question, site))],
    )
    verdicts = [verdict for part, most in zip(parts, SHOWN, strict=True) for verdict in part[:most]]
    left = sum(map(len, parts)) - len(verdicts)
    if left:
        more = Rejected(option=f"{site.label}, {left} more families", reason="slower, or larger, than those named")
        return (*verdicts, more)
    return tuple(verdicts)


def indivisible(space: SpaceRequest) -> Iterator[tuple[str, str]]:
    """Degrees that do not divide the model or the batch."""
    shape, degree = space.architecture, 2
    while space.engine.tensor and degree <= space.per_node:
        if not shape.divides_heads(degree):
            heads = f"{shape.num_heads} heads and {shape.kv_heads} key/value heads"
            yield f"tp{degree}", f"{degree} accelerators do not divide {heads}"
        degree *= 2
    replicas = space.batch // space.unit
    if space.num_accelerators > replicas:
        yield f"dp{space.num_accelerators}", f"more replicas than the {replicas} sequences or pairs of a batch"


def _best(searched: Searched, by: str) -> dict[Family, int]:
    """The row of every family with the least seconds, or bytes."""
    order = np.argsort(searched.seconds, kind="stable") if by == "seconds" else searched.by_need()
    rows: dict[Family, int] = {}
    for row in order:
        rows.setdefault(searched.space.family_of(int(row)), int(row))
    return rows


def _fitting(question: StageQuestion, searched: Searched, option: Option) -> Iterator[Rejected]:
    fastest = float(searched.seconds.min(initial=np.inf))
    chosen = option.overhead.useful_seconds - sum(term.value for term in question.waits)
    limit = tied_limit(question, engine_knowledge(question.engine, question.knowledge))
    for row in _best(searched, "seconds").values():
        layout, seconds = searched.space.layout(row), float(searched.seconds[row])
        same_family = layout.label.split(" mb")[0] == option.layout.label.split(" mb")[0]
        if not np.isfinite(seconds) or same_family:
            continue
        reason = f"{format_ratio(seconds / chosen)} than the chosen one: {format_seconds(seconds)} of work"
        if seconds <= ALIKE * fastest:
            reason += ", and splits the model more"
        elif seconds <= limit * fastest:
            reason += f"; the estimate cannot tell up to {100 * (limit - 1):.0f} %"
        yield Rejected(option=f"{searched.site.label} {layout.label}", reason=reason)


def _missing(question: StageQuestion, searched: Searched) -> Iterator[Rejected]:
    """Families of which nothing fits, the nearest first: the tensor that overflows."""
    fits = {
        searched.space.families[int(number)] for number in set(searched.space.family[np.isfinite(searched.seconds)])
    }
    shown = 0
    for family, row in _best(searched, "peak").items():
        if family in fits or searched.too_slow[row]:
            continue
        if not np.isfinite(searched.peak[row]):
            where = "what is offloaded does not fit the system memory of a node"
            yield Rejected(option=f"{searched.site.label} {searched.space.layout(row).label}", reason=where)
            continue
        layout = searched.space.layout(row)
        needs = f"needs at least {searched.peak[row] / 2**30:.1f} GiB of {searched.capacity / 2**30:.1f} usable"
        if shown < SHOWN[1]:
            device, risk = searched.site.place.accelerator, question.knowledge.memory_risk
            needs = does_not_fit(peak_of(question, searched.site.place, layout), searched.capacity, device, risk)
        shown += 1
        yield Rejected(option=f"{searched.site.label} {layout.label}", reason=needs)

"""The ways to run one stage: every place, node count, layout and market that fits; and why the others do not."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from charter.catalog.accelerators import Accelerator
from charter.estimate.terms import Term
from charter.plan import accelerator_time
from charter.plan.cpu_time import cpu_phase_terms
from charter.plan.fit import NOTHING_LOADED, Peak, answering_peak, training_peak
from charter.plan.fit_many import training_totals
from charter.plan.knowledge import Knowledge
from charter.plan.layouts import Family, families, levels
from charter.plan.option import Option, Rejected
from charter.plan.phase import Phase, Workload
from charter.plan.place import LOCAL, Place, Price
from charter.plan.risk import overhead, time_sigmas
from charter.plan.text_time import text_term
from charter.plan.why_not import does_not_fit
from charter.spec.layout import Layout
from charter.spec.stage import Sampling, Stage, StageResources


@dataclass(frozen=True, kw_only=True)
class Question:
    """One stage to be placed."""

    stage: Stage
    work: Workload
    dtype: str
    checkpoint_bytes: float
    use_spot: bool | str
    knowledge: Knowledge

    @property
    def fixed(self) -> StageResources | None:
        """What the stage itself prescribes."""
        return self.stage.resources

    @property
    def training(self) -> Phase:
        """The first training phase."""
        return next(phase for phase in self.work.phases if phase.work == "train")

    @property
    def time_sigmas_of(self) -> tuple[bool, bool]:
        """Whether answers are generated, and whether their length is fixed."""
        generates = any(phase.work == "generate" for phase in self.work.phases)
        stage = self.stage
        fixed = isinstance(stage, Sampling) and stage.min_new_tokens >= stage.max_new_tokens
        return generates, fixed


@dataclass(frozen=True, kw_only=True)
class Found:
    """Options that fit, and what did not."""

    options: tuple[Option, ...]
    rejected: tuple[Rejected, ...]
    closest: tuple[Peak, float] | None
    """Of the layouts that do not fit, the one that overflows least, with its capacity."""


def search(question: Question, places: tuple[Place, ...]) -> Found:
    """Options over all places; at most one per place, node count and market: the fastest that fits."""
    options: list[Option] = []
    rejected: list[Rejected] = []
    misses: list[tuple[Peak, float]] = []
    known: dict[tuple[object, ...], tuple[Option | None, _Missed]] = {}
    for place in places:
        for num_nodes in place.nodes:
            key = (*_hardware(place, num_nodes), num_nodes)
            if key not in known:
                known[key] = _on(question, place, num_nodes)
            fitting, missed = known[key]
            if fitting is not None:
                fitting = replace(fitting, place=place, price=place.price)
            if fitting is not None:
                options += _markets(question, fitting)
            rejected += missed.rejected if fitting is None else ()
            misses += missed.peaks if fitting is None else ()
    closest = min(misses, key=lambda miss: miss[0].total_bytes / miss[1], default=None)
    return Found(options=tuple(options), rejected=tuple(rejected), closest=closest)


def _hardware(place: Place, num_nodes: int) -> tuple[object, ...]:
    """What decides memory and time: two providers of one accelerator differ in the network between nodes only."""
    network = place.accelerator.scaleout_bytes_per_second_per_node if num_nodes > 1 else None
    return (place.infra == LOCAL, place.accelerator.name, place.per_node, network)


@dataclass(frozen=True, kw_only=True)
class _Missed:
    rejected: tuple[Rejected, ...] = ()
    peaks: tuple[tuple[Peak, float], ...] = ()


def _on(question: Question, place: Place, num_nodes: int) -> tuple[Option | None, _Missed]:
    if not question.work.needs_accelerator:
        terms = (text_term(question.work),)
        return _option(question, place, num_nodes, Layout(), "no model", NOTHING_LOADED, terms), _Missed()
    if place.is_cpu:
        return _on_processors(question, place)
    if question.work.trained:
        return _training(question, place, num_nodes)
    return _answering(question, place, num_nodes)


def _on_processors(question: Question, place: Place) -> tuple[Option | None, _Missed]:
    """One process, one copy of everything."""
    work, machine, fixed = question.work, place.accelerator, question.fixed
    if work.trained:
        batch = question.training.batch
        micro = min(batch, fixed.micro_batch) if fixed and fixed.micro_batch else batch
        layout = Layout(micro_batch=micro, accumulation=-(-batch // micro))
        peak = training_peak(work, layout, accelerator=machine, dtype=question.dtype, knowledge=question.knowledge)
        label = layout.label.removeprefix("dp1 ")
    else:
        batches = {phase.name: float(phase.batch) for phase in work.phases}
        layout, label = Layout(micro_batch=max(phase.batch for phase in work.phases)), "one process"
        peak = answering_peak(
            work, tensor=1, batches=batches, accelerator=machine, knowledge=question.knowledge, weights="fp32"
        )
    capacity = question.knowledge.usable_bytes(machine)
    if peak.total_bytes > capacity:
        return None, _Missed(
            rejected=(Rejected(option=place.label, reason=does_not_fit(peak, capacity)),), peaks=((peak, capacity),)
        )
    terms = tuple(
        term
        for phase in work.phases
        if phase.role not in work.remote
        for term in cpu_phase_terms(
            work.role(phase.role),
            phase,
            processor=machine,
            dtype=question.dtype,
            micro_batches=layout.accumulation if phase.work == "train" else 1,
        )
    )
    return _option(question, place, 1, layout, label, peak, terms), _Missed()


def _training(question: Question, place: Place, num_nodes: int) -> tuple[Option | None, _Missed]:
    """The fastest layout that fits, pipelines only when nothing fits without; else the best of every ZeRO stage."""
    missed: dict[str, tuple[float, Layout]] = {}
    capacity = question.knowledge.usable_bytes(place.accelerator)
    fitting: list[Option] = []
    for pipelines in (False, True):
        families_ = tuple(_families(question, place, num_nodes, pipelines=pipelines))
        for layout in _fitting(question, place, families_, missed, capacity):
            terms = accelerator_time.training_terms(
                question.work,
                layout,
                accelerator=place.accelerator,
                dtype=question.dtype,
                knowledge=question.knowledge,
            )
            peak = _peak(question, place, layout)
            fitting.append(_option(question, place, num_nodes, layout, layout.label, peak, terms))
        if fitting:
            break
    label = f"{num_nodes} x {place.hardware}" if num_nodes > 1 else place.hardware
    peaks = [(_peak(question, place, layout), layout.label) for _, layout in missed.values()]
    return _simplest(fitting), _Missed(
        rejected=tuple(
            Rejected(option=f"{label} {layout}", reason=does_not_fit(peak, capacity)) for peak, layout in peaks
        ),
        peaks=tuple((peak, capacity) for peak, _ in peaks),
    )


ALIKE = 1.05
"""Layouts within 5 % of the fastest count as equally fast: the estimate cannot tell them apart."""


def _simplest(options: list[Option]) -> Option | None:
    """Of the layouts that are about as fast as the fastest, the one that splits the model least."""
    fastest = min((option.overhead.useful_seconds for option in options), default=0.0)
    alike = [option for option in options if option.overhead.useful_seconds <= ALIKE * fastest]

    def splits(option: Option) -> tuple[int, int, int, float]:
        layout = option.layout
        return (layout.pipeline, layout.tensor, int(layout.zero), option.overhead.useful_seconds)

    return min(alike, key=splits, default=None)


def _families(question: Question, place: Place, num_nodes: int, *, pipelines: bool) -> Iterator[Family]:
    if pipelines and question.work.together:
        return iter(())
    return families(
        question.work.trained[0].architecture,
        num_accelerators=num_nodes * place.per_node,
        per_node=place.per_node,
        batch=question.training.batch,
        unit=question.training.unit,
        fixed=question.fixed,
        pipelines=pipelines,
    )


def _fitting(
    question: Question,
    place: Place,
    found: tuple[Family, ...],
    missed: dict[str, tuple[float, Layout]],
    capacity: float,
) -> Iterator[Layout]:
    """Of every family the layout with the least recomputation, then the largest micro-batch, that fits.

    Of the families in which nothing fits, the leanest of each ZeRO stage is noted in `missed`.
    """
    batch, unit = question.training.batch, question.training.unit
    tried = [(family, tuple(levels(family, batch=batch, unit=unit, fixed=question.fixed))) for family in found]
    layouts = [layout for _, steps in tried for level in steps for layout in level]
    if not layouts:
        return
    totals = iter(
        training_totals(
            question.work,
            layouts,
            accelerator=place.accelerator,
            dtype=question.dtype,
            knowledge=question.knowledge,
        ).tolist()
    )
    for family, steps in tried:
        sized = [(next(totals), layout) for level in steps for layout in level]
        fits = next((layout for size, layout in sized if size <= capacity), None)
        if fits is not None:
            yield fits
            continue
        zero, least = f"zero{int(family.zero)}", min(sized, key=lambda item: item[0])
        if zero not in missed or least[0] < missed[zero][0]:
            missed[zero] = least


def _peak(question: Question, place: Place, layout: Layout) -> Peak:
    return training_peak(
        question.work, layout, accelerator=place.accelerator, dtype=question.dtype, knowledge=question.knowledge
    )


def _answering(question: Question, place: Place, num_nodes: int) -> tuple[Option | None, _Missed]:
    """Replicas of every model, each over the fewest accelerators of a node that hold it; then wider if faster."""
    work, known = question.work, question.knowledge
    capacity = known.usable_bytes(place.accelerator)
    best: Option | None = None
    smallest: tuple[Peak, int] | None = None
    tensor = 1
    while tensor <= place.per_node:
        replicas = num_nodes * place.per_node // tensor
        batches = {phase.name: float(phase.batch) for phase in work.phases}
        peak = answering_peak(work, tensor=tensor, batches=batches, accelerator=place.accelerator, knowledge=known)
        while peak.total_bytes > capacity and max(batches.values()) > 1:
            batches = {name: max(1.0, batch / 2) for name, batch in batches.items()}
            peak = answering_peak(work, tensor=tensor, batches=batches, accelerator=place.accelerator, knowledge=known)
        if peak.total_bytes <= capacity:
            terms = accelerator_time.answering_terms(
                work,
                tensor=tensor,
                replicas=replicas,
                batches=batches,
                accelerator=place.accelerator,
                knowledge=known,
            )
            layout = Layout(data=replicas, tensor=tensor, micro_batch=round(max(batches.values())))
            made = _option(question, place, num_nodes, layout, f"serve tp{tensor} x{replicas}", peak, terms)
            if best is None or made.overhead.useful_seconds < best.overhead.useful_seconds * (1 - 1e-9):
                best = made
        elif smallest is None or peak.total_bytes < smallest[0].total_bytes:
            smallest = (peak, tensor)
        tensor *= 2
    if smallest is None:
        return best, _Missed()
    reason = does_not_fit(smallest[0], capacity)
    option = f"{num_nodes} x {place.hardware} tp{smallest[1]}" if num_nodes > 1 else f"{place.hardware} tp{smallest[1]}"
    return best, _Missed(rejected=(Rejected(option=option, reason=reason),), peaks=((smallest[0], capacity),))


def _option(
    question: Question,
    place: Place,
    num_nodes: int,
    layout: Layout,
    label: str,
    peak: Peak,
    terms: tuple[Term, ...],
) -> Option:
    terms = _at_measured_pace(question, place.accelerator, terms)
    useful = sum(term.value for term in terms)
    generates, fixed_length = question.time_sigmas_of
    moe = any(role.architecture.mixture is not None for role in question.work.roles)
    sigma = question.knowledge.time_sigma(question.stage, place.accelerator, moe=moe)
    return Option(
        place=place,
        num_nodes=num_nodes,
        layout=layout,
        layout_label=label,
        price=place.price,
        peak=peak,
        capacity_bytes=question.knowledge.usable_bytes(place.accelerator),
        time_terms=terms,
        overhead=overhead(
            useful, place=place, num_nodes=num_nodes, spot=False, checkpoint_bytes=question.checkpoint_bytes
        ),
        time_sigmas=time_sigmas(sigma, generates=generates, fixed_length=fixed_length),
    )


def _at_measured_pace(question: Question, accelerator: Accelerator, terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """The terms, and one that brings their sum to the pace that a run of this kind was measured at."""
    pace = question.knowledge.pace(accelerator, question.stage.kind)
    if pace is None:
        return terms
    correction = Term(
        name="measured pace",
        part="measured pace",
        value=(pace.factor - 1) * sum(term.value for term in terms),
        unit="seconds",
        formula=f"({pace.factor:.3f} - 1) x the estimate; measured on {pace.steps} steps",
        source=pace.source,
    )
    return (*terms, correction)


def _markets(question: Question, option: Option) -> list[Option]:
    """The option at each market that `use_spot` allows."""
    made = [] if question.use_spot is True else [option]
    if question.use_spot and option.place.spot is not None:
        made.append(on_spot(option, option.place.spot, question.checkpoint_bytes))
    return made


def on_spot(option: Option, price: Price, checkpoint_bytes: float) -> Option:
    """The same job on interruptible machines: a lower price, more hours billed, a longer wait."""
    risk = overhead(
        option.overhead.useful_seconds,
        place=option.place,
        num_nodes=option.num_nodes,
        spot=True,
        checkpoint_bytes=checkpoint_bytes,
    )
    return replace(option, price=price, overhead=risk)

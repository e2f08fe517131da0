"""The layouts of a stage that trains, over many places and node counts at once: all of them, in a few calls."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from charter.engines import capabilities
from charter.engines.common.capabilities import unsupported
from charter.physics.arrays import array
from charter.physics.layouts import Layouts
from charter.physics.memory.constants import context_factor
from charter.physics.terms import Term
from charter.plan.hardware.place import Place
from charter.plan.layouts.evaluate import Task, one_device, update_terms
from charter.plan.layouts.layout_search import Searched, Site, search_sites
from charter.plan.options.make_option import make_option
from charter.plan.options.option import Option, Rejected, TiedLayout
from charter.plan.options.question import Missed, Question
from charter.plan.options.tied import ALIKE, splits, tied_limit
from charter.plan.options.why_not import does_not_fit
from charter.plan.physics import accelerator_time
from charter.plan.physics.engine_knowledge import EngineKnowledge, engine_knowledge
from charter.plan.physics.fit import Peak, training_peak
from charter.plan.physics.fit_many import Devices, waiting_bytes
from charter.spec.layout import Layout

TIED_SHOWN = 8
"""Families of the near-tied set that an option names."""


def training_options(question: Question, place: Place, num_nodes: int) -> tuple[tuple[Option, ...], Missed]:
    """The layout to use on one place and number of nodes, if any fits; else the one that overflows least."""
    return next(iter(options_of(question, [Site(place=place, num_nodes=num_nodes)])))


def options_of(question: Question, sites: Sequence[Site]) -> Iterator[tuple[tuple[Option, ...], Missed]]:
    """The same for many sites, in their order."""
    searched = list(search_sites(question, sites))
    chosen = [result.space.layout(chosen_row(result)) if result.fits else None for result in searched]
    fitting = [(result, layout) for result, layout in zip(searched, chosen, strict=True) if layout is not None]
    terms = iter(_terms(question, fitting))
    for result, layout in zip(searched, chosen, strict=True):
        counted = Missed(evaluated=result.evaluated, pruned=result.pruned)
        if layout is not None:
            yield (_option(question, result, layout, next(terms)),), counted
        else:
            yield (), _missed(question, result, counted)


def _terms(question: Question, fitting: Sequence[tuple[Searched, Layout]]) -> list[tuple[Term, ...]]:
    """The terms of the time of the layouts that are kept; where a stage only trains, of all of them at once."""
    if fitting and all(phase.work == "train" for phase in question.work.phases):
        engine = engine_knowledge(question.engine, question.knowledge)
        task = Task(work=question.work, dtype=question.dtype, known=engine, knowledge=question.knowledge)
        devices = Devices(
            accelerators=tuple(searched.site.place.accelerator for searched, _ in fitting),
            of_row=np.arange(len(fitting)),
            usable=array([searched.capacity for searched, _ in fitting]),
        )
        return update_terms(task, [layout for _, layout in fitting], devices)
    return [
        accelerator_time.training_terms(
            question.work,
            layout,
            accelerator=searched.site.place.accelerator,
            dtype=question.dtype,
            knowledge=question.knowledge,
            engine=question.engine,
        )
        for searched, layout in fitting
    ]


def _missed(question: Question, searched: Searched, counted: Missed) -> Missed:
    """Return the reason why nothing fits at a site."""
    if not searched.space.size:
        reason = nothing_to_try(question)
        return replace(counted, rejected=(Rejected(option=searched.site.label, reason=reason),))
    if not np.any(np.isfinite(searched.peak)):
        reason = "what is offloaded does not fit the system memory of a node"
        return replace(counted, rejected=(Rejected(option=searched.site.label, reason=reason),))
    layout = searched.space.layout(int(searched.by_need()[0]))
    peak = peak_of(question, searched.site.place, layout)
    rejected = Rejected(option=f"{searched.site.label} {layout.label}", reason=does_not_fit(peak, searched.capacity))
    return replace(counted, rejected=(rejected,), peaks=((peak, searched.capacity),))


def nothing_to_try(question: Question) -> str:
    """Return the reason why the space of a stage is empty."""
    engine = capabilities(question.engine)
    if question.stage.kind not in engine.kinds:
        return (
            f"the engine {engine.name!r} trains stages of kind {', '.join(engine.kinds)}; this is {question.stage.kind}"
        )
    reasons = [] if question.fixed is None else [reason for _, reason in unsupported(question.fixed, engine)]
    return "; ".join(reasons) or (
        f"no layout of the engine {engine.name!r} ({engine.does}) divides the model and the batch as the stage's "
        "resources ask"
    )


def _option(question: Question, searched: Searched, layout: Layout, terms: tuple[Term, ...]) -> Option:
    place = searched.site.place
    engine = engine_knowledge(question.engine, question.knowledge)
    option = make_option(
        question, place, searched.site.num_nodes, layout, layout.label, peak_of(question, place, layout), terms
    )
    return replace(
        option,
        engine=question.engine,
        capacity_bytes=searched.capacity,
        tied_layouts=tied_layouts(question, searched, engine),
        host_bytes=_waiting(question, engine, place, layout, searched.capacity),
    )


def _waiting(question: Question, engine: EngineKnowledge, place: Place, layout: Layout, usable: float) -> float:
    """Bytes per accelerator that the chosen layout keeps in host memory."""
    if not layout.offload_optimizer:
        return 0.0
    devices = one_device(place.accelerator, 1, usable)
    one = Layouts.of([layout])
    return float(waiting_bytes(question.work, one, devices, dtype=question.dtype, known=engine)[0])


def chosen_row(searched: Searched) -> int:
    """Of the layouts that are about as fast as the fastest, the one that splits the model least."""
    alike = np.flatnonzero(searched.seconds <= ALIKE * searched.seconds.min())
    return int(min(alike, key=lambda row: (*splits(searched.space.layout(int(row))), float(searched.seconds[row]))))


def tied_layouts(question: Question, searched: Searched, engine: EngineKnowledge) -> tuple[TiedLayout, ...]:
    """The best layout of every family that cannot be told from the fastest, fastest first."""
    limit = tied_limit(question, engine) * float(searched.seconds.min())
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


def peak_of(question: Question, place: Place, layout: Layout) -> Peak:
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
        ),
    )

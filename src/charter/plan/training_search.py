"""The layouts of a stage that trains on one place and number of nodes."""

from collections.abc import Iterator

from charter.plan import accelerator_time
from charter.plan.fit import Peak, training_peak
from charter.plan.fit_many import training_totals
from charter.plan.layouts import Family, families, levels
from charter.plan.make_option import make_option
from charter.plan.option import Option, Rejected
from charter.plan.place import Place
from charter.plan.question import Missed, Question
from charter.plan.why_not import does_not_fit
from charter.spec.layout import Layout


def training_options(question: Question, place: Place, num_nodes: int) -> tuple[tuple[Option, ...], Missed]:
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
            fitting.append(make_option(question, place, num_nodes, layout, layout.label, peak, terms))
        if fitting:
            break
    label = f"{num_nodes} x {place.hardware}" if num_nodes > 1 else place.hardware
    peaks = [(_peak(question, place, layout), layout.label) for _, layout in missed.values()]
    best = _simplest(fitting)
    return (() if best is None else (best,)), Missed(
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

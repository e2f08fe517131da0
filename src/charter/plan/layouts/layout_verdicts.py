"""Reasons for the chosen layout: one per family of layouts on the chosen accelerators."""

from collections.abc import Iterator

import numpy as np

from charter.plan.layouts.layout_search import Searched, Site, asked, search_sites
from charter.plan.layouts.space import Asked, Family
from charter.plan.layouts.training_search import peak_of
from charter.plan.options.option import Option, Rejected
from charter.plan.options.question import Question
from charter.plan.options.tied import ALIKE, tied_limit
from charter.plan.options.why_not import does_not_fit
from charter.plan.physics.engine_knowledge import engine_knowledge
from charter.spec.stage import PpoStage
from charter.units import format_seconds

SHOWN = (12, 6, 4)
"""Families that get a line: the fastest that lost, those nearest to fitting, degrees that do not divide."""


def layout_verdicts(question: Question | None, option: Option) -> tuple[Rejected, ...]:
    """Return the fate of every other family on the accelerators of a training option; none for other stages.

    PPO has placements instead of families (rl/search.py).
    """
    if question is None or not question.work.trained or option.place.is_cpu or isinstance(question.stage, PpoStage):
        return ()
    site = Site(place=option.place, num_nodes=option.num_nodes)
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


def indivisible(space: Asked) -> Iterator[tuple[str, str]]:
    """Degrees that do not divide the model or the batch."""
    heads = space.architecture.num_heads
    degree = 2
    while space.engine.tensor and degree <= space.per_node:
        if heads % degree:
            yield f"tp{degree}", f"{degree} accelerators do not divide {heads} attention heads"
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


def _fitting(question: Question, searched: Searched, option: Option) -> Iterator[Rejected]:
    fastest = float(searched.seconds.min(initial=np.inf))
    limit = tied_limit(question, engine_knowledge(question.engine, question.knowledge))
    for row in _best(searched, "seconds").values():
        layout, seconds = searched.space.layout(row), float(searched.seconds[row])
        same_family = layout.label.split(" mb")[0] == option.layout.label.split(" mb")[0]
        if not np.isfinite(seconds) or same_family:
            continue
        behind = seconds / fastest - 1
        reason = f"slower by {behind:.0%}: {format_seconds(seconds)} of work, fastest {format_seconds(fastest)}"
        if seconds <= ALIKE * fastest:
            reason = f"as fast within {ALIKE - 1:.0%}; splits the model more"
        elif seconds <= limit * fastest:
            reason = f"{behind:.0%} slower by the estimate, which cannot tell up to {limit - 1:.0%}"
        yield Rejected(option=f"{searched.site.label} {layout.label}", reason=reason)


def _missing(question: Question, searched: Searched) -> Iterator[Rejected]:
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
            needs = does_not_fit(peak_of(question, searched.site.place, layout), searched.capacity)
        shown += 1
        yield Rejected(option=f"{searched.site.label} {layout.label}", reason=needs)

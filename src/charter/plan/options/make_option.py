"""An option from its parts: its time at a measured pace, and what failures and checkpoints add."""

from charter.catalog.accelerators import Accelerator
from charter.physics.terms import Term
from charter.plan.hardware.place import Place
from charter.plan.options.option import Option
from charter.plan.options.question import Question
from charter.plan.options.risk import overhead, time_sigmas
from charter.plan.physics.fit import Peak
from charter.spec.layout import Layout


def make_option(
    question: Question,
    place: Place,
    num_nodes: int,
    layout: Layout,
    label: str,
    peak: Peak,
    terms: tuple[Term, ...],
) -> Option:
    """The option on demand (or owned), with its risk."""
    terms = (*_at_measured_pace(question, place.accelerator, terms), *question.waits)
    useful = sum(term.value for term in terms)
    generates, fixed_length = question.time_sigmas_of
    moe = any(role.architecture.mixture is not None for role in question.work.roles)
    sigma = question.knowledge.time_sigma(question.stage, place.accelerator, moe=moe)
    return Option(
        place=place,
        num_nodes=num_nodes,
        dtype=question.trained_dtype,
        layout=layout,
        layout_label=label,
        price=place.price,
        peak=peak,
        capacity_bytes=question.knowledge.usable_bytes(place.accelerator),
        time_terms=terms,
        overhead=overhead(
            useful,
            place=place,
            num_nodes=num_nodes,
            spot=False,
            checkpoint_bytes=question.checkpoint_bytes,
            settings=question.risk,
            units=question.units,
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

"""Models of an answering stage behind an endpoint: seconds under its limits, its bill, and why it or own GPUs."""

from collections.abc import Iterator
from dataclasses import replace

from charter.cost.uncertainty import lognormal
from charter.estimate.serving.api_judge import ApiJudgement, ApiPrice, api_judgement
from charter.estimate.terms import Term
from charter.plan.hardware.place import Place, control_place
from charter.plan.options.make_option import make_option
from charter.plan.options.option import Option
from charter.plan.options.question import Question
from charter.plan.options.risk import LENGTH_SIGMA
from charter.plan.physics.fit import NOTHING_LOADED
from charter.plan.physics.text_time import text_term
from charter.plan.work.phase import Phase, Workload
from charter.spec.layout import Layout
from charter.units import format_seconds, format_usd

SOURCE = "serving in charter.yaml; answers stream at 60 tokens per second, judgement (serving/api_judge.py)"
VERDICT_TOKENS = 1.0
"""Tokens that answer a question of the judge."""


def ways_to_serve(work: Workload) -> Iterator[Workload]:
    """The workload as it is, and with every role behind its endpoint that may be there."""
    yield work
    if work.either:
        yield work.answered_by_endpoints((*work.remote, *work.either))


def endpoint_terms(work: Workload) -> tuple[Term, ...]:
    """Seconds of every phase that an endpoint answers, of those whose limits are known."""
    return tuple(
        Term(
            name=f"{phase.name}: endpoint",
            part=phase.name,
            value=usage.seconds,
            unit="seconds",
            formula=f"{phase.sequences:,.0f} requests of {phase.prompt_tokens:,.0f} + {_answer_tokens(phase):,.0f} "
            f"tokens, bound by {usage.bound_by}",
            source=SOURCE,
        )
        for phase, usage in _judged(work)
    )


def endpoint_usd(work: Workload) -> float:
    """Return the charges of a stage's endpoints, in usd."""
    return sum(usage.usd for _, usage in _judged(work))


def with_endpoints(option: Option, question: Question) -> Option:
    """The option with the bill of its remote roles; its time terms hold their seconds already."""
    work = question.work
    usd = endpoint_usd(work)
    generates, fixed_length = question.time_sigmas_of
    sigma = LENGTH_SIGMA if generates and not fixed_length else 0.0
    label = option.layout_label
    if work.remote:
        label = f"{label}, endpoint for {', '.join(work.remote)}"
    return replace(option, layout_label=label, remote=work.remote, endpoint_usd=lognormal(usd, sigma) if usd else None)


def endpoint_only(question: Question, place: Place) -> Option:
    """A stage that no model runs for here: text work, and what endpoints answer."""
    terms = (text_term(question.work), *endpoint_terms(question.work))
    option = make_option(question, place, 1, Layout(), "no model", NOTHING_LOADED, terms)
    if not question.work.remote:
        return option
    return with_endpoints(replace(option, layout_label="no accelerator"), question)


def without_accelerators(question: Question) -> tuple[Option, ...]:
    """Return the stage on the machine that runs Charter, where every model may be behind an endpoint."""
    works = [work for work in ways_to_serve(question.work) if work is not question.work and not work.needs_accelerator]
    return tuple(endpoint_only(replace(question, work=work), control_place(None)) for work in works)


def own_or_endpoint(chosen: Option, options: tuple[Option, ...]) -> str:
    """Return why a stage with both ways takes the one it does, with both figures; empty where there is one way.

    The other way is shown at its cheapest.
    """
    others = [option for option in options if option.remote != chosen.remote and option.usd is not None]
    if not others or chosen.usd is None:
        return ""
    best = min(others, key=lambda option: option.usd.p50 if option.usd else 0.0)
    mine, other = (
        f"{_way(option)} {format_usd(option.usd.p50 if option.usd else 0.0)} in {format_seconds(option.seconds.p50)}"
        for option in (chosen, best)
    )
    return f"{mine}; {other}"


def _way(option: Option) -> str:
    return f"endpoint for {', '.join(option.remote)}" if option.remote else f"own {option.label}"


def _judged(work: Workload) -> list[tuple[Phase, ApiJudgement]]:
    return [
        (phase, _judgement(work.endpoints[phase.role], phase))
        for phase in work.phases
        if phase.role in work.remote and phase.role in work.endpoints
    ]


def _judgement(price: ApiPrice, phase: Phase) -> ApiJudgement:
    return api_judgement(
        price,
        requests=phase.sequences,
        input_tokens=phase.prompt_tokens,
        output_tokens=_answer_tokens(phase),
    )


def _answer_tokens(phase: Phase) -> float:
    return phase.mean_new_tokens or phase.new_tokens if phase.work == "generate" else VERDICT_TOKENS

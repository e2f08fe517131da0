"""Models of an answering stage behind an endpoint: seconds under its limits, its bill, and why it or own GPUs."""

from collections.abc import Iterator
from dataclasses import replace
from math import hypot

from charter.cost.uncertainty import lognormal
from charter.plan.hardware.place import Place, control_place
from charter.plan.options.make_option import make_option
from charter.plan.options.option import Option
from charter.plan.options.question import Question
from charter.plan.options.risk import LENGTH_SIGMA
from charter.plan.physics.fit import NOTHING_LOADED
from charter.plan.physics.knowledge import ENDPOINT_SIGMA
from charter.plan.physics.text_time import text_term
from charter.plan.work.endpoint_use import endpoint_terms, endpoint_usd
from charter.plan.work.phase import Workload
from charter.spec.layout import Layout
from charter.units import format_seconds, format_usd


def ways_to_serve(work: Workload) -> Iterator[Workload]:
    """The workload as it is, and with every role behind its endpoint that may be there."""
    yield work
    if work.either:
        yield work.answered_by_endpoints((*work.remote, *work.either))


def with_endpoints(option: Option, question: Question) -> Option:
    """The option with the bill of its remote roles, and the width of their time; the seconds are in its terms already.

    The logarithm of the time has the variance of both parts, each by its share: `(own sigma x (1 - share))^2 +
    (ENDPOINT_SIGMA x share)^2`.
    """
    work = question.asked or question.work
    if not work.remote:
        return option
    usd, useful = endpoint_usd(work), option.overhead.useful_seconds
    generates, fixed_length = question.time_sigmas_of
    sigma = LENGTH_SIGMA if generates and not fixed_length else 0.0
    share = sum(term.value for term in endpoint_terms(work)) / useful if useful else 0.0
    own, *others = option.time_sigmas
    return replace(
        option,
        layout_label=f"{option.layout_label}, endpoint for {', '.join(work.remote)}",
        remote=work.remote,
        endpoint_usd=lognormal(usd, sigma) if usd else None,
        time_sigmas=(hypot(own * (1 - share), ENDPOINT_SIGMA * share), *others),
    )


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

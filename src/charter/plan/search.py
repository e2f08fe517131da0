"""The ways to run one stage: every place, node count, layout and market that fits; and why the others do not."""

from collections.abc import Sequence
from dataclasses import replace

from charter.engines.hardware import format_refusal, hardware_refusal, server_refusal
from charter.plan.cpu_search import on_processors
from charter.plan.hardware.place import LOCAL, Place
from charter.plan.layouts.layout_search import Site
from charter.plan.layouts.training_search import options_of, training_options
from charter.plan.options.markets import markets
from charter.plan.options.option import Option, Rejected
from charter.plan.options.question import Found, Missed, Question
from charter.plan.physics.fit import Peak
from charter.plan.rl.across import across
from charter.plan.rl.search import rl_answers
from charter.plan.serving.answering_search import answering_options
from charter.plan.serving.endpoint_option import endpoint_only, with_endpoints, without_accelerators
from charter.spec.stage import PpoStage


def search(question: Question, places: tuple[Place, ...]) -> Found:
    """Options over all places; of each place, node count and market those that may be chosen."""
    options: list[Option] = []
    misses: list[tuple[Peak, float]] = []
    refusals = {place: _refusal(question, place) for place in places}
    rejected = [Rejected(option=place.label, reason=reason) for place, reason in refusals.items() if reason]
    places = tuple(place for place, reason in refusals.items() if reason is None)
    sites = [Site(place=place, num_nodes=num_nodes) for place in places for num_nodes in place.nodes]
    answers = _answers(question, sites)
    for site in sites:
        fitting, missed = answers[_hardware(site)]
        for option in fitting:
            options += markets(question, replace(_billed(question, option), place=site.place, price=site.place.price))
        rejected += missed.rejected if not fitting else ()
        misses += missed.peaks if not fitting else ()
    if isinstance(question.stage, PpoStage):
        options += [_billed(question, option) for option in across(question, places)]
    options += without_accelerators(question)
    return Found(
        options=tuple(options),
        rejected=tuple(rejected),
        closest=min(misses, key=lambda miss: miss[0].total_bytes / miss[1], default=None),
        evaluated=sum(missed.evaluated for _, missed in answers.values()),
        pruned=sum(missed.pruned for _, missed in answers.values()),
        question=question,
    )


def _billed(question: Question, option: Option) -> Option:
    """A stage that trains, with the bill of what it asks meanwhile; one that only answers has it already."""
    return option if question.asked is None else with_endpoints(option, question)


def _refusal(question: Question, place: Place) -> str | None:
    """Return why no layout need be tried at a place: what is planned does not run on its accelerators."""
    kind, accelerator = question.stage.kind, place.accelerator
    if question.work.trained:
        wrong_format = format_refusal(question.dtype, question.engine, kind, accelerator)
        return wrong_format or hardware_refusal(question.engine, kind, accelerator)
    return server_refusal(accelerator) if question.work.needs_accelerator else None


Answer = tuple[tuple[Option, ...], Missed]


def _answers(question: Question, sites: Sequence[Site]) -> dict[tuple[object, ...], Answer]:
    """Return what is possible on every kind of hardware among the sites; training layouts of all of them in one go."""
    first: dict[tuple[object, ...], Site] = {}
    for site in sites:
        first.setdefault(_hardware(site), site)
    if question.work.trained and not any(site.place.is_cpu for site in first.values()):
        answers = rl_answers if isinstance(question.stage, PpoStage) else options_of
        return dict(zip(first, answers(question, list(first.values())), strict=True))
    return {key: _on(question, site.place, site.num_nodes) for key, site in first.items()}


def _hardware(site: Site) -> tuple[object, ...]:
    """Return what decides memory and time: two providers of one accelerator differ only in the nodes' network."""
    place, num_nodes = site.place, site.num_nodes
    network = place.accelerator.scaleout_bytes_per_second_per_node if num_nodes > 1 else None
    return (place.infra == LOCAL, place.accelerator.name, place.per_node, num_nodes, network)


def _on(question: Question, place: Place, num_nodes: int) -> tuple[tuple[Option, ...], Missed]:
    if not question.work.needs_accelerator:
        return (endpoint_only(question, place),), Missed()
    if place.is_cpu:
        return on_processors(question, place)
    if question.work.trained:
        return training_options(question, place, num_nodes)
    return answering_options(question, place, num_nodes)

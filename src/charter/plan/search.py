"""The ways to run one stage: every place, node count, layout and market that fits; and why the others do not."""

from dataclasses import replace

from charter.plan.answering_search import answering_options
from charter.plan.cpu_search import on_processors
from charter.plan.fit import NOTHING_LOADED, Peak
from charter.plan.make_option import make_option
from charter.plan.markets import markets
from charter.plan.option import Option, Rejected
from charter.plan.place import LOCAL, Place
from charter.plan.question import Found, Missed, Question
from charter.plan.text_time import text_term
from charter.plan.training_search import training_options
from charter.spec.layout import Layout


def search(question: Question, places: tuple[Place, ...]) -> Found:
    """Options over all places; of each place, node count and market those that may be chosen."""
    options: list[Option] = []
    rejected: list[Rejected] = []
    misses: list[tuple[Peak, float]] = []
    known: dict[tuple[object, ...], tuple[tuple[Option, ...], Missed]] = {}
    for place in places:
        for num_nodes in place.nodes:
            key = (*_hardware(place, num_nodes), num_nodes)
            if key not in known:
                known[key] = _on(question, place, num_nodes)
            fitting, missed = known[key]
            for option in fitting:
                options += markets(question, replace(option, place=place, price=place.price))
            rejected += missed.rejected if not fitting else ()
            misses += missed.peaks if not fitting else ()
    closest = min(misses, key=lambda miss: miss[0].total_bytes / miss[1], default=None)
    return Found(options=tuple(options), rejected=tuple(rejected), closest=closest)


def _hardware(place: Place, num_nodes: int) -> tuple[object, ...]:
    """What decides memory and time: two providers of one accelerator differ in the network between nodes only."""
    network = place.accelerator.scaleout_bytes_per_second_per_node if num_nodes > 1 else None
    return (place.infra == LOCAL, place.accelerator.name, place.per_node, network)


def _on(question: Question, place: Place, num_nodes: int) -> tuple[tuple[Option, ...], Missed]:
    if not question.work.needs_accelerator:
        terms = (text_term(question.work),)
        return (make_option(question, place, num_nodes, Layout(), "no model", NOTHING_LOADED, terms),), Missed()
    if place.is_cpu:
        return on_processors(question, place)
    if question.work.trained:
        return training_options(question, place, num_nodes)
    return answering_options(question, place, num_nodes)

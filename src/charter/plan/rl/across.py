"""PPO on two kinds of accelerators at once: generation on cheaper ones beside the trainers.

Both kinds are of one provider, so that weights need not leave it every step. Only on-demand prices are combined: when
one side of a step is preempted the other waits, and its price is paid.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations, product

from charter.engines import rl_engines
from charter.physics.terms import Term
from charter.plan.hardware.place import LOCAL, Place
from charter.plan.options.option import DeviceGroup, Option
from charter.plan.options.question import Question
from charter.plan.options.risk import overhead
from charter.plan.rl.placement import Placed, over_rollouts, role_groups, step_table
from charter.plan.rl.search import option_of
from charter.plan.rl.setting import Setting, host_shortage
from charter.plan.rl.work import rl_work


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """A placement over two places."""

    item: Placed
    main_nodes: int
    other_nodes: int
    usd_per_hour: float


def across(question: Question, places: tuple[Place, ...]) -> tuple[Option, ...]:
    """Of every two places of one provider with different accelerators the cheapest and the fastest placement.

    Empty for engines whose roles share their accelerators, and where only spot machines may be used.
    """
    if question.use_spot is True or question.engine not in rl_engines():
        return ()
    rented = [place for place in places if place.infra != LOCAL and not place.is_cpu and place.price.usd_per_hour]
    work, engine = rl_work(question.work), rl_engines()[question.engine]
    options: list[Option] = []
    for main, other in permutations(rented, 2):
        if main.infra == other.infra and main.accelerator.name != other.accelerator.name:
            settings = [Setting(question=question, engine=engine, work=work, place=place) for place in (main, other)]
            options += _best_of_two(*settings)
    return tuple(options)


def _best_of_two(main: Setting, other: Setting) -> Iterator[Option]:
    mixes = list(_generators_apart(main, other))
    mixes = [mixed for mixed in mixes if host_shortage(main, mixed.item) is None]
    if not mixes:
        return
    table = step_table([mixed.item for mixed in mixes], main.work, main.engine, main.groups.constants)
    seconds = [float(value) for value in table.total]
    usd = [mixed.usd_per_hour * value for mixed, value in zip(mixes, seconds, strict=True)]
    numbers = range(len(mixes))
    cheapest = min(numbers, key=lambda index: (usd[index], seconds[index], index))
    fastest = min(numbers, key=lambda index: (seconds[index], usd[index], index))
    for index in dict.fromkeys((cheapest, fastest)):
        yield _option(main, other, mixes[index], over_rollouts(mixes[index].item, table.at(index), main.work))


def _generators_apart(main: Setting, other: Setting) -> Iterator[Mixed]:
    """All roles train and score on the main place, generation has the other to itself."""
    arrangements = [
        name
        for name in main.engine.arrangements
        if name in ("split", "async") and (main.work.names,) in role_groups(main.work, main.engine, name)
    ]
    trainers = [
        (nodes, main.groups.trainer(nodes * main.place.per_node, main.work.names, main.capacity))
        for nodes in main.place.nodes
    ]
    generators = [
        (nodes, other.groups.generator(nodes * other.place.per_node, other.capacity)) for nodes in other.place.nodes
    ]
    for (mine, trainer), (theirs, generator), name in product(trainers, generators, arrangements):
        if trainer is not None and generator is not None and mine + theirs <= _most_nodes(main, other):
            item = Placed(arrangement=name, trainers=(trainer,), generator=generator)
            yield _mixed(main, other, item, mine, theirs)


def _most_nodes(main: Setting, other: Setting) -> int:
    """Nodes that may be held at once."""
    return max(*main.place.nodes, *other.place.nodes)


def _mixed(main: Setting, other: Setting, item: Placed, mine: int, theirs: int) -> Mixed:
    hourly = sum(
        nodes * setting.place.per_node * (setting.place.price.usd_per_hour or 0.0)
        for setting, nodes in ((main, mine), (other, theirs))
    )
    return Mixed(item=item, main_nodes=mine, other_nodes=theirs, usd_per_hour=hourly)


def _option(main: Setting, other: Setting, mixed: Mixed, terms: tuple[Term, ...]) -> Option:
    """The option on the main place, with the other's accelerators beside it; a failure of any node stops all."""
    option = option_of(main, mixed.item, terms, num_nodes=mixed.main_nodes, beside=other)
    group = next(group for group in option.groups if group.hardware == other.place.accelerator.name)
    beside = DeviceGroup(
        name=group.name,
        place=other.place,
        num_nodes=mixed.other_nodes,
        layout=group.layout,
        layout_label=group.layout_label,
        price=other.place.price,
        peak=group.peak,
        capacity_bytes=group.capacity_bytes,
    )
    risk = overhead(
        option.overhead.useful_seconds,
        place=main.place,
        num_nodes=mixed.main_nodes + mixed.other_nodes,
        spot=False,
        checkpoint_bytes=main.question.checkpoint_bytes,
        settings=main.question.risk,
        units=main.question.units,
    )
    label = f"{option.layout_label}; {group.name} on {mixed.other_nodes} x {other.place.hardware}"
    return replace(option, beside=(beside,), overhead=risk, layout_label=label)

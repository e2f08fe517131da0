"""The ways to place the roles of a PPO stage on accelerators: of one place, and of two places with different ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations, product

from charter.catalog.accelerators import Accelerator
from charter.engines import rl_engines
from charter.engines.common.capabilities import RlEngine
from charter.physics.constants import context_factor
from charter.physics.node import host_terms
from charter.physics.placement_memory import PpoJob, group_phases
from charter.physics.runs import RlConstants
from charter.physics.terms import Term
from charter.plan.knowledge import engine_knowledge
from charter.plan.layout_search import NodeGroup, options_of
from charter.plan.offers import LOCAL, NodeOffer, node_memory_bytes
from charter.plan.option import DeviceGroup, Missed, Option, Rejected, RoleGroup, StageQuestion, does_not_fit
from charter.plan.risk import overhead, time_sigmas
from charter.plan.rl_groups import (
    GeneratorChoice,
    Groups,
    Placed,
    TrainerChoice,
    arrangements_of,
    busy_shares,
    fastest,
    group_sizes,
    over_rollouts,
    placed,
    role_groups,
    step_table,
)
from charter.plan.rl_work import RlWork, rl_work
from charter.plan.stage_memory import Peak
from charter.units import GIB

# -------- One engine's view of a PPO stage on one place: the tables that placements are read from, and the room of a


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One engine's view of a stage on one place: what placements are searched with."""

    question: StageQuestion
    engine: RlEngine
    work: RlWork
    place: NodeOffer

    @property
    def capacity(self) -> float:
        """Bytes that an estimate may reach on an accelerator."""
        constants = engine_knowledge(self.engine.name, self.question.knowledge)
        return constants.usable_bytes(self.place.accelerator, self.question.knowledge)

    @property
    def groups(self) -> Groups:
        """Tables of all group sizes that any node count of the place asks for."""
        knowledge = self.question.knowledge
        return _groups(
            _TableKey(
                work=self.work,
                engine=self.engine,
                accelerator=self.place.accelerator,
                per_node=self.place.per_node,
                nodes=self.place.nodes,
                question=self.question,
                constants=knowledge.rl_constants(self.engine.stack.label),
            )
        )


def host_shortage(setting: Setting, item: Placed) -> str | None:
    """Return why what waits in host memory does not fit a node beside loading and processes; None where it does.

    Engines of reinforcement learning save synchronously, so no second copy of a checkpoint is staged.
    """
    waiting = max(group.host_bytes for group in item.trainers)
    if not waiting:
        return None
    ranks = min(setting.place.per_node, max(group.size for group in item.trainers))
    need = host_terms(
        loading_bytes=setting.work.weight_bytes, checkpoint_bytes=0.0, offload_bytes=waiting * ranks, ranks=ranks
    ).total
    have = node_memory_bytes(setting.place)
    if need <= have:
        return None
    return (
        f"fits the accelerators, but a node needs {need / GIB:,.0f} GiB of system memory for what waits there, "
        f"and has {have / GIB:,.0f}"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _TableKey:
    """Key of tables: equal where the same stage, engine and accelerator are asked for again."""

    work: RlWork
    engine: RlEngine
    accelerator: Accelerator
    per_node: int
    nodes: tuple[int, ...]
    question: StageQuestion
    constants: RlConstants

    @property
    def _identity(self) -> tuple[object, ...]:
        a = self.accelerator
        network = a.scaleout_bytes_per_second_per_node
        return (id(self.question), self.engine.name, a.name, network, self.per_node, self.nodes)

    def __hash__(self) -> int:
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TableKey) and self._identity == other._identity


@lru_cache(maxsize=64)
def _groups(key: _TableKey) -> Groups:
    sizes = {nodes * key.per_node for nodes in key.nodes}
    sizes |= {part for size in tuple(sizes) for part in group_sizes(size, key.per_node)}
    return Groups(
        key.work,
        key.engine,
        key.accelerator,
        sizes=sorted(sizes),
        per_node=key.per_node,
        constants=key.constants,
        fixed=key.question.fixed,
    )


# -------- The ways to place the roles of a PPO stage on accelerators: of one place, and of two places with different
# ones.

# -------- The ways to place the roles of a PPO stage on accelerators: of one place, and of two places with different
# ones.
#
# Every engine is offered only the placements that it can execute (`RlEngine`). Of each placement the fastest division
# is returned; money on one kind of hardware follows time, so nothing cheaper is lost.

Answer = tuple[tuple[Option, ...], Missed]


def rl_options(question: StageQuestion, place: NodeOffer, num_nodes: int) -> Answer:
    """The best of every placement that the stage's engine can execute, on one place and number of nodes."""
    return rl_answers(question, [NodeGroup(place=place, num_nodes=num_nodes)])[0]


def rl_answers(question: StageQuestion, sites: Sequence[NodeGroup]) -> tuple[Answer, ...]:
    """The same for many sites.

    An engine without placements of its own (`native`) shares all accelerators between all roles, under the layouts of
    `training_search`.
    """
    if question.engine in rl_engines():
        return tuple(_placements(question, site) for site in sites)
    answers = options_of(question, sites)
    return tuple(
        (tuple(replace(option, placement="colocated") for option in options), missed) for options, missed in answers
    )


def _placements(question: StageQuestion, site: NodeGroup) -> Answer:
    engine = rl_engines()[question.engine]
    setting = Setting(question=question, engine=engine, work=rl_work(question.work), place=site.place)
    options = tuple(_best(setting, site.num_nodes))
    if options:
        return options, Missed()
    option, reason, peak = _closest(setting, site.num_nodes)
    peaks = ((peak, setting.capacity, site.place.accelerator),) if peak is not None else ()
    return (), Missed(rejected=(Rejected(option=option, reason=reason),), peaks=peaks)


def _best(setting: Setting, num_nodes: int) -> Iterator[Option]:
    groups, size = setting.groups, num_nodes * setting.place.per_node
    if not_computed(setting, num_nodes) is not None:
        return
    for arrangement in arrangements_of(setting.work, setting.engine):
        placements = placed(setting.work, setting.engine, arrangement, groups, size=size, capacity=setting.capacity)
        fitting = [item for item in placements if host_shortage(setting, item) is None]
        chosen = fastest(fitting, setting.work, setting.engine, groups.constants)
        if chosen is not None:
            yield option_of(setting, *chosen, num_nodes=num_nodes)


def option_of(
    setting: Setting, item: Placed, terms: tuple[Term, ...], *, num_nodes: int, beside: Setting | None = None
) -> Option:
    """The option of a placement on the accelerators of one place; `beside` holds the last of its groups if another."""
    terms = (*terms, *setting.question.waits)
    parts = role_groups_of(setting, item, terms, beside)
    main = next(part for part in parts if part.name != "generators")
    fullest = max(parts, key=lambda part: part.peak.total_bytes / part.capacity_bytes)
    question, useful = setting.question, sum(term.value for term in terms)
    generates, fixed_length = question.time_sigmas_of
    return Option(
        place=setting.place,
        num_nodes=num_nodes,
        dtype=question.trained_dtype,
        layout=main.layout,
        layout_label=label_of(item),
        price=setting.place.price,
        peak=fullest.peak,
        capacity_bytes=fullest.capacity_bytes,
        time_terms=terms,
        overhead=overhead(
            useful,
            place=setting.place,
            num_nodes=num_nodes,
            spot=False,
            checkpoint_bytes=question.checkpoint_bytes,
            settings=question.risk,
            units=question.units,
            is_first=question.is_first,
            agents=question.has_agents(setting.place.infra),
        ),
        time_sigmas=time_sigmas(
            question.knowledge.rl_sigma(setting.engine.stack.label), generates=generates, fixed_length=fixed_length
        ),
        engine=setting.engine.name,
        placement=_placement(item),
        waits_on_host=item.arrangement == "offloaded",
        generator_tensor=item.generator.tensor,
        host_bytes=max(group.host_bytes for group in item.trainers),
        groups=parts,
    )


def _placement(item: Placed) -> str:
    """`offloaded` is colocated with a use of host memory; scorers on accelerators of their own are a split."""
    if item.together:
        return "colocated" if len(item.trainers) == 1 else "split"
    return item.arrangement


def label_of(item: Placed) -> str:
    """`async: 6 train zero3 dp6 mb4; 2 generate tp1 x2, 64 together`."""
    trainers = " | ".join(
        f"{group.size} {'train' if group.update else 'score'} {group.layout.label}" for group in item.trainers
    )
    choice = item.generator
    generator = f"generate tp{choice.tensor} x{choice.replicas}, {choice.together} together"
    if item.together:
        return f"{item.arrangement}: {trainers}; {generator}"
    return f"{item.arrangement}: {trainers}; {choice.tensor * choice.replicas} {generator}"


def role_groups_of(
    setting: Setting, item: Placed, terms: tuple[Term, ...], beside: Setting | None = None
) -> tuple[RoleGroup, ...]:
    """Return the work of each group, with its fullest moment; the last group lies on `beside` if that is given."""
    step = sum(term.value for term in terms) / setting.work.rollouts
    trainers, generating = busy_shares(item, setting.groups.constants, step)
    groups = []
    for number, (group, share) in enumerate(zip(item.trainers, trainers, strict=True)):
        first = number == 0
        where = setting if first or beside is None or not item.together else beside
        groups.append(_trainer_group(where, item, group, share, generates=item.together and first))
    return (
        tuple(groups) if item.together else (*groups, _generator_group(beside or setting, item.generator, generating))
    )


def _trainer_group(setting: Setting, item: Placed, group: TrainerChoice, busy: float, *, generates: bool) -> RoleGroup:
    job = replace(
        setting.groups.job,
        layout=group.layout,
        rollout_sequences=float(item.generator.together),
        generation_tensor=item.generator.tensor,
    )
    peak = fullest(setting, job, group.names, generates=generates, offloaded=item.arrangement == "offloaded")
    return RoleGroup(
        name=_group_name(setting.work, item, group),
        roles=group.names,
        hardware=setting.place.accelerator.name,
        num_accelerators=group.size,
        layout=group.layout,
        layout_label=group.layout.label,
        peak=peak,
        capacity_bytes=setting.capacity,
        busy_share=busy,
    )


def _group_name(work: RlWork, item: Placed, group: TrainerChoice) -> str:
    if item.together and len(item.trainers) == 1:
        return "all"
    if not group.update:
        return "scorers"
    return "trainers" if work.policy.name in group.names else "critics"


def _generator_group(setting: Setting, choice: GeneratorChoice, busy: float) -> RoleGroup:
    job = replace(
        setting.groups.job,
        rollout_sequences=float(choice.together),
        generation_tensor=choice.tensor,
        layout=choice.layout,
    )
    return RoleGroup(
        name="generators",
        roles=(setting.work.policy.name,),
        hardware=setting.place.accelerator.name,
        num_accelerators=choice.replicas * choice.tensor,
        layout=choice.layout,
        layout_label=f"tp{choice.tensor} x{choice.replicas}, {choice.together} together",
        peak=fullest(setting, job, (), generates=True),
        capacity_bytes=setting.capacity,
        busy_share=busy,
    )


def fullest(setting: Setting, job: PpoJob, names: tuple[str, ...], *, generates: bool, offloaded: bool = False) -> Peak:
    """The fullest phase of a group of devices; the same on every accelerator, but for the size of its context."""
    generator = (job.generation_tensor, job.rollout_sequences) if generates else None
    context = context_factor(setting.place.accelerator.name)

    def made() -> Peak:
        phases = group_phases(job, names, generates=generates, offloaded=offloaded)
        moments = [Peak(moment=phase, parts=tuple(parts)) for phase, parts in phases.items()]
        return max(moments, key=lambda peak: peak.total_bytes)

    return setting.question.peak_once((setting.engine.name, names, job.layout, generator, offloaded, context), made)


WITHOUT_ROLE = {
    "value": "trains no value model; take the estimator grpo or rloo",
    "reward": "scores by no reward model; take rewards that are functions",
    "reference": "keeps no reference model; set kl_coefficient: 0",
}


def not_computed(setting: Setting, num_nodes: int) -> str | None:
    """Return what the engine does not do of a stage on so many nodes, or None."""
    engine, work = setting.engine, setting.work
    for role, reason in WITHOUT_ROLE.items():
        if role in work.names and role not in engine.roles_of(ahead=work.ahead):
            return reason
    if not arrangements_of(work, engine):
        if work.ahead:
            return "learns from rollouts of the present policy alone; remove asynchrony"
        return "always draws ahead of training; set asynchrony: in_flight, max_age: 1"
    if engine.one_node and num_nodes > 1:
        return "runs on one node; set max_nodes: 1"
    return None


def _closest(setting: Setting, num_nodes: int) -> tuple[str, str, Peak | None]:
    """Return the placement that came closest where none fits, and the one reason why it does not."""
    groups, size = setting.groups, num_nodes * setting.place.per_node
    label = f"{setting.place.machines(num_nodes)} {setting.engine.name}"
    if (reason := not_computed(setting, num_nodes)) is not None:
        return label, f"{setting.engine.name} {reason}", None
    for arrangement in arrangements_of(setting.work, setting.engine):
        for item in placed(setting.work, setting.engine, arrangement, groups, size=size, capacity=setting.capacity):
            return label_of(item), host_shortage(setting, item) or "", None
    nearest = [(item, _fullest_moment(setting, item)) for item in _leanest(setting, size)]
    if not nearest and size == 1 and setting.work.ahead:
        return label, "the generator has accelerators of its own, beside those that train: two at least", None
    if not nearest:
        return label, "no layout divides the batch over so many accelerators", None
    item, peak = min(nearest, key=lambda pair: pair[1].total_bytes)
    if peak.total_bytes <= setting.capacity:
        return f"{label} {label_of(item)}", CROWDED, None
    device, risk = setting.place.accelerator, setting.question.knowledge.memory_risk
    return f"{label} {label_of(item)}", does_not_fit(peak, setting.capacity, device, risk), peak


CROWDED = "each group of roles has room by itself, and no division into groups that the engine runs has room for all"


def _fullest_moment(setting: Setting, item: Placed) -> Peak:
    groups = [_trainer_group(setting, item, group, 0.0, generates=item.together) for group in item.trainers]
    groups += [] if item.together else [_generator_group(setting, item.generator, 0.0)]
    return max((group.peak for group in groups), key=lambda peak: peak.total_bytes)


def _leanest(setting: Setting, size: int) -> Iterator[Placed]:
    """Of every arrangement the placement of all roles that needs least, whatever it needs."""
    groups, names = setting.groups, setting.work.names
    for arrangement in arrangements_of(setting.work, setting.engine):
        if arrangement in ("colocated", "offloaded"):
            pair = groups.leanest_pair(size, names, offloaded=arrangement == "offloaded")
            if pair is not None:
                yield Placed(arrangement=arrangement, trainers=(pair[0],), generator=pair[1])
            continue
        for part in group_sizes(size, groups.per_node):
            index = groups.leanest(size - part, names, offloaded=False)
            generator = groups.leanest_generator(part)
            if index is not None and generator is not None:
                yield Placed(arrangement=arrangement, trainers=(groups.at(index, names),), generator=generator)


# -------- PPO on two kinds of accelerators at once: generation on cheaper ones beside the trainers.
#
# Both kinds are of one provider, so that weights need not leave it every step. Only on-demand prices are combined: when
# one side of a step is preempted the other waits, and its price is paid.


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """A placement over two places."""

    item: Placed
    main_nodes: int
    other_nodes: int
    usd_per_hour: float


def across(question: StageQuestion, places: tuple[NodeOffer, ...]) -> tuple[Option, ...]:
    """Of every two places of one provider with different accelerators the cheapest and the fastest placement.

    Empty for engines whose roles share their accelerators, and where only spot machines may be used.
    """
    if question.use_spot is True or question.engine not in rl_engines() or rl_engines()[question.engine].one_node:
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
        for name in arrangements_of(main.work, main.engine)
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
        is_first=main.question.is_first,
        agents=main.question.has_agents(main.place.infra),
    )
    label = f"{option.layout_label}; {group.name} on {other.place.machines(mixed.other_nodes)}"
    return replace(option, beside=(beside,), overhead=risk, layout_label=label)

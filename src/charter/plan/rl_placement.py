"""Placements of the roles of a PPO stage: who shares accelerators with whom, seconds of a step, room of a node."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from operator import itemgetter

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.engines.common.rl_engine import Arrangement, RlEngine
from charter.physics.columns import array
from charter.physics.node import host_terms
from charter.physics.runs import RlConstants, RlPhases, rl_step_terms
from charter.physics.terms import Term, TermTable
from charter.plan.knowledge import engine_knowledge
from charter.plan.offers import Place, node_memory_bytes
from charter.plan.option import Question
from charter.plan.rl_tables import GeneratorChoice, Groups, RlWork, TrainerChoice
from charter.units import GIB

# -------- Placements of the roles of a PPO stage: who shares accelerators with whom, and what a step then takes.
#
# A placement is a generator and one or more groups of trainers and scorers. In `colocated` and `offloaded` all are the
# same accelerators and phases follow each other; in `split` they have accelerators of their own and still take turns;
# in `async` generation runs beside training, one step ahead. Groups other than the generator work side by side, so
# scoring and updating each take as long as their slowest group.

REWARD, VALUE = "reward", "value"
POLICY_SIDE = ("policy", "reference")
"""Roles that stay on the same accelerators where others have their own (OpenRLHF: colocate_actor_ref)."""
EIGHTHS = 8
"""Shares of the accelerators that a group may get are eighths: 1/8, 2/8, ...; of up to eight nodes any number."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """One placement with its choices."""

    arrangement: Arrangement
    trainers: tuple[TrainerChoice, ...]
    """One where all train and score together; a second for what has accelerators of its own."""
    generator: GeneratorChoice

    @property
    def together(self) -> bool:
        """Return True if the generator shares the accelerators of the trainers."""
        return self.arrangement in ("colocated", "offloaded")

    @property
    def score(self) -> float:
        """Plain seconds per rollout until the slowest group has scored."""
        return max(group.score for group in self.trainers)

    @property
    def update(self) -> float:
        """Plain seconds per rollout until the slowest group has updated."""
        return max(group.update for group in self.trainers)


def group_sizes(num_accelerators: int, per_node: int) -> tuple[int, ...]:
    """Sizes that a group may have beside others: eighths of all, whole nodes where there are several.

    >>> group_sizes(8, 8), group_sizes(48, 8)
    ((1, 2, 3, 4, 5, 6, 7), (8, 16, 24, 32, 40))
    """
    unit = per_node if num_accelerators > per_node else 1
    shares = {num_accelerators * eighth // EIGHTHS for eighth in range(1, EIGHTHS)}
    if num_accelerators <= EIGHTHS * unit:
        shares |= set(range(unit, num_accelerators, unit))
    return tuple(sorted(size for size in shares if size >= unit and size % unit == 0))


def role_groups(work: RlWork, engine: RlEngine, arrangement: Arrangement) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Ways to share trainers and scorers over groups: all in one; value model and reward beside the others."""
    if not engine.roles_apart:
        return ((work.names,),)
    first = tuple(name for name in work.names if name in POLICY_SIDE)
    second = tuple(name for name in work.names if name not in POLICY_SIDE)
    if not second:
        return ((work.names,),)
    return ((first, second),) if arrangement == "split" else ((work.names,), (first, second))


def placed(
    work: RlWork, engine: RlEngine, arrangement: Arrangement, groups: Groups, *, size: int, capacity: float
) -> Iterator[Placed]:
    """Every way to place the roles on `size` accelerators of one kind that fits, under one arrangement."""
    if engine.reward_apart and REWARD in work.names:
        yield from _beside_reward(work, arrangement, groups, size=size, capacity=capacity)
        return
    if arrangement in ("colocated", "offloaded"):
        pair = groups.shared(size, work.names, capacity, offloaded=arrangement == "offloaded")
        if pair is not None:
            yield Placed(arrangement=arrangement, trainers=(pair[0],), generator=pair[1])
        return
    parts = group_sizes(size, groups.per_node)
    for generating in parts:
        generator = groups.generator(generating, capacity)
        if generator is None:
            continue
        for names in role_groups(work, engine, arrangement):
            modes = groups.modes if engine.one_mode and len(names) > 1 else (None,)
            for sizes, mode in product(_shares(size - generating, len(names), parts), modes):
                choices = [groups.trainer(part, role, capacity, mode) for part, role in zip(sizes, names, strict=True)]
                if all(choices):
                    yield Placed(
                        arrangement=arrangement,
                        trainers=tuple(group for group in choices if group is not None),
                        generator=generator,
                    )


def _beside_reward(
    work: RlWork, arrangement: Arrangement, groups: Groups, *, size: int, capacity: float
) -> Iterator[Placed]:
    """The reward model, whole or sharded, on accelerators of its own, and all else on the rest."""
    rest = tuple(name for name in work.names if name != REWARD)
    if VALUE in rest:
        return
    for part in group_sizes(size, groups.per_node):
        shared = groups.shared(size - part, rest, capacity, offloaded=False)
        choices = (groups.trainer(part, (REWARD,), capacity, mode) for mode in sorted(groups.modes, key=itemgetter(0)))
        scorer = next((choice for choice in choices if choice is not None), None)
        if shared is not None and scorer is not None:
            yield Placed(arrangement=arrangement, trainers=(shared[0], scorer), generator=shared[1])


def _shares(size: int, count: int, parts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if count == 1:
        yield (size,)
        return
    yield from ((first, size - first) for first in parts if size - first in parts)


def step_table(placements: Sequence[Placed], work: RlWork, engine: RlEngine, constants: RlConstants) -> TermTable:
    """Seconds of one step of every placement: generate, score, update, weight sync, offload, other."""

    def flag(*arrangements: Arrangement) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return array([item.arrangement in arrangements for item in placements])

    phases = RlPhases(
        generate=array([item.generator.seconds for item in placements]),
        score=array([item.score for item in placements]),
        update=array([item.update for item in placements]),
        refit_bytes=np.full(len(placements), work.weight_bytes),
        resamples=np.zeros(len(placements)),
        side_by_side=flag("async"),
        colocated=flag("colocated", "offloaded"),
        overhead=np.full(len(placements), engine.stack.overhead),
        separate=flag("split"),
        move=array([sum(group.move_seconds for group in item.trainers) for item in placements]),
    )
    return rl_step_terms(phases, constants)


def fastest(
    placements: Sequence[Placed], work: RlWork, engine: RlEngine, constants: RlConstants
) -> tuple[Placed, tuple[Term, ...]] | None:
    """The placement with the shortest step, with its terms over all rollouts."""
    if not placements:
        return None
    table = step_table(placements, work, engine, constants)
    index = int(np.argmin(np.broadcast_to(table.total, (len(placements),))))
    return placements[index], over_rollouts(placements[index], table.at(index), work)


def over_rollouts(item: Placed, terms: tuple[Term, ...], work: RlWork) -> tuple[Term, ...]:
    """Terms of one step as terms of the stage.

    Of an asynchronous step `generate` is only what the trainers wait for, 0 where they never do.
    """
    each = f"{work.rollouts:,.6g} rollouts x"
    if not any(term.name == "generate" for term in terms):
        terms = (replace(terms[0], name="generate", part="generate", value=0.0, source="physics/generation.py"), *terms)
    scaled = []
    for term in terms:
        formula = term.formula
        if term.name == "generate" and item.arrangement == "async":
            formula = "max(0, rollout - score - update), as both sides run together"
        detail = _detail(item, term.name)
        scaled.append(replace(term, value=term.value * work.rollouts, formula=f"{each} ({formula}{detail})"))
    return tuple(scaled)


def _detail(item: Placed, name: str) -> str:
    if name == "generate":
        generator = item.generator
        return f"; {generator.replicas} replicas of TP {generator.tensor}, {generator.together} sequences together"
    if name in ("score", "update"):
        where = " | ".join(f"{', '.join(group.names)} on {group.size}" for group in item.trainers)
        return f"; {where}"
    return ""


def busy_shares(item: Placed, constants: RlConstants, step_seconds: float) -> tuple[tuple[float, ...], float]:
    """Of a step, in which each group of trainers computes, and in which the generator does.

    The group that shares its accelerators with the generator waits for nobody for long: 1.
    """
    factor = float(constants.unmodelled)
    score, update = float(constants.score_factor) * factor, float(constants.update_factor) * factor
    trainers = tuple(min(1.0, (g.score * score + g.update * update) / step_seconds) for g in item.trainers)
    if item.together:
        return (1.0, *trainers[1:]), 1.0
    rollout = item.generator.seconds * float(constants.generation_factor) * factor
    return trainers, min(1.0, rollout / step_seconds)


# -------- One engine's view of a PPO stage on one place: the tables that placements are read from, and the room of a
# node.


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One engine's view of a stage on one place: what placements are searched with."""

    question: Question
    engine: RlEngine
    work: RlWork
    place: Place

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
    question: Question
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

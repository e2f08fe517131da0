"""Groups of the roles of a PPO stage: bytes and seconds of each, placements that combine them, seconds of a step."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import ceil, inf
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from charter.catalog.accelerators import Accelerator
from charter.engines.common.capabilities import Arrangement, RlEngine
from charter.physics.columns import Array, array, stacked
from charter.physics.constants import ServingConstants
from charter.physics.devices import DeviceColumns
from charter.physics.generation import Drain, issue_of, rollout_terms
from charter.physics.memory_profiles import OF_ENGINES
from charter.physics.placement_memory import PpoJob, PpoTable, generation_bytes, ppo_table
from charter.physics.runs import RlConstants, RlPhases, rl_step_terms
from charter.physics.serving_devices import VLLM, ServingDevice, weight_format
from charter.physics.serving_passes import ServingModel
from charter.physics.stacks import PROFILES
from charter.physics.step_time import UpdateJob, update_seconds
from charter.physics.terms import Term, TermTable
from charter.plan.offers import NODES_OF_A_REPLICA
from charter.plan.rl_work import RlWork, generator_replicas, trainer_layouts
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.stage_base import StageResources

# -------- Memory and time of the groups of a PPO stage on one accelerator, for every group size and layout at once.


@dataclass(frozen=True, kw_only=True)
class TrainerChoice:
    """A layout for the roles of one group of trainers or scorers."""

    layout: Layout
    names: tuple[str, ...]
    update: float
    """Seconds of plain optimizer steps per rollout."""
    score: float
    """Seconds of plain forward passes per rollout."""
    peak_bytes: float
    host_bytes: float
    """Per device, that wait in host memory."""
    move_seconds: float = 0.0
    """Per rollout, to take them there and back."""

    @property
    def size(self) -> int:
        """Accelerators."""
        return self.layout.num_accelerators


@dataclass(frozen=True, kw_only=True)
class GeneratorChoice:
    """Replicas of the generator."""

    replicas: int
    tensor: int
    together: int
    """Sequences that a replica decodes at once."""
    seconds: float
    """Of one plain rollout."""
    peak_bytes: float
    """Without what the process takes."""

    @property
    def layout(self) -> Layout:
        """As degrees."""
        return Layout(data=self.replicas, tensor=self.tensor, micro_batch=self.together)


Mode = tuple[int, ZeroStage, Recompute, bool]


def mode_of(layout: Layout) -> Mode:
    """Return what roles of one engine may have to share: tensor parallelism, ZeRO stage, recomputation, offload."""
    return layout.tensor, layout.zero, layout.recompute, layout.offload_optimizer


class Groups:
    """The tables of one accelerator, for groups of the given sizes."""

    def __init__(
        self,
        work: RlWork,
        engine: RlEngine,
        accelerator: Accelerator,
        *,
        sizes: Sequence[int],
        per_node: int,
        constants: RlConstants,
        fixed: StageResources | None = None,
    ) -> None:
        self.work, self.engine, self.accelerator, self.constants = work, engine, accelerator, constants
        self.sizes, self.per_node = tuple(sorted(set(sizes))), per_node
        self.layouts = tuple(trainer_layouts(work, engine, self.sizes, per_node, fixed))
        profile = OF_ENGINES[engine.does.memory]
        self.job = PpoJob(
            roles=work.roles,
            layout=Layout(),
            seq_len=work.longest,
            rollout_sequences=1.0,
            precision=engine.does.precision,
            profile=profile.with_entropy if work.entropy else profile,
            accelerator=accelerator,
        )
        self._size = np.array([layout.num_accelerators for layout in self.layouts])
        self._seconds: dict[tuple[str, ...], tuple[Array, Array]] = {}
        self._shared: dict[tuple[object, ...], tuple[TrainerChoice, GeneratorChoice] | None] = {}
        self._fitting: dict[tuple[tuple[str, ...], float], Array] = {}

    @cached_property
    def memory(self) -> PpoTable:
        """Bytes of every role under every layout."""
        return ppo_table(self.job, self.layouts)

    @cached_property
    def _host_link(self) -> float:
        return float(DeviceColumns.of(self.accelerator).host_link)

    @cached_property
    def _steps(self) -> dict[str, tuple[Array, Array]]:
        """Seconds of updates and of scoring per rollout, of every role."""
        by_model: dict[tuple[object, ...], tuple[Array, Array]] = {}
        by_role = {}
        for role in self.work.roles:
            key = (role.architecture, role.adapter)
            if key not in by_model:
                job = UpdateJob(
                    architecture=role.architecture,
                    accelerator=self.accelerator,
                    profile=PROFILES[self.engine.does.stack],
                    seq_len=self.work.mean_len,
                    adapter_rank=float(role.adapter.rank) if role.adapter else 0.0,
                    base_bits=float(role.adapter.base_bits) if role.adapter else 16.0,
                    per_node=self.per_node,
                )
                one = update_seconds(job, self.layouts)
                by_model[key] = (one.step, one.forward)
            step, forward = by_model[key]
            updates, passes = self.work.updates.get(role.name, 0.0), self.work.passes.get(role.name, 0.0)
            by_role[role.name] = (array(step * updates), array(forward * passes))
        return by_role

    def seconds(self, names: tuple[str, ...]) -> tuple[Array, Array]:
        """Plain update and scoring seconds of a group, under every layout: its roles take turns."""
        if names not in self._seconds:
            self._seconds[names] = self._summed(names)
        return self._seconds[names]

    def _summed(self, names: tuple[str, ...]) -> tuple[Array, Array]:
        zero = np.zeros(len(self.layouts))
        update = sum((self._steps[name][0] for name in names), start=zero)
        return array(update), array(sum((self._steps[name][1] for name in names), start=zero))

    def weighed(self, names: tuple[str, ...]) -> Array:
        """Seconds of a group as a step counts them."""
        update, score = self.seconds(names)
        return array(update * self.constants.update_factor + score * self.constants.scoring)

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        """All modes of the layouts, in their order."""
        return tuple(dict.fromkeys(mode_of(layout) for layout in self.layouts))

    def trainer(
        self, size: int, names: tuple[str, ...], capacity: float, mode: Mode | None = None
    ) -> TrainerChoice | None:
        """The fastest layout of a group of `size` accelerators that fits; of one mode where it is given."""
        if not self.layouts:
            return None
        if (names, capacity) not in self._fitting:
            fits = self.memory.peak(names) <= capacity
            self._fitting[names, capacity] = array(np.where(fits, self.weighed(names), inf))
        allowed = self._size == size
        if mode is not None:
            allowed &= np.array([mode_of(layout) == mode for layout in self.layouts])
        seconds = np.where(allowed, self._fitting[names, capacity], inf)
        best = int(np.argmin(seconds))
        return self.at(best, names) if seconds[best] < inf else None

    def leanest(self, size: int, names: tuple[str, ...], *, offloaded: bool) -> int | None:
        """The layout of that size with the smallest peak."""
        mine = self._size == size
        if not self.layouts or not mine.any():
            return None
        return int(np.argmin(np.where(mine, self.memory.peak(names, offloaded=offloaded), inf)))

    def at(self, index: int, names: tuple[str, ...], *, offloaded: bool = False) -> TrainerChoice:
        """The group under one layout."""
        update, score = self.seconds(names)
        resident = float(self.memory.resident(names)[index]) if offloaded else 0.0
        frozen = [name for name in names if name not in self.work.updates]
        once = float(self.memory.resident(frozen)[index]) if offloaded and frozen else 0.0
        layout = self.layouts[index]
        return TrainerChoice(
            layout=layout,
            names=names,
            update=float(update[index]),
            score=float(score[index]),
            peak_bytes=float(self.memory.peak(names, offloaded=offloaded)[index]),
            host_bytes=resident + self._adam_bytes(layout, names),
            move_seconds=(2 * resident - once) / self._host_link,
        )

    def _adam_bytes(self, layout: Layout, names: Collection[str]) -> float:
        """Of an optimizer that lives in host memory, per device."""
        if not layout.offload_optimizer:
            return 0.0
        return (
            self.engine.does.precision.optimizer_bytes * self.work.trained_parameters(names) / layout.num_accelerators
        )

    def shared(
        self, size: int, names: tuple[str, ...], capacity: float, *, offloaded: bool
    ) -> tuple[TrainerChoice, GeneratorChoice] | None:
        """Roles and the generator on the same accelerators: the fastest pair of layouts that fits."""
        key = (size, names, capacity, offloaded)
        if key not in self._shared:
            self._shared[key] = self._fastest_pair(size, names, capacity, offloaded=offloaded)
        return self._shared[key]

    def _fastest_pair(
        self, size: int, names: tuple[str, ...], capacity: float, *, offloaded: bool
    ) -> tuple[TrainerChoice, GeneratorChoice] | None:
        rows, generators, fullest = self._pairs(size, names, offloaded=offloaded)
        fits = fullest <= capacity
        if not fits.any():
            return None
        factor = self.constants.generation_factor
        seconds = self.weighed(names)[rows, None] + factor * array([row.seconds for row in generators])[None, :]
        first, second = np.unravel_index(int(np.argmin(np.where(fits, seconds, inf))), fits.shape)
        return self.at(int(rows[first]), names, offloaded=offloaded), generators[int(second)]

    def _pairs(
        self, size: int, names: tuple[str, ...], *, offloaded: bool
    ) -> tuple[NDArray[np.intp], list[GeneratorChoice], Array]:
        """Layouts and generators of that size, and the bytes of the fullest moment of each pair of them."""
        rows = np.flatnonzero(self._size == size)
        generators = self._generators_of(size)
        if not len(rows) or not generators:
            return rows, generators, np.empty((len(rows), len(generators)))
        generator_bytes = array([row.peak_bytes for row in generators])
        resident = 0.0 if offloaded else self.memory.resident(names)[rows, None]
        generating = self.memory.fixed[rows, None] + resident + generator_bytes[None, :]
        return rows, generators, np.maximum(generating, self.memory.peak(names, offloaded=offloaded)[rows, None])

    def leanest_pair(
        self, size: int, names: tuple[str, ...], *, offloaded: bool
    ) -> tuple[TrainerChoice, GeneratorChoice, float] | None:
        """Roles and the generator on the same accelerators with the lowest fullest moment, and its bytes."""
        rows, generators, fullest = self._pairs(size, names, offloaded=offloaded)
        if not fullest.size:
            return None
        first, second = np.unravel_index(int(np.argmin(fullest)), fullest.shape)
        chosen = self.at(int(rows[first]), names, offloaded=offloaded)
        return chosen, generators[int(second)], float(fullest[first, second])

    def leanest_generator(self, size: int) -> GeneratorChoice | None:
        """The replicas on `size` accelerators of their own that need least."""
        return min(self._generators_of(size), key=lambda row: row.peak_bytes, default=None)

    def _generators_of(self, size: int) -> list[GeneratorChoice]:
        return [row for row in self._generators if row.replicas * row.tensor == size]

    def generator(self, size: int, capacity: float) -> GeneratorChoice | None:
        """The fastest replicas on `size` accelerators of their own."""
        room = capacity - (float(self.memory.fixed[0]) if self.layouts else 0.0)
        fitting = [row for row in self._generators_of(size) if row.peak_bytes <= room]
        return min(fitting, key=lambda row: row.seconds, default=None)

    @cached_property
    def _generators(self) -> tuple[GeneratorChoice, ...]:
        """Every size, tensor degree and limit, with the time of a rollout."""
        held_by_a_node = self.work.weight_bytes < self.accelerator.memory_bytes * self.per_node
        widest = self.per_node if held_by_a_node else NODES_OF_A_REPLICA * self.per_node
        rows = list(generator_replicas(self.work, self.sizes, widest))
        if not rows:
            return ()
        tensors, limits = sorted({row[1] for row in rows}), sorted({row[2] for row in rows})
        peak_bytes = generation_bytes(
            self.work.policy.architecture,
            seq_len=float(self.work.longest),
            tensors=tensors,
            limits=limits,
            accelerator=self.accelerator,
        )
        seconds = self._rollout_seconds(rows)
        return tuple(
            GeneratorChoice(
                replicas=replicas,
                tensor=tensor,
                together=together,
                seconds=float(one),
                peak_bytes=float(peak_bytes[tensors.index(tensor), limits.index(together)]),
            )
            for (replicas, tensor, together), one in zip(rows, seconds, strict=True)
        )

    def _rollout_seconds(self, rows: Sequence[tuple[int, int, int]]) -> Array:
        """Plain rollouts with the constants that nobody fitted, as the step's own factors were fitted on them."""
        work, count = self.work, len(rows)
        devices = {
            tensor: ServingDevice.of(
                self.accelerator, weights=weight_format("bf16"), tensor=tensor, attention=VLLM.attention
            )
            for tensor in {row[1] for row in rows}
        }
        plain = ServingConstants()
        each = array([max(1.0, ceil(work.samples / replicas)) for replicas, _, _ in rows])
        limit = array([together for _, _, together in rows])
        model = ServingModel.of(work.policy.architecture)
        table = rollout_terms(
            stacked([model] * count),
            stacked([devices[tensor] for _, tensor, _ in rows]),
            issue_of([VLLM] * count),
            ServingConstants(
                **{name: np.full(count, float(getattr(plain, name))) for name in plain.__dataclass_fields__}
            ),
            sequences=each,
            limit=limit,
            prompt=np.full(count, max(work.prompt, 1.0)),
            mean_tokens=np.full(count, work.lengths.mean),
            drain=Drain.of([work.lengths] * count, np.minimum(each, limit).tolist()),
        )
        return array(np.broadcast_to(table.total, (count,)))


# -------- Placements of the roles of a PPO stage: who shares accelerators with whom, seconds of a step, room of a node.

# -------- Placements of the roles of a PPO stage: who shares accelerators with whom, and what a step then takes.
#
# A placement is a generator and one or more groups of trainers and scorers. In `colocated` and `offloaded` all are the
# same accelerators and phases follow each other; in `split` they have accelerators of their own and still take turns;
# in `async` generation runs beside training, one step ahead. Groups other than the generator work side by side, so
# scoring and updating each take as long as their slowest group.

REWARD = "reward"
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


def arrangements_of(work: RlWork, engine: RlEngine) -> tuple[Arrangement, ...]:
    """Arrangements that an engine can execute and the file asks for.

    A generator that works ahead of training gives answers of an older policy: what is learned from is the file's to
    say (`asynchrony`), never the search's. None where the stage has a role that the engine does not compute.
    """
    if not set(work.names) <= set(engine.roles_of(ahead=work.ahead)):
        return ()
    return tuple(name for name in engine.arrangements if (name == "async") == work.ahead)


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
    score, update = float(constants.scoring) * factor, float(constants.update_factor) * factor
    trainers = tuple(min(1.0, (g.score * score + g.update * update) / step_seconds) for g in item.trainers)
    if item.together:
        return (1.0, *trainers[1:]), 1.0
    rollout = item.generator.seconds * float(constants.generation_factor) * factor
    return trainers, min(1.0, rollout / step_seconds)

"""Memory and time of the groups of a PPO stage on one accelerator, for every group size and layout at once."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil, inf

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.engines.common.rl_engine import RlEngine
from charter.physics.columns import Array, array
from charter.physics.constants import ServingConstants
from charter.physics.devices import DeviceColumns
from charter.physics.generation import USUAL_SPREAD, Drain, ResponseLengths, issue_of, rollout_terms
from charter.physics.placement_memory import PpoJob, PpoRole, PpoTable, generation_bytes, ppo_table
from charter.physics.runs import RlConstants
from charter.physics.serving_devices import VLLM, ServingDevice, weight_format
from charter.physics.serving_passes import ServedModel
from charter.physics.shapes import adapter_parameters, count_parameters
from charter.physics.stacks import PROFILES
from charter.physics.step_time import UpdateJob, update_seconds
from charter.plan.offers import NODES_OF_A_REPLICA
from charter.plan.phase import Phase, Workload
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.stage import StageResources

# -------- A PPO (or GRPO) workload per rollout: what placements are weighed with.


@dataclass(frozen=True, kw_only=True)
class RlWork:
    """One rollout and what follows it."""

    roles: tuple[PpoRole, ...]
    rollouts: float
    samples: int
    """Answers of a rollout."""
    prompt: float
    """Mean tokens of a prompt: these engines pad nothing."""
    lengths: ResponseLengths
    longest: int
    """Tokens of the longest sequence, for memory."""
    minibatch: int
    """Sequences of an optimizer step."""
    updates: Mapping[str, float]
    """Optimizer steps per rollout, of every trained role."""
    passes: Mapping[str, float]
    """Forward passes per rollout over as many sequences as an optimizer step has, of every role."""
    logit_share: float

    @property
    def mean_len(self) -> float:
        """Mean tokens of prompt and answer; engines pack sequences, so padding costs nothing."""
        return self.prompt + self.lengths.mean

    @property
    def policy(self) -> PpoRole:
        """The role that generates."""
        return next(role for role in self.roles if role.trained)

    @property
    def names(self) -> tuple[str, ...]:
        """All roles."""
        return tuple(role.name for role in self.roles)

    @property
    def weight_bytes(self) -> float:
        """16-bit weights of the policy, that the generator takes after every update."""
        return 2.0 * count_parameters(self.policy.architecture).total

    def trained_parameters(self, names: Collection[str]) -> float:
        """Parameters with an optimizer, of the roles of a group."""
        return float(
            sum(
                adapter_parameters(role.architecture, role.adapter)
                if role.adapter
                else count_parameters(role.architecture).total
                for role in self.roles
                if role.trained and role.name in names
            )
        )


def rl_work(work: Workload) -> RlWork:
    """The workload of a stage with one generating phase."""
    rollout = next(phase for phase in work.phases if phase.work == "generate")
    training = [phase for phase in work.phases if phase.work == "train"]
    first = training[0]
    updates: dict[str, float] = {}
    passes: dict[str, float] = {}
    for phase in work.phases:
        if phase.work == "train":
            updates[phase.role] = updates.get(phase.role, 0.0) + phase.steps / rollout.steps
        elif phase.work == "score":
            each = phase.sequences / rollout.steps / first.batch
            passes[phase.role] = passes.get(phase.role, 0.0) + each
    return RlWork(
        roles=tuple(
            PpoRole(
                name=role.name,
                architecture=role.architecture,
                trained=role.trained,
                scalar_head=role.scalar_head,
                adapter=role.adapter,
            )
            for role in work.roles
        ),
        rollouts=rollout.steps,
        samples=rollout.batch,
        prompt=rollout.unpadded_tokens or rollout.prompt_tokens,
        lengths=answer_lengths(rollout),
        longest=round(max(phase.longest_tokens for phase in training)),
        minibatch=first.batch,
        updates=updates,
        passes=passes,
        logit_share=first.logit_share,
    )


def answer_lengths(phase: Phase) -> ResponseLengths:
    """Lengths of a generating phase: spread around the mean where the stage says one, else all at their limit."""
    limit = phase.longest_tokens - phase.prompt_tokens
    if not phase.mean_new_tokens or phase.mean_new_tokens >= limit:
        return ResponseLengths.fixed(phase.new_tokens)
    return ResponseLengths(mean=phase.mean_new_tokens, limit=limit, spread=USUAL_SPREAD)


# -------- Layouts that trainers and generators of a PPO stage are tried with, in a fixed order.

MOST_MICRO_BATCH = 16
"""Sequences per device and micro-batch beyond which products gain nothing; judgement."""
TOGETHER = (16, 32, 64, 128, 256, 512, 1024)
"""Limits of sequences that one replica of the generator decodes together (vLLM's `max_num_seqs`)."""

TENSORS = (1, 2, 4, 8, 16)
"""Tensor-parallel degrees, inside a node; those of a generator reach over two where a node cannot hold its weights."""


def trainer_layouts(
    work: RlWork, engine: RlEngine, sizes: Sequence[int], per_node: int, fixed: StageResources | None
) -> Iterator[Layout]:
    """Sharded data parallelism, with tensor parallelism inside a node where the engine has it; simplest first."""
    space = engine.does
    tensors = [degree for degree in TENSORS if degree <= per_node] if space.tensor else [1]
    heads = [role.architecture.num_heads for role in work.roles]
    modes = (Recompute.NONE, Recompute.FULL)
    for size, tensor, mode, offload in product(sizes, tensors, modes, (False, True)):
        data = size // tensor
        if size % tensor or data > work.minibatch or any(count % tensor for count in heads):
            continue
        if space.exact_batch and work.minibatch % data:
            continue
        share = ceil(work.minibatch / data)
        micros = [2**power for power in range(share.bit_length()) if 2**power <= min(share, MOST_MICRO_BATCH)]
        micros = [micro for micro in micros if not space.exact_batch or share % micro == 0]
        stages = space.zero if data > 1 else (ZeroStage.NONE,)
        stages = tuple(zero for zero in stages if not offload or data == 1 or zero in engine.optimizer_offload)
        if offload and not engine.optimizer_offload:
            continue
        for zero, micro in product(stages, reversed(micros)):
            layout = Layout(
                data=data,
                tensor=tensor,
                zero=zero,
                micro_batch=micro,
                accumulation=ceil(share / micro),
                recompute=mode,
                offload_optimizer=offload,
                sequence_parallel=tensor > 1 and space.sequence_parallel,
            )
            if fixed is None or _as_asked(layout, fixed):
                yield layout


def _as_asked(layout: Layout, fixed: StageResources) -> bool:
    """Return True if a layout is as the stage prescribes; a micro-batch counts as an upper bound."""
    return (
        (fixed.tensor is None or layout.tensor == fixed.tensor)
        and (fixed.zero is None or layout.data == 1 or int(layout.zero) == fixed.zero)
        and (fixed.recompute is None or layout.recompute == Recompute(fixed.recompute))
        and (fixed.micro_batch is None or layout.micro_batch <= fixed.micro_batch)
        and (fixed.pipeline is None or layout.pipeline == fixed.pipeline)
    )


def generator_replicas(work: RlWork, sizes: Sequence[int], widest: int) -> Iterator[tuple[int, int, int]]:
    """Replicas, tensor degree and limit of sequences; limits that a replica cannot fill are left out."""
    heads = work.policy.architecture.num_heads
    for size, tensor in product(sizes, [degree for degree in TENSORS if degree <= widest]):
        if size % tensor or heads % tensor:
            continue
        share = max(1, ceil(work.samples / (size // tensor)))
        for limit in [*(limit for limit in TOGETHER if limit < share), min(share, TOGETHER[-1])]:
            yield size // tensor, tensor, limit


# -------- Memory and time of the groups of a PPO stage on one accelerator, for every group size and layout at once.
#
# A step is a sum over groups, so groups are computed once and placements only combine them: trainers (all roles but the
# generator, under every layout of every size) and generators (every size, tensor degree and number of sequences decoded
# together).


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
        self.job = PpoJob(
            roles=work.roles,
            layout=Layout(),
            seq_len=work.longest,
            rollout_sequences=1.0,
            precision=engine.does.precision,
            profile=engine.does.memory,
            accelerator=accelerator,
            logit_share=work.logit_share,
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
        return array(update * self.constants.update_factor + score * self.constants.score_factor)

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
        rows = np.flatnonzero(self._size == size)
        generators = [row for row in self._generators if row.replicas * row.tensor == size]
        if not len(rows) or not generators:
            return None
        generator_bytes = array([row.peak_bytes for row in generators])
        resident = 0.0 if offloaded else self.memory.resident(names)[rows, None]
        generating = self.memory.fixed[rows, None] + resident + generator_bytes[None, :]
        fits = (generating <= capacity) & (self.memory.peak(names, offloaded=offloaded)[rows, None] <= capacity)
        if not fits.any():
            return None
        factor = self.constants.generation_factor
        seconds = self.weighed(names)[rows, None] + factor * array([row.seconds for row in generators])[None, :]
        first, second = np.unravel_index(int(np.argmin(np.where(fits, seconds, inf))), fits.shape)
        return self.at(int(rows[first]), names, offloaded=offloaded), generators[int(second)]

    def generator(self, size: int, capacity: float) -> GeneratorChoice | None:
        """The fastest replicas on `size` accelerators of their own."""
        room = capacity - (float(self.memory.fixed[0]) if self.layouts else 0.0)
        fitting = [row for row in self._generators if row.replicas * row.tensor == size and row.peak_bytes <= room]
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
            tensor: ServingDevice.of(self.accelerator, weights=weight_format("bf16"), tensor=tensor)
            for tensor in {row[1] for row in rows}
        }
        plain = ServingConstants()
        each = array([max(1.0, ceil(work.samples / replicas)) for replicas, _, _ in rows])
        limit = array([together for _, _, together in rows])
        model = ServedModel.of(work.policy.architecture)
        table = rollout_terms(
            ServedModel.stacked([model] * count),
            ServingDevice.stacked([devices[tensor] for _, tensor, _ in rows]),
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

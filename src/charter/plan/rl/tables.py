"""Memory and time of the groups of a PPO stage on one accelerator, for every group size and layout at once.

A step is a sum over groups, so groups are computed once and placements only combine them: trainers (all roles but the
generator, under every layout of every size) and generators (every size, tensor degree and number of sequences decoded
together).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf

import numpy as np

from charter.calibration.update import UpdateJob, update_seconds
from charter.catalog.accelerators import Accelerator
from charter.engines.common.capabilities import RlEngine
from charter.physics.arrays import Array, array
from charter.physics.memory.ppo import PpoJob
from charter.physics.memory.ppo_table import PpoTable, generation_bytes, ppo_table
from charter.physics.runs.rl_step import RlConstants
from charter.physics.serving.constants import ServingConstants
from charter.physics.serving.decode import issue_of, rollout_terms
from charter.physics.serving.device import ServingDevice
from charter.physics.serving.engines import VLLM
from charter.physics.serving.model import ServedModel
from charter.physics.serving.response_lengths import Drain
from charter.physics.serving.weight_format import weight_format
from charter.physics.training.device_columns import DeviceColumns
from charter.physics.training.stack_profiles import PROFILES
from charter.plan.hardware.place import NODES_OF_A_REPLICA
from charter.plan.rl.space import generator_replicas, trainer_layouts
from charter.plan.rl.work import RlWork
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.stage import StageResources


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

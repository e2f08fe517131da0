"""Memory of the roles of a PPO step for many layouts at once: the columns beside `ppo.group_phases`.

Every role is computed once; what a group of devices holds is then a sum over the roles placed on it, so that all
placements share one table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.physics.arrays import Array, array
from charter.physics.layouts import Layouts
from charter.physics.memory.inference import InferenceJob, InferenceShape, inference_memory_table, job_inference_memory
from charter.physics.memory.job import AdapterUse, MemoryJob
from charter.physics.memory.ppo import FIXED, FULL_STATE, STATE, PpoJob, PpoRole
from charter.physics.memory.shape import MemoryShape
from charter.physics.memory.states import rank_parameters
from charter.physics.memory.table import training_memory_table
from charter.physics.terms import TermTable
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout


@dataclass(frozen=True, kw_only=True)
class RoleColumns:
    """One role under every layout."""

    resident: Array
    """Weights, and for a trained role gradients and optimizer state: what stays between phases."""
    transient: Array
    """What its own phase adds at the fullest moment."""


@dataclass(frozen=True, kw_only=True)
class PpoTable:
    """All roles under every layout, in bytes per device."""

    roles: Mapping[str, RoleColumns]
    fixed: Array
    """Device context, communicators and process."""

    def resident(self, names: Collection[str]) -> Array:
        """Bytes that stay of the roles of a group."""
        return array(sum((self.roles[name].resident for name in names), start=np.float64(0.0)))

    def peak(self, names: Collection[str], *, offloaded: bool = False) -> Array:
        """Bytes of a group outside of generation; offloaded, only the role at work is there."""
        roles = [self.roles[name] for name in names]
        if offloaded:
            return array(self.fixed + np.maximum.reduce([role.resident + role.transient for role in roles]))
        return array(self.fixed + self.resident(names) + np.maximum.reduce([role.transient for role in roles]))


def ppo_table(job: PpoJob, layouts: Sequence[Layout]) -> PpoTable:
    """The roles of a job under layouts without pipelines; `job.layout` is not read.

    >>> from charter.catalog import models
    >>> small = models.get("Qwen/Qwen3-0.6B").architecture
    >>> policy = PpoRole(name="policy", architecture=small, trained=True)
    >>> roles = (policy, PpoRole(name="reference", architecture=small))
    >>> job = PpoJob(roles=roles, layout=Layout(), seq_len=1024, rollout_sequences=16)
    >>> table = ppo_table(job, [Layout(data=1), Layout(data=8, zero=3)])
    >>> bool(table.peak(["policy", "reference"])[1] < table.peak(["policy", "reference"])[0])
    True
    """
    columns = Layouts.of(layouts)
    fixed = array(0.0)
    roles: dict[str, RoleColumns] = {}
    for role in job.roles:
        if role.trained:
            roles[role.name], fixed = _trained(job, role, columns, len(layouts))
        else:
            roles[role.name] = _frozen(job, role, layouts)
    return PpoTable(roles=roles, fixed=fixed)


def generation_bytes(
    architecture: Architecture,
    *,
    seq_len: float,
    tensors: Sequence[int],
    limits: Sequence[int],
    accelerator: Accelerator | None = None,
) -> Array:
    """Bytes of the generator's weights and cache, without what every process takes: a row per degree, a column per
    number of sequences decoded together on one replica.

    >>> from charter.catalog import models
    >>> small = models.get("Qwen/Qwen3-0.6B").architecture
    >>> generation_bytes(small, seq_len=1024, tensors=(1, 2), limits=(1, 64, 256)).shape
    (2, 3)
    """
    shapes = [
        InferenceShape.of(
            InferenceJob(
                architecture=architecture,
                batch=float(limit),
                tokens_per_sequence=seq_len,
                prompt_tokens=seq_len,
                tensor=tensor,
                accelerator=accelerator,
            )
        )
        for tensor in tensors
        for limit in limits
    ]
    decode = inference_memory_table(InferenceShape.stacked(shapes)).phases["decode"]
    sizes = [column.values for column in decode.columns if column.name not in FIXED]
    return array(sum(sizes, start=np.float64(0.0))).reshape(len(tensors), len(limits))


def _trained(job: PpoJob, role: PpoRole, layouts: Layouts, count: int) -> tuple[RoleColumns, Array]:
    shape = MemoryShape.of(
        MemoryJob(
            architecture=role.architecture,
            seq_len=job.seq_len,
            precision=job.precision,
            profile=job.profile,
            adapter=AdapterUse.of(role.adapter) if role.adapter else None,
            head=role.head,
            logit_share=job.logit_share,
            accelerator=job.accelerator,
        )
    )
    phases = training_memory_table(shape, layouts).stages["first"].phases
    states = _sum(phases[FULL_STATE], count, part=True)
    moves = np.maximum.reduce([_sum(table, count) for table in phases.values()])
    fixed = _sum(phases[FULL_STATE], count, fixed=True)
    return RoleColumns(resident=states, transient=array(moves)), fixed


def _sum(table: TermTable, count: int, *, part: bool = False, fixed: bool = False) -> Array:
    """Of a phase the state, what every process takes, or (neither) the rest."""
    wanted = [
        column.values for column in table.columns if (column.part in STATE, column.name in FIXED) == (part, fixed)
    ]
    return array(np.broadcast_to(sum(wanted, start=np.zeros(count)), (count,)))


def _frozen(job: PpoJob, role: PpoRole, layouts: Sequence[Layout]) -> RoleColumns:
    """16-bit weights, and one forward pass of a micro-batch through one live layer."""
    ranks = {
        tensor: rank_parameters(role.architecture, Layout(tensor=tensor), scalar_head=role.scalar_head)
        for tensor in {layout.tensor for layout in layouts}
    }
    one = job_inference_memory(
        InferenceJob(
            architecture=role.architecture,
            batch=0.0,
            tokens_per_sequence=0.0,
            prefill_tokens=1.0,
            head=role.head,
            accelerator=job.accelerator,
        )
    )
    per_token = sum(term.value for term in one.phases["prefill"] if term.part == "activations")
    per_token += 6.0 * role.architecture.vocab_size if role.head == "lm" else 0.0
    tokens = array([layout.micro_batch * job.seq_len / layout.tensor for layout in layouts])
    sharded_parameters = array([ranks[layout.tensor].held(layout) for layout in layouts])
    return RoleColumns(resident=2.0 * sharded_parameters, transient=tokens * per_token)

"""Memory of a PPO step: what each role holds on each device in each phase, under three placements."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.physics.columns import Array, Layouts, array, stacked
from charter.physics.inference_memory import InferenceJob, InferenceShape, inference_memory_table, job_inference_memory
from charter.physics.memory import training_memory, training_memory_table
from charter.physics.memory_profiles import NATIVE, AdapterUse, Head, MemoryJob, MemoryProfile
from charter.physics.memory_shape import MemoryShape, frozen_parameters, rank_parameters
from charter.physics.precision import FSDP_MIXED, TrainingPrecision
from charter.physics.terms import MemoryBreakdown, Term, TermTable, bytes_term
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout

# -------- Memory of one PPO step: what each role holds on each device in each phase, under three placements.
#
# Colocated: every device holds every role all the time. Split: training, scoring and generation have devices of their
# own. Offloaded: every role lives on every device, but only the one at work is there; the rest waits in host memory
# (engines differ in what they move; this is the most that can be moved).

Placement = Literal["colocated", "split", "offloaded"]
STATE = ("parameters", "gradients", "optimizer")
FIXED = ("device context", "communicators", "process")
FULL_STATE = "optimizer step"


@dataclass(frozen=True, kw_only=True)
class PpoRole:
    """One model of a PPO step. A policy and a value model are trained; reference and reward only score."""

    name: str
    architecture: Architecture
    trained: bool = False
    scalar_head: bool = False
    adapter: Adapter | None = None

    @property
    def head(self) -> Head:
        """Return the kind of output that it computes per position."""
        return "scalar" if self.scalar_head else "lm"


@dataclass(frozen=True, kw_only=True)
class PpoJob:
    """A PPO step: roles, how they are trained and scored, and how the policy generates."""

    roles: tuple[PpoRole, ...]
    layout: Layout
    seq_len: int
    rollout_sequences: float
    """Sequences that one replica of the generator decodes at once."""
    placement: Placement = "colocated"
    generation_tensor: int = 1
    precision: TrainingPrecision = FSDP_MIXED
    profile: MemoryProfile = NATIVE
    accelerator: Accelerator | None = None

    @property
    def policy(self) -> PpoRole:
        """The role that generates: the first trained one."""
        return next(role for role in self.roles if role.trained)


def group_phases(
    job: PpoJob, names: Collection[str], *, generates: bool, offloaded: bool = False
) -> dict[str, tuple[tuple[str, Term], ...]]:
    """Terms by role of a group of devices that holds some of the roles (or none), phase by phase.

    A group that only generates holds the engine's copy of the policy and the cache, beside what every process takes.
    """
    needed = {job.policy.name, *names}
    trained = {role.name: _training(job, role) for role in job.roles if role.trained and role.name in needed}
    fixed = [("", term) for term in next(iter(trained.values())).terms if term.name in FIXED]
    resident: dict[str, Sequence[Term]] = {name: _state(trained[name]) for name in trained if name in names}
    resident |= {role.name: (_frozen(job, role),) for role in job.roles if not role.trained and role.name in names}
    at_work = {name: breakdown for name, breakdown in trained.items() if name in names}
    scoring = _scoring(replace(job, roles=tuple(role for role in job.roles if role.name in names)))
    phases = {**scoring, **_training_phases(at_work)}
    if generates:
        phases = {**_generating(job), **phases}
    if offloaded:
        return _offloaded(resident, fixed, phases)
    return _filled(_of(resident, resident), fixed, phases)


def _offloaded(
    resident: Mapping[str, Sequence[Term]],
    fixed: list[tuple[str, Term]],
    phases: Mapping[str, tuple[tuple[str, Term], ...]],
) -> dict[str, tuple[tuple[str, Term], ...]]:
    """Only the role at work is on the device; generation needs none of the training state."""
    groups = {}
    for phase, parts in phases.items():
        at_work = {} if phase == "generate" else {role: resident[role] for role in {role for role, _ in parts}}
        groups[phase] = (*_of(resident, at_work), *fixed, *parts)
    return groups


def _training(job: PpoJob, role: PpoRole) -> MemoryBreakdown:
    return training_memory(
        role.architecture,
        job.layout,
        seq_len=job.seq_len,
        precision=job.precision,
        adapter=role.adapter,
        head=role.head,
        profile=job.profile,
        accelerator=job.accelerator,
    )


def _state(breakdown: MemoryBreakdown) -> tuple[Term, ...]:
    return tuple(term for term in breakdown.phases[FULL_STATE] if term.part in STATE)


def _training_phases(trained: Mapping[str, MemoryBreakdown]) -> dict[str, tuple[tuple[str, Term], ...]]:
    """For each trained role, what comes and goes at its fullest phase."""
    fullest = {}
    for name, breakdown in trained.items():
        phases = [
            tuple((name, term) for term in terms if term.part not in STATE and term.name not in FIXED)
            for terms in breakdown.phases.values()
        ]
        fullest[f"train {name}"] = max(phases, key=lambda parts: sum(term.value for _, term in parts))
    return fullest


def _frozen(job: PpoJob, role: PpoRole) -> Term:
    """16-bit weights of a frozen role, sharded like the trained ones under ZeRO-3."""
    layout = job.layout
    rank = rank_parameters(role.architecture, layout, scalar_head=role.scalar_head)
    sharded_parameters = float(frozen_parameters(role.architecture, Layouts.of(layout), scalar_head=role.scalar_head))
    return bytes_term(
        name="frozen weights",
        part="parameters",
        value=2.0 * sharded_parameters,
        formula=f"2 B x {sharded_parameters:,.0f} of {rank.total:,.0f}",
        source="weights only, sharded like the trained ones under ZeRO-3",
    )


def _scoring(job: PpoJob) -> dict[str, tuple[tuple[str, Term], ...]]:
    """One forward pass of a micro-batch through each frozen role."""
    layout = job.layout
    phases = {}
    for role in job.roles:
        if role.trained:
            continue
        tokens = float(layout.micro_batch * job.seq_len)
        memory = job_inference_memory(
            InferenceJob(
                architecture=role.architecture,
                batch=0.0,
                tokens_per_sequence=0.0,
                prefill_tokens=tokens,
                tensor=layout.tensor,
                head=role.head,
                accelerator=job.accelerator,
            )
        )
        parts = [(role.name, term) for term in memory.phases["prefill"] if term.part == "activations"]
        if role.head == "lm":
            parts.append((role.name, _scored_logits(job, role, tokens)))
        phases[f"score with {role.name}"] = tuple(parts)
    return phases


def _scored_logits(job: PpoJob, role: PpoRole, tokens: float) -> Term:
    each, tensor = job.profile.scored_bytes, job.layout.tensor
    return bytes_term(
        name="logits",
        part="logits",
        value=each * tokens * role.architecture.vocab_size / tensor,
        formula=f"{each:g} B x {tokens:,.0f} positions x vocabulary / TP {tensor}",
        source="logits of every position, and their log-probabilities unless one kernel reads those of the tokens",
    )


def _generating(job: PpoJob) -> dict[str, tuple[tuple[str, Term], ...]]:
    """The generator's own copy of the policy's weights, and keys and values of what is decoded together."""
    memory = job_inference_memory(
        InferenceJob(
            architecture=job.policy.architecture,
            batch=job.rollout_sequences,
            tokens_per_sequence=float(job.seq_len),
            prompt_tokens=float(job.seq_len),
            tensor=job.generation_tensor,
            accelerator=job.accelerator,
        )
    )
    parts = tuple(("generator", term) for term in memory.phases["decode"] if term.name not in FIXED)
    return {"generate": parts}


def _of(resident: Mapping[str, Sequence[Term]], roles: Mapping[str, object]) -> list[tuple[str, Term]]:
    return [(name, term) for name in resident if name in roles for term in resident[name]]


def _filled(
    resident: list[tuple[str, Term]],
    fixed: list[tuple[str, Term]],
    phases: Mapping[str, tuple[tuple[str, Term], ...]],
) -> dict[str, tuple[tuple[str, Term], ...]]:
    return {phase: (*resident, *fixed, *parts) for phase, parts in phases.items()}


# -------- Memory of the roles of a PPO step for many layouts at once: the columns beside `ppo.group_phases`.
#
# Every role is computed once; what a group of devices holds is then a sum over the roles placed on it, so that all
# placements share one table.


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
            roles[role.name], fixed = _trained_columns(job, role, columns, len(layouts))
        else:
            roles[role.name] = _frozen_columns(job, role, layouts)
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
    decode = inference_memory_table(stacked(shapes)).phases["decode"]
    sizes = [column.values for column in decode.columns if column.name not in FIXED]
    return array(sum(sizes, start=np.float64(0.0))).reshape(len(tensors), len(limits))


def _trained_columns(job: PpoJob, role: PpoRole, layouts: Layouts, count: int) -> tuple[RoleColumns, Array]:
    shape = MemoryShape.of(
        MemoryJob(
            architecture=role.architecture,
            seq_len=job.seq_len,
            precision=job.precision,
            profile=job.profile,
            adapter=AdapterUse.of(role.adapter) if role.adapter else None,
            head=role.head,
            accelerator=job.accelerator,
        )
    )
    phases = training_memory_table(shape, layouts).stages["first"].phases
    states = _phase_sum(phases[FULL_STATE], count, part=True)
    moves = np.maximum.reduce([_phase_sum(table, count) for table in phases.values()])
    fixed = _phase_sum(phases[FULL_STATE], count, fixed=True)
    return RoleColumns(resident=states, transient=array(moves)), fixed


def _phase_sum(table: TermTable, count: int, *, part: bool = False, fixed: bool = False) -> Array:
    """Of a phase the state, what every process takes, or (neither) the rest."""
    wanted = [
        column.values for column in table.columns if (column.part in STATE, column.name in FIXED) == (part, fixed)
    ]
    return array(np.broadcast_to(sum(wanted, start=np.zeros(count)), (count,)))


def _frozen_columns(job: PpoJob, role: PpoRole, layouts: Sequence[Layout]) -> RoleColumns:
    """16-bit weights, and one forward pass of a micro-batch through one live layer."""
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
    per_token += job.profile.scored_bytes * role.architecture.vocab_size if role.head == "lm" else 0.0
    tokens = array([layout.micro_batch * job.seq_len / layout.tensor for layout in layouts])
    sharded_parameters = frozen_parameters(role.architecture, Layouts.of(layouts), scalar_head=role.scalar_head)
    return RoleColumns(resident=2.0 * sharded_parameters, transient=tokens * per_token)

"""Memory of one PPO step: what each role holds on each device in each phase, under three placements.

Colocated: every device holds every role all the time. Split: training, scoring and generation have devices of their
own. Offloaded: every role lives on every device, but only the one at work is there; the rest waits in host memory
(OpenRLHF, verl, DeepSpeed-Chat's hybrid engine differ in what they move; this is the most that can be moved).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from charter.catalog.accelerators import Accelerator
from charter.physics.memory.breakdown import MemoryBreakdown
from charter.physics.memory.inference import InferenceJob, job_inference_memory
from charter.physics.memory.peak import training_memory
from charter.physics.memory.profile import NATIVE, MemoryProfile
from charter.physics.memory.shape import Head
from charter.physics.memory.states import rank_parameters
from charter.physics.precision import FSDP_MIXED, TrainingPrecision
from charter.physics.terms import Term
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout

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
    scoring_layout: Layout | None = None
    """Layout of the frozen roles where it differs from the trained ones'."""
    precision: TrainingPrecision = FSDP_MIXED
    profile: MemoryProfile = NATIVE
    accelerator: Accelerator | None = None
    logit_share: float = 1.0
    """Share of the positions whose logits training computes: those of answers."""

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
        logit_share=job.logit_share,
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
    layout = job.scoring_layout or job.layout
    rank = rank_parameters(role.architecture, layout, scalar_head=role.scalar_head)
    sharded_parameters = rank.held(layout)
    return Term(
        name="frozen weights",
        part="parameters",
        value=2.0 * sharded_parameters,
        unit="bytes",
        formula=f"2 B x {sharded_parameters:,.0f} of {rank.total:,.0f}",
        source="weights only, sharded like the trained ones under ZeRO-3",
    )


def _scoring(job: PpoJob) -> dict[str, tuple[tuple[str, Term], ...]]:
    """One forward pass of a micro-batch through each frozen role."""
    layout = job.scoring_layout or job.layout
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
            parts.append((role.name, _scored_logits(role, layout, tokens)))
        phases[f"score with {role.name}"] = tuple(parts)
    return phases


def _scored_logits(role: PpoRole, layout: Layout, tokens: float) -> Term:
    size = 6.0 * tokens * role.architecture.vocab_size / layout.tensor
    return Term(
        name="logits",
        part="logits",
        value=size,
        unit="bytes",
        formula=f"6 B x {tokens:,.0f} positions x vocabulary / TP {layout.tensor}",
        source="16-bit logits and fp32 log-probabilities of every position",
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

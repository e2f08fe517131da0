"""Peak bytes per accelerator of a stage under a layout, as named terms.

A stage that trains keeps every role in memory (PPO, DPO) or has only one; its peak is the larger of training and
generating. A stage that only answers has all the models that it asks at hand, each in servers or a copy of its own; an
evaluation takes one after another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from charter.catalog.accelerators import Accelerator
from charter.engines import capabilities
from charter.engines.hardware import FP8_COPIES_BYTES
from charter.physics.memory.inference import PASS_TOKENS
from charter.physics.memory.peak import Head, MemoryBreakdown, inference_memory, job_memory
from charter.physics.memory.shape import AdapterUse, MemoryJob
from charter.physics.memory.states import rank_parameters
from charter.physics.precision import FP32, FSDP_MIXED, TrainingPrecision
from charter.physics.serving.engines import SERVER
from charter.physics.shapes.kv_cache import kv_cache_bytes
from charter.physics.shapes.parameters import count_parameters
from charter.physics.terms import Term
from charter.plan.physics.engine_knowledge import engine_knowledge
from charter.plan.physics.knowledge import Knowledge
from charter.plan.work.phase import Phase, Role, Workload
from charter.spec.layout import Layout
from charter.spec.stage import FP8, NATIVE
from charter.units import GIB

STATE_PARTS = ("parameters", "gradients", "optimizer")
FULL_STATE = "optimizer step"
"""The phase in which weights, gradients and optimizer state all exist; between roles they are counted as staying."""
CONTEXT_TERMS = ("device context", "process", "communicators")
CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The fullest moment of a stage on one accelerator: terms, each with the role it belongs to."""

    moment: str
    parts: tuple[tuple[str, Term], ...] = ()

    @property
    def total_bytes(self) -> float:
        """Sum of all terms."""
        return sum(term.value for _, term in self.parts)

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms, named by role where there is one."""
        return tuple(replace(term, name=f"{role}: {term.name}") if role else term for role, term in self.parts)

    def by_part(self) -> dict[str, float]:
        """Sum per part, in the order in which parts appear."""
        return MemoryBreakdown(terms=self.terms).by_part()


def training_precision(dtype: str, accelerator: Accelerator) -> TrainingPrecision:
    """Return how the native engine stores numbers: fp32 weights and Adam, computation in `dtype`."""
    return FP32 if dtype == "fp32" or accelerator.kind == CPU else FSDP_MIXED


def training_peak(
    work: Workload,
    layout: Layout,
    *,
    accelerator: Accelerator,
    dtype: str,
    knowledge: Knowledge,
    engine: str = NATIVE,
) -> Peak:
    """Peak of a stage that trains, with all its roles in memory."""
    breakdowns = {
        role.name: _trained(work, role, layout, accelerator, dtype, knowledge, engine) for role in work.trained
    }
    resident = _resident(work, breakdowns, layout, accelerator, engine)
    moments = [
        Peak(
            moment=f"training {role} ({phase})",
            parts=(*resident, *((role, term) for term in terms if _comes_and_goes(term))),
        )
        for role, breakdown in breakdowns.items()
        for phase, terms in breakdown.phases.items()
    ]
    room = _usable(engine, knowledge, accelerator) - sum(term.value for _, term in resident)
    moments += [
        Peak(moment=phase.name, parts=(*resident, *_generation_terms(work, phase, layout, room)))
        for phase in work.phases
        if phase.work == "generate" and not server_of(phase, engine)
    ]
    return max(moments, key=lambda peak: peak.total_bytes)


def decoded_together(
    work: Workload,
    phase: Phase,
    layout: Layout,
    *,
    accelerator: Accelerator,
    dtype: str,
    knowledge: Knowledge,
    engine: str = NATIVE,
) -> int:
    """Sequences of a rollout that one replica decodes at once: all of its share, or as many as memory holds."""
    if server := server_of(phase, engine):
        return server.together(work.role(phase.role), phase, layout.data, accelerator)
    breakdowns = {
        role.name: _trained(work, role, layout, accelerator, dtype, knowledge, engine) for role in work.trained
    }
    resident = _resident(work, breakdowns, layout, accelerator, engine)
    room = _usable(engine, knowledge, accelerator) - sum(term.value for _, term in resident)
    return _together(work.role(phase.role), phase, layout, room)


def _usable(engine: str, knowledge: Knowledge, accelerator: Accelerator) -> float:
    return engine_knowledge(engine, knowledge).usable_bytes(accelerator, knowledge)


def _resident(
    work: Workload, breakdowns: Mapping[str, MemoryBreakdown], layout: Layout, accelerator: Accelerator, engine: str
) -> list[tuple[str, Term]]:
    """State of the trained roles, weights of the frozen ones, the process, vLLM: there at every moment."""
    width = 4.0 if accelerator.kind == CPU else 2.0
    states = [
        (role, term)
        for role, breakdown in breakdowns.items()
        for term in breakdown.phases[FULL_STATE]
        if term.part in STATE_PARTS
    ]
    frozen = [(role.name, _frozen(role, layout, width)) for role in work.roles if not role.trained]
    context = [("", term) for term in next(iter(breakdowns.values())).terms if term.name in CONTEXT_TERMS]
    servers = [
        (phase.role, server.memory(work.role(phase.role), phase, accelerator))
        for phase in work.phases
        if (server := server_of(phase, engine))
    ]
    return [*states, *frozen, *context, *servers]


@dataclass(frozen=True, kw_only=True)
class ServerBeside:
    """vLLM on accelerators of a trainer, which keeps its share of their memory for the time of the stage."""

    memory_share: float
    everywhere: bool
    """Beside every data rank; else beside the first alone."""

    def replicas(self, data: int) -> int:
        """Servers that share a batch, of a trainer with so many data ranks."""
        return data if self.everywhere else 1

    def together(self, role: Role, phase: Phase, data: int, accelerator: Accelerator) -> int:
        """Sequences that one server decodes at once: its share, vLLM's own limit, or as many as its memory holds."""
        free = self.memory_share * accelerator.memory_bytes - _served_weights(role)
        share, most = ceil(phase.batch / self.replicas(data)), SERVER.most_sequences
        return max(1, min(share, most, int(free / kv_cache_bytes(role.architecture, phase.longest_tokens))))

    def memory(self, role: Role, phase: Phase, accelerator: Accelerator) -> Term:
        """Its share of the fullest accelerator; all of it where the policy's weights do not fit into the share."""
        share, weights = self.memory_share * accelerator.memory_bytes, _served_weights(role)
        fits = weights + kv_cache_bytes(role.architecture, phase.longest_tokens) <= share
        refusal = f"; {weights / GIB:.1f} GiB of weights and one answer do not fit into it"
        return Term(
            name="vLLM beside the trainer",
            part="kv_cache",
            value=share if fits else accelerator.memory_bytes,
            unit="bytes",
            formula=f"{self.memory_share:g} of {accelerator.memory_bytes / GIB:.1f} GiB{'' if fits else refusal}",
            source="gpu_memory_utilization: weights in 16 bits, keys and values, work space",
        )


def server_of(phase: Phase, engine: str) -> ServerBeside | None:
    """The server that generates a phase beside the trainer, where the stage asks for one and its engine has it."""
    does = capabilities(engine)
    if not (phase.served and does.vllm_share):
        return None
    return ServerBeside(memory_share=does.vllm_share, everywhere=does.vllm_everywhere)


def _served_weights(role: Role) -> float:
    return 2.0 * count_parameters(role.architecture).total


def answering_peak(
    work: Workload,
    *,
    tensor: int,
    batches: dict[str, float],
    accelerator: Accelerator,
    knowledge: Knowledge,
    weights: str = "bf16",
    together: bool = False,
) -> Peak:
    """Peak of a stage that only answers; `batches` are sequences per replica by phase.

    The fullest of its phases where its models are loaded one after another; the sum over the models, each in its
    fullest phase, where all are there `together`.
    """
    moments = [
        Peak(
            moment=phase.name,
            parts=_of_role(
                phase.role,
                inference_memory(
                    work.role(phase.role).architecture,
                    batch=batches[phase.name] if phase.work == "generate" else 0.0,
                    tokens_per_sequence=max(phase.longest_tokens, 1.0),
                    tensor=tensor,
                    weights=weights,
                    prefill_tokens=max(phase.longest_tokens, PASS_TOKENS),
                    head=_head(work.role(phase.role)),
                    accelerator=accelerator,
                    constants=knowledge.inference_memory,
                ),
            ),
        )
        for phase in work.phases
        if phase.role not in work.remote
    ]
    if not together:
        return max(moments, key=lambda peak: peak.total_bytes, default=NOTHING_LOADED)
    fullest: dict[str, Peak] = {}
    for moment in moments:
        model = work.role(moment.parts[0][0]).model
        fullest[model] = max(fullest.get(model, moment), moment, key=lambda peak: peak.total_bytes)
    if len(fullest) < 2:
        return next(iter(fullest.values()), NOTHING_LOADED)
    parts = tuple(part for peak in fullest.values() for part in peak.parts)
    return Peak(moment=" beside ".join(peak.moment for peak in fullest.values()), parts=parts)


NOTHING_LOADED = Peak(moment="nothing is loaded")


def _of_role(role: str, breakdown: MemoryBreakdown) -> tuple[tuple[str, Term], ...]:
    return tuple((role, term) for term in breakdown.terms)


def _head(role: Role) -> Head:
    return "scalar" if role.scalar_head else "lm"


def _trained(
    work: Workload,
    role: Role,
    layout: Layout,
    accelerator: Accelerator,
    dtype: str,
    knowledge: Knowledge,
    engine: str = NATIVE,
) -> MemoryBreakdown:
    constants = engine_knowledge(engine, knowledge)
    return job_memory(training_job(work, role, accelerator, dtype, engine), layout, constants.memory)


def training_job(work: Workload, role: Role, accelerator: Accelerator, dtype: str, engine: str = NATIVE) -> MemoryJob:
    """The training of one role as the memory model sees it."""
    does = capabilities(engine)
    phase = next(phase for phase in work.phases if phase.role == role.name and phase.work == "train")
    return MemoryJob(
        architecture=role.architecture,
        seq_len=max(1, round(phase.longest_tokens)),
        precision=does.precision if training_precision(dtype, accelerator) is not FP32 else FP32,
        profile=does.memory,
        adapter=AdapterUse.of(role.adapter) if role.adapter else None,
        head=_head(role),
        logit_share=phase.logit_share,
        fp8=dtype == FP8,
        fp8_copies=FP8_COPIES_BYTES if dtype == FP8 else 0.0,
        accelerator=accelerator,
    )


def _comes_and_goes(term: Term) -> bool:
    return term.part not in STATE_PARTS and term.name not in CONTEXT_TERMS


def _frozen(role: Role, layout: Layout, width_bytes: float) -> Term:
    rank = rank_parameters(role.architecture, layout, scalar_head=role.scalar_head)
    sharded_parameters = rank.held(layout)
    return Term(
        name="frozen weights",
        part="parameters",
        value=width_bytes * sharded_parameters,
        unit="bytes",
        formula=f"{width_bytes:g} B x {sharded_parameters:,.0f} of {rank.total:,.0f}",
        source="weights only, sharded like the trained ones under ZeRO-3",
    )


def _gathered_bytes(role: Role, layout: Layout) -> float:
    return 2.0 * rank_parameters(role.architecture, replace(layout, pipeline=1)).total


def _cache_bytes(role: Role, phase: Phase, layout: Layout) -> float:
    return kv_cache_bytes(role.architecture, phase.longest_tokens, tensor=layout.tensor)


def _together(role: Role, phase: Phase, layout: Layout, room_bytes: float) -> int:
    share = ceil(phase.batch / layout.data)
    free = room_bytes - _gathered_bytes(role, layout)
    return max(1, min(share, int(free / _cache_bytes(role, phase, layout))))


def _generation_terms(work: Workload, phase: Phase, layout: Layout, room_bytes: float) -> list[tuple[str, Term]]:
    """A bf16 copy of the policy, gathered for decoding, and the keys and values of what is decoded together."""
    role = work.role(phase.role)
    gathered, cache = _gathered_bytes(role, layout), _cache_bytes(role, phase, layout)
    sequences = _together(role, phase, layout, room_bytes)
    terms = [
        Term(
            name="weights gathered for generation",
            part="buffers",
            value=gathered,
            unit="bytes",
            formula=f"2 B x {gathered / 2:,.0f}",
            source="decoding reads every weight for every token, so shards are gathered once per rollout",
        ),
        Term(
            name="keys and values",
            part="kv_cache",
            value=cache * sequences,
            unit="bytes",
            formula=f"{sequences} sequences of {phase.longest_tokens:,.0f} tokens x {cache:,.0f} B",
            source="2 x layers x kv_heads x head_dim x bytes / TP",
        ),
    ]
    return [(role.name, term) for term in terms]

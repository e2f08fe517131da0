"""A stage on the processors of this machine: its seconds, and the one way to run it."""

from collections.abc import Iterable
from dataclasses import replace

from charter.catalog.accelerators import Accelerator
from charter.physics.constants import CPU_PROCESS_BYTES, CPU_PROCESS_FORMULA, CPU_PROCESS_SOURCE
from charter.physics.flops import forward_flops_per_token
from charter.physics.kept_activations import layer_activations
from charter.physics.shapes import adapter_parameters, count_parameters
from charter.physics.terms import Term, bytes_term
from charter.plan.machine import (
    ACTIVATION_PASSES,
    ANSWER_SECONDS,
    AUTOCAST_OPERATIONS,
    BACKWARD_OPERATIONS,
    BACKWARD_PASSES,
    CACHE_PASSES,
    CPU_SOURCE,
    DECODE_OPERATIONS,
    GRADIENT_BYTES_PER_SECOND,
    LOGIT_BYTES_SAMPLING,
    LOGIT_BYTES_TRAINING,
    MATMUL_SHARE,
    OPERATION_SECONDS,
    OPERATIONS_PER_LAYER,
    OPERATIONS_PER_MODEL,
    OPTIMIZER_BYTES_PER_PARAMETER,
)
from charter.plan.offers import NodeOffer
from charter.plan.option import Missed, Option, Rejected, StageQuestion, does_not_fit, make_option
from charter.plan.phase import Role, RolePhase, Workload, tools_term
from charter.plan.processor_memory import left_out_share, of_processes, training_peak
from charter.plan.servers import described_servers
from charter.plan.stage_memory import Peak, answering_peak
from charter.plan.stage_time import as_served
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.spec.stage_base import ServerPool, StageResources

# -------- Seconds of a phase on the processors of one machine, under the native engine.
#
# `seconds = operations x fixed cost + flops / reached rate + bytes moved / bandwidth`, added up because one process
# does them one after another. Good to about a factor of two between 0.1 and 100 million parameters; larger models
# approach the matrix-product rate and the estimate with them.

OPERATIONS = "operations"
ONE = Layout()
FP32_BYTES = 4.0


def cpu_phase_terms(
    role: Role, phase: RolePhase, *, processor: Accelerator, dtype: str, micro_batches: int = 1, again: bool = False
) -> tuple[Term, ...]:
    """The three terms of a phase, in seconds over all its steps; with `again` layers are computed twice."""
    if phase.work == "generate":
        return _generation(role, phase, processor, dtype)
    training = phase.work == "train"
    passes = 3.0 if training else 1.0
    width = phase.padded_tokens(phase.batch / micro_batches)
    tokens = phase.batch * width
    operations = _operations(role, dtype) * (1 + again + BACKWARD_OPERATIONS if training else 1) * micro_batches
    head_share = 0.0 if role.scalar_head else phase.logit_share
    flops = passes * tokens * (_forward_flops(role, width, head_share) - _left_out_flops(role, phase))
    moved = _activation_bytes(role, tokens) * (1 + again + BACKWARD_PASSES if training else 1)
    if training and again:
        flops += tokens * _forward_flops(role, width, 0.0)
    moved += head_share * tokens * role.architecture.vocab_size * LOGIT_BYTES_TRAINING * (passes / 3)
    if training:
        moved += OPTIMIZER_BYTES_PER_PARAMETER * count_parameters(role.architecture).total
    return _terms(phase, phase.steps, operations, flops, moved, processor, dtype)


def reward_text_term(phase: RolePhase) -> Term:
    """Seconds in which sampled answers become text, and again the tokens that a reward model reads."""
    seconds = phase.sequences * ANSWER_SECONDS
    return _term(phase, "text", seconds, f"{phase.sequences:,.0f} answers x {1e3 * ANSWER_SECONDS:g} ms")


def gradient_sum_term(role: Role, phase: RolePhase, processes: int) -> Term:
    """Seconds in which processes add up their gradients: `2 (n - 1) / n x 4 B x parameters / rate` at each step."""
    trained = adapter_parameters(role.architecture, role.adapter) if role.adapter else None
    moved = FP32_BYTES * (trained or count_parameters(role.architecture).total) * 2 * (processes - 1) / processes
    seconds = phase.steps * moved / GRADIENT_BYTES_PER_SECOND
    formula = f"{phase.steps:,.0f} steps x {moved:.3g} B / {GRADIENT_BYTES_PER_SECOND:.3g} B/s"
    return _term(phase, "gradients between processes", seconds, formula)


def _generation(role: Role, phase: RolePhase, processor: Accelerator, dtype: str) -> tuple[Term, ...]:
    """One prefill, then one step per new token, each over the whole batch."""
    a, batch = role.architecture, phase.batch
    prefill_tokens = batch * phase.prompt_tokens * (1.0 if a.state_space else phase.read_share)
    steps = phase.new_tokens
    length = phase.prompt_tokens + phase.new_tokens / 2
    flops = prefill_tokens * _forward_flops(role, phase.prompt_tokens, 0.0)
    flops += steps * batch * _forward_flops(role, 2 * length, 1.0)
    cache = 2 * a.num_layers * a.kv_heads * a.head_size * FP32_BYTES * length * batch
    weights = FP32_BYTES * count_parameters(a).total
    logits = batch * a.vocab_size * LOGIT_BYTES_SAMPLING
    moved = _activation_bytes(role, prefill_tokens + steps * batch) + steps * (weights + CACHE_PASSES * cache + logits)
    return _terms(
        phase, phase.steps, _operations(role, dtype) * (1 + DECODE_OPERATIONS * steps), flops, moved, processor, dtype
    )


def _operations(role: Role, dtype: str) -> float:
    casts = AUTOCAST_OPERATIONS if dtype == "bf16" else 1.0
    return casts * (OPERATIONS_PER_MODEL + OPERATIONS_PER_LAYER * role.architecture.num_layers)


def _forward_flops(role: Role, length: float, head_share: float) -> float:
    return forward_flops_per_token(role.architecture, max(length, 1.0), head_share=head_share).total


def _left_out_flops(role: Role, phase: RolePhase) -> float:
    """Per token: two for each weight of the last layer's feed-forward part, where nobody asks for its result."""
    a = role.architecture
    return left_out_share(role, phase) * 2.0 * (3 if a.gated_mlp else 2) * a.hidden_size * a.intermediate_size


def _activation_bytes(role: Role, tokens: float) -> float:
    layer = layer_activations(role.architecture, seq_len=1, bytes_per_value=FP32_BYTES)
    per_token = layer.bytes_per_token(ONE, fused_attention=True) * role.architecture.num_layers
    return ACTIVATION_PASSES * per_token * tokens


def _terms(
    phase: RolePhase,
    steps: float,
    operations: float,
    flops: float,
    moved: float,
    processor: Accelerator,
    dtype: str,
) -> tuple[Term, ...]:
    rate = MATMUL_SHARE * processor.peak_flops_per_second(dtype)
    bandwidth = processor.memory_bytes_per_second
    return (
        _term(
            phase,
            OPERATIONS,
            steps * operations * OPERATION_SECONDS,
            f"{steps:,.0f} steps x {operations:,.0f} operations x {OPERATION_SECONDS * 1e6:g} us",
        ),
        _term(
            phase,
            "arithmetic",
            steps * flops / rate,
            f"{steps:,.0f} steps x {flops:.3g} flops / {rate:.3g} per second",
        ),
        _term(
            phase,
            "memory traffic",
            steps * moved / bandwidth,
            f"{steps:,.0f} steps x {moved:.3g} B / {bandwidth:.3g} B/s",
        ),
    )


def _term(phase: RolePhase, name: str, seconds: float, formula: str) -> Term:
    return Term(
        name=f"{phase.name}: {name}", part=phase.name, value=seconds, unit="seconds", formula=formula, source=CPU_SOURCE
    )


# -------- The one way to run a stage on the processors of this machine: every process has one copy of everything.


def on_processors(question: StageQuestion, place: NodeOffer) -> tuple[tuple[Option, ...], Missed]:
    """Every process has one copy of everything, and its share of the batch."""
    work = _share(question.work, place.processes)
    if work.trained:
        layout, label, peak = _training_option(question, place)
    else:
        layout, label, peak = _answering_option(question, place)
    capacity, risk = question.knowledge.usable_bytes(place.accelerator), question.knowledge.memory_risk
    if peak.total_bytes > capacity:
        return (), Missed(
            rejected=(Rejected(option=place.label, reason=does_not_fit(peak, capacity, place.accelerator, risk)),),
            peaks=((peak, capacity, place.accelerator),),
        )
    terms = tuple(_seconds(question, work, place, layout))
    return (make_option(question, place, 1, layout, label, peak, terms),), Missed()


def _spread(fixed: StageResources | None, processes: int) -> Layout:
    """Return the degrees that the file gives to so many processes."""
    fixed = fixed or StageResources()
    tensor, context = fixed.tensor or 1, fixed.context or 1
    return Layout(
        data=max(1, processes // (tensor * context)),
        tensor=tensor,
        context=context,
        sequence_parallel=bool(fixed.sequence_parallel),
        zero=ZeroStage(fixed.zero or 0),
        replicas=fixed.replicas or 1,
    )


def _training_option(question: StageQuestion, place: NodeOffer) -> tuple[Layout, str, Peak]:
    fixed = question.fixed
    spread = _spread(fixed, place.processes)
    work = _share(question.work, spread.data)
    share = next(phase for phase in work.phases if phase.work == "train").batch
    micro = min(share, fixed.micro_batch) if fixed and fixed.micro_batch else share
    again = Recompute(fixed.recompute) if fixed and fixed.recompute else Recompute.NONE
    layout = replace(spread, micro_batch=micro, accumulation=-(-share // micro), recompute=again)
    peak = of_processes(training_peak(work, layout, question.dtype), place.processes)
    return layout, layout.label.removeprefix("dp1 "), peak


def _answering_option(question: StageQuestion, place: NodeOffer) -> tuple[Layout, str, Peak]:
    work = question.work
    servers = described_servers(question)
    loaded = tuple(phase for phase in work.phases if work.model_of(phase.role) not in servers)
    peaks = [_answering_peak(question, place, loaded)] if loaded else []
    for model, pool in servers.items():
        phases = tuple(_as_asked(phase, pool) for phase in work.phases if work.model_of(phase.role) == model)
        peaks.append(of_processes(_answering_peak(question, place, phases), pool.replicas))
    parts = tuple(part for peak in peaks for part in peak.parts)
    if not loaded:
        client = bytes_term("process", "overhead", CPU_PROCESS_BYTES, CPU_PROCESS_FORMULA, CPU_PROCESS_SOURCE)
        parts = (*parts, ("", client))
    peak = Peak(moment=" beside ".join(peak.moment for peak in peaks), parts=parts)
    label = ", ".join(f"{pool.replicas} servers of {model}" for model, pool in servers.items()) or "one process"
    return Layout(micro_batch=max(phase.batch for phase in work.phases)), label, peak


def _answering_peak(question: StageQuestion, place: NodeOffer, phases: tuple[RolePhase, ...]) -> Peak:
    return answering_peak(
        replace(question.work, phases=phases),
        tensor=1,
        batches={phase.name: float(phase.batch) for phase in phases},
        accelerator=place.accelerator,
        knowledge=question.knowledge,
        weights="fp32",
    )


def _as_asked(phase: RolePhase, pool: ServerPool) -> RolePhase:
    """Return a phase as servers compute it: so many questions at once, none of them padded."""
    batch = min(phase.batch, pool.most_at_once or phase.batch)
    return replace(as_served(phase), batch=batch, steps=phase.steps * phase.batch / batch)


def _of_servers(term: Term, pool: ServerPool) -> Term:
    """Return a term of work that servers share: each has its part of the cores, and waits for its operations alone."""
    if not term.name.endswith(OPERATIONS):
        return term
    return replace(term, value=term.value / pool.replicas, formula=f"{term.formula} / {pool.replicas} servers")


def _share(work: Workload, processes: int) -> Workload:
    """Return the work of one of several processes: its rows of every batch, answers in their parts."""
    if not work.trained:
        return work
    phases = (replace(phase, batch=-(-phase.batch // processes)) for phase in work.phases)
    return replace(work, phases=tuple(_in_parts(phase) for phase in phases))


def _in_parts(phase: RolePhase) -> RolePhase:
    """Return a phase whose answers are drawn so many at once as the file says."""
    at_once = phase.decode_batch or phase.batch
    return replace(phase, batch=min(at_once, phase.batch), steps=phase.steps * max(1, -(-phase.batch // at_once)))


def _seconds(question: StageQuestion, work: Workload, place: NodeOffer, layout: Layout) -> Iterable[Term]:
    servers = {} if work.trained else described_servers(question)
    for phase in work.phases:
        if phase.role in work.remote:
            continue
        role = work.role(phase.role)
        pool = servers.get(role.model)
        terms = cpu_phase_terms(
            role,
            phase if pool is None else _as_asked(phase, pool),
            processor=place.accelerator,
            dtype=question.dtype,
            micro_batches=_passes(work, phase, layout),
            again=layout.recompute is Recompute.FULL,
        )
        yield from terms if pool is None else (_of_servers(term, pool) for term in terms)
        if phase.call_seconds:
            yield tools_term(phase)
        if _is_reward(work, phase):
            yield reward_text_term(phase)
        if phase.work == "train" and place.processes > 1:
            yield gradient_sum_term(role, phase, place.processes)


def _passes(work: Workload, phase: RolePhase, layout: Layout) -> int:
    """In how many passes a batch is read: by micro-batches where one is trained on it, but for rewards, at once."""
    if not work.trained or phase.work == "generate" or _is_reward(work, phase):
        return 1
    return -(-phase.batch // layout.micro_batch)


def _is_reward(work: Workload, phase: RolePhase) -> bool:
    """Return True if a preference model scores what is being trained on."""
    role = work.role(phase.role)
    return bool(work.trained) and phase.work == "score" and role.scalar_head and not role.trained

"""A stage on the processors of this machine: bytes, seconds, and the one way to run it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from charter.catalog.accelerators import Accelerator
from charter.physics.constants import CPU_PROCESS_BYTES, CPU_PROCESS_FORMULA, CPU_PROCESS_SOURCE
from charter.physics.flops import forward_flops_per_token, kv_cache_bytes
from charter.physics.kept_activations import layer_activations
from charter.physics.memory_profiles import CPU_KEPT_LOGITS, CPU_LOSS_TILE, LEAST_TILE_ROWS
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
from charter.plan.stage_memory import Peak, answering_peak
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, Recompute

# -------- Bytes of one micro-batch of one model on processors: kept activations, the loss in chunks, the backward pass.
#
# Legend: N positions of the micro-batch, n of them with a loss, C of a chunk of the loss, H hidden size, I inner size,
# V vocabulary; 4 bytes per value.

FP32 = 4.0
BODY_STATES = 2.25
"""Hidden states that are kept beside the layers: embeddings, last norm in and out, rotary angles."""
FROZEN_NORM = 1.0
"""Hidden states that a norm with a frozen weight does not keep: the normalised one, which that gradient would need."""
MOST_ASKED = 0.75
"""Share of the positions above which the last layer computes all: `models/token_forward.py`."""
LOSS_STATES = 1.0
"""Positions with a loss, copied beside what is kept while the loss is made."""
BACKWARD_STATES = 3.85
"""Gradients of hidden states while the last layer's backward pass begins."""
COPIES_ONE, COPIES_MORE = 3.0, 4.0
"""Chunks in memory at once while a summed loss is made: logits, probabilities, a product; the next one's logits."""
SOURCE = "plan/processors.py: measured with every allocation noted, torch 2.13"


@dataclass(frozen=True, kw_only=True)
class BatchTerms:
    """Memory that a micro-batch holds at each moment."""

    kept: tuple[Term, ...]
    """When the forward pass is done."""
    forward: tuple[Term, ...]
    """While the loss is made."""
    backward: tuple[Term, ...]
    read: tuple[Term, ...]
    """What a frozen model of the same shape takes to read the same rows, beside `kept`."""


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """Bytes that several moments share."""

    hidden: float
    """4 N H"""
    counted: float
    """4 n H"""
    chunk: float
    """4 C V"""
    whole: float
    """4 n V"""
    head: float
    """4 V H"""
    one_chunk: bool

    @classmethod
    def of(cls, a: Architecture, tokens: float, counted: float, *, is_frozen: bool) -> "_Sizes":
        """Of N tokens, n of which have a loss; a frozen head has no gradient."""
        rows = min(counted, max(CPU_LOSS_TILE // a.vocab_size, LEAST_TILE_ROWS))
        return cls(
            hidden=FP32 * tokens * a.hidden_size,
            counted=FP32 * counted * a.hidden_size,
            chunk=FP32 * rows * a.vocab_size,
            whole=FP32 * counted * a.vocab_size,
            head=0.0 if is_frozen else FP32 * a.vocab_size * a.hidden_size,
            one_chunk=rows >= counted,
        )

    @property
    def copies(self) -> float:
        """Bytes of the chunks that are there at once while a loss is made."""
        return self.chunk * (COPIES_ONE if self.one_chunk else COPIES_MORE)


def batch_terms(role: Role, phase: RolePhase, layout: Layout, *, summed: bool) -> BatchTerms:
    """The micro-batch of a layout; `summed`: only the sum of the losses is wanted, not each log-probability."""
    tokens = layout.micro_batch * max(1.0, phase.longest_tokens)
    sizes = _Sizes.of(role.architecture, tokens, tokens * phase.logit_share, is_frozen=role.adapter is not None)
    states = BODY_STATES - (FROZEN_NORM if role.adapter else 0.0)
    beside = _hidden("hidden states beside the layers", states * sizes.hidden)
    body = (_layers(role, phase, tokens, layout), beside)
    inner = FP32 * role.architecture.hidden_size * role.architecture.intermediate_size
    flow = (*_live(role, tokens, layout), _hidden("gradients of one layer", BACKWARD_STATES * sizes.hidden + inner))
    last = _last_of_recomputed(role, layout, sizes, flow)
    if role.scalar_head:
        saved = (*body, _hidden("input of the head", sizes.counted))
        terms = BatchTerms(kept=saved, forward=saved, backward=(*saved, *flow), read=())
    else:
        terms = _summed(sizes, body, flow) if summed else _each(sizes, body, flow, role.architecture, tokens)
    return replace(terms, backward=max(terms.backward, last, key=total))


def _last_of_recomputed(role: Role, layout: Layout, sizes: "_Sizes", flow: tuple[Term, ...]) -> tuple[Term, ...]:
    """The first layer, computed again when the others' inputs are gone and their gradients are all there."""
    if layout.recompute is not Recompute.FULL or role.adapter:
        return ()
    a = role.architecture
    table = a.vocab_size * a.hidden_size
    tables = table * (1 if a.tied_embeddings or role.scalar_head else 2)
    layers = count_parameters(a).total - table * (1 if a.tied_embeddings else 2)
    gradients = FP32 * (layers * (1 - 1 / a.num_layers) + tables - (0 if a.tied_embeddings else table))
    return (
        bytes_term("gradients of the layers above", "gradients", gradients, f"{FP32:g} B x their parameters", SOURCE),
        _hidden("input of the first layer", 2 * sizes.hidden),
        *flow,
    )


def _summed(sizes: _Sizes, body: tuple[Term, ...], flow: tuple[Term, ...]) -> BatchTerms:
    """Gradients by hidden states and head are made with the loss and scaled in the backward pass: both twice there."""
    saved = (*body, _head("gradient of the head", sizes), _hidden("gradients of hidden states", sizes.counted))
    scaled = (_head("gradient of the head, scaled", sizes), _hidden("the same, scaled", sizes.counted))
    making = (logit_term("chunks of the loss", sizes.copies), _hidden("positions with a loss", 2 * sizes.counted))
    late = (*body, _head("gradient of the head", sizes), *flow)
    return BatchTerms(kept=saved, forward=(*saved, *making), backward=max((*saved, *scaled), late, key=total), read=())


def _each(sizes: _Sizes, body: tuple[Term, ...], flow: tuple[Term, ...], a: Architecture, tokens: float) -> BatchTerms:
    """Probabilities of all positions are kept up to a size, and above it computed again chunk by chunk."""
    fits = sizes.whole <= FP32 * CPU_KEPT_LOGITS
    probabilities = logit_term("probabilities", sizes.whole if fits else 0.0)
    saved = (*body, _hidden("positions with a loss", sizes.counted), probabilities)
    work = logit_term("chunks of the loss", sizes.chunk * (1 if sizes.one_chunk else 2))
    copied = _hidden("hidden states of the loss", LOSS_STATES * sizes.hidden)
    early = (*saved, _head("gradient of the head", sizes), _hidden("gradients of hidden states", sizes.counted), work)
    late = (*body, _head("gradient of the head", sizes), *flow)
    layer = (_hidden("one layer of the reference", FP32 * tokens * (5 * a.hidden_size + 3 * a.intermediate_size)),)
    reference = (
        _hidden("hidden states of the reference", sizes.hidden),
        logit_term("its logits", COPIES_ONE * sizes.chunk),
    )
    return BatchTerms(
        kept=saved,
        forward=(*saved, copied, logit_term("log-probabilities of a chunk, and a product", 2 * sizes.chunk)),
        backward=max(early, late, key=total),
        read=max(layer, reference, key=total),
    )


def total(terms: tuple[Term, ...]) -> float:
    """Bytes of some terms."""
    return sum(term.value for term in terms)


def _layer_bytes(role: Role) -> float:
    """Kept per token by one layer, by the list of `physics/kept_activations.py`."""
    layer = layer_activations(role.architecture, seq_len=1, bytes_per_value=FP32, implementation="huggingface")
    return layer.bytes_per_token(Layout(), fused_attention=True)


def left_out_share(role: Role, phase: RolePhase) -> float:
    """Share of the positions at which the last layer's feed-forward part is left out, since nobody asks for them.

    Source: `models/token_forward.py`; above 3/4 asked, and with experts, all are computed.
    """
    is_all = phase.logit_share > MOST_ASKED or role.architecture.mixture is not None
    return 0.0 if is_all else 1.0 - phase.logit_share


def _layers(role: Role, phase: RolePhase, tokens: float, layout: Layout) -> Term:
    again = layout.recompute is Recompute.FULL
    per_token = FP32 * role.architecture.hidden_size if again else _layer_bytes(role)
    a, layers = role.architecture, float(role.architecture.num_layers)
    if not again:
        arrays = 4 if a.gated_mlp else 2
        if role.adapter:
            per_token -= 2 * FROZEN_NORM * FP32 * a.hidden_size
        layers -= left_out_share(role, phase) * arrays * FP32 * a.intermediate_size / per_token
    return bytes_term(
        "layer inputs" if again else "kept activations",
        "activations",
        per_token * tokens * layers,
        f"{per_token:,.0f} B per token and layer x {tokens:,.0f} tokens x {layers:.3g} layers",
        "physics/kept_activations.py",
    )


def _live(role: Role, tokens: float, layout: Layout) -> tuple[Term, ...]:
    """The layer that is computed again."""
    if layout.recompute is not Recompute.FULL:
        return ()
    value = _layer_bytes(role) * tokens
    return (bytes_term("one live layer", "activations", value, f"{tokens:,.0f} tokens", "physics/kept_activations.py"),)


def _head(name: str, sizes: _Sizes) -> Term:
    return bytes_term(name, "gradients", sizes.head, f"{FP32:g} B x vocabulary x hidden size", SOURCE)


def _hidden(name: str, value: float) -> Term:
    return bytes_term(name, "activations", value, f"{FP32:g} B x positions x hidden size", SOURCE)


def logit_term(name: str, value: float) -> Term:
    """Something of the size of logits."""
    return bytes_term(name, "logits", value, f"{FP32:g} B x positions x vocabulary", SOURCE)


# -------- Peak bytes of a stage that trains on the processors of one machine, under the native engine.
#
# Everything is exact but for a few hidden states beside the layers: the engine frees gradients after every update,
# makes the loss in chunks of positions from hidden states (`models/token_forward.py`), and trains the models of a stage
# one after another. Several processes hold everything once each, and their gradients all the time: those are the
# buckets that are summed. Counts of hidden states were measured with every allocation noted, models of 0.1 to 16
# million parameters (benchmarks/planner_vs_engine.py), and hold within 0.3 of one.

MOMENTS = 8.0


def training_peak(work: Workload, layout: Layout) -> Peak:
    """The fullest moment of a stage, fp32 throughout; roles are trained in their order, and all step at the end."""
    states = [(role.name, term) for role in work.roles for term in _state(role, work)]
    gradients = tuple((role.name, _gradients(role)) for role in work.trained)
    always = [
        *states,
        ("", bytes_term("process", "overhead", CPU_PROCESS_BYTES, CPU_PROCESS_FORMULA, CPU_PROCESS_SOURCE)),
        *(gradients if layout.data > 1 else ()),
    ]
    moments = [
        Peak(moment=name, parts=(*always, *parts))
        for index, role in enumerate(work.trained)
        for name, parts in _training(work, role, index, layout)
    ]
    moments.append(Peak(moment="optimizer step", parts=(*always, *(() if layout.data > 1 else gradients))))
    moments += [
        Peak(moment=phase.name, parts=(*always, *_generating(work.role(phase.role), phase)))
        for phase in work.phases
        if phase.work == "generate"
    ]
    return max(moments, key=lambda peak: peak.total_bytes)


def of_processes(peak: Peak, count: int) -> Peak:
    """The peak of a machine on which so many processes do the same."""
    if count == 1:
        return peak
    parts = tuple(
        (role, replace(term, value=count * term.value, formula=f"{count} processes x ({term.formula})"))
        for role, term in peak.parts
    )
    return replace(peak, parts=parts)


def _training(work: Workload, role: Role, index: int, layout: Layout) -> list[tuple[str, tuple[tuple[str, Term], ...]]]:
    """Forward and backward pass of one role, beside the gradients that wait: of those before, or of all that add up."""
    phase = next(item for item in work.phases if item.role == role.name and item.work == "train")
    waiting = work.trained if layout.accumulation > 1 else work.trained[:index]
    waits = () if layout.data > 1 else tuple((other.name, _gradients(other)) for other in waiting)
    batch = batch_terms(role, phase, layout, summed=len(work.roles) == 1)
    compared = tuple(
        (other.name, term) for other in work.roles if _reads_beside(work, role, other) for term in batch.read
    )
    return [
        (f"training {role.name} (loss)", (*waits, *((role.name, term) for term in batch.forward))),
        (f"training {role.name} (reference)", (*waits, *((role.name, term) for term in batch.kept), *compared)),
        (f"training {role.name} (backward)", (*waits, *((role.name, term) for term in batch.backward))),
    ]


def _reads_beside(work: Workload, role: Role, other: Role) -> bool:
    """Return True if a frozen model reads the batch while the trained one's activations wait: the reference of DPO."""
    generates = any(phase.work == "generate" for phase in work.phases)
    return not generates and not other.trained and role.trained


def _state(role: Role, work: Workload) -> list[Term]:
    """Weights of every role; moments of what is trained."""
    weights = FP32 * _held(role, work)
    terms = [bytes_term("weights", "parameters", weights, f"{FP32:g} B x {weights / FP32:,.0f}", SOURCE)]
    if role.trained:
        trained = _trained(role)
        terms.append(bytes_term("optimizer", "optimizer", MOMENTS * trained, f"{MOMENTS:g} B x {trained:,.0f}", SOURCE))
    return terms


def _gradients(role: Role) -> Term:
    trained = _trained(role)
    return bytes_term("gradients", "gradients", FP32 * trained, f"{FP32:g} B x {trained:,.0f}", SOURCE)


def _body(role: Role) -> float:
    """Parameters that are in use: with a scalar head none of an output projection of its own."""
    a = role.architecture
    count = float(count_parameters(a).total)
    if not role.scalar_head:
        return count
    head = 0 if a.tied_embeddings else a.vocab_size * a.hidden_size
    return count - head + a.hidden_size + 1


def _held(role: Role, work: Workload) -> float:
    """Parameters in memory: those of an output projection stay with a model that is published or only scores.

    The value model of PPO is neither, and lets them go.
    """
    is_value = role.scalar_head and role.trained and len(work.roles) > 1
    base = _body(role) if is_value else float(count_parameters(role.architecture).total)
    return base + (_trained(role) if role.adapter else 0.0)


def _trained(role: Role) -> float:
    return float(adapter_parameters(role.architecture, role.adapter)) if role.adapter else _body(role)


def _generating(role: Role, phase: RolePhase) -> tuple[tuple[str, Term], ...]:
    """Keys and values of all sequences, and one layer's of them once more: the cache grows by copies."""
    a = role.architecture
    cache = 2 * kv_cache_bytes(a, phase.longest_tokens) * phase.batch
    logits = 3 * 8.0 * a.vocab_size * phase.batch
    return (
        (
            role.name,
            bytes_term(
                "keys and values", "kv_cache", cache * (1 + 1 / a.num_layers), f"{phase.batch} sequences", SOURCE
            ),
        ),
        (role.name, logit_term("logits", logits)),
    )


# -------- Seconds of a phase on the processors of one machine, under the native engine.
#
# `seconds = operations x fixed cost + flops / reached rate + bytes moved / bandwidth`, added up because one process
# does them one after another. Good to about a factor of two between 0.1 and 100 million parameters; larger models
# approach the matrix-product rate and the estimate with them.

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
    prefill_tokens = batch * phase.prompt_tokens
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
            "operations",
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
        layout, label, peak = _training_option(question, work, place)
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


def _training_option(question: StageQuestion, work: Workload, place: NodeOffer) -> tuple[Layout, str, Peak]:
    fixed = question.fixed
    share = next(phase for phase in work.phases if phase.work == "train").batch
    micro = min(share, fixed.micro_batch) if fixed and fixed.micro_batch else share
    again = Recompute(fixed.recompute) if fixed and fixed.recompute else Recompute.NONE
    layout = Layout(data=place.processes, micro_batch=micro, accumulation=-(-share // micro), recompute=again)
    peak = of_processes(training_peak(work, layout), place.processes)
    return layout, layout.label.removeprefix("dp1 "), peak


def _answering_option(question: StageQuestion, place: NodeOffer) -> tuple[Layout, str, Peak]:
    phases = question.work.phases
    peak = answering_peak(
        question.work,
        tensor=1,
        batches={phase.name: float(phase.batch) for phase in phases},
        accelerator=place.accelerator,
        knowledge=question.knowledge,
        weights="fp32",
    )
    return Layout(micro_batch=max(phase.batch for phase in phases)), "one process", peak


def _share(work: Workload, processes: int) -> Workload:
    """Return the work of one of several processes: its rows of every batch, in as many steps."""
    if processes == 1 or not work.trained:
        return work
    return replace(work, phases=tuple(replace(phase, batch=-(-phase.batch // processes)) for phase in work.phases))


def _seconds(question: StageQuestion, work: Workload, place: NodeOffer, layout: Layout) -> Iterable[Term]:
    for phase in work.phases:
        if phase.role in work.remote:
            continue
        role = work.role(phase.role)
        yield from cpu_phase_terms(
            role,
            phase,
            processor=place.accelerator,
            dtype=question.dtype,
            micro_batches=_passes(work, phase, layout),
            again=layout.recompute is Recompute.FULL,
        )
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

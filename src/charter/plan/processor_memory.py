"""Bytes of a stage that trains on the processors of this machine under the native engine."""

from dataclasses import dataclass, replace

from charter.engines.native.capabilities import FUSED_TYPES
from charter.physics.constants import CPU_PROCESS_BYTES, CPU_PROCESS_FORMULA, CPU_PROCESS_SOURCE
from charter.physics.flops import kv_cache_bytes
from charter.physics.inference_memory import ROWS_OF_A_PASS, SCORING_ROWS, SCORING_TOKENS
from charter.physics.kept_activations import layer_activations
from charter.physics.memory_profiles import CPU_KEPT_LOGITS, CPU_LOSS_TILE, LEAST_TILE_ROWS, MOST_ASKED
from charter.physics.shapes import adapter_parameters, count_parameters
from charter.physics.terms import Term, bytes_term
from charter.plan.phase import Role, RolePhase, Workload, padded
from charter.plan.stage_memory import Peak
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, Recompute, ZeroStage

# -------- Bytes of one micro-batch of one model on processors: kept activations, the loss in chunks, the backward pass.
#
# Legend: N positions of the micro-batch, n of them with a loss, C of a chunk of the loss, H hidden size, I inner size,
# V vocabulary; 4 bytes per value. In 16 bits (autocast) matrices multiply casts of their inputs and weights, which wait
# for the backward pass in 2 bytes; norms and attention stay in fp32, as do weights, moments and gradients.

FP32, CAST = 4.0, 2.0
BODY_STATES = 2.25
"""Hidden states that are kept beside the layers: embeddings, last norm in and out, rotary angles."""
FROZEN_NORM = 1.0
"""Hidden states that a norm with a frozen weight does not keep: the normalised one, which that gradient would need."""
KEPT = "kept activations"
LOSS_STATES = 1.0
"""Positions with a loss, copied beside what is kept while the loss is made."""
BACKWARD_STATES = 3.85
"""Gradients of hidden states while the last layer's backward pass begins."""
COPIES = 2.0
"""Chunks in memory at once while a summed loss is made: logits, and what becomes their gradient."""
SOURCE = "plan/processor_memory.py: measured with every allocation noted, torch 2.13"


@dataclass(frozen=True, kw_only=True)
class BatchTerms:
    """Memory that a micro-batch holds at each moment."""

    kept: tuple[Term, ...]
    """When the forward pass is done."""
    forward: tuple[Term, ...]
    """While the loss is made."""
    backward: tuple[Term, ...]
    flow: tuple[Term, ...]
    """What a layer's backward pass has at once."""
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
    """4 C V; of a process that tensor parallelism gives a part of the vocabulary, that part, as all below."""
    whole: float
    """4 n V"""
    head: float
    """4 V H"""
    one_chunk: bool
    cast_head: float
    """2 x 2 V H: the head in 16 bits, and a chunk's share of its gradient."""

    @classmethod
    def of(
        cls, a: Architecture, tokens: float, counted: float, *, tensor: int, is_frozen: bool, casts: bool
    ) -> "_Sizes":
        """Of N tokens, n of which have a loss; a frozen head has no gradient."""
        vocabulary = a.vocab_size / tensor
        rows = min(counted, max(CPU_LOSS_TILE // vocabulary, LEAST_TILE_ROWS))
        return cls(
            hidden=FP32 * tokens * a.hidden_size,
            counted=FP32 * counted * a.hidden_size,
            chunk=FP32 * rows * vocabulary,
            whole=FP32 * counted * vocabulary,
            head=0.0 if is_frozen else FP32 * vocabulary * a.hidden_size,
            one_chunk=rows >= counted,
            cast_head=casts * CAST * vocabulary * a.hidden_size * (1 if is_frozen else 2),
        )


def batch_terms(role: Role, phase: RolePhase, layout: Layout, *, summed: bool, casts: bool) -> BatchTerms:
    """The micro-batch of a layout; `summed`: only the sum of the losses is wanted, not each log-probability.

    `casts`: it is computed in 16 bits.
    """
    tokens = layout.micro_batch * max(1.0, phase.longest_tokens) / layout.context
    is_frozen, counted = role.adapter is not None, tokens * phase.logit_share
    sizes = _Sizes.of(role.architecture, tokens, counted, tensor=layout.tensor, is_frozen=is_frozen, casts=casts)
    states = BODY_STATES - (FROZEN_NORM if role.adapter else 0.0)
    beside = _hidden("hidden states beside the layers", states * sizes.hidden)
    body = (
        _layers(role, phase, tokens, layout, casts=casts),
        beside,
        *((_cast_weights(role, layout),) if casts else ()),
    )
    inner = FP32 * role.architecture.hidden_size * role.architecture.intermediate_size / layout.tensor
    gradients = _hidden("gradients of one layer", BACKWARD_STATES * sizes.hidden + inner)
    flow = (*_live(role, tokens, layout, casts=casts), gradients)
    last = _last_of_recomputed(role, layout, sizes, flow)
    if phase.masked_positions:
        terms = _masked(role, phase, layout, body, flow, tokens)
    elif role.scalar_head:
        saved = (*body, _hidden("input of the head", sizes.counted))
        terms = BatchTerms(kept=saved, forward=saved, backward=(*saved, *flow), flow=flow, read=())
    else:
        terms = _summed(sizes, body, flow) if summed else _each(sizes, body, flow, role.architecture, tokens)
    return replace(terms, backward=max(terms.backward, last, key=total))


MASKED_LOSS_BYTES = 12.0
"""Of each logit that is made at once: its log-softmax, the gradient of that, and of the choices picked from it."""


def _masked(
    role: Role,
    phase: RolePhase,
    layout: Layout,
    body: tuple[Term, ...],
    flow: tuple[Term, ...],
    tokens: float,
) -> BatchTerms:
    """Rows that are padded under a mask: it waits in fp32 beside keys and values for all heads, layer by layer."""
    a = role.architecture
    repeated = 2 * (a.num_heads - a.kv_heads) * a.head_size
    layers = 1 if layout.recompute is Recompute.FULL else a.num_layers
    mask = FP32 * tokens * layers * (phase.longest_tokens + repeated)
    rows = layout.micro_batch
    width = padded(phase.masked_positions, rows, longest=phase.longest_tokens) if phase.masked_positions > 1 else 1.0
    saved = (*body, bytes_term("masks, repeated keys", "activations", mask, "4 B x N x layers x (row + heads)", SOURCE))
    loss = logit_term("logits at once", MASKED_LOSS_BYTES * rows * width * a.vocab_size)
    return BatchTerms(kept=saved, forward=(*saved, loss), backward=(*saved, *flow), flow=flow, read=())


def _last_of_recomputed(role: Role, layout: Layout, sizes: "_Sizes", flow: tuple[Term, ...]) -> tuple[Term, ...]:
    """The first layer, computed again when the others' inputs are gone and their gradients are all there.

    Copies have those gradients at every moment.
    """
    if layout.recompute is not Recompute.FULL or role.adapter:
        return ()
    share = 0.0 if _is_copied(layout) else 1 / _parts(layout)
    a = role.architecture
    table = a.vocab_size * a.hidden_size
    tables = table * (1 if a.tied_embeddings or role.scalar_head else 2)
    layers = count_parameters(a).total - table * (1 if a.tied_embeddings else 2)
    gradients = FP32 * share * (layers * (1 - 1 / a.num_layers) + tables - (0 if a.tied_embeddings else table))
    return (
        bytes_term("gradients of the layers above", "gradients", gradients, f"{FP32:g} B x their parameters", SOURCE),
        _hidden("input of the first layer", 2 * sizes.hidden),
        *flow,
    )


def _summed(sizes: _Sizes, body: tuple[Term, ...], flow: tuple[Term, ...]) -> BatchTerms:
    """Gradients by hidden states and head are made with the loss, and scaled where they lie."""
    saved = (*body, _head("gradient of the head", sizes), _hidden("gradients of hidden states", sizes.counted))
    making = (
        logit_term("chunks of the loss", COPIES * sizes.chunk),
        _hidden("positions with a loss", 2 * sizes.counted),
        *_cast_head(sizes),
    )
    late = (*body, _head("gradient of the head", sizes), *flow)
    backward = max(saved, late, key=total)
    return BatchTerms(kept=saved, forward=(*saved, *making), backward=backward, flow=flow, read=())


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
        logit_term("its logits", COPIES * sizes.chunk),
    )
    return BatchTerms(
        kept=saved,
        forward=(
            *saved,
            copied,
            logit_term("log-probabilities of a chunk, and a product", 2 * sizes.chunk),
            *_cast_head(sizes),
        ),
        backward=max(early, late, key=total),
        flow=flow,
        read=max(layer, reference, key=total),
    )


def total(terms: tuple[Term, ...]) -> float:
    """Bytes of some terms."""
    return sum(term.value for term in terms)


def _layer_bytes(role: Role, layout: Layout, *, casts: bool) -> float:
    """Kept per token by one layer, by the list of `physics/kept_activations.py`.

    Autocast casts the input of each matrix anew: three times before attention, once or twice before the MLP. Attention
    gives fp32, of which the next matrix keeps a cast; inside the MLP all is in 16 bits.
    """
    a = role.architecture
    shares = layout.context > 1
    layer = layer_activations(a, seq_len=1, bytes_per_value=FP32, implementation="huggingface", exchange=shares)
    per_token = layer.bytes_per_token(layout, fused_attention=True)
    per_token += 2 * FP32 * a.head_size * max(layout.context - a.kv_heads, 0)  # a head of keys in each process
    per_token -= _norm_inputs_gone(role, layout, casts=casts) * FP32 * a.hidden_size
    if not casts or a.mixture is not None or a.latent_attention is not None:
        return per_token
    inputs = (3 + 1 + a.gated_mlp) * CAST - 2 * FP32
    inside = (4 if a.gated_mlp else 2) * (FP32 - CAST) * a.intermediate_size
    return per_token + inputs * a.hidden_size + (CAST * a.num_heads * a.head_size - inside) / layout.tensor


def _norm_inputs_gone(role: Role, layout: Layout, *, casts: bool) -> float:
    """Hidden states that a layer of the engine's own (`models/layer_passes.py`) does not keep: what goes into norms.

    A norm's gradient comes from the normalised states alone. The first's input waits where a layer is computed again.
    Layers are the engine's own where matrices are plain, in fp32, and rows complete.
    """
    is_own = role.architecture.model_type in FUSED_TYPES and role.adapter is None and not casts
    if not is_own or layout.context > 1 or layout.tensor > 1:
        return 0.0
    return {Recompute.NONE: 2.0, Recompute.FULL: 1.0}.get(layout.recompute, 0.0)


def _matrices(a: Architecture) -> float:
    """Parameters of the matrices inside the layers."""
    tables = a.vocab_size * a.hidden_size * (1 if a.tied_embeddings else 2)
    return float(count_parameters(a).total - tables - a.num_layers * a.norms_per_layer * a.hidden_size - a.hidden_size)


def _cast_weights(role: Role, layout: Layout) -> Term:
    """Matrices of the layers in 16 bits, from the forward pass to the backward pass of each; one layer's at a time."""
    a = role.architecture
    again = layout.recompute is Recompute.FULL
    count = _matrices(a) / (a.num_layers if again else 1) / layout.tensor
    return bytes_term("weights in 16 bits", "activations", CAST * count, f"{CAST:g} B x {count:,.0f}", SOURCE)


def _cast_head(sizes: _Sizes) -> tuple[Term, ...]:
    if not sizes.cast_head:
        return ()
    return (bytes_term("head in 16 bits", "logits", sizes.cast_head, f"{CAST:g} B x vocabulary x hidden size", SOURCE),)


def left_out_share(role: Role, phase: RolePhase) -> float:
    """Share of the positions that the last layer leaves out, since nobody asks for them.

    Source: `models/layer_passes.py`; above 3/4 asked, and with experts, all are computed.
    """
    is_all = phase.logit_share > MOST_ASKED or role.architecture.mixture is not None
    return 0.0 if is_all else 1.0 - phase.logit_share


def _layers(role: Role, phase: RolePhase, tokens: float, layout: Layout, *, casts: bool) -> Term:
    again = layout.recompute is Recompute.FULL
    per_token = FP32 * role.architecture.hidden_size if again else _layer_bytes(role, layout, casts=casts)
    a, layers = role.architecture, float(role.architecture.num_layers)
    if not again:
        if role.adapter:
            per_token -= 2 * FROZEN_NORM * FP32 * a.hidden_size
        left_out = (4 if a.gated_mlp else 2) * (CAST if casts else FP32) * a.intermediate_size / layout.tensor
        if _norm_inputs_gone(role, layout, casts=casts):  # queries, what attention gives, the second norm in and out
            left_out += 2 * FP32 * (a.num_heads * a.head_size + a.hidden_size)
        layers -= left_out_share(role, phase) * left_out / per_token
    return bytes_term(
        "layer inputs" if again else KEPT,
        "activations",
        per_token * tokens * layers,
        f"{per_token:,.0f} B per token and layer x {tokens:,.0f} tokens x {layers:.3g} layers",
        "physics/kept_activations.py",
    )


def _live(role: Role, tokens: float, layout: Layout, *, casts: bool) -> tuple[Term, ...]:
    """The layer that is computed again."""
    if layout.recompute is not Recompute.FULL:
        return ()
    value = _layer_bytes(role, layout, casts=casts) * tokens
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
# one after another. Copies hold everything once each, and their gradients all the time: those are the buckets that are
# summed. Processes that share a model (ZeRO 2 and 3, tensor parallelism) hold their parts of it, and gather its units
# in fp32 (`models/parallel.py`). Counts of hidden states were measured with every allocation noted, models of 0.1 to 16
# million parameters (benchmarks/planner_vs_engine.py), and hold within 0.3 of one.

MOMENTS = 8.0


def training_peak(work: Workload, layout: Layout, dtype: str) -> Peak:
    """The fullest moment of one process of a stage; roles are trained in their order, and all step at the end."""
    casts = dtype != "fp32"
    states = [(role.name, term) for role in work.roles for term in _state(role, work, layout, casts=casts)]
    gradients = tuple((role.name, _gradients(role, layout)) for role in work.trained)
    stays = _is_copied(layout)
    always = [
        *states,
        ("", bytes_term("process", "overhead", CPU_PROCESS_BYTES, CPU_PROCESS_FORMULA, CPU_PROCESS_SOURCE)),
        *(gradients if stays else ()),
    ]
    moments = [
        Peak(moment=name, parts=(*always, *parts))
        for index, role in enumerate(work.trained)
        for name, parts in _training(work, role, index, layout, casts=casts)
    ]
    moments.append(Peak(moment="optimizer step", parts=(*always, *(() if stays else gradients))))
    if len(work.roles) == 1 and work.roles[0].scalar_head:
        only = work.roles[0]
        scores = _last_scores(only, work.phases[0], layout, casts=casts)
        parts = (scores, *_Units.of(only, work, layout).through())
        named = tuple((only.name, term) for term in parts)
        moments.append(Peak(moment=f"scoring by {only.name}", parts=(*always, *named)))
    moments += [
        Peak(moment=phase.name, parts=(*always, *_generating(work, phase, layout)))
        for phase in work.phases
        if phase.work == "generate"
    ]
    return max(moments, key=lambda peak: peak.total_bytes)


def _last_scores(role: Role, phase: RolePhase, layout: Layout, *, casts: bool) -> Term:
    """One layer, read without gradients."""
    a = role.architecture
    rows = min(SCORING_ROWS, layout.micro_batch) if layout.accumulation > 1 else SCORING_ROWS
    rows = min(rows, ROWS_OF_A_PASS) if layout.data * layout.context * layout.tensor > 1 else rows
    tokens = min(rows * phase.longest_tokens, SCORING_TOKENS)
    hidden = (4 * FP32 + casts * CAST) * a.hidden_size
    value = tokens * (hidden + (CAST if casts else FP32) * 3 * a.intermediate_size / layout.tensor)
    return bytes_term("one layer", "activations", value, f"{tokens:,.0f} tokens x (4 H + 3 I)", SOURCE)


def of_processes(peak: Peak, count: int) -> Peak:
    """The peak of a machine on which so many processes do the same."""
    if count == 1:
        return peak
    parts = tuple(
        (role, replace(term, value=count * term.value, formula=f"{count} processes x ({term.formula})"))
        for role, term in peak.parts
    )
    return replace(peak, parts=parts)


def _training(
    work: Workload, role: Role, index: int, layout: Layout, *, casts: bool
) -> list[tuple[str, tuple[tuple[str, Term], ...]]]:
    """Forward and backward pass of one role, beside the gradients that wait: of those before, or of all that add up."""
    waiting = work.trained if layout.accumulation > 1 else work.trained[:index]
    waits = () if _is_copied(layout) else tuple((other.name, _gradients(other, layout)) for other in waiting)
    summed = len(work.roles) == 1
    batch, units = _terms_of(work, role, layout, casts=casts), _Units.of(role, work, layout)
    compared = tuple(
        (other.name, term)
        for other in work.roles
        if _reads_beside(work, role, other)
        for term in (*batch.read, *_Units.of(other, work, layout).through())
    )
    waiting_passes = tuple(
        (other.name, term)
        for other in work.trained[index + 1 :]
        if _keeps_first_pass(work, layout)
        for term in _terms_of(work, other, layout, casts=casts).kept
    )
    kept_bytes = total(tuple(term for term in batch.kept if term.name == KEPT)) / role.architecture.num_layers
    during = {
        "loss": (*batch.forward, *units.at_loss(summed=summed)),
        "reference": (*batch.kept, *units.between()),
        "backward": (*batch.backward, *units.backward(kept_bytes)),
        "end of backward": (*units.end(total(batch.flow)), _gradients(role, layout)) if _is_sharded(layout) else (),
    }
    return [
        (
            f"training {role.name} ({name})",
            (
                *waits,
                *waiting_passes,
                *((role.name, term) for term in terms),
                *(compared if name == "reference" else ()),
            ),
        )
        for name, terms in during.items()
        if terms
    ]


def _terms_of(work: Workload, role: Role, layout: Layout, *, casts: bool) -> BatchTerms:
    """Terms of a trained role's micro-batch."""
    phase = next(item for item in work.phases if item.role == role.name and item.work == "train")
    return batch_terms(role, phase, layout, summed=len(work.roles) == 1, casts=casts)


def _keeps_first_pass(work: Workload, layout: Layout) -> bool:
    """Return True if what scores a rollout waits for the first update of each trained model: that of one process."""
    is_alone = layout.data * layout.context * layout.tensor == 1 and layout.accumulation == 1
    is_plain = layout.recompute is Recompute.NONE and not layout.offload_optimizer
    return _generates(work) and is_alone and is_plain and not work.ahead


def _is_sharded(layout: Layout, *, trained: bool = True) -> bool:
    """Return True if processes have parts of a model; a frozen one is complete in each but under ZeRO-3."""
    return layout.tensor > 1 or layout.zero >= (ZeroStage.GRADIENTS if trained else ZeroStage.PARAMETERS)


def _is_copied(layout: Layout) -> bool:
    """Return True if each of several processes has all of it (DDP), and with it the buckets of its gradients."""
    return layout.data * layout.context > 1 and not _is_sharded(layout)


def _parts(layout: Layout, *, trained: bool = True) -> int:
    """Return over how many processes a model is spread."""
    if not _is_sharded(layout, trained=trained):
        return 1
    shards = layout.data * layout.context // layout.replicas if layout.zero else 1
    return layout.tensor * shards


@dataclass(frozen=True, kw_only=True)
class _Units:
    """Bytes of a model that FSDP2 gathers, unit by unit, in fp32; all 0 where each process has all of it.

    A gather of several processes has a buffer beside what it fills, which goes when the next one begins; the gradient
    of a unit is copied before it is scattered.
    """

    every: float
    layer: float
    embedding: float
    head: float
    """Of an output projection apart."""
    root: float
    """Gathered through the pass, gradients until its end: a tied table, or one that tensor parallelism splits."""
    buffered: int
    """1 where there is somebody to gather from."""
    frees: bool
    shards: int
    trains: bool

    @classmethod
    def of(cls, role: Role, work: Workload, layout: Layout) -> "_Units":
        """Of a role under a layout."""
        parts, a = _parts(layout, trained=role.trained), role.architecture
        if parts == 1:
            none = {"every": 0.0, "layer": 0.0, "embedding": 0.0, "head": 0.0, "root": 0.0}
            return cls(**none, buffered=0, frees=False, shards=1, trains=False)
        table = FP32 * a.vocab_size * a.hidden_size / layout.tensor
        layer = FP32 * _matrices(a) / a.num_layers / layout.tensor
        has_head = not a.tied_embeddings and _held(role, work) > _body(role) - 1 - a.hidden_size
        is_own = has_head and not role.scalar_head and layout.tensor == 1
        return cls(
            every=FP32 * _held(role, work) / layout.tensor,
            layer=layer,
            embedding=0.0 if a.tied_embeddings else table,
            head=table if is_own else 0.0,
            root=table if a.tied_embeddings or (has_head and not is_own) else 0.0,
            buffered=int(parts > layout.tensor),
            frees=layout.zero >= ZeroStage.PARAMETERS,
            shards=parts // layout.tensor,
            trains=role.trained and role.adapter is None,
        )

    def through(self) -> tuple[Term, ...]:
        """Return the units that are gathered while layers run, one after the other."""
        layers = (1 + self.buffered) * self.layer
        return self._gathered(self.root + layers if self.frees else self.every + self.buffered * self.layer)

    def complete(self) -> tuple[Term, ...]:
        """All of it in place, for a rollout."""
        return self._gathered(self.every + self.buffered * self.layer)

    def between(self) -> tuple[Term, ...]:
        """Return the units that stay gathered between the forward and the backward pass."""
        return self._gathered(self.root + self.head if self.frees else self.every)

    def at_loss(self, *, summed: bool) -> tuple[Term, ...]:
        """Return the same at the loss; the head's gradient comes later where each token has a loss of its own."""
        last = self.buffered * (self.head if self.head and summed else self.layer)
        return self._gathered((self.root + self.head if self.frees else self.every) + last)

    def backward(self, kept_bytes: float) -> tuple[Term, ...]:
        """A layer's gradient is copied when what it kept is gone; that of the head at once, beside the head itself."""
        layer = (*self.through(), *self._unreduced(max(self.layer - kept_bytes, 0.0) * self.trains))
        beside = self.root + self.head if self.frees else self.every
        head = (*self._gathered(beside), *self._unreduced(self.head * (1 + 1 / self.shards) * self.trains))
        return max(layer, head, key=total)

    def end(self, flow_bytes: float) -> tuple[Term, ...]:
        """The gradients of embedding and root come last, when no layer runs any more."""
        tables = self.embedding + self.root + max(self.embedding, self.root) * (1 + 1 / self.shards)
        running = flow_bytes + (1 + self.buffered) * self.layer + self.layer
        return (*self._gathered(self.root), *self._unreduced(max(tables, running) * self.trains))

    def _gathered(self, value: float) -> tuple[Term, ...]:
        formula = f"units of {self.layer:,.0f} B a layer, {self.embedding + self.head + self.root:,.0f} B of tables"
        return (bytes_term("gathered weights", "buffers", value, formula, SOURCE),) if value else ()

    def _unreduced(self, value: float) -> tuple[Term, ...]:
        formula = "gradients of a unit, and their copy that is scattered"
        return (bytes_term("unreduced gradients", "buffers", value, formula, SOURCE),) if value else ()


def _reads_beside(work: Workload, role: Role, other: Role) -> bool:
    """Return True if a frozen model reads the batch while the trained one's activations wait: the reference of DPO."""
    return not _generates(work) and not other.trained and role.trained


def _generates(work: Workload) -> bool:
    return any(phase.work == "generate" for phase in work.phases)


def _state(role: Role, work: Workload, layout: Layout, *, casts: bool) -> list[Term]:
    """Weights of every role, frozen matrices in 16 bits where a stage casts, and moments of what is trained."""
    a, parts = role.architecture, _parts(layout, trained=role.trained)
    stored = _held(role, work) / parts
    head = 0 if a.tied_embeddings or role.scalar_head else a.vocab_size * a.hidden_size
    narrow = (_matrices(a) + head) / parts if casts and not role.trained else 0.0
    weights = FP32 * stored - (FP32 - CAST) * narrow
    formula = f"{FP32:g} B x {stored - narrow:,.0f}" + (f" + {CAST:g} B x {narrow:,.0f}" if narrow else "")
    terms = [bytes_term("weights", "parameters", weights, formula, SOURCE)]
    if role.trained:
        trained = _trained(role) / parts
        terms.append(bytes_term("optimizer", "optimizer", MOMENTS * trained, f"{MOMENTS:g} B x {trained:,.0f}", SOURCE))
    return terms


def _gradients(role: Role, layout: Layout) -> Term:
    trained = _trained(role) / _parts(layout)
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


def _generating(work: Workload, phase: RolePhase, layout: Layout) -> tuple[tuple[str, Term], ...]:
    """Keys and values of all sequences, and one layer's of them once more: the cache grows by copies."""
    role = work.role(phase.role)
    a, units = role.architecture, _Units.of(role, work, layout)
    cache = 2 * kv_cache_bytes(a, phase.longest_tokens, tensor=layout.tensor) * phase.batch
    logits = 3 * 8.0 * a.vocab_size * phase.batch
    return (
        *((role.name, term) for term in units.complete()),
        (
            role.name,
            bytes_term(
                "keys and values", "kv_cache", cache * (1 + 1 / a.num_layers), f"{phase.batch} sequences", SOURCE
            ),
        ),
        (role.name, logit_term("logits", logits)),
    )

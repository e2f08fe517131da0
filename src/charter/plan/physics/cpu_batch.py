"""Bytes of one micro-batch of one model on processors: kept activations, the loss in chunks, the backward pass.

Legend: N positions of the micro-batch, n of them with a loss, C of a chunk of the loss, H hidden size, I inner size,
V vocabulary; 4 bytes per value.
"""

from dataclasses import dataclass, replace

from charter.physics.kept_activations import layer_activations
from charter.physics.shapes import count_parameters
from charter.physics.terms import Term
from charter.plan.work.phase import Phase, Role
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, Recompute

FP32 = 4.0
CHUNK_LOGITS = 2**20
"""Logits of one chunk of the loss on a processor: `models/token_forward.py`, CPU_CHUNK."""
KEPT_LOGITS = 2**26
"""Probabilities kept for the backward pass at most: `models/token_forward.py`, CPU_KEPT."""
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
SOURCE = "plan/physics/cpu_memory.py: measured with every allocation noted, torch 2.13"


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
        rows = min(counted, max(CHUNK_LOGITS // a.vocab_size, 16))
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


def batch_terms(role: Role, phase: Phase, layout: Layout, *, summed: bool) -> BatchTerms:
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
        bytes_term("gradients of the layers above", "gradients", gradients, f"{FP32:g} B x their parameters"),
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
    fits = sizes.whole <= FP32 * KEPT_LOGITS
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


def left_out_share(role: Role, phase: Phase) -> float:
    """Share of the positions at which the last layer's feed-forward part is left out, since nobody asks for them.

    Source: `models/token_forward.py`; above 3/4 asked, and with experts, all are computed.
    """
    is_all = phase.logit_share > MOST_ASKED or role.architecture.mixture is not None
    return 0.0 if is_all else 1.0 - phase.logit_share


def _layers(role: Role, phase: Phase, tokens: float, layout: Layout) -> Term:
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
    return bytes_term(name, "gradients", sizes.head, f"{FP32:g} B x vocabulary x hidden size")


def _hidden(name: str, value: float) -> Term:
    return bytes_term(name, "activations", value, f"{FP32:g} B x positions x hidden size")


def logit_term(name: str, value: float) -> Term:
    """Something of the size of logits."""
    return bytes_term(name, "logits", value, f"{FP32:g} B x positions x vocabulary")


def bytes_term(name: str, part: str, value: float, formula: str, source: str = SOURCE) -> Term:
    """A term in bytes."""
    return Term(name=name, part=part, value=value, unit="bytes", formula=formula, source=source)

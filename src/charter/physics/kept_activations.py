"""Activations that stay from the forward to the backward pass: which tensors, for whom, how many bytes a layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from charter.physics.columns import Array, array
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout, Recompute

# -------- The tensors that one layer keeps for its backward pass, by name, with who needs them.
#
# A tensor is needed either always (the derivative of something that is not linear: norms, attention, activation
# functions) or only for the gradient of a matrix (`needed_by`): the input of a frozen matrix need not be kept. That is
# what makes LoRA cheap in activations where nothing is recomputed.

Implementation = Literal["lean", "megatron", "huggingface", "litgpt", "triton"]
"""Which code runs the layer. `lean`: the least a backward pass needs (Korthikanti et al. 2022). `megatron`: fused
kernels, gated activation recomputed from its input, but rotated queries and keys beside the joint projection that the
values keep alive. `huggingface`: the classes of transformers 5, counted with saved-tensor hooks on CPU
(tests/integration): an RMSNorm keeps its input in fp32 and the normalised value; eager attention an fp32 softmax;
GPT-2's tanh GELU three more arrays. `litgpt`: as `huggingface` in norms, but normalised values in fp32, and as
`megatron` in the joint projection.
`triton`: as `lean`, with the gated activation recomputed from its inputs, which its gradients overwrite (Liger-Kernel,
SwiGLU)."""
Divided = Literal["sequence", "tensor", "scores"]
Mixer = Literal["attention", "state_space", "none"]
Mlp = Literal["dense", "experts", "none"]
Matrices = frozenset[str]
ALL_MATRICES: Matrices = frozenset(("qkv", "out", "up", "down", "norms"))
"""What full training trains: every group of matrices, and the norms."""


@dataclass(frozen=True, kw_only=True)
class KeptTensor:
    """One array of a layer."""

    name: str
    bytes_per_token: float
    divided: Divided
    """By what: sequence parallelism, tensor parallelism, or tensor parallelism and gone with fused attention."""
    needed_by: str = ""
    """The group of matrices whose gradient needs it; empty: the backward pass of the layer itself."""


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """Traits that decide which tensors a layer keeps, besides the architecture."""

    seq_len: float
    value_bytes: float = 2.0
    dropout: bool = False
    mixer: Mixer = "attention"
    mlp: Mlp = "dense"
    implementation: Implementation = "lean"
    ring: bool = False
    """Context parallelism in a ring copies keys and values into one buffer, so the joint projection is freed
    (TransformerEngine: `AttnFuncWithCPAndKVP2P`)."""
    exchange: bool = False
    """Context parallelism exchanges positions for heads: what attention gives is kept before it and behind it."""
    fp8: bool = False
    """Matrices multiply in 8 bits and keep their input so (TransformerEngine); attention and norms stay in 16."""

    @property
    def input_bytes(self) -> float:
        """Bytes of a value that is kept as the input of a matrix."""
        return 1.0 if self.fp8 else self.value_bytes

    @property
    def fused(self) -> bool:
        """Megatron's fused kernels, and whoever splits one joint projection."""
        return self.implementation in ("megatron", "litgpt")

    @property
    def recomputes_gate(self) -> bool:
        """One kernel for the gated activation and its product keeps what goes in alone."""
        return self.implementation in ("megatron", "triton")

    @property
    def fp32_norms(self) -> bool:
        """Norms written out in Python that compute in fp32."""
        return self.implementation in ("huggingface", "litgpt")


def layer_tensors(architecture: Architecture, kind: LayerKind) -> tuple[KeptTensor, ...]:
    """All tensors of one layer; the bytes of those that are needed sum to what autograd saves.

    >>> gpt = Architecture(hidden_size=6144, num_layers=48, num_heads=64, intermediate_size=24576, vocab_size=51200,
    ...                    gated_mlp=False)
    >>> sum(t.bytes_per_token for t in layer_tensors(gpt, LayerKind(seq_len=2048, dropout=True))
    ...     if t.divided != "scores") / 6144
    34.0
    """
    mixers = {"attention": _attention, "state_space": _state_space, "none": _nothing}
    mlps = {"dense": _mlp, "experts": _experts, "none": _nothing}
    mixer, mlp = mixers[kind.mixer](architecture, kind), mlps[kind.mlp](architecture, kind)
    return (*_norms(architecture, kind), *mixer, *mlp)


def layer_mix(architecture: Architecture) -> tuple[tuple[LayerKind, float], ...]:
    """The kinds of layers a model has, with how many there are of each (mixer and MLP are spread independently)."""
    a = architecture
    moe, ssm = a.moe_layers, a.state_space_layers
    if a.num_mlp_layers is not None and a.num_mlp_layers < a.num_layers:
        counts: tuple[tuple[Mixer, Mlp, float], ...] = (
            ("attention", "none", float(a.attention_layers)),
            ("state_space", "none", float(ssm)),
            ("none", "dense", float(a.mlp_layers - moe)),
            ("none", "experts", float(moe)),
        )
    else:
        experts, recurrent = moe / a.num_layers, ssm / a.num_layers
        counts = (
            ("attention", "dense", a.num_layers * (1 - recurrent) * (1 - experts)),
            ("attention", "experts", a.num_layers * (1 - recurrent) * experts),
            ("state_space", "dense", a.num_layers * recurrent * (1 - experts)),
            ("state_space", "experts", a.num_layers * recurrent * experts),
        )
    return tuple((LayerKind(seq_len=1.0, mixer=mixer, mlp=mlp), count) for mixer, mlp, count in counts if count)


WIDE_NORMS = ("gemma", "gemma2", "gemma3", "gemma3_text", "gpt_oss")
"""Model types whose classes multiply by the weight of a norm in fp32, and keep normalised values so."""
JOINT_PROJECTIONS = ("gpt_neox", "phi3", "falcon", "qwen")
"""Those whose values are a view of one joint projection, beside rotated queries and keys."""
STEPWISE = ("gpt2", "gptj", "phi", "gpt_oss")
"""Those that write their activation out: a tanh GELU, or a clamped and scaled gate."""
WIDE_ROUTERS = ("deepseek_v2", "deepseek_v3")
"""Those that route by hidden states in fp32."""


def _written_as(kind: LayerKind, a: Architecture, types: tuple[str, ...]) -> bool:
    return kind.implementation == "huggingface" and a.model_type in types


def _nothing(a: Architecture, kind: LayerKind) -> Iterator[KeptTensor]:
    return iter(())


def _norms(a: Architecture, kind: LayerKind) -> Iterator[KeptTensor]:
    value, hidden = kind.value_bytes, a.hidden_size
    rms_norm = a.norm_parameters_per_feature == 1 and a.model_type != "mpt"
    yield KeptTensor(name="norm inputs", bytes_per_token=value * hidden * a.norms_per_layer, divided="sequence")
    if kind.fp32_norms and rms_norm:
        wider = (4 - value) * hidden * a.norms_per_layer
        yield KeptTensor(name="norm inputs in fp32", bytes_per_token=wider, divided="sequence")
        normed = _normed_bytes(a, kind) * hidden * a.norms_per_layer
        yield KeptTensor(name="normalised values", bytes_per_token=normed, divided="sequence", needed_by="norms")
    if kind.mixer != "none":
        yield KeptTensor(
            name="attention input", bytes_per_token=kind.input_bytes * hidden, divided="sequence", needed_by="qkv"
        )
    if kind.mlp != "none":
        yield KeptTensor(
            name="MLP input", bytes_per_token=kind.input_bytes * hidden, divided="sequence", needed_by="up"
        )
    if kind.dropout:
        yield KeptTensor(name="dropout masks", bytes_per_token=2.0 * hidden, divided="sequence")


def _normed_bytes(a: Architecture, kind: LayerKind) -> float:
    """Bytes of a normalised value that the gradient of a norm's weight needs."""
    return 4.0 if kind.implementation == "litgpt" or _written_as(kind, a, WIDE_NORMS) else kind.value_bytes


def _attention(a: Architecture, kind: LayerKind) -> Iterator[KeptTensor]:
    value, latent = kind.value_bytes, a.latent_attention
    if latent is None:
        query, keys, values = a.num_heads * a.head_size, a.kv_heads * a.head_size, a.kv_heads * a.head_size
        output = query
        is_joint = (kind.fused and _rotary(a)) or _written_as(kind, a, JOINT_PROJECTIONS)
        joint = query + keys if is_joint else 0
    else:
        width = latent.qk_nope_head_dim + latent.qk_rope_head_dim
        query = keys = a.num_heads * width
        values = output = a.num_heads * latent.v_head_dim
        joint = a.num_heads * latent.qk_nope_head_dim if kind.fused else 0
        compressed = 2 * ((latent.q_lora_rank or 0) + latent.kv_lora_rank) + latent.qk_rope_head_dim
        yield KeptTensor(name="compressed projections", bytes_per_token=value * compressed, divided="tensor")
    yield KeptTensor(name="queries, keys, values", bytes_per_token=value * (query + keys + values), divided="tensor")
    yield KeptTensor(name="attention output", bytes_per_token=value * output, divided="tensor")
    if kind.exchange:
        own = value * output
        yield KeptTensor(name="attention output exchanged", bytes_per_token=own, divided="tensor", needed_by="out")
    if kind.fp8:
        yield KeptTensor(name="attention output in fp8", bytes_per_token=output, divided="tensor", needed_by="out")
    if joint and not kind.ring:
        yield KeptTensor(name="joint projection", bytes_per_token=value * joint, divided="tensor")
    if a.qk_norm and latent is None:
        heads = query + keys
        yield KeptTensor(name="queries and keys before their norm", bytes_per_token=value * heads, divided="tensor")
        if kind.fp32_norms:
            wider = (4 - value) * heads
            yield KeptTensor(name="the same in fp32", bytes_per_token=wider, divided="tensor")
            normed = _normed_bytes(a, kind) * heads
            yield KeptTensor(
                name="normalised queries and keys", bytes_per_token=normed, divided="tensor", needed_by="norms"
            )
    yield from _scores(a, kind)


def _scores(a: Architecture, kind: LayerKind) -> Iterator[KeptTensor]:
    """Attention probabilities, and their dropout: gone with fused attention."""
    value, mask = kind.value_bytes, float(kind.dropout)
    softmax = 4.0 if kind.fp32_norms and value < 4 else 0.0
    # OPT's classes of before 2025 clamp them from below (`torch.max` keeps what it compares).
    clamped = value * _written_as(kind, a, ("opt",))
    per_score = value + mask * (value + 1) + softmax + clamped
    yield KeptTensor(name="attention scores", bytes_per_token=a.num_heads * kind.seq_len * per_score, divided="scores")
    repeated = 2 * value * (a.num_heads - a.kv_heads) * a.head_size
    if kind.fp32_norms and repeated and a.latent_attention is None:
        yield KeptTensor(name="repeated keys and values", bytes_per_token=repeated, divided="scores")


def _rotary(a: Architecture) -> bool:
    return not a.learned_positions and a.model_type not in ("mpt", "bloom", "opt", "gpt2")


def _mlp(a: Architecture, kind: LayerKind) -> Iterator[KeptTensor]:
    yield from _inner(a, kind, float(a.intermediate_size))


def _inner(a: Architecture, kind: LayerKind, width: float) -> Iterator[KeptTensor]:
    """Inside an MLP: inputs of the activation function, and the input of the down projection."""
    value = kind.value_bytes
    # The gradient of ReLU needs its output alone, which is the input of the down projection.
    is_relu = _written_as(kind, a, ("opt",))
    before = (1 + a.gated_mlp - is_relu) * width
    yield KeptTensor(name="MLP before activation", bytes_per_token=value * before, divided="tensor")
    if a.gated_mlp and not kind.recomputes_gate:
        yield KeptTensor(name="activated gate", bytes_per_token=value * width, divided="tensor")
    if _written_as(kind, a, STEPWISE):
        yield KeptTensor(name="activation in steps", bytes_per_token=3 * value * width, divided="tensor")
    needed_by = "" if is_relu else "down"
    after = kind.input_bytes * width
    yield KeptTensor(name="MLP after activation", bytes_per_token=after, divided="tensor", needed_by=needed_by)


def _experts(a: Architecture, kind: LayerKind) -> Iterator[KeptTensor]:
    """A copy of input and output per expert a token goes to, router logits and probabilities, and the inner values.

    Megatron-Core since 0.12 weighs tokens inside the expert, so its backward pass needs no outputs.
    """
    mixture, value = a.mixture, kind.value_bytes
    assert mixture is not None
    outer = mixture.expert_hidden_size or a.hidden_size
    copies = float(mixture.experts_per_token * outer)
    sent = kind.input_bytes * copies
    yield KeptTensor(name="tokens sent to experts", bytes_per_token=sent, divided="sequence", needed_by="up")
    if kind.implementation != "megatron":
        yield KeptTensor(name="outputs of experts", bytes_per_token=value * copies, divided="sequence")
    router = 2 * value * mixture.num_experts + 4.0 * a.hidden_size * _written_as(kind, a, WIDE_ROUTERS)
    yield KeptTensor(name="router", bytes_per_token=router, divided="sequence")
    width = mixture.expert_intermediate_size * mixture.experts_per_token + mixture.shared_width
    yield from _inner(a, kind, float(width + a.intermediate_size * mixture.dense_residual))


def _state_space(a: Architecture, kind: LayerKind) -> Iterator[KeptTensor]:
    """A recurrent mixer: its joint projection, its output, the states between chunks (the rest is recomputed).

    Source: the fused kernel of Mamba-2 (`mamba_split_conv1d_scan_combined`) saves projection, output and final states.
    """
    space, value = a.state_space, kind.value_bytes
    assert space is not None
    projected = space.inner_size + space.conv_channels + space.num_heads
    states = 4.0 * space.inner_size * space.state_size / space.chunk_size
    yield KeptTensor(name="joint projection", bytes_per_token=value * projected, divided="tensor")
    yield KeptTensor(name="states between chunks", bytes_per_token=states, divided="tensor")
    yield KeptTensor(name="gated output", bytes_per_token=2 * value * space.inner_size, divided="tensor")


# -------- Bytes that the forward pass keeps for the backward pass, per layer.
#
# Every tensor is listed by name (`physics/kept_activations.py`), so that the total can be checked against Korthikanti
# et al. 2022 (arXiv:2205.05198): for a GPT layer with dropout it is `s b h (34 + 5 a s / h)` bytes (their equation 1).
# For gated MLPs, grouped-query and latent attention, experts, recurrent mixers, and training without dropout the
# constant differs; it is re-derived from the same list. Norms and dropout masks are replicated by tensor parallelism
# and divided by sequence parallelism; everything between a column and a row projection is divided by both.

SOURCE = "Korthikanti et al. 2022, section 4, re-derived for this layer"


@dataclass(frozen=True, kw_only=True)
class LayerActivations:
    """Bytes per token (of one layer) that are kept, by how parallelism divides them."""

    replicated: float
    """Divided by sequence parallelism only: norm inputs, projection inputs, dropout masks of the residual."""
    sharded: float
    """Divided by the tensor-parallel degree."""
    scores: float
    """Attention probabilities (and their dropout); divided by tensor parallelism, gone with fused attention or
    selective recomputation."""
    layer_input: float
    """All that full recomputation keeps."""
    products_replicated: float = 0.0
    """What products of a layer give to the residual stream; divided by sequence parallelism only."""
    products_sharded: float = 0.0
    """What its other products and fused attention give, divided by the tensor-parallel degree."""
    context: float = 0.0
    """What fused attention gives, of `products_sharded`."""

    def bytes_per_token(self, layout: Layout, *, fused_attention: bool) -> float:
        """Return the bytes that one rank keeps per token under a layout, before full recomputation."""
        keep_scores = not fused_attention and layout.recompute is Recompute.NONE
        replicated = self.replicated / (layout.tensor if layout.sequence_parallel else 1)
        return replicated + (self.sharded + keep_scores * self.scores) / layout.tensor


def layer_activations(
    architecture: Architecture,
    *,
    seq_len: float,
    bytes_per_value: float = 2.0,
    moe_layer: bool = False,
    implementation: Implementation = "lean",
    exchange: bool = False,
) -> LayerActivations:
    """Bytes per token kept by one layer of attention that is trained whole, without dropout.

    `exchange`: its positions are exchanged for heads around attention.
    """
    kind = LayerKind(
        seq_len=seq_len,
        value_bytes=bytes_per_value,
        mlp="experts" if moe_layer and architecture.mixture else "dense",
        implementation=implementation,
        exchange=exchange,
    )
    return kept_by_layer(architecture, kind)


def kept_by_layer(architecture: Architecture, kind: LayerKind, trained: Matrices = ALL_MATRICES) -> LayerActivations:
    """Bytes per token kept by a layer of any kind.

    `trained` names the groups of matrices (`qkv`, `out`, `up`, `down`, `norms`) whose inputs a gradient needs; with
    adapters, those that carry one.

    >>> gpt = Architecture(hidden_size=6144, num_layers=48, num_heads=64, intermediate_size=24576,
    ...                    vocab_size=51200, gated_mlp=False)
    >>> kept = kept_by_layer(gpt, LayerKind(seq_len=2048, dropout=True))
    >>> (kept.replicated + kept.sharded) / 6144, kept.scores / 6144 == 5 * 64 * 2048 / 6144
    (34.0, True)
    """
    tensors = [item for item in layer_tensors(architecture, kind) if not item.needed_by or item.needed_by in trained]
    return LayerActivations(
        replicated=_sum(tensors, "sequence"),
        sharded=_sum(tensors, "tensor"),
        scores=_sum(tensors, "scores"),
        layer_input=kind.value_bytes * architecture.hidden_size,
        products_replicated=_residual_products(architecture, kind),
        products_sharded=_inner_products(architecture, kind),
        context=_context(architecture, kind),
    )


def every_second_product(architecture: Architecture) -> float:
    """Share of a layer's kept bytes that a policy frees which keeps attention and every second product.

    `1 - (saved - input) / (all - input)`; saved are the layer's input, the output of attention and, of the products in
    the order in which a layer computes them (query, key, value, output, gate, up, down), the first, third and so on
    (torchtitan `_apply_ac_to_transformer_block`, mode `op`). Limit: layers with experts keep none of theirs.

    >>> from charter.catalog import models
    >>> round(every_second_product(models.get("Llama-3.1-8B").architecture), 3)
    0.654
    """
    a, keys = architecture, architecture.kv_heads * architecture.head_size
    attention = a.num_heads * a.head_size
    layer = layer_activations(a, seq_len=1.0, moe_layer=bool(a.moe_layers))
    products = [attention, keys, keys, a.hidden_size]
    if not a.moe_layers:
        products += [a.intermediate_size] * (1 + a.gated_mlp) + [a.hidden_size]
    saved = 2.0 * (sum(products[::2]) + attention)
    return 1.0 - saved / (layer.replicated + layer.sharded - layer.layer_input)


LOG_SUM_BYTES = 4.0
"""Logarithm of the sum of exponentials, per head and token, in fp32."""


def _residual_products(a: Architecture, kind: LayerKind) -> float:
    """Output projection of the mixer and of the MLP, or of every expert that a token goes to."""
    mixture = a.mixture if kind.mlp == "experts" else None
    mlps = mixture.experts_per_token + bool(mixture.shared_width) if mixture else kind.mlp == "dense"
    return kind.value_bytes * a.hidden_size * ((kind.mixer != "none") + mlps)


def _inner_products(a: Architecture, kind: LayerKind) -> float:
    """Queries, keys, values, what fused attention makes of them, and the products before an activation."""
    mixers = {"attention": _attention, "state_space": _state_space, "none": _nothing}
    mlps = {"dense": _mlp, "experts": _experts, "none": _nothing}
    names = ("compressed projections", "queries, keys, values", "MLP before activation")
    tensors = (*mixers[kind.mixer](a, kind), *mlps[kind.mlp](a, kind))
    return sum((item.bytes_per_token for item in tensors if item.name in names), start=_context(a, kind))


def _context(a: Architecture, kind: LayerKind) -> float:
    """Output of fused attention, and its sums."""
    if kind.mixer != "attention":
        return 0.0
    outputs = [item.bytes_per_token for item in _attention(a, kind) if item.name == "attention output"]
    return sum(outputs, start=LOG_SUM_BYTES * a.num_heads)


def _sum(tensors: list[KeptTensor], divided: Divided) -> float:
    return sum((item.bytes_per_token for item in tensors if item.divided == divided), start=0.0)


def in_flight(pipeline: Array, interleave: Array, accumulation: Array, stage: Array) -> Array:
    """Micro-batches whose activations a pipeline stage holds at its peak, in units of its own layers.

    One forward, one backward (1F1B): stage i of p holds `p - i`, at most as many as there are. Interleaving with v
    chunks raises the first stage's to `p (1 + (p - 1) / (p v))`. Source: Narayanan et al. 2021, section 2.2;
    Korthikanti et al. 2022, section 4.2.3. Never more than the micro-batches of a step.

    >>> [float(in_flight(array(8), array(chunks), array(64), array(0))) for chunks in (1, 3)]
    [8.0, 10.333333333333334]
    """
    deeper = np.where(interleave > 1, (pipeline - 1) / (pipeline * interleave), 0.0)
    return array(np.minimum((pipeline - stage) * (1 + deeper), accumulation))

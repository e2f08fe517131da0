"""The architecture of a measured row: its own columns first, then the catalog model of its name, then its size."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from charter.physics.shapes import count_parameters
from charter.spec.architecture import Architecture, LatentAttention, MixtureOfExperts, StateSpace
from charter.validation.rows.measurement import Measurement, Refusal
from charter.validation.rows.shapes import (
    active_in_name,
    architecture_of_size,
    deepened,
    fit_to_size,
    is_hybrid_name,
    is_recurrent_name,
    is_sparse_name,
    layers_in_name,
    model_named,
    plain_architecture,
    size_in_name,
    sparse_of_size,
    sparse_relative,
)

MAMBA_HEAD, GROUPS = 64, 8
ATTENTION_SHARE = 0.08
"""Attention layers among the blocks: 7-10 % in Nemotron-H, 10 % in Granite 4, 12 % in Jamba."""


def hybrid_architecture(shape: Architecture, params_b: float | None, *, depth_is_known: bool) -> Architecture:
    """The hybrid whose parameters come closest to `params_b` among the usual kinds; Nemotron-H's where it is blank.

    Kinds: a block is a mixer, an MLP or attention (Nemotron-H, arXiv:2504.03624, table 1), or every layer has a mixer
    and an MLP (Granite 4, Bamba); state 128 or 256; inner width twice the model's; MLP gated or not. Where the row
    does not say how many blocks there are, their number is scaled with the rest.
    """
    kinds = list(_kinds(shape))
    if params_b is None:
        return kinds[0]
    target = params_b * 1e9
    if not depth_is_known:
        kinds = [_with_depth(shape, kind, target) for kind in kinds]
    return min(kinds, key=lambda kind: abs(math.log(count_parameters(kind).total / target)))


def _kinds(shape: Architecture) -> Iterator[Architecture]:
    states = (256, 128) if shape.hidden_size >= 8192 else (128, 256)
    for apart, gated in ((True, False), (True, True), (False, True), (False, False)):
        for state in states:
            yield _hybrid(replace(shape, gated_mlp=gated), state_size=state, apart=apart)


def _hybrid(shape: Architecture, *, state_size: int, apart: bool) -> Architecture:
    attention = max(1, round(ATTENTION_SHARE * shape.num_layers))
    others = shape.num_layers - attention
    inner = 2 * shape.hidden_size
    space = StateSpace(
        num_layers=others // 2 if apart else others,
        inner_size=inner,
        state_size=state_size,
        num_heads=max(1, inner // MAMBA_HEAD),
        num_groups=GROUPS,
    )
    return replace(
        shape,
        state_space=space,
        num_attention_layers=attention,
        num_mlp_layers=others - others // 2 if apart else None,
        norms_per_layer=1 if apart else 2,
        tied_embeddings=False,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        norm_parameters_per_feature=1,
    )


def _with_depth(shape: Architecture, kind: Architecture, target: float) -> Architecture:
    assert kind.state_space is not None
    count = count_parameters(kind)
    blocks = (target - (count.total - count.layers)) / (count.layers / kind.num_layers)
    deeper = replace(shape, num_layers=max(4, round(blocks)), gated_mlp=kind.gated_mlp)
    return _hybrid(deeper, state_size=kind.state_space.state_size, apart=kind.num_mlp_layers is not None)


CHUNK = 8192
"""Chunk of rows that say `chunked` (column `attention` of `docs/reference/measurements.md`)."""
CHUNKED_SHARE = 0.75
"""Layers that see only their chunk, of a model nobody knows: three of four, as in Llama 4."""
WINDOW = 4096
WINDOWED_SHARE = 0.5
"""Window and its layers, of a model nobody knows: as in Gemma 2."""


def architecture_of(row: Measurement) -> Architecture:
    """The architecture a row was measured on.

    Columns of the row win; what they leave open comes from the catalog model of the row's name, then from the size
    (`params_b`, or the size in the name). What stays open after that (gated MLP, biases, position table) is chosen so
    that the parameters come closest to `params_b`. Raises Refusal where neither name, columns nor size say enough.

    >>> row = Measurement(id="X-1", metric="step_time_s", value=1.0, model="llama3_70b-12layers", layers=12)
    >>> architecture_of(row).num_layers, architecture_of(row).kv_heads
    (12, 8)
    """
    relative = _known(row)
    if relative is None and is_recurrent_name(row.model):
        raise Refusal(f"the model {row.model!r} has recurrent layers of a kind that Charter does not describe")
    if relative is None and (row.hidden is None or row.layers is None):
        relative = _of_size(row)
    base = plain_architecture(row) if relative is None else relative
    shape = _with_columns(base, row)
    shape = _with_attention(shape, row, relative)
    shape = _with_mixture(shape, row)
    shape = _with_state_space(shape, row)
    return fit_to_size(shape, row, known=relative is not None)


def _known(row: Measurement) -> Architecture | None:
    """The catalog model of the row's name, unless the row's columns say that it is another one."""
    catalog_model = model_named(row.model)
    if catalog_model is None:
        return None
    shape = catalog_model.architecture
    for column, own in ((row.hidden, shape.hidden_size), (row.ffn, shape.intermediate_size)):
        if column is not None and column != own:
            return None
    return shape


def _of_size(row: Measurement) -> Architecture:
    size = row.params_b or size_in_name(row.model)
    if not size:
        raise Refusal(
            f"the model {row.model!r} is not in the catalog, and the row gives neither its shape "
            "(hidden, layers) nor its size (params_b)"
        )
    relative = sparse_relative(size, row.model)
    if relative is not None:
        return relative
    active = active_in_name(row.model)
    if active and active < size:
        return sparse_of_size(size, active)
    if is_sparse_name(row.model):
        raise Refusal(
            f"the model {row.model!r} is not in the catalog; it has experts, so its size alone does not tell "
            "its work (hidden, layers, n_experts, n_active_experts and expert_ffn would)"
        )
    return architecture_of_size(size, row.model)


def _with_columns(base: Architecture, row: Measurement) -> Architecture:
    """Sizes of the row over those of the base; layers of a kind are scaled with the number of layers."""
    own: dict[str, Any] = {
        "hidden_size": row.hidden,
        "num_heads": row.heads,
        "num_kv_heads": row.kv_heads,
        "head_dim": row.head_dim if base.latent_attention is None else None,
        "intermediate_size": row.ffn,
        "vocab_size": row.vocab,
        "tied_embeddings": None if row.tied_embeddings is None else bool(row.tied_embeddings),
    }
    if base.learned_positions and row.seq and row.seq > base.learned_positions:
        own["learned_positions"] = row.seq
    shape = replace(base, **{name: value for name, value in own.items() if value is not None})
    layers = row.layers or layers_in_name(row.model)
    return shape if layers is None or layers == base.num_layers else deepened(shape, layers)


def _with_attention(shape: Architecture, row: Measurement, relative: Architecture | None) -> Architecture:
    """Return the model with what the column `attention` adds where the catalog does not describe it."""
    kind = row.attention.casefold()
    if kind == "mqa" and row.kv_heads is None and relative is None:
        return replace(shape, num_kv_heads=1)
    if kind == "gqa" and row.kv_heads is None and relative is None:
        return replace(shape, num_kv_heads=min(8, shape.num_heads))
    if kind == "mla" and shape.latent_attention is None:
        return replace(shape, latent_attention=_latent(shape), head_dim=None)
    if kind == "chunked" and shape.attention_chunk is None:
        return replace(shape, attention_chunk=CHUNK, chunked_layers=round(CHUNKED_SHARE * shape.attention_layers))
    if kind == "sliding" and shape.sliding_window is None:
        layers = round(WINDOWED_SHARE * shape.attention_layers)
        return replace(shape, sliding_window=WINDOW, sliding_window_layers=layers)
    return shape


def _latent(shape: Architecture) -> LatentAttention:
    """The ranks of DeepSeek-V2 and V3; small models project queries directly (V2-Lite)."""
    rank = 1536 if shape.hidden_size >= 4096 else None
    return LatentAttention(
        kv_lora_rank=512, q_lora_rank=rank, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128
    )


def _with_mixture(shape: Architecture, row: Measurement) -> Architecture:
    if not row.n_experts:
        return shape
    mixture = shape.mixture
    width = row.expert_ffn or (mixture.expert_intermediate_size if mixture else shape.intermediate_size)
    base = mixture or MixtureOfExperts(num_experts=row.n_experts, experts_per_token=1, expert_intermediate_size=width)
    own: dict[str, Any] = {
        "num_experts": row.n_experts,
        "experts_per_token": row.n_active_experts,
        "num_shared_experts": row.n_shared_experts,
        "num_dense_layers": row.dense_first_layers,
        "expert_intermediate_size": width,
    }
    return replace(shape, mixture=replace(base, **{name: value for name, value in own.items() if value is not None}))


def _with_state_space(shape: Architecture, row: Measurement) -> Architecture:
    """The mixers of a hybrid that the catalog does not know, by its column, or by its name where that is blank."""
    mixes = row.attention.casefold() == "hybrid-mamba" or (not row.attention and is_hybrid_name(row.model))
    if not mixes or shape.state_space is not None:
        return shape
    size = row.params_b or (None if row.layers else size_in_name(row.model))
    return hybrid_architecture(shape, size, depth_is_known=row.layers is not None)

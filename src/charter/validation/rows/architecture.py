"""The architecture of a measured row: its own columns first, then the catalog model of its name, then its size."""

from dataclasses import replace
from typing import Any

from charter.spec.architecture import Architecture, LatentAttention, MixtureOfExperts
from charter.validation.rows.hybrids import hybrid_architecture
from charter.validation.rows.measurement import Measurement, Refusal
from charter.validation.rows.model_names import (
    active_in_name,
    is_sparse_name,
    layers_in_name,
    model_named,
    size_in_name,
)
from charter.validation.rows.shapes import (
    architecture_of_size,
    deepened,
    fit_to_size,
    plain_architecture,
    sparse_of_size,
    sparse_relative,
)

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
    """The mixers of a hybrid that the catalog does not know."""
    if row.attention.casefold() != "hybrid-mamba" or shape.state_space is not None:
        return shape
    return hybrid_architecture(shape, row.params_b, depth_is_known=row.layers is not None)

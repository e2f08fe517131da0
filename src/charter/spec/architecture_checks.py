"""What must hold of the sizes of an architecture that is written into charter.yaml."""

from collections.abc import Iterator

from charter.errors import Problem
from charter.spec.architecture import Architecture
from charter.spec.ranges import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, check_ranges


def check_architecture(shape: Architecture, path: str) -> Iterator[Problem]:
    """Problems of an architecture: sizes out of range, heads that do not divide, layers that do not add up."""
    sizes = ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "intermediate_size")
    more = ("vocab_size", "max_position_embeddings", "norm_parameters_per_feature", "sliding_window")
    yield from check_ranges(shape, path, [(name, AT_LEAST_ONE) for name in (*sizes, *more)])
    zero_allowed = ("norms_per_layer", "learned_positions", "sliding_window_layers")
    yield from check_ranges(shape, path, [(name, NOT_NEGATIVE) for name in zero_allowed])
    yield from check_ranges(shape, path, [("rope_theta", POSITIVE), ("norm_eps", POSITIVE)])
    if shape.num_heads >= 1 and shape.head_dim is None and shape.hidden_size % shape.num_heads:
        message = f"{shape.num_heads} heads do not divide hidden_size {shape.hidden_size}"
        yield Problem(message=message, path=f"{path}.num_heads", hint="change one of them, or give head_dim")
    if shape.kv_heads >= 1 and shape.num_heads % shape.kv_heads:
        message = f"{shape.kv_heads} key/value heads do not divide the {shape.num_heads} query heads"
        yield Problem(message=message, path=f"{path}.num_kv_heads")
    if shape.mixture is not None:
        counts = ("num_experts", "experts_per_token", "expert_intermediate_size")
        yield from check_ranges(shape.mixture, f"{path}.mixture", [(name, AT_LEAST_ONE) for name in counts])
        if shape.mixture.experts_per_token > shape.mixture.num_experts:
            message = f"more than the {shape.mixture.num_experts} experts; found {shape.mixture.experts_per_token}"
            yield Problem(message=message, path=f"{path}.mixture.experts_per_token")
    yield from _check_layers(shape, path)
    yield from _check_parts(shape, path)


def _check_layers(shape: Architecture, path: str) -> Iterator[Problem]:
    """Layers of a kind are at most all layers."""
    optional = ("attention_chunk", "num_attention_layers", "num_mlp_layers", "embedding_size")
    yield from check_ranges(shape, path, [(name, NOT_NEGATIVE) for name in ("chunked_layers", "num_mtp_layers")])
    yield from check_ranges(shape, path, [(name, AT_LEAST_ONE) for name in optional])
    mixers = shape.state_space_layers + (shape.num_attention_layers or 0)
    counts = {
        "sliding_window_layers": shape.sliding_window_layers,
        "chunked_layers": shape.chunked_layers,
        "num_attention_layers": mixers if shape.state_space else shape.num_attention_layers or 0,
        "num_mlp_layers": shape.num_mlp_layers or 0,
        "state_space.num_layers": shape.state_space_layers,
        "mixture.num_dense_layers": shape.mixture.num_dense_layers if shape.mixture else 0,
        "mixture.num_moe_layers": (shape.mixture.num_moe_layers or 0) if shape.mixture else 0,
    }
    for name, count in counts.items():
        if count > shape.num_layers:
            message = f"{count} layers of this kind (recurrent ones counted) of {shape.num_layers} in all"
            yield Problem(message=message, path=f"{path}.{name}")


def _check_parts(shape: Architecture, path: str) -> Iterator[Problem]:
    """Ranges of the recurrent layers and of the encoder."""
    if shape.state_space is not None:
        sizes = ("num_layers", "inner_size", "state_size", "num_heads", "num_groups", "conv_kernel", "chunk_size")
        yield from check_ranges(shape.state_space, f"{path}.state_space", [(name, AT_LEAST_ONE) for name in sizes])
    if shape.encoder is not None:
        layers = ("hidden_size", "num_layers", "num_heads", "intermediate_size")
        tokens = ("tokens_per_sample", "output_tokens_per_sample")
        yield from check_ranges(shape.encoder, f"{path}.encoder", [(name, AT_LEAST_ONE) for name in (*layers, *tokens)])
        counts = ("embedding_parameters", "projector_parameters", "windowed_layers")
        yield from check_ranges(shape.encoder, f"{path}.encoder", [(name, NOT_NEGATIVE) for name in counts])

"""The shape of a model as Megatron-LM's options: the decoders of Llama, Mistral, Mixtral, Qwen 2 and Qwen 3.

Sources: megatron/training/arguments.py (network size, moe), megatron/core/transformer/transformer_config.py (its
dataclass options) at the recorded commit; Megatron Bridge converts weights of the same families.
"""

from collections.abc import Iterator

from charter.engines.common.arguments import Arguments
from charter.spec.architecture import Architecture, MixtureOfExperts

FAMILIES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
LLAMA_3_THETA, LLAMA_3_CONTEXT = 500_000.0, 8192
"""Llama 3.1 and later stretch their positions beyond those of Llama 3 (config.json: rope_scaling of type llama3)."""
LONG_FACTOR, SMALL_LONG_FACTOR = 8.0, 32.0
"""By 8 in Llama 3.1 and 3.3, by 32 in the small models of Llama 3.2, which alone tie their embeddings."""


def model_arguments(given: Arguments, model: Architecture, seq_len: int) -> None:
    """Options of a decoder; `impossible` says first which it cannot be."""
    given.give("--num-layers", model.num_layers)
    given.give("--hidden-size", model.hidden_size)
    given.give("--ffn-hidden-size", model.intermediate_size)
    given.give("--num-attention-heads", model.num_heads)
    given.give("--kv-channels", model.head_size)
    if model.kv_heads != model.num_heads:
        given.give("--group-query-attention")
        given.give("--num-query-groups", model.kv_heads)
    given.give("--max-position-embeddings", max(model.max_position_embeddings, seq_len))
    given.give("--position-embedding-type", "rope")
    given.give("--rotary-base", int(model.rope_theta))
    given.give("--rotary-percent", 1.0)
    _long_positions(given, model)
    given.give("--normalization", "RMSNorm")
    given.give("--norm-epsilon", model.norm_eps)
    given.give("--swiglu")
    given.give("--disable-bias-linear")
    if model.attention_bias:
        given.give("--add-qkv-bias")
    if model.qk_norm:
        given.give("--qk-layernorm")
    if not model.tied_embeddings:
        given.give("--untie-embeddings-and-output-weights")
    given.give("--vocab-size", model.vocab_size)
    if model.mixture is not None:
        _experts(given, model, model.mixture)


def impossible(model: Architecture) -> Iterator[str]:
    """Yield the traits of the model that have no option, or none that Charter knows to be the same."""
    if model.model_type not in FAMILIES:
        yield f"models of type {model.model_type} are not mapped; {', '.join(FAMILIES)} are"
        return
    if not float(model.rope_theta).is_integer():
        yield f"--rotary-base is a whole number; found {model.rope_theta}"
    yield from (words for words, lacks_option in _unlike(model) if lacks_option)
    if model.mixture is not None:
        yield from (words for words, lacks_option in _unlike_experts(model, model.mixture) if lacks_option)


def _unlike(model: Architecture) -> Iterator[tuple[str, object]]:
    yield "an MLP without a gate is not mapped", not model.gated_mlp
    yield "biases of the attention output are tied to those of all layers", model.output_bias
    yield "biases of the MLP are tied to those of all layers", model.mlp_bias
    yield "norms with a bias are not mapped", model.norm_parameters_per_feature != 1
    yield "other than two norms per layer are not mapped", model.norms_per_layer != 2
    yield "learned positions are not mapped", model.learned_positions
    yield "sliding windows are not mapped", model.sliding_window_layers
    yield "chunked attention is not mapped", model.chunked_layers
    yield "layers without attention are not mapped", model.attention_layers != model.num_layers
    yield "layers without an MLP are not mapped", model.mlp_layers != model.num_layers
    yield "recurrent layers are not mapped", model.state_space
    yield "encoders are not mapped", model.encoder
    yield "an embedding of another width is not mapped", model.embedding_width != model.hidden_size
    yield "a norm on the embedding is not mapped", model.embedding_norm
    yield "a model without a final norm is not mapped", not model.final_norm
    yield "a bias of the output projection is not mapped", model.head_bias
    yield "attention sinks are not mapped", model.attention_sinks
    yield "gated attention is not mapped", model.attention_gate
    yield "latent attention is not mapped", model.latent_attention


def _unlike_experts(model: Architecture, mixture: MixtureOfExperts) -> Iterator[tuple[str, object]]:
    every = model.num_layers - mixture.num_dense_layers
    yield "experts in some of the layers after the dense ones are not mapped", model.moe_layers != every
    yield "a bias of the router is not mapped", mixture.router_bias
    yield "biases inside experts are not mapped", mixture.expert_bias
    yield "experts of another width than the model are not mapped", mixture.expert_hidden_size
    yield "a dense MLP beside the experts is not mapped", mixture.dense_residual


def _long_positions(given: Arguments, model: Architecture) -> None:
    if model.rope_theta == LLAMA_3_THETA and model.max_position_embeddings > LLAMA_3_CONTEXT:
        given.give("--use-rope-scaling")
        given.give("--rope-scaling-factor", SMALL_LONG_FACTOR if model.tied_embeddings else LONG_FACTOR)


def _experts(given: Arguments, model: Architecture, mixture: MixtureOfExperts) -> None:
    """Routing as these families have it: the best experts, softmax over them; no loss that balances them."""
    given.give("--num-experts", mixture.num_experts)
    given.give("--moe-router-topk", mixture.experts_per_token)
    given.give("--moe-ffn-hidden-size", mixture.expert_intermediate_size)
    given.give("--moe-router-load-balancing-type", "none")
    given.give("--moe-token-dispatcher-type", "alltoall")
    given.give("--moe-grouped-gemm")
    if mixture.num_dense_layers:
        given.give("--moe-layer-freq", f"[0]*{mixture.num_dense_layers}+[1]*{model.moe_layers}")
    if mixture.shared_width:
        given.give("--moe-shared-expert-intermediate-size", mixture.shared_width)
        if mixture.shared_expert_gate:
            given.give("--moe-shared-expert-gate")

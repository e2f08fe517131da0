"""An encoder in front of the decoder (vision, audio): its parameters and the operations of one sample."""

from charter.spec.architecture import Encoder


def encoder_parameters(encoder: Encoder) -> int:
    """Parameters of the encoder with its embedding and its projector.

    Source: the classes of transformers (`CLIPVisionModel`, `SiglipVisionModel`, `Qwen2VisionTransformer`).
    """
    e = encoder
    norms = e.num_layers * e.norms_per_layer + e.outer_norms
    layers = e.num_layers * encoder_layer_parameters(e)
    return (
        layers + norms * e.hidden_size * e.norm_parameters_per_feature + e.embedding_parameters + e.projector_parameters
    )


def encoder_layer_parameters(encoder: Encoder) -> int:
    """Matrices and biases of one layer, without norms."""
    e = encoder
    biases = e.hidden_size * ((2 + e.key_bias) * e.attention_bias + e.output_bias)
    return encoder_layer_matrices(e) + biases + e.mlp_bias * ((1 + e.gated_mlp) * e.intermediate_size + e.hidden_size)


def encoder_layer_matrices(encoder: Encoder) -> int:
    """Parameters of the matrix products of one layer: four of attention, two or three of the MLP."""
    e = encoder
    return 4 * e.hidden_size**2 + (2 + e.gated_mlp) * e.hidden_size * e.intermediate_size


def encoder_flops_per_sample(encoder: Encoder) -> float:
    """Operations of one sample's forward pass through encoder and projector.

    `tokens * layers * (2 * matrices + 4 * hidden * positions seen)` (attention is not causal), and two per projector
    parameter and output token. The patch embedding (below 1 %) is left out. Training of all parameters costs three
    times as much; a frozen encoder this much once.

    >>> from charter.catalog import models
    >>> clip = models.get("llava-hf/llava-1.5-7b-hf").architecture.encoder
    >>> round(encoder_flops_per_sample(clip) / 1e9)
    405
    """
    e = encoder
    seen = (e.num_layers - e.windowed_layers) * float(e.tokens_per_sample)
    seen += e.windowed_layers * min(e.tokens_per_sample, e.window_tokens or e.tokens_per_sample)
    per_token = 2.0 * e.num_layers * encoder_layer_matrices(e) + 4.0 * e.hidden_size * seen
    projected = e.projector_parameters if e.projector_matrix_parameters is None else e.projector_matrix_parameters
    return e.tokens_per_sample * per_token + 2.0 * e.output_tokens_per_sample * projected

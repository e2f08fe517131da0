"""Formulas exactly as the source texts print them, by name, so that a reader finds those numbers again.

Where a printed formula or unit is loose, Charter's own figure stands beside it (`estimate.memory`);
these functions are for comparison and tests, never for planning.
"""

from charter.units import SECONDS_PER_DAY


def article_activation_bytes(
    *, layers: float, hidden_size: float, tokens_in_flight: float, accelerators: float, constant: float = 34.0
) -> float:
    """Activations per accelerator as printed: `L * s * b * h * 34 / N`.

    The text prints 87.04 "GiB" for Llama 65B, 4M tokens, 1,024 A100; the value is 87.04 GB (81.06 GiB). 34 is the
    constant of a GPT layer with dropout (Korthikanti et al. 2022, equation 1), not of a Llama layer.

    >>> article_activation_bytes(layers=80, hidden_size=8192, tokens_in_flight=4e6, accelerators=1024) / 1e9
    87.04
    """
    return layers * tokens_in_flight * hidden_size * constant / accelerators


def article_model_state_bytes(num_parameters: float, *, tensor: int, data: int) -> float:
    """Model states per accelerator as printed for ZeRO-2 with tensor parallelism: `2P/TP + 14P/DP`.

    The second term forgets that tensor parallelism divides the sharded part too; see `zero2_state_bytes`.

    >>> round(article_model_state_bytes(65e9, tensor=8, data=128) / 1e9, 2)
    23.36
    """
    return 2 * num_parameters / tensor + 14 * num_parameters / data


def zero2_state_bytes(num_parameters: float, *, tensor: int, data: int) -> float:
    """The same, corrected: `2P/TP + 14P/(TP * DP)`.

    >>> round(zero2_state_bytes(65e9, tensor=8, data=128) / 1e9, 2)
    17.14
    """
    return 2 * num_parameters / tensor + 14 * num_parameters / (tensor * data)


def article_adam_state_bytes(num_parameters: float) -> dict[str, float]:
    """Model states as printed: bf16 weights and gradients, two fp32 moments, no fp32 master copy.

    >>> {name: size / 1e9 for name, size in article_adam_state_bytes(70e9).items()}
    {'parameters': 140.0, 'gradients': 140.0, 'adam': 560.0}
    """
    return {"parameters": 2.0 * num_parameters, "gradients": 2.0 * num_parameters, "adam": 8.0 * num_parameters}


def korthikanti_layer_bytes(
    *,
    seq_len: float,
    micro_batch: float,
    hidden_size: float,
    heads: float,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> float:
    """Activation bytes of one GPT layer with dropout, fp16.

    None: `s b h (10 + 24/t + 5 a s / (h t))`, with sequence parallelism `s b h / t (34 + 5 a s / h)`; selective drops
    the `5 a s / h`; full keeps `2 s b h`. Source: Korthikanti et al. 2022, equations 1, 2, 4, 6 and table 2.

    >>> korthikanti_layer_bytes(seq_len=2048, micro_batch=4, hidden_size=6144, heads=64, tensor=8) * 48 / 2**30
    59.25
    """
    base = seq_len * micro_batch * hidden_size
    if recompute == "full":
        return 2 * base
    scores = 0.0 if recompute == "selective" else 5 * heads * seq_len / hidden_size
    if sequence_parallel:
        return base / tensor * (34 + scores)
    return base * (10 + 24 / tensor + scores / tensor)


def korthikanti_first_stage_factor(*, pipeline: int, interleave: int) -> float:
    """Layers' worth of activations on the first stage over all layers: 1 for 1F1B, else `1 + (p - 1) / (p v)`."""
    return 1.0 if interleave == 1 else 1 + (pipeline - 1) / (pipeline * interleave)


def korthikanti_state_bytes(*, layers: float, hidden_size: float, tensor: int, pipeline: int) -> float:
    """Parameters and optimizer of figure 1: `18 * 12 L h^2 / (t p)`, without embeddings."""
    return 18 * 12 * layers * hidden_size**2 / (tensor * pipeline)


def narayanan_iteration_flops(
    *, batch: float, seq_len: float, layers: float, hidden_size: float, vocab_size: float
) -> float:
    """Hardware operations of a step with full recomputation: `96 B s l h^2 (1 + s/(6h) + V/(16 l h))`.

    Source: Narayanan et al. 2021 (arXiv:2104.04473), equation 3; attention not halved for the causal mask.
    """
    h = hidden_size
    return 96 * batch * seq_len * layers * h**2 * (1 + seq_len / (6 * h) + vocab_size / (16 * layers * h))


def korthikanti_model_flops(
    *,
    batch: float,
    seq_len: float,
    layers: float,
    hidden_size: float,
    vocab_size: float,
    selective_recompute: bool = False,
) -> float:
    """Operations of a step: `72 B s L h^2 (1 + s/(6h) + V/(12 L h))`; with selective recomputation `s/(3h)`.

    Source: Korthikanti et al. 2022, equations 7 and 8.
    """
    h = hidden_size
    scores = seq_len / ((3 if selective_recompute else 6) * h)
    return 72 * batch * seq_len * layers * h**2 * (1 + scores + vocab_size / (12 * layers * h))


def training_days(
    num_parameters: float,
    num_tokens: float,
    *,
    accelerators: float,
    achieved_flops_per_second: float,
    recompute: bool = False,
) -> float:
    """Days of a run: `6 N D / (n X)`, or `8 N D / (n X)` with full recomputation.

    Source: Narayanan et al. 2021, equation 4. `X` is what one accelerator achieves, not its peak.

    >>> round(training_days(70e9, 2e12, accelerators=2048, achieved_flops_per_second=135.6e12), 1)
    35.0
    """
    flops = (8 if recompute else 6) * num_parameters * num_tokens
    return flops / (accelerators * achieved_flops_per_second) / SECONDS_PER_DAY


def pipeline_bubble_fraction(*, pipeline: int, micro_batches: int, interleave: int = 1) -> float:
    """Bubble over ideal time: `(p - 1) / (v m)`. Source: Narayanan et al. 2021, section 2.2.

    >>> pipeline_bubble_fraction(pipeline=8, micro_batches=64)
    0.109375
    """
    return (pipeline - 1) / (interleave * micro_batches)


SOURCED_CLAIMS = (
    ("activation checkpointing", "up to 70 % less memory for 15-25 % more time"),
    ("training stacks", "DeepSpeed < FSDP (+15-20 %) < YaFSDP (+10-25 %)"),
    ("mixed precision", "up to 6x on GPUs, 2-3x on TPUs"),
)
"""Ranges of one article, shown only as claims of that source, never as a measurement of ours."""

"""Seconds of one forward pass through layers and head on one rank, by what bounds it.

Matrix products run at the measured ceiling of the device times what average shapes reach of the best shape;
attention has a lower ceiling of its own; everything else moves memory; and each operation costs host time to issue.
"""

from dataclasses import dataclass

from charter.catalog.accelerators import Accelerator
from charter.estimate.memory.activations import layer_activations
from charter.estimate.shapes.flops import attended_positions, score_width
from charter.estimate.shapes.parameters import attention_parameters, mlp_parameters, num_moe_layers
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout

UNMEASURED_CEILING = 0.78
"""Median of the bf16 shares in matmul_ceilings.csv, for devices that nobody measured."""
AVERAGE_SHAPE = 0.75
"""What the shapes of a training step reach of the best shape of a search, power limits included. Judgement, set so
that large dense runs come out near the constant utilisations of docs/concepts/memory.md (A100 0.45, H100 0.38)."""
ATTENTION_CEILING = {"A100": 0.5, "other": 0.35}
"""Share of the dense 16-bit peak. FlashAttention-2 reaches 50-73 % on A100 (abstract of arXiv:2307.08691) and 35 %
on H100 (abstract of arXiv:2407.08608); both figures from memory of the abstracts."""
CPU_ATTENTION_SHARE = 0.5
"""Of the measured matrix rate; assumption."""
MEMORY_EFFICIENCY = 0.8
"""Share of data-sheet memory bandwidth that streaming kernels reach; common result of STREAM-like tests."""
TRAFFIC_FORWARD, TRAFFIC_BACKWARD = 2.0, 4.0
"""Times each kept byte crosses memory: written and read once; read, and its gradient written and read, and the
input gradient written. Counting argument, not measured; the bytes are those that transformers' layers keep."""
OPS_PER_LAYER_FORWARD, OPS_PER_LAYER_BACKWARD = 40, 80
"""Operations a Hugging Face layer issues in eager mode (counted in LlamaDecoderLayer: projections, rotary, norms,
activation, residuals)."""
SECONDS_PER_OP = 7e-6
"""Host time to issue one eager operation; assumption from memory of profiler traces."""


@dataclass(frozen=True, kw_only=True)
class ForwardSeconds:
    """Seconds of a forward pass on one rank."""

    matmul: float
    attention: float
    memory: float
    head: float
    launch: float
    """Host time of the issued operations; hides behind the device, adds to a processor."""

    @property
    def busy(self) -> float:
        """Seconds the device computes or moves memory."""
        return self.matmul + self.attention + self.memory + self.head


def matmul_flops_per_second(accelerator: Accelerator, dtype: str) -> float:
    """Sustained rate of matrix products: peak x measured ceiling x share that average shapes reach.

    >>> from charter.catalog.accelerators import get
    >>> round(matmul_flops_per_second(get("A100-80GB"), "bf16") / 1e12, 1)
    203.4
    """
    if accelerator.kind == "cpu":
        return accelerator.peak_flops_per_second("fp32")
    return accelerator.peak_flops_per_second(dtype) * ceiling(accelerator, dtype) * AVERAGE_SHAPE


def ceiling(accelerator: Accelerator, dtype: str) -> float:
    """Measured share of the peak, or the median of the measured ones."""
    return accelerator.matmul_ceiling.get(dtype, UNMEASURED_CEILING)


def attention_flops_per_second(accelerator: Accelerator) -> float:
    """Sustained rate of fused attention; 8-bit training does not speed it up."""
    if accelerator.kind == "cpu":
        return accelerator.peak_flops_per_second("fp32") * CPU_ATTENTION_SHARE
    family = "A100" if accelerator.name.startswith(("A100", "A800")) else "other"
    return accelerator.peak_flops_per_second("bf16") * ATTENTION_CEILING[family]


def memory_bytes_per_second(accelerator: Accelerator) -> float:
    """Sustained memory bandwidth; a processor's figure is measured already."""
    share = 1.0 if accelerator.kind == "cpu" else MEMORY_EFFICIENCY
    return accelerator.memory_bytes_per_second * share


def forward_seconds(
    architecture: Architecture,
    accelerator: Accelerator,
    *,
    tokens: float,
    seq_len: float,
    layers: float,
    tensor: int = 1,
    head_positions: float = 0.0,
    dtype: str = "bf16",
    value_bytes: float = 2.0,
    causal: bool = True,
) -> ForwardSeconds:
    """A forward pass of `tokens` tokens in sequences of `seq_len` through `layers` layers on one rank.

    Each matrix product takes the larger of its operations over the matrix rate and its bytes over the bandwidth
    (roofline: Williams et al. 2009). Tile and wave quantisation are not modelled.
    """
    rate, stream = matmul_flops_per_second(accelerator, dtype), memory_bytes_per_second(accelerator)
    share = layers / architecture.num_layers
    scores = attended_positions(architecture, seq_len, causal=causal) * share
    flops = 2.0 * score_width(architecture) * scores * tokens / tensor
    kept = _kept_bytes_per_token(architecture, seq_len, layers, tensor, value_bytes)
    head = architecture.vocab_size * architecture.hidden_size / tensor
    head_bytes = value_bytes * (head + head_positions * (architecture.vocab_size / tensor))
    return ForwardSeconds(
        matmul=_matmul_seconds(architecture, tokens, layers, tensor, value_bytes, rate, stream),
        attention=flops / attention_flops_per_second(accelerator),
        memory=TRAFFIC_FORWARD * kept * tokens / stream,
        head=max(2 * head * head_positions / rate, head_bytes / stream) if head_positions else 0.0,
        launch=layers * OPS_PER_LAYER_FORWARD * SECONDS_PER_OP,
    )


def _kept_bytes_per_token(
    architecture: Architecture, seq_len: float, layers: float, tensor: int, value_bytes: float
) -> float:
    layout = Layout(tensor=tensor)
    moe = num_moe_layers(architecture) / architecture.num_layers
    total = 0.0
    for moe_layer, share in ((False, 1 - moe), (True, moe)):
        if share:
            kept = layer_activations(
                architecture,
                seq_len=seq_len,
                bytes_per_value=value_bytes,
                moe_layer=moe_layer,
                implementation="huggingface",
            )
            total += share * layers * kept.bytes_per_token(layout, fused_attention=True)
    return total


def _matmul_seconds(
    architecture: Architecture,
    tokens: float,
    layers: float,
    tensor: int,
    value_bytes: float,
    rate: float,
    stream: float,
) -> float:
    a = architecture
    moe = num_moe_layers(a) / a.num_layers

    def seconds(weights: float, rows: float) -> float:
        return max(2 * weights * rows / rate, value_bytes * weights / stream)

    per_layer = seconds(attention_parameters(a) / tensor, tokens)
    if moe < 1:
        per_layer += (1 - moe) * seconds(mlp_parameters(a, a.intermediate_size) / tensor, tokens)
    if a.mixture:
        expert = mlp_parameters(a, a.mixture.expert_intermediate_size) / tensor
        used = experts_used(a, tokens)
        rows = tokens * a.mixture.experts_per_token / used
        per_layer += moe * used * seconds(expert, rows)
        per_layer += moe * a.mixture.num_shared_experts * seconds(expert, tokens)
    return layers * per_layer


def experts_used(architecture: Architecture, tokens: float) -> float:
    """Expected number of routed experts that at least one of `tokens` tokens reaches, with even routing.

    `E (1 - (1 - k / E)^tokens)`.

    >>> from charter.catalog import models
    >>> mixtral = models.get("Mixtral-8x7B-v0.1").architecture
    >>> experts_used(mixtral, 1), round(experts_used(mixtral, 64), 3)
    (2.0, 8.0)
    """
    mixture = architecture.mixture
    if mixture is None:
        return 0.0
    return float(mixture.num_experts * (1 - (1 - mixture.experts_per_token / mixture.num_experts) ** tokens))

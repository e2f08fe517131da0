"""Bytes of a parameter, its gradient and its optimizer state."""

from dataclasses import dataclass, replace

from charter.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class TrainingPrecision:
    """Bytes per trained parameter that stay allocated between steps, and bytes of one value in computation."""

    name: str
    parameter_bytes: float
    """Weights that the optimizer does not own (the 16-bit copy, or the fp32 weights where there is no other)."""
    gradient_bytes: float
    optimizer_bytes: float
    """fp32 master copy (if it is not the parameter itself) and the optimizer's moments."""
    compute_bytes: float
    """Bytes of a value in activations and gathered weights."""
    source: str
    master_bytes: float = 0.0
    """Of `optimizer_bytes`, the fp32 master copy: what stays whatever the optimizer."""
    moment_value_bytes: float = 4.0
    """Bytes of one value of a moment that has the type of the weights which the optimizer steps on."""

    @property
    def state_bytes(self) -> float:
        """Bytes per parameter in all."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


ZERO_PAPER = TrainingPrecision(
    name="bf16 weights and gradients, fp32 Adam with master copy",
    parameter_bytes=2,
    gradient_bytes=2,
    optimizer_bytes=12,
    master_bytes=4,
    compute_bytes=2,
    source="Rajbhandari et al. 2020, section 3.1",
)
MEGATRON = TrainingPrecision(
    name="16-bit weights, fp32 gradient accumulation, fp32 Adam with master copy",
    parameter_bytes=2,
    gradient_bytes=4,
    optimizer_bytes=12,
    master_bytes=4,
    compute_bytes=2,
    source="Korthikanti et al. 2022, figure 1 (18 bytes per parameter)",
)
FSDP_MIXED = TrainingPrecision(
    name="fp32 weights, gradients and Adam; bf16 computation on gathered copies",
    parameter_bytes=4,
    gradient_bytes=4,
    optimizer_bytes=8,
    compute_bytes=2,
    source="PyTorch FSDP2 mixed precision, as the native engine trains (spec: Optimization.dtype)",
)
FP32 = TrainingPrecision(
    name="fp32 throughout",
    parameter_bytes=4,
    gradient_bytes=4,
    optimizer_bytes=8,
    compute_bytes=4,
    source="Rajbhandari et al. 2020, section 3.1",
)
PURE_BF16 = TrainingPrecision(
    name="bf16 weights, gradients and Adam moments, no master copy",
    parameter_bytes=2,
    gradient_bytes=2,
    optimizer_bytes=4,
    moment_value_bytes=2,
    compute_bytes=2,
    source="plain torch training of a bf16 model",
)

BLOCK_8BIT = 256
"""Values that share one fp32 scale in bitsandbytes' block-wise 8-bit state: `blocksize = 256` in its optimizer.py
(the paper, Dettmers et al. 2022, arXiv:2110.02861, section 2, has 2048)."""
FACTOR_SIDE = 2048.0
"""Sides of the matrix whose row and column sums stand for all of Adafactor's: judgement; from 1024 to 16384 the sums
take 0.008 to 0.0005 bytes per parameter, below anything that decides."""


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """State of an optimizer per parameter beside the weights, in values of the weights' type and in bytes."""

    name: str
    values: float = 0.0
    """Moments in the type of the weights that it steps on: 4 bytes each on fp32 weights, 2 on bf16 ones."""
    fixed_bytes: float = 0.0
    """Bytes that do not depend on that type."""
    source: str

    def moment_bytes(self, precision: TrainingPrecision) -> float:
        """Bytes of its state per trained parameter, a master copy aside."""
        return self.values * precision.moment_value_bytes + self.fixed_bytes


FACTOR_BYTES = 4.0 * 2 / FACTOR_SIDE
_OPTIMIZERS = (
    Optimizer(name="adam", values=2, source="Kingma and Ba 2015: two moments"),
    Optimizer(name="adam-bf16", fixed_bytes=4, source="two moments in bf16, whatever the weights are"),
    Optimizer(
        name="adam8bit",
        fixed_bytes=2 * (1 + 4 / BLOCK_8BIT),
        source="bitsandbytes: two 8-bit moments, an fp32 scale per 256 values (Dettmers et al. 2022, arXiv:2110.02861)",
    ),
    Optimizer(
        name="adafactor",
        fixed_bytes=FACTOR_BYTES,
        source="Shazeer and Stern 2018 (arXiv:1804.04235): fp32 row and column sums of squares, no momentum",
    ),
    Optimizer(
        name="adafactor-momentum",
        fixed_bytes=4 + FACTOR_BYTES,
        source="Shazeer and Stern 2018 (arXiv:1804.04235), with beta1: a first moment in fp32",
    ),
    Optimizer(name="sgd", values=1, source="torch.optim.SGD with momentum: one buffer of the gradient's type"),
    Optimizer(name="sgd-plain", source="torch.optim.SGD without momentum keeps nothing"),
    Optimizer(name="lion", values=1, source="Chen et al. 2023 (arXiv:2302.06675): one moment"),
    Optimizer(
        name="paged",
        source="bitsandbytes' paged optimizers: state in unified memory, moved to the host when the device is full "
        "(Dettmers et al. 2023, section 3)",
    ),
)
OPTIMIZERS = {item.name: item for item in _OPTIMIZERS}


def with_optimizer(precision: TrainingPrecision, name: str) -> TrainingPrecision:
    """The same weights and gradients under another optimizer: `optimizer_bytes = master + moments`.

    Where it stops being true: bitsandbytes keeps tensors below 4096 values in 32 bits, and transformers' Trainer makes
    it do so with embeddings; Adafactor factors matrices only, vectors keep 4 bytes. All are below a percent of a model
    of a few billion parameters, embeddings under 8-bit Adam aside.

    >>> [with_optimizer(FSDP_MIXED, name).state_bytes for name in ("adam", "adam8bit", "adam-bf16", "sgd")]
    [16, 10.03125, 12.0, 12.0]
    >>> with_optimizer(MEGATRON, "adam8bit").optimizer_bytes, with_optimizer(PURE_BF16, "sgd").optimizer_bytes
    (6.03125, 2.0)
    """
    if name not in OPTIMIZERS:
        raise UsageError(f"optimizer {name!r} is not known; one of {', '.join(OPTIMIZERS)}")
    optimizer = OPTIMIZERS[name]
    moments = optimizer.moment_bytes(precision)
    if precision.master_bytes + moments == precision.optimizer_bytes:
        return precision
    return replace(
        precision,
        name=f"{precision.name}; {name}",
        optimizer_bytes=precision.master_bytes + moments,
        source=f"{precision.source}; {optimizer.source}",
    )


@dataclass(frozen=True, kw_only=True)
class StoredFormat:
    """Format in which the weights of a model that only answers are stored."""

    name: str
    matrix_bytes: float
    """Per parameter of the layers' matrices, scales included."""
    end_bytes: float = 2.0
    """Per parameter of embedding, output projection and norms: 16-bit in every quantised format but fp32."""
    head_bytes: float | None = None
    """Per parameter of the output projection where it is quantised too."""
    dequantises: bool = False
    """Whether a matrix is multiplied as a 16-bit copy of itself."""
    source: str = ""


_FORMATS = (
    StoredFormat(name="fp32", matrix_bytes=4.0, end_bytes=4.0, source="IEEE 754"),
    StoredFormat(name="bf16", matrix_bytes=2.0, source="bfloat16"),
    StoredFormat(name="fp16", matrix_bytes=2.0, source="IEEE 754"),
    StoredFormat(name="fp8", matrix_bytes=1.0 + 4 / 128**2, source="E4M3, one fp32 scale per 128 x 128 block"),
    StoredFormat(name="int8", matrix_bytes=1.0 + 2.5 / 128, source="GPTQ, groups of 128: 16-bit scale, 4-bit zero"),
    StoredFormat(name="int4", matrix_bytes=0.5 + 2.5 / 128, source="AWQ and GPTQ, groups of 128: 16-bit scale, zero"),
    StoredFormat(name="fp4", matrix_bytes=0.5 + 1 / 16, source="NVFP4: an fp8 scale per 16 values"),
    StoredFormat(name="mxfp4", matrix_bytes=0.5 + 1 / 32, source="OCP MX: an 8-bit exponent per 32 values"),
    StoredFormat(name="bnb-int8", matrix_bytes=1.001, dequantises=True, source="LLM.int8: a scale per row"),
    StoredFormat(
        name="nf4", matrix_bytes=4.127 / 8, dequantises=True, source="Dettmers et al. 2023, double quantisation"
    ),
    StoredFormat(name="nf4-plain", matrix_bytes=0.5 + 4 / 64, dequantises=True, source="an fp32 scale per 64 values"),
)
STORED_FORMATS = {item.name: item for item in _FORMATS}

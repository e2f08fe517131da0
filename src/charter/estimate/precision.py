"""How many bytes a parameter, its gradient and its optimizer state take."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TrainingPrecision:
    """Bytes per trained parameter that stay allocated between steps, and bytes of one value in computation."""

    name: str
    parameter_bytes: float
    """Weights that the optimizer does not own (the 16-bit copy, or the fp32 weights where there is no other)."""
    gradient_bytes: float
    optimizer_bytes: float
    """fp32 master copy (if it is not the parameter itself) and Adam's two moments."""
    compute_bytes: float
    """Bytes of a value in activations and gathered weights."""
    source: str

    @property
    def state_bytes(self) -> float:
        """Bytes per parameter in all."""
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


ZERO_PAPER = TrainingPrecision(
    name="bf16 weights and gradients, fp32 Adam with master copy",
    parameter_bytes=2,
    gradient_bytes=2,
    optimizer_bytes=12,
    compute_bytes=2,
    source="Rajbhandari et al. 2020, section 3.1",
)
MEGATRON = TrainingPrecision(
    name="16-bit weights, fp32 gradient accumulation, fp32 Adam with master copy",
    parameter_bytes=2,
    gradient_bytes=4,
    optimizer_bytes=12,
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
    compute_bytes=2,
    source="plain torch training of a bf16 model",
)

WEIGHT_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "nf4": 4.127 / 8}
"""Bytes per stored weight; nf4 with double quantisation takes 4.127 bits (Dettmers et al. 2023, section 3)."""


@dataclass(frozen=True, kw_only=True)
class WeightFormat:
    """How the weights of a model that only answers are stored."""

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
    WeightFormat(name="fp32", matrix_bytes=4.0, end_bytes=4.0, source="IEEE 754"),
    WeightFormat(name="bf16", matrix_bytes=2.0, source="bfloat16"),
    WeightFormat(name="fp16", matrix_bytes=2.0, source="IEEE 754"),
    WeightFormat(name="fp8", matrix_bytes=1.0 + 4 / 128**2, source="E4M3, one fp32 scale per 128 x 128 block"),
    WeightFormat(name="int8", matrix_bytes=1.0 + 2.5 / 128, source="GPTQ, groups of 128: 16-bit scale, 4-bit zero"),
    WeightFormat(name="int4", matrix_bytes=0.5 + 2.5 / 128, source="AWQ and GPTQ, groups of 128: 16-bit scale, zero"),
    WeightFormat(name="fp4", matrix_bytes=0.5 + 1 / 16, source="NVFP4: an fp8 scale per 16 values"),
    WeightFormat(name="mxfp4", matrix_bytes=0.5 + 1 / 32, source="OCP MX: an 8-bit exponent per 32 values"),
    WeightFormat(name="bnb-int8", matrix_bytes=1.001, dequantises=True, source="LLM.int8: a scale per row"),
    WeightFormat(
        name="nf4", matrix_bytes=4.127 / 8, dequantises=True, source="Dettmers et al. 2023, double quantisation"
    ),
    WeightFormat(name="nf4-plain", matrix_bytes=0.5 + 4 / 64, dequantises=True, source="an fp32 scale per 64 values"),
)
WEIGHT_FORMATS = {item.name: item for item in _FORMATS}

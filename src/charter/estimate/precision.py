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

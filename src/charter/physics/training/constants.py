"""The constants of a training step that measurements move: shares of ceilings, latencies, host time, what overlaps."""

from dataclasses import dataclass

from charter.physics.arrays import Array
from charter.physics.constants import constant

JUDGEMENT = "judgement with the calibration rows in sight; moved by the fit (validation/quantities/training_time.py)"


@dataclass(frozen=True, kw_only=True)
class TrainingConstants:
    """Constants of one software stack on any accelerator; a profile of the stack multiplies some of them."""

    matmul_share: Array = constant(
        0.92,
        sigma=0.06,
        unit="share",
        source=f"of the best measured shape that large products keep; {JUDGEMENT}",
        most=1.0,
    )
    hopper_sustained: Array = constant(
        0.88,
        sigma=0.06,
        unit="share",
        source=f"clock that Hopper keeps at its power limit against a short search; {JUDGEMENT}",
        most=1.0,
    )
    blackwell_sustained: Array = constant(
        0.88, sigma=0.08, unit="share", source=f"the same for Blackwell; {JUDGEMENT}", most=1.0
    )
    eight_bit_share: Array = constant(
        0.97,
        sigma=0.08,
        unit="share",
        source=f"of the 8-bit ceiling against the same of the 16-bit one; {JUDGEMENT}",
        most=1.1,
    )
    quantise_traffic: Array = constant(
        1.0, sigma=0.4, unit="multiple", source=f"of one cast of every operand in memory traffic; {JUDGEMENT}"
    )
    grouped_share: Array = constant(
        0.75,
        sigma=0.2,
        unit="share",
        source=f"grouped expert products against one product of the rows; {JUDGEMENT}",
        most=1.0,
    )
    attention_share: Array = constant(
        1.0, sigma=0.15, unit="multiple", source="of the published FlashAttention rates (device_columns.py)"
    )
    unfused_attention: Array = constant(
        0.40,
        sigma=0.3,
        unit="share",
        source=f"of the matmul rate, batched products with a short inner side; {JUDGEMENT}",
    )
    traffic: Array = constant(
        0.85, sigma=0.2, unit="multiple", source="of the counted bytes of memory-bound operations (model_columns.py)"
    )
    host_op_seconds: Array = constant(
        10e-6, sigma=0.5, unit="s", source=f"host time to issue one operation from Python; {JUDGEMENT}"
    )
    step_seconds: Array = constant(
        0.012, sigma=0.8, unit="s", source=f"per optimizer step: data, clipping, scaler, logging; {JUDGEMENT}"
    )
    scaleup_share: Array = constant(
        0.75,
        sigma=0.15,
        unit="share",
        source=f"of the link inside a node (nccl-tests bus bandwidth); {JUDGEMENT}",
        most=1.0,
    )
    scaleout_share: Array = constant(
        0.75, sigma=0.2, unit="share", source=f"of the network cards, congestion included; {JUDGEMENT}", most=1.0
    )
    latency_seconds: Array = constant(
        25e-6, sigma=0.4, unit="s", source=f"of one collective inside a node; {JUDGEMENT}"
    )
    tensor_exposed: Array = constant(
        0.95, sigma=0.1, unit="share", source=f"of tensor-parallel traffic that delays the step; {JUDGEMENT}", most=1.0
    )
    data_hidden: Array = constant(
        0.75,
        sigma=0.2,
        unit="share",
        source=f"of the time behind which weights and gradients travel; {JUDGEMENT}",
        most=1.0,
    )
    expert_exposed: Array = constant(
        0.65, sigma=0.2, unit="share", source=f"of expert-parallel traffic that delays the step; {JUDGEMENT}", most=1.0
    )
    straggler: Array = constant(
        0.006, sigma=0.6, unit="share", source=f"of the step per doubling of accelerators beyond 8; {JUDGEMENT}"
    )
    optimizer_traffic: Array = constant(
        1.0, sigma=0.4, unit="multiple", source="of the counted bytes of the update (stack_profiles.py)"
    )
    unmodelled: Array = constant(
        1.05, sigma=0.10, unit="multiple", source=f"of the whole step: what no term stands for; {JUDGEMENT}"
    )

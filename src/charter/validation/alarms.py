"""The shipped measurements, and alarms: what cannot be true of a row, so that no fit and no figure takes it in."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from charter.errors import CharterError
from charter.physics.kept_activations import layer_activations
from charter.physics.shapes import count_parameters
from charter.spec.layout import ZeroStage
from charter.units import GB
from charter.validation.quantities.memory_cases import MemoryCase, training_case
from charter.validation.quantities.training_time import training_case as time_case
from charter.validation.rows.accelerator import accelerator_of
from charter.validation.rows.architecture import architecture_of
from charter.validation.rows.measurement import Measurement, Refusal, read_measurements
from charter.validation.rows.shapes import model_named

LEAST_MFU, MOST_MFU = 0.05, 0.75
"""Model FLOP/s over the peak of the row's dtype outside which a training step is misread; from the accuracy issue.
Published steps of well-fed devices lie between 0.1 and 0.6; small adapters may be launch-bound below."""
NEAR = 0.15
"""Relative difference of memory up to which two figures mean the same device."""
TWICE = 2.0
"""Boards of one name differ by less in memory (A100 of 40 and 80 GB)."""
SHARE_OF_STATES = 0.95
"""Memory below so much of weights, gradients and optimizer state was not measured on one device of this job."""


def alarms_of(row: Measurement) -> tuple[str, ...]:
    """Everything about a row that cannot be; empty where nothing can be checked.

    >>> row = Measurement(id="X-1", metric="step_time_s", value=1.0, model="Llama-3.1-8B", ep=8, gpu="H100")
    >>> alarms_of(row)[0]
    'experts are spread over 8 ranks in a model without experts'
    """
    alarms = []
    for check in (_experts, _layout, _device, _speed, _memory):
        try:
            text = check(row)
        except (Refusal, CharterError, ArithmeticError, LookupError, TypeError, ValueError):
            continue
        if text:
            alarms.append(text)
    return tuple(alarms)


def flagged(rows: Sequence[Measurement]) -> dict[str, tuple[str, ...]]:
    """Alarms of the rows that have any, by id."""
    return {row.id: alarms for row in rows if (alarms := alarms_of(row))}


def _experts(row: Measurement) -> str:
    if (row.ep or 1) > 1 and architecture_of(row).mixture is None:
        return f"experts are spread over {row.ep} ranks in a model without experts"
    named = model_named(row.model)
    if (
        row.n_experts
        and named
        and named.architecture.mixture is None
        and named.name.casefold().endswith(row.model.casefold())
    ):
        return f"{row.n_experts} experts in {named.name}, a model without experts"
    return ""


def _layout(row: Measurement) -> str:
    """Accelerators that a layout needs at least, against those that there are."""
    degrees = (row.tp or 1) * (row.pp or 1) * (row.cp or 1)
    if row.kind not in ("pretrain", "sft", "lora", "rm") or not row.gpus or row.gpus % degrees == 0:
        return ""
    return f"a layout of {degrees} accelerators for each copy does not divide the {row.gpus} that there are"


def _device(row: Measurement) -> str:
    """The memory that a row gives its device against that in the device's name, or twice what the catalog says."""
    if (
        row.device_hbm_gb
        and not 0.5 <= row.device_hbm_gb * GB / accelerator_of(replace(row, device_hbm_gb=None)).memory_bytes <= TWICE
    ):
        return f"the device is called {row.gpu} and is said to have {row.device_hbm_gb:g} GB"
    named = re.search(r"(\d+)\s*GB\b", row.gpu, flags=re.IGNORECASE)
    if not named or not row.mem_gb or row.device_hbm_gb:
        return ""
    if abs(row.mem_gb / float(named[1]) - 1) <= NEAR:
        return ""
    return f"the device is called {row.gpu} and is said to have {row.mem_gb:g} GB"


def _speed(row: Measurement) -> str:
    """Implied MFU of training: `6 N_active tokens / (time x devices x peak)`; 4 N with adapters on a frozen model."""
    if row.kind not in ("pretrain", "sft", "lora") or row.offload not in ("", "none"):
        return ""
    if row.metric not in ("step_time_s", "tokens_per_s_per_gpu", "tokens_per_s_total") or not (row.gpus and row.value):
        return ""
    case = time_case(row)
    sequences = case.layout.micro_batch * case.layout.accumulation * case.layout.data
    rates = {
        "step_time_s": sequences * case.seq / row.value / row.gpus,
        "tokens_per_s_total": row.value / row.gpus,
        "tokens_per_s_per_gpu": row.value,
    }
    if row.metric == "step_time_s" and not (row.gbs and row.seq):
        return ""
    peak = accelerator_of(row).peak_flops_per_second({32.0: "fp32", 8.0: "fp8", 4.0: "fp4"}.get(case.bits, "bf16"))
    active = float(count_parameters(case.architecture).active)
    attention = 2.0 * case.architecture.num_layers * case.seq * case.architecture.hidden_size / 2
    passes = 2 * (2 * active) + 3 * attention if case.frozen else 3 * (2 * active + attention)
    mfu = passes * rates[row.metric] / peak
    if (mfu >= LEAST_MFU or case.frozen) and mfu <= MOST_MFU:
        return ""
    return f"the implied MFU is {mfu:.1%}, outside {LEAST_MFU:.0%} to {MOST_MFU:.0%}"


def _memory(row: Measurement) -> str:
    """A peak below the states of its device, or those and what a forward pass without recomputation leaves.

    Where nothing is offloaded and the types are given."""
    if not row.metric.startswith("peak_mem") or row.kind not in ("pretrain", "sft", "rm") or not row.parameter_dtype:
        return ""
    if row.offload not in ("", "none") or row.adapter not in ("", "full") or "unknown" in (row.shard_kind, row.shard):
        return ""
    case = training_case(row)
    lay, states = case.layout, case.job.precision
    if case.job.architecture.mixture is not None:
        return ""
    each = float(count_parameters(case.job.architecture).total) / lay.tensor / lay.pipeline
    shards = [lay.data * lay.context if lay.zero >= stage else 1 for stage in (
        ZeroStage.PARAMETERS, ZeroStage.GRADIENTS, ZeroStage.OPTIMIZER)]  # fmt: skip
    sizes = (states.parameter_bytes, states.gradient_bytes, states.optimizer_bytes)
    weights, gradients, optimizer = (each * size / share for size, share in zip(sizes, shards, strict=True))
    measured, least = row.value * case.unit / case.devices, weights + gradients + optimizer
    if measured < SHARE_OF_STATES * least:
        return f"{measured / GB:.1f} GB is less than the {least / GB:.1f} GB of weights, gradients and optimizer state"
    outputs = _outputs_of_products(case) if row.recompute == "none" and row.seq and row.mbs else 0.0
    least = weights + optimizer + outputs
    if measured >= SHARE_OF_STATES * least:
        return ""
    return (
        f"{measured / GB:.1f} GB is less than weights, optimizer state and the {outputs / GB:.1f} GB of outputs of "
        f"matrix products that a backward pass reads: samples are shorter than {row.seq}, or layers are recomputed"
    )


def _outputs_of_products(case: MemoryCase) -> float:
    """Bytes that even compiled layers keep of one micro-batch where nothing is recomputed but what is between products.

    Limit: a stack may choose to run a product twice to save memory, which it would call recomputation.
    """
    architecture, lay = case.job.architecture, case.layout
    layer = layer_activations(architecture, seq_len=case.job.seq_len, bytes_per_value=2.0)
    inner = (
        layer.products_replicated / (lay.tensor if lay.sequence_parallel else 1) + layer.products_sharded / lay.tensor
    )
    tokens = case.job.seq_len * lay.micro_batch / lay.context
    return tokens * inner * architecture.num_layers / lay.pipeline


# -------- The published measurements that are shipped, those that were fitted, and the mark of a set of rows.

MEASUREMENTS = Path(__file__).parent / "data" / "measurements.csv"


def fingerprint(rows: Sequence[Measurement]) -> str:
    """SHA-256 of the rows' ids and values: which measurements a fit has seen."""
    return hashlib.sha256("\n".join(f"{row.id} {row.value!r}" for row in rows).encode()).hexdigest()


@cache
def bundled_measurements() -> tuple[Measurement, ...]:
    """The published measurements that are shipped."""
    return read_measurements(MEASUREMENTS)


@cache
def taught_measurements() -> tuple[Measurement, ...]:
    """Those to which the shipped calibration is fitted: all but the rows that cannot be what they say."""
    return tuple(row for row in bundled_measurements() if not alarms_of(row))

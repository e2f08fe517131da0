"""Accelerator, and the group that serves one model, as generation sees them: numbers that broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.physics.arrays import Array, array
from charter.physics.serving.weight_format import BF16, WeightFormat
from charter.units import GB

UNMEASURED_CEILING = 0.78
"""Median of the bf16 shares in matmul_ceilings.csv, for devices that nobody measured."""
ATTENTION_CEILINGS = {
    "A100": 0.55,
    "A800": 0.55,
    "H100": 0.45,
    "H800": 0.45,
    "H200": 0.45,
    "GH200": 0.45,
    "H20": 0.75,
    "V100": 0.3,
}
"""Share of the dense 16-bit peak in the forward pass. FlashAttention-2: 50-73 % on A100 (abstract of arXiv:2307.08691),
35 % on H100; FlashAttention-3: up to 75 % there (abstract of arXiv:2407.08608). H20 has the exponential units of H100
for a seventh of its matrix rate, so matrices bound it (judgement); V100 has no such kernel (judgement)."""
OTHER_ATTENTION_CEILING = 0.4
GRACE_SLOWNESS = 1.7
"""Host time of an Arm Grace core over that of an x86 server core in single-threaded Python. Judgement."""
PCIE_SHARE = 0.6
"""Of a PCIe slot's data-sheet rate that collectives through the host reach; from memory of nccl-tests."""
LINK_SHARE = 0.75
NODE_BYTES_PER_SECOND = 25 * GB
"""Per accelerator between nodes where the catalog names no network: 200 Gbit/s."""
PCIE_LATENCY, NODE_LATENCY = 2.5, 5.0
"""Latency of a small all-reduce over that of one inside NVLink: through the host, and across nodes (judgement)."""


@dataclass(frozen=True, kw_only=True)
class ServingDevice:
    """Peaks and links of a serving group, or one column per configuration."""

    matmul_flops: Array
    """Peak of the compute dtype times its measured ceiling."""
    half_flops: Array
    """The same at 16 bits, for the output projection."""
    attention_flops: Array
    memory_bytes_per_second: Array
    narrow: Array
    """1 where matrix products run at 4 bits."""
    bytes_per_weight: Array
    head_bytes: Array
    weight_only: Array
    python_share: Array
    cache_bytes: Array
    cache_ranks: Array
    """Ranks of the tensor group that share the heads of one sequence: all, or one where attention is data-parallel."""
    host_slowness: Array
    tensor: Array
    pipeline: Array
    link_bytes_per_second: Array
    link_latency: Array
    """Factor on the latency of an all-reduce."""
    send_bytes_per_second: Array

    @classmethod
    def of(
        cls,
        accelerator: Accelerator,
        *,
        weights: WeightFormat = BF16,
        cache_bytes: float = 2.0,
        tensor: int = 1,
        pipeline: int = 1,
        data_attention: bool = False,
    ) -> ServingDevice:
        """The columns of one serving group, without dimensions.

        >>> from charter.catalog import accelerators
        >>> group = ServingDevice.of(accelerators.get("H100"), tensor=2)
        >>> round(float(group.matmul_flops) / 1e12), float(group.link_bytes_per_second) / 1e9
        (795, 337.5)
        """
        compute = weights.compute
        if compute == "fp4" and "fp4" not in accelerator.dense_flops_per_second:
            compute = "fp8" if "fp8" in accelerator.dense_flops_per_second else "bf16"
        rate, latency = _group_link(accelerator, tensor)
        send, _ = _group_link(accelerator, tensor * pipeline)
        family = next((name for name in ATTENTION_CEILINGS if accelerator.name.startswith(name + "-")), "")
        attention = ATTENTION_CEILINGS.get(family, OTHER_ATTENTION_CEILING)
        native = _has_rate(accelerator, compute)
        columns = {
            "matmul_flops": _ceiling(accelerator, compute),
            "half_flops": _ceiling(accelerator, "bf16"),
            "attention_flops": accelerator.peak_flops_per_second("bf16") * attention,
            "memory_bytes_per_second": accelerator.memory_bytes_per_second,
            "narrow": 1.0 if compute == "fp4" else 0.0,
            "bytes_per_weight": weights.bytes_per_weight,
            "head_bytes": weights.head_bytes,
            "weight_only": 1.0 if weights.weight_only or not native else 0.0,
            "python_share": weights.python_share,
            "cache_bytes": cache_bytes,
            "cache_ranks": 1 if data_attention else tensor,
            "host_slowness": GRACE_SLOWNESS if accelerator.name.startswith(("GB", "GH")) else 1.0,
            "tensor": tensor,
            "pipeline": pipeline,
            "link_bytes_per_second": rate,
            "link_latency": latency,
            "send_bytes_per_second": send,
        }
        return cls(**{name: array(value) for name, value in columns.items()})

    @classmethod
    def stacked(cls, groups: Sequence[ServingDevice]) -> ServingDevice:
        """One column per configuration."""
        return cls(**{item.name: np.stack([getattr(group, item.name) for group in groups]) for item in fields(cls)})


def _has_rate(accelerator: Accelerator, compute: str) -> bool:
    return compute in ("bf16", "fp16", "fp32") or compute in accelerator.dense_flops_per_second


def _ceiling(accelerator: Accelerator, dtype: str) -> float:
    name = dtype if _has_rate(accelerator, dtype) else "bf16"
    measured = accelerator.matmul_ceiling
    measured_dtype = "bf16" if name == "fp16" else name
    share = (
        measured.get(measured_dtype) or measured.get("fp8" if name in ("fp4", "int8") else "bf16") or UNMEASURED_CEILING
    )
    return accelerator.peak_flops_per_second(name) * (1.0 if accelerator.kind == "cpu" else share)


def _group_link(accelerator: Accelerator, span: int) -> tuple[float, float]:
    """Bytes per second of a rank in a group of `span` neighbours, and the latency over that of NVLink."""
    pcie = "pcie" in accelerator.scaleup_link.casefold() and "nvlink" not in accelerator.scaleup_link.casefold()
    rate = accelerator.scaleup_bytes_per_second
    if not pcie and span <= max(accelerator.scaleup_domain, 1):
        return rate * LINK_SHARE, 1.0
    if span <= max(accelerator.devices_per_node, 1):
        return min(rate, 32 * GB if not pcie else rate) * PCIE_SHARE, PCIE_LATENCY
    node = accelerator.scaleout_bytes_per_second_per_node
    share = node / accelerator.devices_per_node if node else NODE_BYTES_PER_SECOND
    return share * LINK_SHARE, NODE_LATENCY

"""Accelerators as columns: peak rates, measured ceilings, attention rates, memory, links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from charter.catalog.accelerators import Accelerator
from charter.physics.arrays import Array, array
from charter.physics.training.matmuls import REFERENCE_RATE, SHORT_INNER
from charter.units import GB

MULTIPROCESSORS = {
    "V100": 80, "T4": 40, "A10": 72, "A10G": 80, "A100": 108, "A800": 108, "L4": 58, "L40S": 142, "RTX3090": 82,
    "RTX4090": 128, "H100-SXM": 132, "H100-PCIe": 114, "H100-NVL": 132, "H800": 132, "H200": 132, "H20": 78,
    "GH200": 132, "B200": 148, "GB200": 148, "B300": 148, "GB300": 148, "RTX-PRO-6000": 188, "MI250X": 110,
    "MI300X": 304, "MI325X": 304, "MI355X": 256,
}  # fmt: skip
"""Streaming multiprocessors or compute units by name prefix; from memory of the vendors' sheets, to be verified."""
UNMEASURED_CEILING = {"NVIDIA": 0.80, "AMD": 0.60, "Google": 0.95, "Intel": 0.80}
"""Median bf16 share in matmul_ceilings.csv by vendor; Google: systolic arrays fed by a compiler, judgement."""
OTHER_CEILING = 0.70
"""Vendors nobody measured: judgement."""
GENERATIONS = {
    "volta": ("V100", "T4"),
    "ampere": ("A100", "A800", "A10", "RTX3090"),
    "ada": ("L4", "L40S", "RTX4090"),
    "hopper": ("H100", "H800", "H200", "H20", "GH200"),
    "blackwell": ("B200", "B300", "GB200", "GB300", "RTX-PRO-6000"),
    "cdna": ("MI2", "MI3"),
    "tpu": ("TPU",),
}
"""Families by the start of their name; anything else is `other`."""
ATTENTION_SHARE = {
    "volta": (0.20, 0.30, 0.30), "ampere": (0.38, 0.60, 0.60), "ada": (0.36, 0.55, 0.55), "hopper": (0.22, 0.38, 0.58),
    "blackwell": (0.15, 0.25, 0.50), "cdna": (0.15, 0.28, 0.33), "tpu": (0.50, 0.50, 0.50), "other": (0.20, 0.30, 0.30),
}  # fmt: skip
"""Share of the dense 16-bit peak that fused attention reaches at head size 128 on long sequences, forward:
FlashAttention-1, FlashAttention-2, the newest kernels. FlashAttention-2 (arXiv:2307.08691) 50-73 % on A100;
FlashAttention-3 (arXiv:2407.08608) 35 % for FlashAttention-2 on H100, up to 75 % for its own (from memory of the
abstracts). The first column was set on the long sequences of Composer (FND rows) on A100 and H100; the rest is
judgement."""
POD_NETWORK_BYTES_PER_SECOND = 6.25 * GB
"""Per chip between TPU pods: 200 Gbit/s for each host of four; judgement."""
SUSTAINED = {"GB300": 1.2, "B300": 1.1, "Gaudi": 0.85}
"""Blackwell Ultra at 1,400 W against Blackwell at 1,000 to 1,200 W and the same 16- and 8-bit peaks: its power limit
bites later. The figures were set on rows of the calibration file (Megatron-Bridge, GB300 against GB200: a quarter more
for products of equal peak), so leaving that source out does not test them. Gaudi: its best shapes reach 97 % of the
peak, which no stack keeps up; judgement."""
HOST_LINK_BYTES_PER_SECOND = 25 * GB
"""One direction of a PCIe 4 x16 slot as measured by usual host copies; from memory."""
UNKNOWN_NETWORK_BYTES_PER_SECOND = 25 * GB
"""Per accelerator, where neither the run nor the catalog names a network: 200 Gbit/s cards, one each; judgement."""
MEMORY_SHARE = 0.85
"""Of the data-sheet bandwidth that streaming kernels reach; common result of STREAM-like tests."""


@dataclass(frozen=True, kw_only=True)
class DeviceColumns:
    """Accelerator as the time of a step sees it; every field broadcasts against the layouts."""

    rate_16: Array
    """Highest measured (or expected) 16-bit product rate, operations per second."""
    rate_32: Array
    rate_19: Array
    """TF32, which has 19 bits."""
    rate_8: Array
    rate_4: Array
    bandwidth: Array
    """Bytes per second that streaming kernels reach."""
    multiprocessors: Array
    flash1: Array
    """Rate of fused attention, FlashAttention-1 and Triton kernels of 2022-23."""
    flash2: Array
    """Rate of fused attention, FlashAttention-2 generation."""
    recent: Array
    """Rate of the newest attention kernels of the device."""
    sustained: Array
    """Clock under load against others of its generation."""
    short_inner: Array
    """Inner side at which 16-bit products reach half their rate (matmuls.SHORT_INNER)."""
    hopper: Array
    blackwell: Array
    compiled: Array
    """1 where a compiler lays out the whole step (TPU)."""
    scaleup: Array
    """Bytes per second, one accelerator and direction."""
    domain: Array
    node: Array
    """Accelerators per node."""
    scaleout: Array
    """Bytes per second and accelerator through the network cards of its node."""
    serial: Array
    """1 for processors: issuing operations does not hide behind computing them."""
    host_link: Array

    @classmethod
    def of(cls, accelerator: Accelerator) -> DeviceColumns:
        """Columns without dimensions.

        >>> from charter.catalog.accelerators import get
        >>> round(float(DeviceColumns.of(get("A100-80GB")).rate_16) / 1e12, 1)
        271.2
        """
        a, generation = accelerator, generation_of(accelerator.name)
        share = ceiling_16(a)
        peak, units = a.peak_flops_per_second("bf16"), multiprocessors(a.name)
        eight = a.peak_flops_per_second("fp8")
        share_8 = a.matmul_ceiling.get("fp8", share)
        four = a.dense_flops_per_second.get("fp4", eight)
        first, old, recent = ATTENTION_SHARE[generation]
        domain = max(1, a.scaleup_domain)
        network = a.scaleout_bytes_per_second_per_node
        per_device = network / a.devices_per_node if network else UNKNOWN_NETWORK_BYTES_PER_SECOND
        torus = a.kind == "tpu"
        return cls(
            rate_16=array(peak * share),
            rate_32=array(a.peak_flops_per_second("fp32") * share),
            rate_19=array(a.peak_flops_per_second("tf32") * share),
            rate_8=array(eight * share_8),
            rate_4=array(four * share_8 * (1.0 if four == eight else 0.75)),
            bandwidth=array(a.memory_bytes_per_second * (1.0 if a.kind == "cpu" else MEMORY_SHARE)),
            multiprocessors=array(units),
            flash1=array(peak * first),
            flash2=array(peak * old),
            recent=array(peak * recent),
            sustained=array(next((value for start, value in SUSTAINED.items() if a.name.startswith(start)), 1.0)),
            short_inner=array(SHORT_INNER * (peak * share / units / REFERENCE_RATE if units > 1 else 1.0)),
            hopper=array(generation == "hopper"),
            blackwell=array(generation == "blackwell"),
            compiled=array(torus),
            scaleup=array(a.scaleup_bytes_per_second),
            domain=array(domain),
            node=array(a.devices_per_node),
            scaleout=array(POD_NETWORK_BYTES_PER_SECOND if torus and not network else per_device),
            serial=array(a.kind == "cpu"),
            host_link=array(HOST_LINK_BYTES_PER_SECOND * (2 if a.year >= 2022 else 1)),
        )

    @classmethod
    def stack(cls, columns: Sequence[DeviceColumns]) -> DeviceColumns:
        """One column entry per case."""
        return cls(**{item.name: np.array([float(getattr(one, item.name)) for one in columns]) for item in fields(cls)})

    def with_network(
        self, bytes_per_second_per_node: float | None, node: int | None, domain: int | None
    ) -> DeviceColumns:
        """The same with the network, node size or scale-up domain of a particular cluster."""
        node_size = array(node) if node else self.node
        own_domain = array(domain) if domain else self.domain
        if node and not domain:
            own_domain = np.where(self.domain <= self.node, np.minimum(self.domain, node_size), self.domain)
            own_domain = np.where((self.domain == self.node) & (self.domain > 1), node_size, own_domain)
        rate = array(bytes_per_second_per_node / float(node_size)) if bytes_per_second_per_node else self.scaleout
        return replace(self, node=node_size, domain=array(own_domain), scaleout=rate)


def generation_of(name: str) -> str:
    """The family of a device.

    >>> generation_of("GB200-NVL72-186GB"), generation_of("Gaudi2-96GB")
    ('blackwell', 'other')
    """
    return next((family for family, starts in GENERATIONS.items() if name.startswith(starts)), "other")


def multiprocessors(name: str) -> float:
    """Units that work on output tiles side by side; 1 (no quantisation into waves) where nothing is published."""
    prefixes = [prefix for prefix in MULTIPROCESSORS if name.startswith(prefix)]
    return float(MULTIPROCESSORS[max(prefixes, key=len)]) if prefixes else 1.0


def ceiling_16(accelerator: Accelerator) -> float:
    """Measured share of the 16-bit peak, or what its vendor's devices reach."""
    measured = accelerator.matmul_ceiling.get("bf16")
    if measured:
        return measured
    if accelerator.kind == "cpu":
        return 1.0
    return UNMEASURED_CEILING.get(accelerator.vendor, OTHER_CEILING)

"""Accelerators as columns: rates, ceilings by the shape of a product, links of a group and their collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from charter.catalog import accelerators
from charter.catalog.accelerators import Accelerator
from charter.physics.columns import Array, array
from charter.units import GB

# -------- Share of a device's best product that a given shape reaches: tiles, waves, and a short inner side.

TILES = ((256.0, 128.0, 1.0), (128.0, 128.0, 0.93), (64.0, 128.0, 0.78), (64.0, 64.0, 0.6))
"""Output tiles of the kernels libraries choose from, and the share of the best tile's rate that each reaches.
NVIDIA, Matrix Multiplication Background User's Guide (tile quantisation); shares: judgement."""
SHORT_INNER = 150.0
"""Inner side at which half the time goes to filling and draining a multiprocessor of 2.5 TFLOP/s (A100). It grows
with the rate of one multiprocessor, since latencies do not shrink. Judgement: 4096 loses 4 % on A100."""
REFERENCE_RATE = 2.5e12
"""Of one multiprocessor of an A100, operations per second."""
LONGEST_SPLIT = 1024.0
"""Part of an inner side that one tile keeps when it is split over idle multiprocessors; judgement."""
OVERLAPPED_FILL = 0.5
"""Share of filling and draining that remains where a tile follows another on the same multiprocessor; judgement."""
SPLIT_SHARE = 0.85
"""Of the rate that a split keeps (partial sums are added through memory); judgement."""


def shape_share(rows: Array, columns: Array, inner: Array, multiprocessors: Array, short_inner: Array) -> Array:
    """Share of the device's best rate for `rows x columns` out of an inner side of `inner`.

    The best tile counts: `m n / (S waves tile)`, `waves = ceil(tiles / S)` (NVIDIA, Matrix Multiplication Background
    User's Guide, sections on tile and wave quantisation), times `k / (k + k0)`, where half of
    k0 hides behind the tile before. With fewer tiles than multiprocessors the inner side is split.

    >>> sides, inner = array([8192, 8192, 256]), array([8192, 64, 8192])
    >>> [round(float(each), 2) for each in shape_share(sides, sides, inner, array(108), array(160))]
    [0.99, 0.43, 0.41]
    """
    dimensions = max(np.ndim(each) for each in (rows, columns, inner, multiprocessors, short_inner))
    tall, wide, rate = (array(side).reshape(-1, *(1,) * dimensions) for side in zip(*TILES, strict=True))
    tiles = np.ceil(rows / tall) * np.ceil(columns / wide)
    longest = np.maximum(1.0, np.floor(inner / LONGEST_SPLIT))
    split = np.minimum(np.maximum(np.floor(multiprocessors / tiles), 1.0), longest)
    spread = tiles * split
    waves = np.ceil(spread / multiprocessors)
    used = rows * columns * split / (multiprocessors * waves * tall * wide)
    depth = inner / split
    filled = depth / (depth + short_inner * (OVERLAPPED_FILL + (1 - OVERLAPPED_FILL) / waves))
    best = (used * rate * filled * np.where(split > 1, SPLIT_SHARE, 1.0)).max(axis=0)
    share = np.minimum(best, 1.0)
    share = np.where(
        multiprocessors > 1, share, np.minimum(1.0, rows / (np.ceil(rows / 128) * 128)) * inner / (inner + short_inner)
    )
    return array(share)


# -------- Accelerators as columns: peak rates, measured ceilings, attention rates, memory, links.

MULTIPROCESSORS = {
    "P100": 56, "V100": 80, "T4": 40, "RTX2080Ti": 68, "Titan-RTX": 72, "Quadro-RTX": 72, "A10": 72, "A10G": 80,
    "A100": 108, "A800": 108, "A30": 56, "A40": 84, "RTX-A4000": 48, "RTX-A5000": 64, "RTX-A6000": 84, "RTX3060": 28,
    "RTX3070": 46, "RTX3080": 68, "RTX3090": 82, "RTX3090Ti": 84, "L4": 58, "L40": 142, "L40S": 142, "RTX4080": 76,
    "RTX4090": 128, "RTX-6000-Ada": 142, "H100-SXM": 132, "H100-PCIe": 114, "H100-NVL": 132, "H800": 132,
    "H800-PCIe": 114, "H200": 132, "H20": 78, "GH200": 132, "B100": 148, "B200": 148, "GB200": 148, "B300": 148,
    "GB300": 148, "RTX5080": 84, "RTX5090": 170, "RTX-PRO-6000": 188, "GB10": 48, "MI100": 120, "MI210": 104,
    "MI250": 104, "MI250X": 110, "MI300A": 228, "MI300X": 304, "MI325X": 304, "MI350X": 256, "MI355X": 256,
}  # fmt: skip
"""Streaming multiprocessors or compute units by name prefix; from memory of the vendors' sheets, to be verified:
NVIDIA's print CUDA cores, 64 in a multiprocessor of compute capability 6.0 to 8.0, 128 in one of 8.6 and later."""
UNMEASURED_CEILING = {"NVIDIA": 0.80, "AMD": 0.60, "Google": 0.95, "Intel": 0.80}
"""Median bf16 share in matmul_ceilings.csv by vendor; Google: systolic arrays fed by a compiler, judgement."""
OTHER_CEILING = 0.70
"""Vendors nobody measured: judgement."""
GENERATIONS = {
    "volta": ("V100", "T4", "RTX20", "Titan-RTX", "Quadro-RTX"),
    "ampere": ("A100", "A800", "A10", "A30", "A40", "RTX-A", "RTX30"),
    "ada": ("L4", "RTX40", "RTX-6000-Ada"),
    "hopper": ("H100", "H800", "H200", "H20", "GH200"),
    "blackwell": ("B100", "B200", "B300", "GB200", "GB300"),
    "blackwell-rtx": ("RTX50", "RTX-PRO-6000", "GB10"),
    "cdna": ("MI1", "MI2", "MI3"),
    "tpu": ("TPU",),
}
"""Families by the start of their name; anything else is `other`. By the instructions that kernels have (NVIDIA, CUDA
programming guide, compute capabilities: 7.x, 8.0 and 8.6, 8.9, 9.0, 10.x, 12.x; Turing's 7.5 stands with Volta's)."""
ATTENTION_SHARE = {
    "volta": (0.20, 0.30, 0.30, 0.30), "ampere": (0.38, 0.60, 0.60, 0.60), "ada": (0.36, 0.55, 0.55, 0.55),
    "hopper": (0.22, 0.38, 0.58, 0.65), "blackwell": (0.15, 0.25, 0.50, 0.65), "cdna": (0.15, 0.28, 0.33, 0.33),
    "blackwell-rtx": (0.36, 0.55, 0.55, 0.55), "tpu": (0.50, 0.50, 0.50, 0.50), "other": (0.20, 0.30, 0.30, 0.30),
}  # fmt: skip
"""Share of the dense 16-bit peak that fused attention reaches at head size 128 on long sequences, forward:
FlashAttention-1, FlashAttention-2, the vendor's library, FlashAttention-3 or -4. From memory of the abstracts:
FlashAttention-2 (arXiv:2307.08691) 50-73 % on A100; FlashAttention-3 (arXiv:2407.08608) 35 % for FlashAttention-2 on
H100 and up to 75 % for its own; FlashAttention-4 up to 71 % on B200; causal masks at head size 128 reach less. The
first column was set on the long sequences of Composer (FND rows) on A100 and H100; Blackwell's boards of compute
capability 12 have the warp-level instructions of Ada (PTX ISA: neither wgmma nor tcgen05), so its shares; the rest is
judgement."""
ATTENTION_KERNELS = ("flash1", "flash2", "recent", "flash3")
"""Columns of `ATTENTION_SHARE`."""
ATTENTION_MEASURED_ON = {"ampere": "A100-SXM-80GB", "hopper": "H100-SXM-80GB"}
"""Boards of the papers. Another one of the generation has the same exponentials per multiprocessor, and may have other
products: H20 keeps 78 multiprocessors, with a quarter of H100's rate each; A10, A40 and RTX 30 have half of A100's at a
higher clock."""
CUT_PRODUCTS = 2 / 3
"""Of the measured board's rate per multiprocessor: below it a board has fewer products in a clock, above it a slower
clock, which slows exponentials as well."""
HOST_SLOWNESS = {
    "V100": 1.4, "T4": 1.4, "A100": 1.3, "A800": 1.3, "A10": 1.3, "A30": 1.3, "A40": 1.3, "GB2": 1.7, "GB3": 1.7,
    "GH": 1.7,
}  # fmt: skip
"""Time of single-threaded Python on the processors beside a device over that on those beside Hopper and Blackwell
(Sapphire Rapids at 3.8 GHz, as in DGX H100). A100 stands beside Rome, Milan or Ice Lake at 3.4 to 3.5 GHz, V100 beside
Skylake at 3.7 (systems' data sheets); their cores do 19 % (Ice Lake, Milan) to 40 % (Rome, Skylake) less in a cycle by
what Intel and AMD printed at each launch. Grace: judgement, which NeMo RL's seven rows on GB200 bear out (0 to 2 % too
short; with 1.2, 5 to 10 %). Desktop cards stand beside faster cores and have 1."""
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
    """Rate of the attention kernels in the vendor's library."""
    flash3: Array
    """Rate of fused attention written for one generation: FlashAttention-3 on Hopper, FlashAttention-4 on Blackwell."""
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
    host: Array
    """Time of the machine's processors over the usual (`HOST_SLOWNESS`)."""

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
        attention = {name: array(fused_attention_rate(a, name)) for name in ATTENTION_KERNELS}
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
            **attention,
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
            host=array(host_slowness(a.name)),
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


def fused_attention_rate(accelerator: Accelerator, kernel: str) -> float:
    """Operations per second of a forward pass of fused attention on long sequences, by the kernel's generation.

    Where the products of a multiprocessor are cut, an operation takes `1 / products + rest`: the rest (exponentials,
    waiting) is what the board that was measured adds to its products at their ceiling, and stays as long as it was.

    >>> from charter.catalog.accelerators import get
    >>> round(fused_attention_rate(get("H100"), "flash3") / fused_attention_rate(get("H100"), "flash2"), 2)
    1.71
    >>> [round(fused_attention_rate(get("H20"), name) / 148e12, 2) for name in ("flash2", "flash3")]
    [0.62, 0.76]
    """
    generation, peak = generation_of(accelerator.name), accelerator.peak_flops_per_second("bf16")
    share = ATTENTION_SHARE[generation][ATTENTION_KERNELS.index(kernel)]
    if generation not in ATTENTION_MEASURED_ON:
        return peak * share
    reference = accelerators.get(ATTENTION_MEASURED_ON[generation])
    measured, products = _of_one_unit(reference), _of_one_unit(accelerator)
    if products > CUT_PRODUCTS * measured:
        return peak * share
    rest = 1 / (share * measured) - 1 / (ceiling_16(reference) * measured)
    return multiprocessors(accelerator.name) / (1 / (ceiling_16(accelerator) * products) + max(rest, 0.0))


def _of_one_unit(accelerator: Accelerator) -> float:
    """16-bit peak of one multiprocessor."""
    return accelerator.peak_flops_per_second("bf16") / multiprocessors(accelerator.name)


def host_slowness(name: str) -> float:
    """Host time of the machines in which a device stands, over the usual.

    >>> host_slowness("A100-SXM-80GB"), host_slowness("H20-96GB"), host_slowness("GB10")
    (1.3, 1.0, 1.0)
    """
    return next((factor for start, factor in HOST_SLOWNESS.items() if name.startswith(start)), 1.0)


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


# -------- Links that a group of accelerators spans, and the seconds of collectives over them, for many layouts at once.
#
# Ranks are numbered tensor, context, data, pipeline, the fastest first (Megatron-LM `parallel_state.py`), so a group is
# `size` ranks, one every `stride`. Inside the scale-up domain (NVLink, a TPU torus) it has that link; beyond it, rings
# run side by side through the network cards of the ranks it has in a domain. Inside a node without such a link the
# host bridge carries them.

OUTSIDE_LATENCY = 1.5
"""Of a hop through the network against one collective inside a node; judgement."""


SWITCH_MACHINES = 16
"""Machines whose flows meet on one switch that gives every port its full rate: half the ports of a switch of 32 (fat
tree, Leiserson 1985), of which the other half lead to further switches."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The links of groups of ranks; rates are bytes per second of one accelerator and direction."""

    size: Array
    inside: Array
    """Ranks of the group in one scale-up domain."""
    near: Array
    """Ranks of the group in one node or scale-up domain, whichever is larger: they share its network cards."""
    scaleup: Array
    bridge: Array
    """Through the host of a node whose accelerators have no link of their own."""
    scaleout: Array
    latency: Array

    @property
    def local(self) -> Array:
        """Between ranks that need no network."""
        return array(np.where(self.near > self.inside, self.bridge, self.scaleup))

    @property
    def ring(self) -> Array:
        """A ring through all ranks: as many network cards as ranks in a node carry it past the node."""
        return array(np.where(self.size > self.near, np.minimum(self.local, self.scaleout * self.near), self.local))

    @property
    def message(self) -> Array:
        """Between two ranks that lie farthest apart."""
        return array(np.where(self.size > self.near, self.scaleout, self.local))

    def gather_seconds(self, num_bytes: Array) -> Array:
        """All-gather to `num_bytes` on every rank, or a reduce-scatter of them: `latency + (n - 1) / n S / W`.

        Source: ring, Patarasuk and Yuan 2009; latency grows with the logarithm of the ranks (trees).
        """
        parts = (self.size - 1) / self.size
        return array(np.where(self.size > 1, self.latency + parts * num_bytes / self.ring, 0.0))

    def reduce_seconds(self, num_bytes: Array) -> Array:
        """All-reduce: a reduce-scatter and an all-gather; one latency, since they are issued together."""
        parts = 2 * (self.size - 1) / self.size
        return array(np.where(self.size > 1, self.latency + parts * num_bytes / self.ring, 0.0))

    def exchange_seconds(self, num_bytes: Array, copies: Array) -> Array:
        """All-to-all of `num_bytes` per rank, `copies` of each token; one copy per node travels the network.

        Distinct nodes among k choices of D: `D (1 - (1 - 1 / D)^k)` (DeepSeek-V3, arXiv:2412.19437, section 3.2.2:
        a token crosses the network once per node).
        """
        domains = np.maximum(1.0, self.size / self.near)
        distinct = domains * (1 - (1 - 1 / domains) ** np.maximum(copies, 1.0)) / np.maximum(copies, 1.0)
        away = (domains - 1) / domains * distinct
        near = (self.size - 1) / self.size
        seconds = self.latency + num_bytes * np.maximum(near / self.local, away / self.scaleout)
        return array(np.where(self.size > 1, seconds, 0.0))


def group(
    device: DeviceColumns,
    size: Array,
    stride: Array,
    *,
    scaleup_share: Array,
    scaleout_share: Array,
    congestion: Array,
    latency: Array,
) -> Group:
    """The links of a group of `size` ranks, one every `stride`.

    >>> from charter.catalog.accelerators import get
    >>> h100, one, sizes, strides = DeviceColumns.of(get("H100")), array(1), array([8, 64, 8]), array([1, 1, 8])
    >>> made = group(h100, sizes, strides, scaleup_share=one, scaleout_share=one, congestion=array(0), latency=one)
    >>> (made.ring / 1e9).tolist()
    [450.0, 400.0, 50.0]
    """
    inside = np.clip(np.floor(device.domain / stride), 1.0, size)
    near = np.clip(np.floor(np.maximum(device.domain, device.node) / stride), 1.0, size)
    hops = np.log2(np.maximum(size, 1.0))
    outside = np.log2(np.maximum(size / near, 1.0))
    crowding = 1 + congestion * np.log2(np.maximum(size / near / SWITCH_MACHINES, 1.0))
    return Group(
        size=array(size),
        inside=array(inside),
        near=array(near),
        scaleup=array(device.scaleup * scaleup_share),
        bridge=array(np.minimum(device.scaleup, device.host_link) * scaleup_share),
        scaleout=array(device.scaleout * scaleout_share / crowding),
        latency=array(latency * (0.7 + 0.1 * hops + OUTSIDE_LATENCY * outside)),
    )

"""The accelerator of a measured row and the network of its node, as sources print them."""

import re
from collections.abc import Mapping
from dataclasses import replace

from charter.catalog import accelerators
from charter.catalog.accelerators import DEVICES_PER_PACKAGE, Accelerator, plain
from charter.errors import UsageError
from charter.physics.devices import generation_of
from charter.spec.suggest import nearest as closest
from charter.units import GB
from charter.validation.rows.measurement import Measurement, Refusal

NEAR = 0.15
"""Relative difference in memory up to which two figures mean the same device (192 and 180 GB of a B200)."""
_CARDS = re.compile(r"(\d+)\s*x\s*(\d+(?:\.\d+)?)\s*g(?:b|bps|bit|bit/s|b/s)?\b", re.IGNORECASE)
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(t|g)(b|bit|bps|bytes|b/s|bit/s)", re.IGNORECASE)
_EACH = re.compile(r"(?:\bper\b|/)\s*(?:gpu|tpu|chip|device|accelerator|card)\b", re.IGNORECASE)
_INFINIBAND = {"xdr": 800.0, "ndr": 400.0, "hdr": 200.0, "edr": 100.0}
"""Gbit/s of one card, which a node has one of per accelerator (data sheets of the InfiniBand generations)."""
ETHERNET_GIGABITS = 25.0
"""Of a node whose network is called Ethernet and nothing more: a common cloud default."""
BITS_PER_BYTE = 8
LEAST_CLUSTER_NETWORK = 100 * GB / BITS_PER_BYTE
"""Bytes per second of a node: 100 Gbit/s, a common cloud default."""
ONE_MACHINE = 8
"""Accelerators that stand in one machine where a row does not say otherwise: the most that common servers hold."""
STATIC_POWER = 0.2
"""Of a board's power limit that its clock does not move: memory, links, leakage; judgement."""


def accelerator_of(row: Measurement) -> Accelerator:
    """The accelerator a row was measured on; `mem_gb` chooses among variants. Raises Refusal for unknown ones.

    >>> row = Measurement(id="X-1", metric="step_time_s", value=1.0, gpu="A100", mem_gb=80)
    >>> accelerator_of(row).name
    'A100-SXM-80GB'
    """
    if row.device_hbm_gb or row.device_hbm_tb_per_s or row.device_power_watts:
        return _as_typed(row)
    if not row.gpu:
        raise Refusal("the row does not say which accelerator it ran on (gpu is blank)")
    memory = row.mem_gb or _memory_in_name(row.gpu)
    for name in _spellings(row.gpu, memory):
        try:
            device = accelerators.get(name)
        except UsageError:
            continue
        return _with_memory(device, _by_memory(row.gpu, memory), memory)
    near = _by_memory(row.gpu, memory)
    if near is not None:
        return near
    like = closest(row.gpu, (item.name for item in accelerators.catalog()))
    meant = f"; did you mean {like}?" if like else ""
    raise Refusal(f"no accelerator of the catalog is called {row.gpu!r}{meant} (`charter catalog gpus` lists all)")


def device_family(row: Measurement) -> str:
    """The generation of a row's accelerator, or the first word of its name; blank where nobody knows it.

    >>> row = Measurement(id="X-1", metric="step_time_s", value=1.0, gpu="H20")
    >>> device_family(row), device_family(replace(row, gpu="Gaudi2")), device_family(replace(row, gpu=""))
    ('hopper', 'Gaudi', '')
    """
    try:
        name = accelerator_of(row).name
    except Refusal:
        return ""
    family = generation_of(name)
    return family if family != "other" else re.split(r"[^A-Za-z]", name)[0]


def _as_typed(row: Measurement) -> Accelerator:
    """The catalog's device with the memory, the bandwidth and the power that a row types for its own.

    Another power limit than the catalog's is another clock under load, and another rate of everything that computes.
    """
    plain_row = replace(row, device_hbm_gb=None, device_hbm_tb_per_s=None, device_power_watts=None, mem_gb=None)
    device = accelerator_of(plain_row)
    clock = clock_share(row.device_power_watts, device.tdp_watts)
    return replace(
        device,
        dense_flops_per_second={dtype: clock * rate for dtype, rate in device.dense_flops_per_second.items()},
        memory_bytes=row.device_hbm_gb * GB if row.device_hbm_gb else device.memory_bytes,
        memory_bytes_per_second=(
            row.device_hbm_tb_per_s * 1e12 if row.device_hbm_tb_per_s else device.memory_bytes_per_second
        ),
        tdp_watts=row.device_power_watts or device.tdp_watts,
        memory_is_reported=row.device_hbm_gb is None and device.memory_is_reported,
    )


def clock_share(power_watts: float | None, usual_watts: float | None) -> float:
    """Clock under load at a power limit against that at the usual one; 1 where either is not known.

    `((p - s) / (1 - s))^(1/3)` for `p` of the usual limit: switching power is `C V^2 f` and voltage follows the clock
    (Weste and Harris, CMOS VLSI Design, section 5.2), less the share `s` that the clock does not move. Limit: a job
    that never reaches the limit, because it waits for its host or network, is not slowed down.

    >>> round(clock_share(500.0, 700.0), 2), clock_share(None, 700.0)
    (0.86, 1.0)
    """
    if not power_watts or not usual_watts:
        return 1.0
    moved = max(power_watts / usual_watts - STATIC_POWER, 0.01) / (1 - STATIC_POWER)
    return float(moved ** (1 / 3))


def _spellings(name: str, memory: float | None) -> tuple[str, ...]:
    """Return the names to look up, the most exact first: with the memory, as printed, without memory or count."""
    stem = re.sub(r"[-_ ]*\d+(?:\.\d+)?\s*(?:GB|GiB|G)\b", "", name, flags=re.IGNORECASE).strip()
    stem = re.sub(r"^\d+\s*[x*]\s*", "", stem, flags=re.IGNORECASE)
    stem = re.sub(r"[-_ ]+(?:OAM|UBB|tensor core|GPU|accelerator)\b", "", stem, flags=re.IGNORECASE)
    stem = re.sub(r"^(?:nvidia[- ])?(?:DGX|HGX|HPU|XPU|NPU)[- ]", "", stem, flags=re.IGNORECASE)
    stem = re.sub(
        r"^((?:TPU[- ]?)?v\d+(?:e|p|i|lite|litepod)?|trillium|ironwood)-\d+$", r"\1", stem, flags=re.IGNORECASE
    )
    stem = re.sub(r"^v(\d)(lite|litepod)?(?=[ep]?$)", lambda found: f"TPU-v{found[1]}{'e' * bool(found[2])}", stem)
    stem = next((device for start, device in _INSTANCES if stem.casefold().startswith(start)), stem)
    sized = (f"{stem}-{memory:g}GB",) if memory else ()
    return (*sized, name, stem)


_INSTANCES: tuple[tuple[str, str], ...] = (
    ("p4de.", "A100-SXM-80GB"),
    ("p4d.", "A100-SXM-40GB"),
    ("p5e", "H200"),
    ("p5.", "H100"),
    ("p6-b200", "B200"),
    ("p3dn.", "V100-SXM2-32GB"),
    ("p3.", "V100-SXM2-16GB"),
    ("g5.", "A10G"),
    ("g6e.", "L40S"),
    ("g6.", "L4"),
    ("g4dn.", "T4"),
    ("trn1", "Trainium1"),
    ("trn2", "Trainium2"),
    ("inf2", "Inferentia2"),
    ("a2-ultragpu", "A100-SXM-80GB"),
    ("a2-highgpu", "A100-SXM-40GB"),
    ("a3-", "H100"),
    ("a4-highgpu", "B200"),
    ("rtx 4090d", "RTX4090"),
    ("rtx4090d", "RTX4090"),
    ("v100s", "V100-PCIe-32GB"),
    ("h20-", "H20-96GB"),
)
"""Instances of clouds by the start of their name (their public lists, from memory), and near relatives of a device."""


def _with_memory(device: Accelerator, near: Accelerator | None, memory: float | None) -> Accelerator:
    """The device with the memory the row states: another variant, or the same rates with that memory.

    Packages of two devices and TPU chips of two cores print the memory of either, so theirs stays.
    """
    if memory is None or device.kind == "tpu" or device.name in DEVICES_PER_PACKAGE:
        return device
    if abs(device.memory_bytes / (memory * GB) - 1) < NEAR:
        return device
    return near or replace(device, memory_bytes=memory * GB, memory_is_reported=False)


def _memory_in_name(name: str) -> float | None:
    match = re.search(r"(\d+(?:\.\d+)?)\s*(?:GB|GiB|G)\b", name, flags=re.IGNORECASE)
    return float(match[1]) if match else None


_ANONYMOUS: Mapping[str, str] = {"24": "RTX3090", "40": "A100-SXM-40GB", "48": "RTX-A6000", "80": "A100-SXM-80GB"}
"""What a source most likely means that names a memory size alone."""


def _by_memory(name: str, memory: float | None) -> Accelerator | None:
    """A device known by its memory alone (`48GB GPU`), or the variant of the name whose memory is near."""
    if memory is None:
        return None
    if re.fullmatch(r"(gpu)?(\d+(gb|gib|g))?(gpu|gpus|accelerator)?", plain(name)):
        chosen = _ANONYMOUS.get(f"{memory:g}")
        return accelerators.get(chosen) if chosen else None
    stem = plain(re.sub(r"[-_ ]*\d+(?:\.\d+)?\s*(?:GB|GiB|G)\b", "", name, flags=re.IGNORECASE))
    alike = [item for item in accelerators.catalog() if _is_variant(plain(item.name), stem)]
    near = [item for item in alike if abs(item.memory_bytes / (memory * GB) - 1) < NEAR]
    return near[0] if near else None


def _is_variant(name: str, stem: str) -> bool:
    """Return True if a catalog name is the stem with more behind it, and not a longer number (H20, H200)."""
    return name.startswith(stem) and not name[len(stem) : len(stem) + 1].isdigit()


def node_network(text: str, accelerators_per_node: int) -> float | None:
    """Bytes per second and direction of a node's network cards together; None where the text does not say.

    >>> node_network("4x100Gbps Omni-Path per node", 8) / 1e9, node_network("1600Gbps RoCE per node", 8) / 1e9
    (50.0, 200.0)
    >>> node_network("8x NDR InfiniBand", 8) / 1e9, node_network("400Gbps/GPU RDMA", 8) / 1e9, node_network("NVL72", 4)
    (400.0, 400.0, None)
    """
    plain = re.sub(r"nv(?:link|switch|l)\d*[^,;+]*", "", text, flags=re.IGNORECASE)
    cards = _CARDS.search(plain)
    if cards:
        return float(cards[1]) * float(cards[2]) * GB / BITS_PER_BYTE
    rate = _RATE.search(plain)
    if rate:
        bytes_per_second = float(rate[1]) * (1000.0 if rate[2].casefold() == "t" else 1.0) * GB / BITS_PER_BYTE
        return bytes_per_second * (accelerators_per_node if _EACH.search(plain) else 1)
    for name, gigabits in _INFINIBAND.items():
        if name in plain.casefold():
            return gigabits * accelerators_per_node * GB / BITS_PER_BYTE
    return ETHERNET_GIGABITS * GB / BITS_PER_BYTE if "ethernet" in plain.casefold() else None


def node_size(row: Measurement, accelerator: Accelerator) -> int | None:
    """Accelerators of a machine as printed; blank: up to eight of a row stand in one; None: as the catalog has it."""
    usual = accelerator.devices_per_node
    alone = usual < (row.gpus or 0) <= ONE_MACHINE and accelerator.scaleup_domain <= usual
    return row.gpus_per_node or (row.gpus if alone else None)


def cluster_network(row: Measurement, accelerator: Accelerator) -> float | None:
    """Of a node, as printed; a cluster that does not say has no workstation's network card."""
    printed = node_network(row.interconnect, row.gpus_per_node or accelerator.devices_per_node)
    usual = accelerator.scaleout_bytes_per_second_per_node
    return printed or (LEAST_CLUSTER_NETWORK if usual and usual < LEAST_CLUSTER_NETWORK else None)


def in_node_of(row: Measurement, accelerator: Accelerator) -> Accelerator:
    """The accelerator in nodes of another size (DGX-2: 16 V100 on one switch), where a row's machines are larger.

    >>> v100 = accelerators.get("V100-SXM2-32GB")
    >>> in_node_of(Measurement(id="X-1", metric="step_time_s", value=1.0, gpus_per_node=16), v100).scaleup_domain
    16
    """
    size, usual = node_size(row, accelerator), accelerator.devices_per_node
    if not size or size <= usual:
        return accelerator
    domain = accelerator.scaleup_domain
    return replace(accelerator, devices_per_node=size, scaleup_domain=size if 1 < domain == usual else domain)


def in_cluster_of(row: Measurement, accelerator: Accelerator) -> Accelerator:
    """As `in_node_of`, with the network between the nodes of the row."""
    network = cluster_network(row, accelerator) or accelerator.scaleout_bytes_per_second_per_node
    return replace(in_node_of(row, accelerator), scaleout_bytes_per_second_per_node=network)


def scaleup_domain(interconnect: str, accelerator: str) -> int | None:
    """Accelerators that the fast link joins, where the text says another number than the catalog."""
    text = f"{interconnect} {accelerator}".casefold()
    if "nvl72" in text:
        return 72
    return 1 if re.search(r"pcie|pci-e|no nvlink", interconnect.casefold()) and "nvlink" not in interconnect else None

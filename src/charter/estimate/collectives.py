"""Seconds of collective operations: a latency per hop plus bytes over bandwidth."""

from dataclasses import dataclass

from charter.catalog.accelerators import Accelerator
from charter.units import GB

LINK_EFFICIENCY = 0.8
"""Share of a link's data-sheet rate that a large collective reaches. Assumption, from memory of nccl-tests bus
bandwidths on NVLink nodes; to be calibrated."""
SCALEUP_LATENCY_SECONDS = 5e-6
SCALEOUT_LATENCY_SECONDS = 15e-6
"""Per hop; assumptions from memory of nccl-tests at small sizes."""
UNKNOWN_NETWORK_BYTES_PER_SECOND = 100 * GB / 8
"""Per node where the catalog names no network: 100 Gbit/s, a common cloud default."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """What joins the ranks of a group: latency per hop, and bytes per second of one rank in one direction."""

    name: str
    latency_seconds: float
    bytes_per_second: float


def link_between(accelerator: Accelerator, *, span: int, stride: int = 1) -> Link:
    """The link of a ring over a group that spans `span` consecutive accelerators, one every `stride`.

    Within the scale-up domain it is the accelerator's own link. Beyond it, rings run side by side through all network
    cards of a node: a group with r ranks in a node of d moves r / d of the node's rate past each rank, at most the
    scale-up rate. One rank per node (`stride >= d`) is its own share, which is also what messages and all-to-alls get.

    >>> from charter.catalog.accelerators import get
    >>> h100 = get("H100")
    >>> link_between(h100, span=8).name, [link_between(h100, span=16, stride=s).bytes_per_second / 1e9 for s in (1, 8)]
    ('NVLink4', [320.0, 40.0])
    """
    rate = accelerator.scaleup_bytes_per_second
    if span <= max(accelerator.scaleup_domain, 1):
        return _link(accelerator.scaleup_link, SCALEUP_LATENCY_SECONDS, rate)
    if span <= accelerator.devices_per_node:
        return _link("host bridge", SCALEUP_LATENCY_SECONDS, min(rate, PCIE_BYTES_PER_SECOND))
    node = accelerator.scaleout_bytes_per_second_per_node or UNKNOWN_NETWORK_BYTES_PER_SECOND
    ranks_per_node = max(1, accelerator.devices_per_node // stride)
    share = node * ranks_per_node / accelerator.devices_per_node
    return _link("network", SCALEOUT_LATENCY_SECONDS, min(rate, share))


def _link(name: str, latency_seconds: float, bytes_per_second: float) -> Link:
    return Link(name=name, latency_seconds=latency_seconds, bytes_per_second=bytes_per_second * LINK_EFFICIENCY)


PCIE_BYTES_PER_SECOND = 25 * GB
"""One direction of a PCIe 4 x16 slot as measured by usual host copies; from memory."""


def all_reduce_seconds(num_bytes: float, ranks: int, link: Link) -> float:
    """Ring all-reduce: `2 (n - 1) alpha + 2 ((n - 1) / n) S / W`.

    Source: Patarasuk and Yuan 2009 (J. Parallel Distrib. Comput. 69). Trees are quicker for small sizes at scale.

    >>> link = Link(name="test", latency_seconds=0.0, bytes_per_second=100.0)
    >>> all_reduce_seconds(1000.0, 2, link)
    10.0
    """
    return 2 * reduce_scatter_seconds(num_bytes, ranks, link)


def reduce_scatter_seconds(num_bytes: float, ranks: int, link: Link) -> float:
    """Ring reduce-scatter of `num_bytes` in all: half an all-reduce."""
    if ranks <= 1:
        return 0.0
    return (ranks - 1) * link.latency_seconds + (ranks - 1) / ranks * num_bytes / link.bytes_per_second


def all_gather_seconds(num_bytes: float, ranks: int, link: Link) -> float:
    """Ring all-gather to `num_bytes` on every rank: half an all-reduce."""
    return reduce_scatter_seconds(num_bytes, ranks, link)


def all_to_all_seconds(num_bytes: float, ranks: int, link: Link) -> float:
    """Every rank sends `num_bytes / n` to each other rank."""
    if ranks <= 1:
        return 0.0
    return (ranks - 1) * link.latency_seconds + (ranks - 1) / ranks * num_bytes / link.bytes_per_second


def send_seconds(num_bytes: float, link: Link) -> float:
    """One message between two ranks: `alpha + S / W`."""
    return link.latency_seconds + num_bytes / link.bytes_per_second

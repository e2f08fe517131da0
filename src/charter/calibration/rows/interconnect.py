"""The network of a node, as sources print it."""

import re

from charter.units import GB

_CARDS = re.compile(r"(\d+)\s*x\s*(\d+(?:\.\d+)?)\s*g(?:b|bps|bit|bit/s|b/s)?\b", re.IGNORECASE)
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(t|g)(b|bit|bps|bytes|b/s|bit/s)", re.IGNORECASE)
_INFINIBAND = {"xdr": 800.0, "ndr": 400.0, "hdr": 200.0, "edr": 100.0}
"""Gbit/s of one card, which a node has one of per accelerator (data sheets of the InfiniBand generations)."""
ETHERNET_GIGABITS = 25.0
"""Of a node whose network is called Ethernet and nothing more: a common cloud default."""
BITS_PER_BYTE = 8


def node_network(text: str, accelerators_per_node: int) -> float | None:
    """Bytes per second and direction of a node's network cards together; None where the text does not say.

    >>> node_network("4x100Gbps Omni-Path per node", 8) / 1e9, node_network("1600Gbps RoCE per node", 8) / 1e9
    (50.0, 200.0)
    >>> node_network("8x NDR InfiniBand", 8) / 1e9, node_network("NVL72", 4)
    (400.0, None)
    """
    plain = re.sub(r"nv(?:link|switch|l)\d*[^,;+]*", "", text, flags=re.IGNORECASE)
    cards = _CARDS.search(plain)
    if cards:
        return float(cards[1]) * float(cards[2]) * GB / BITS_PER_BYTE
    rate = _RATE.search(plain)
    if rate:
        bytes_per_second = float(rate[1]) * (1000.0 if rate[2].casefold() == "t" else 1.0) * GB / BITS_PER_BYTE
        return bytes_per_second * (accelerators_per_node if "per gpu" in plain.casefold() else 1)
    for name, gigabits in _INFINIBAND.items():
        if name in plain.casefold():
            return gigabits * accelerators_per_node * GB / BITS_PER_BYTE
    return ETHERNET_GIGABITS * GB / BITS_PER_BYTE if "ethernet" in plain.casefold() else None


def scaleup_domain(interconnect: str, accelerator: str) -> int | None:
    """Accelerators that the fast link joins, where the text says another number than the catalog."""
    text = f"{interconnect} {accelerator}".casefold()
    if "nvl72" in text:
        return 72
    return 1 if re.search(r"pcie|pci-e|no nvlink", interconnect.casefold()) and "nvlink" not in interconnect else None

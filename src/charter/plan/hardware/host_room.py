"""System memory of the nodes that an accelerator is rented in."""

from functools import lru_cache

from charter.catalog import prices

HOST_BYTES_PER_ACCELERATOR = 128e9
"""Of a node where no offer of the accelerator says it; judgement."""


@lru_cache(maxsize=256)
def host_bytes_per_accelerator(accelerator: str, per_node: int) -> float:
    """System memory per accelerator of the smallest node that any provider offers with it.

    >>> host_bytes_per_accelerator("H100-SXM-80GB", 8) > 150e9, host_bytes_per_accelerator("none such", 8)
    (True, 128000000000.0)
    """
    found = [
        offer.host_memory_bytes / offer.count
        for offer in prices.offers()
        if offer.accelerator == accelerator and offer.count == per_node and offer.host_memory_bytes
    ]
    return min(found, default=HOST_BYTES_PER_ACCELERATOR)

"""System memory of the nodes that an accelerator is rented in."""

from functools import lru_cache

from charter.catalog import price_book
from charter.plan.hardware.place import Place

HOST_BYTES_PER_ACCELERATOR = 128e9
"""Of a node where no offer of the accelerator says it; judgement."""


def node_memory_bytes(place: Place) -> float:
    """System memory of a node: as the project says, else the smallest that is offered with its accelerators."""
    if place.memory_bytes is not None:
        return place.memory_bytes
    return host_bytes_per_accelerator(place.accelerator.name, place.per_node) * place.per_node


@lru_cache(maxsize=256)
def host_bytes_per_accelerator(accelerator: str, per_node: int) -> float:
    """System memory per accelerator of the smallest node that any provider offers with it.

    >>> host_bytes_per_accelerator("H100-SXM-80GB", 8) > 150e9, host_bytes_per_accelerator("none such", 8)
    (True, 128000000000.0)
    """
    shares = [
        offer.host_memory_bytes / offer.count
        for offer in price_book.offers()
        if offer.accelerator == accelerator and offer.count == per_node and offer.host_memory_bytes
    ]
    return min(shares, default=HOST_BYTES_PER_ACCELERATOR)

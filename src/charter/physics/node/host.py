"""System memory per node: loading, offloading, checkpoint staging, data loading."""

from charter.physics.terms import Breakdown, Term
from charter.units import GIB

PROCESS_BYTES = 4.0 * GIB
"""Per rank: interpreter, torch, driver mappings, pinned buffers. Assumption."""
LOADER_BYTES = 2.0 * GIB
"""Per rank: data-loading workers. Assumption."""
PINNED_BYTES = 1.0 * GIB
"""Per rank that offloads: two page-locked buffers through which state passes to and from the device. Assumption."""
SYSTEM_BYTES = 8.0 * GIB
"""Operating system, page cache that cannot shrink, agents. Assumption."""


def host_terms(*, loading_bytes: float, checkpoint_bytes: float, offload_bytes: float, ranks: int) -> Breakdown:
    """System memory of a node from the bytes of its parts; `checkpoint_bytes` is the node's share of one checkpoint."""
    staging, pinned = 2.0 * checkpoint_bytes, ranks * PINNED_BYTES * (offload_bytes > 0)
    larger = "staging" if staging > loading_bytes else "loading"
    return Breakdown(
        terms=(
            _bytes(
                larger, max(staging, loading_bytes), "max(2 B x N, 2 x checkpoint of the node's ranks)", "node/host.py"
            ),
            _bytes("offload", offload_bytes, "optimizer and weights moved off the device", "Rajbhandari et al. 2021"),
            _bytes("pinned buffers", pinned, f"{ranks} ranks x 1 GiB where they offload", "assumption (node/host.py)"),
            _bytes("processes", ranks * PROCESS_BYTES, f"{ranks} ranks x 4 GiB", "assumption (node/host.py)"),
            _bytes("data loading", ranks * LOADER_BYTES, f"{ranks} ranks x 2 GiB", "assumption (node/host.py)"),
            _bytes("system", SYSTEM_BYTES, "8 GiB", "assumption (node/host.py)"),
        )
    )


def _bytes(name: str, value: float, formula: str, source: str) -> Term:
    return Term(name=name, part="system memory", value=value, unit="bytes", formula=formula, source=source)

"""Links that a group of accelerators spans, and the seconds of collectives over them, for many layouts at once.

Ranks are numbered tensor, context, data, pipeline, the fastest first (Megatron-LM `parallel_state.py`), so a group is
`size` ranks, one every `stride`. Inside the scale-up domain (NVLink, a TPU torus) it has that link; beyond it, rings
run side by side through the network cards of the ranks it has in a domain. Inside a node without such a link the
host bridge carries them.
"""

from dataclasses import dataclass

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.training.device_columns import DeviceColumns

OUTSIDE_LATENCY = 1.5
"""Of a hop through the network against one collective inside a node; judgement."""


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
    device: DeviceColumns, size: Array, stride: Array, *, scaleup_share: Array, scaleout_share: Array, latency: Array
) -> Group:
    """The links of a group of `size` ranks, one every `stride`.

    >>> from charter.catalog.accelerators import get
    >>> h100, one, sizes, strides = DeviceColumns.of(get("H100")), array(1), array([8, 64, 8]), array([1, 1, 8])
    >>> made = group(h100, sizes, strides, scaleup_share=one, scaleout_share=one, latency=one)
    >>> (made.ring / 1e9).tolist()
    [450.0, 400.0, 50.0]
    """
    inside = np.clip(np.floor(device.domain / stride), 1.0, size)
    near = np.clip(np.floor(np.maximum(device.domain, device.node) / stride), 1.0, size)
    hops = np.log2(np.maximum(size, 1.0))
    outside = np.log2(np.maximum(size / near, 1.0))
    return Group(
        size=array(size),
        inside=array(inside),
        near=array(near),
        scaleup=array(device.scaleup * scaleup_share),
        bridge=array(np.minimum(device.scaleup, device.host_link) * scaleup_share),
        scaleout=array(device.scaleout * scaleout_share),
        latency=array(latency * (0.7 + 0.1 * hops + OUTSIDE_LATENCY * outside)),
    )

"""One training job without its layout: model, batch shape, precision, adapters, and whose code runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from charter.catalog.accelerators import Accelerator
from charter.physics.memory.kept_bytes import Matrices
from charter.physics.memory.profile import NATIVE, CrossEntropy, MemoryProfile
from charter.physics.precision import FSDP_MIXED, TrainingPrecision
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter

Head = Literal["lm", "scalar"]
LINEAR: Matrices = frozenset(("qkv", "out", "up", "down"))
"""Adapters on every linear layer of the blocks."""
FROZEN_WEIGHT_BYTES = {16: 2.0, 8: 1.02, 4: 4.127 / 8}
"""Bytes per frozen weight of a layer by bits: 16-bit, LLM.int8 with its row scales, nf4 with double quantisation."""


@dataclass(frozen=True, kw_only=True)
class AdapterUse:
    """Adapters as a stack trains them."""

    rank: int
    base_bytes: float = 2.0
    """Bytes per frozen weight of the layers."""
    targets: Matrices = LINEAR
    dropout: bool = False
    """Dropout in front of the adapters: each keeps its own copy of the input and a mask."""
    trains_ends: bool = False
    """Embedding and output projection are trained too (`modules_to_save`)."""
    quantises_head: bool = False
    trained: float | None = None
    """Trained parameters where a source prints them."""
    scaled_outputs: bool = False
    """Every linear layer scales its output by a trained vector, and so keeps it (LLaMA-Adapter v2, IA3)."""

    @property
    def groups(self) -> Matrices:
        """Groups of matrices that carry an adapter; queries or values alone count as their group."""
        attention = {"qkv"} if self.targets & {"q", "k", "v", "qkv"} else set()
        return frozenset(attention | (self.targets & (LINEAR | {"norms"})))

    @classmethod
    def of(cls, adapter: Adapter) -> AdapterUse:
        """The planner's adapters: all linear layers, no dropout."""
        return cls(rank=adapter.rank, base_bytes=FROZEN_WEIGHT_BYTES[adapter.base_bits])


@dataclass(frozen=True, kw_only=True)
class MemoryJob:
    """One training job without its layout."""

    architecture: Architecture
    seq_len: float
    precision: TrainingPrecision = FSDP_MIXED
    profile: MemoryProfile = NATIVE
    adapter: AdapterUse | None = None
    head: Head = "lm"
    fused_attention: bool = True
    fp8: bool = False
    """Matrices multiply in 8 bits and keep their inputs so."""
    fp8_copies: float = 0.0
    """Bytes per parameter of 8-bit copies of the weights: 2 (as they are and transposed) beside 16-bit weights, 0 where
    the weights themselves are kept in 8 bits, twice."""
    cross_entropy: CrossEntropy | None = None
    logit_share: float = 1.0
    """Share of the positions whose logits are computed."""
    dropout: bool = False
    recompute_share: float = 1.0
    """Share of the layers that full recomputation covers (Megatron's block method, `ac_every_n_layers`)."""
    offload_activations: bool = False
    end_layers: tuple[int, int] | None = None
    """Layers of the first and of the last pipeline stage where they differ from an even split."""
    accelerator: Accelerator | None = None
    reserved: bool = True
    """Whether the figure wanted counts what the allocator reserves, not only what is allocated."""
    context: bool = True
    """Whether it counts the device context and communicators too (`nvidia-smi`)."""

"""Spread of a model over accelerators, and the formats in which its numbers are stored."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import ClassVar


class ZeroStage(IntEnum):
    """States sharded by ZeRO (or FSDP) over the data-parallel group (Rajbhandari et al. 2020, section 5)."""

    NONE = 0
    OPTIMIZER = 1
    GRADIENTS = 2
    PARAMETERS = 3


class Recompute(StrEnum):
    """Activations that are dropped in the forward pass and computed again in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Parallel degrees and memory knobs of one training or serving job.

    `tensor * pipeline * context * data = number of accelerators`; experts are spread inside data parallelism.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    sequence_parallel: bool = False
    zero: ZeroStage = ZeroStage.NONE
    micro_batch: int = 1
    accumulation: int = 1
    recompute: Recompute = Recompute.NONE
    interleave: int = 1
    offload_optimizer: bool = False
    offload_parameters: bool = False
    offload_activations: bool = False
    """What recomputation keeps, the input of each layer, waits for the backward pass in host memory."""
    replicas: int = 1
    """Hybrid sharding (HSDP): whole copies of what ZeRO shards, each over `data * context / replicas` ranks."""

    @property
    def num_accelerators(self) -> int:
        """Accelerators that the layout uses."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def label(self) -> str:
        """A short name: `zero3 dp8 tp2 mb4 ga2 full`."""
        parts = [f"zero{int(self.zero)}" if self.zero else "", f"dp{self.data}"]
        parts += [f"hsdp{self.replicas}x{self.data * self.context // self.replicas}"] if self.replicas > 1 else []
        chunks = self.interleave if self.pipeline > 1 else 1
        degrees = (("tp", self.tensor), ("pp", self.pipeline), ("v", chunks), ("cp", self.context), ("ep", self.expert))
        for name, degree in degrees:
            parts.append(f"{name}{degree}" if degree > 1 else "")
            parts.append("sp" if name == "tp" and self.sequence_parallel else "")
        parts += [f"mb{self.micro_batch}", f"ga{self.accumulation}" if self.accumulation > 1 else ""]
        parts += [f"recompute-{self.recompute}" if self.recompute is not Recompute.NONE else ""]
        parts += ["offload-all" if self.offload_parameters else "offload" if self.offload_optimizer else ""]
        parts += ["offload-activations" if self.offload_activations else ""]
        return " ".join(part for part in parts if part)


WHOLE_BITS = 16
"""Of a base that is not quantised."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Low-rank adaptation (Hu et al. 2021): which share of a model is trained."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    rank: int
    alpha: int = 32
    base_bits: int = WHOLE_BITS
    """16 for LoRA, 4 for QLoRA."""

    def too_large(self, width: int) -> str:
        """Return why a model of this width has no adapter of this rank: it would be no smaller; empty where it may.

        >>> Adapter(rank=4096).too_large(2048)
        'a rank of 4,096 is not below the width of the model, 2,048; 16 or 64 is usual'
        """
        if self.rank < width:
            return ""
        return f"a rank of {self.rank:,} is not below the width of the model, {width:,}; 16 or 64 is usual"

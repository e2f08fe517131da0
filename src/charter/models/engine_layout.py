"""Layout of a stage over its processes, as its record froze it; the names are the planner's."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

DEFAULT_ATTENTION = "sdpa"
CPU_ATTENTION = "cpu_attention"
"""Name of the precision of attention on processors among a stage's frozen values: `fp32`, also in a stage in 16 bits. A
stage that was started before there was a choice has none, and goes on as it began."""
CPU_PROMPTS = "cpu_prompts"
"""Likewise, of reading prompts on processors: `once` for all answers to each. Products of fewer rows may have other
bits."""
CPU_LAYERS = "cpu_layers"
"""Likewise, of a model's layers on processors: `joint` where norms, rotations and gates are functions of their own
(`models/layer_passes.py`), whose sums have other bits than those of transformers."""
CPU_VALUES = MappingProxyType({CPU_ATTENTION: "fp32", CPU_PROMPTS: "once", CPU_LAYERS: "joint"})
"""Frozen values of a stage that starts on processors now."""


@dataclass(frozen=True, kw_only=True)
class StageLayout:
    """Parallel degrees and memory knobs of one stage; `world_size = data * context * tensor`."""

    world_size: int = 1
    zero: int = 0
    """0: every process has all (DDP); 2: FSDP2 that keeps parameters gathered; 3: FSDP2 that frees them again."""
    replicas: int = 1
    """Hybrid sharding: whole copies of what `zero` shards."""
    tensor: int = 1
    sequence_parallel: bool = False
    """Between split matrices each process of `tensor` has its own positions of a row."""
    context: int = 1
    """Processes that share each row, with positions of their own."""
    micro_batch: int = 0
    """Rows of one forward and backward pass in one process; 0: its whole share of the batch."""
    decode_batch: int = 0
    """Answers of a rollout that one process draws at once; 0: its whole share."""
    recompute: str = "none"
    offload: str = "none"
    offload_activations: bool = False
    """Inputs of recomputed layers wait in host memory for the backward pass."""
    attention: str = DEFAULT_ATTENTION
    compile: bool = False

    @property
    def data(self) -> int:
        """Processes that read different rows."""
        return self.world_size // (self.tensor * self.context)

    @property
    def is_plain(self) -> bool:
        """One process, nothing wrapped."""
        return self.world_size == 1 and self.recompute == "none" and self.offload == "none" and not self.compile

    def micro_batches(self, rows: int) -> list[tuple[int, int]]:
        """`(start, stop)` of each micro-batch of a share of `rows` rows.

        >>> StageLayout(micro_batch=4).micro_batches(10)
        [(0, 4), (4, 8), (8, 10)]
        """
        size = self.micro_batch or max(rows, 1)
        return [(start, min(start + size, rows)) for start in range(0, rows, size)]


def engine_layout(frozen: Mapping[str, str | int]) -> StageLayout:
    """The layout in a stage's frozen values; what is not there has its default."""
    return StageLayout(
        world_size=int(frozen.get("world_size", 1)),
        zero=int(frozen.get("zero", 0)),
        replicas=int(frozen.get("replicas", 1)),
        tensor=int(frozen.get("tensor", 1)),
        sequence_parallel=bool(int(frozen.get("sequence_parallel", 0))),
        context=int(frozen.get("context", 1)),
        micro_batch=int(frozen.get("micro_batch", 0)),
        decode_batch=int(frozen.get("decode_batch", 0)),
        recompute=str(frozen.get("recompute", "none")),
        offload=str(frozen.get("offload", "none")),
        offload_activations=bool(int(frozen.get("offload_activations", 0))),
        attention=str(frozen.get("attention", DEFAULT_ATTENTION)),
        compile=bool(int(frozen.get("compile", 0))),
    )

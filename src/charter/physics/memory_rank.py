"""One pipeline stage of many layouts, as the terms of memory see it."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from charter.physics.columns import Array, Layouts, array
from charter.physics.constants import TrainingMemoryConstants
from charter.physics.kept_activations import in_flight
from charter.physics.memory_shape import Ends, MemoryShape, RankColumns, Stage, zero_sharded


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One pipeline stage of many layouts: what most terms need."""

    shape: MemoryShape
    layouts: Layouts
    constants: TrainingMemoryConstants
    parameters: RankColumns
    stage: Stage

    @cached_property
    def tokens(self) -> Array:
        """Tokens of a micro-batch on one rank."""
        return array(self.layouts.micro_batch * self.shape.seq_len / self.layouts.context)

    @cached_property
    def group(self) -> Array:
        """Ranks over which ZeRO shards."""
        return array(self.layouts.shards)

    @property
    def gathers(self) -> Array:
        """1 where weights are gathered before use."""
        return array(((self.layouts.zero >= 3) & (self.group > 1)) | (self.layouts.offload_parameters > 0))

    @cached_property
    def held(self) -> Array:
        """Micro-batches in flight."""
        index = {"first": array(0.0), "middle": array(1.0), "last": self.layouts.pipeline - 1}[self.stage]
        index = np.minimum(index, self.layouts.pipeline - 1)
        return in_flight(self.layouts.pipeline, self.layouts.interleave, self.layouts.accumulation, index)

    @property
    def is_apart(self) -> Array:
        """1 where FSDP2 shards embedding and output projection as units of their own."""
        lay = self.layouts
        # Tensor parallelism goes through FSDP2 too, over copies where nothing is sharded.
        sharded = ((lay.zero >= 2) & (self.group > 1)) | (lay.tensor > 1)
        return array((self.shape.ends_apart > 0) & sharded & (lay.pipeline == 1))

    @property
    def is_autocast(self) -> Array:
        """1 where autocast makes the 16-bit weights, of products alone and while their graph lives.

        What lies between products is in fp32 then: the residual stream, and the norms' outputs, which the products of
        queries, keys and values, or of gate and up, each cast for themselves.
        """
        s = self.shape
        narrow = (s.parameter_bytes > s.compute_bytes) & (s.adapter == 0)
        return array((s.autocasts > 0) & narrow & (self.is_apart == 0) & (self.gathers == 0))

    @cached_property
    def ends(self) -> Ends:
        """Embedding and output projection of this rank."""
        model, tensor = self.shape.model, self.layouts.tensor
        embedding, head = model.embedding / tensor, model.head_beside_embedding / tensor
        is_tied = head == 0
        is_own = ~is_tied & (tensor == 1) & (self.shape.scalar == 0)
        return Ends(
            embedding=array(np.where(is_tied, 0.0, embedding)),
            head=array(np.where(is_own, head, 0.0)),
            root=array(np.where(is_tied, embedding, np.where(is_own, 0.0, head))),
        )

    @property
    def largest_parameter(self) -> Array:
        """Elements of the largest parameter of a rank."""
        return array(np.maximum(self.shape.model.largest_matrix / self.layouts.tensor, self.parameters.end_unit))

    def sharded(self, dense: Array, experts: Array, stage: int) -> Array:
        """Parameters a rank owns of something that ZeRO shards from `stage` on."""
        return zero_sharded(dense, experts, self.layouts, since=stage)

    @cached_property
    def adapters(self) -> Array:
        """Parameters of its adapters."""
        shape = self.shape
        return array(shape.adapter_parameters * self.parameters.layers / shape.model.layers / self.layouts.tensor)


def trained_parameters(rank: Rank) -> tuple[Array, Array]:
    """Trained parameters of a rank before ZeRO shards them: dense ones and routed experts."""
    s, p = rank.shape, rank.parameters
    small = rank.adapters + s.trained_ends * p.end_unit
    return array(np.where(s.adapter > 0, small, p.dense)), array(np.where(s.adapter > 0, 0.0, p.experts))

"""Work of a training step, as columns: its layout, its sequences, its number formats, and how its stack works."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.layouts import RECOMPUTE_CODES, Layouts
from charter.physics.training.stack_profiles import StackProfile
from charter.spec.layout import Recompute

RECOMPUTE_SELECTIVE, RECOMPUTE_FULL = RECOMPUTE_CODES[Recompute.SELECTIVE], RECOMPUTE_CODES[Recompute.FULL]
ATTENTION_KERNELS = {"unfused": 0.0, "flash1": 1.0, "flash2": 2.0, "recent": 3.0, "compiled": 3.0}
"""Code of the attention kernels of a profile."""


@dataclass(frozen=True, kw_only=True)
class StepJob:
    """One training step, or many; every field broadcasts."""

    layouts: Layouts
    seq: Array
    """Tokens of a sequence that are computed."""
    causal: Array = field(default_factory=lambda: array(1.0))
    head_share: Array = field(default_factory=lambda: array(1.0))
    """Share of positions with logits (0 for a scalar head)."""
    bits: Array = field(default_factory=lambda: array(16.0))
    """Of the operands of matrix products: 16, 8, 4; 32 for fp32, 19 for TF32."""
    value_bytes: Array = field(default_factory=lambda: array(2.0))
    """Of an activation and of a weight in computation."""
    block_scaled: Array = field(default_factory=lambda: array(0.0))
    """1 for formats with a scale per block (MXFP8, NVFP4), which are cast twice."""
    autocast: Array = field(default_factory=lambda: array(0.0))
    """1 where 32-bit weights are cast at every use."""
    frozen: Array = field(default_factory=lambda: array(0.0))
    """1 where the base is not trained (LoRA)."""
    adapter_rank: Array = field(default_factory=lambda: array(0.0))
    base_bits: Array = field(default_factory=lambda: array(16.0))
    """Of the stored base weights: 4 (QLoRA), 8 or 16."""
    shard_group: Array = field(default_factory=lambda: array(1e9))
    """Ranks over which weights are sharded, at most (HSDP: a node)."""
    keeps_gathered: Array = field(default_factory=lambda: array(0.0))
    """1 where weights stay gathered between forward and backward (FSDP SHARD_GRAD_OP)."""
    module_recompute: Array = field(default_factory=lambda: array(0.0))
    """Share of the layers' forward pass that selective policies repeat beside attention."""
    recompute_share: Array = field(default_factory=lambda: array(1.0))
    """Share of the layers that full recomputation repeats (block policies)."""
    compression: Array = field(default_factory=lambda: array(1.0))
    """Bytes of data-parallel traffic against uncompressed (ZeRO++ about 0.5 for weights; arXiv:2306.10209)."""


@dataclass(frozen=True, kw_only=True)
class StackColumns:
    """A stack profile as columns."""

    forward_ops: Array
    backward_ops: Array
    expert_ops: Array
    local_expert_ops: Array
    fused_experts: Array
    adapter_ops: Array
    adapted_share: Array
    gather_ops: Array
    accumulate_bytes: Array
    collective_ops: Array
    elementwise: Array
    logit_bytes: Array
    update_bytes: Array
    step_multiple: Array
    attention: Array
    gradient_bytes: Array
    tensor_exposed: Array
    expert_exposed: Array
    send_exposed: Array
    data_hidden: Array
    unmodelled: Array
    host: Array

    @classmethod
    def of(cls, profile: StackProfile) -> StackColumns:
        """Columns without dimensions."""
        return _stack_columns(profile)

    @classmethod
    def stack(cls, profiles: Sequence[StackProfile]) -> StackColumns:
        """One entry per case."""
        columns = [_stack_columns(profile) for profile in profiles]
        return cls(**{item.name: np.array([float(getattr(one, item.name)) for one in columns]) for item in fields(cls)})


@lru_cache(maxsize=64)
def _stack_columns(profile: StackProfile) -> StackColumns:
    values = {item.name: getattr(profile, item.name) for item in fields(StackColumns)}
    values["attention"] = ATTENTION_KERNELS[profile.attention]
    return StackColumns(**{name: array(value) for name, value in values.items()})

"""Training stacks as profiles, and the step that one of them runs, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache

import numpy as np

from charter.physics.columns import RECOMPUTE_CODES, Array, Layouts, array
from charter.spec.layout import Recompute

# -------- Profiles of training stacks: operations they issue, kernels they fuse, traffic they hide.
#
# None of the figures was counted in a profile or in a stack's source. They are estimates from memory of how each stack
# works, and these were then set while looking at residuals of the calibration file: operations of `huggingface` (QFT
# rows), `host` of old Megatron (VTR), `elementwise` of old Megatron (KOR, MLM) and Composer (FND), attention of
# Composer (FND), `tensor_exposed` of Megatron-Core (MLM), 16-bit gradients and `adapted_share` of NeMo (NEM),
# `fused_experts` and `local_expert_ops` (MBR). Leaving such a source out of a fit does not test what was set on it.
# `host` was set on rows of A100, whose slower processors `HOST_SLOWNESS` has had since: it is 1.3 times less now.
# They multiply the fitted constants (`physics/constants.py`), which the stacks of one family share. `yafsdp`: two
# preallocated buffers and few stream events instead of a hook per parameter, and 16-bit gradients on the wire, as its
# authors claim; the figures are judgement. `nanotron`: bytes per logit and per accumulated gradient are counted in its
# source (fp32 logits, the difference to their maximum and its exponential, each read and written; 2 + 4 + 4), and its
# scaling scripts set `tp_linear_async_communication`, so that its tensor traffic overlaps as Megatron-Core's. `native`:
# hooks of FSDP2 and DTensor's dispatch are the host time that `benchmarks/host_of_layouts.py` has on processors, 2.2
# and 7.5 ms of a layer's forward and backward pass, in operations of 10.8 us; not measured on a GPU.


@dataclass(frozen=True, kw_only=True)
class StackProfile:
    """One software stack as far as a step's time depends on it."""

    name: str
    family: str
    """The stacks whose constants are fitted together: the name under which the calibration keeps them."""
    forward_ops: float
    """Operations issued per dense layer, forward; backward issues `backward_ops`."""
    backward_ops: float
    expert_ops: float = 100.0
    """More per layer with experts, forward (router, permutation, dispatch); backward as many."""
    local_expert_ops: float = 8.0
    """More per expert on the rank, forward (casts and products of each); backward 1.75 times as many."""
    fused_experts: float = 1.0
    """Time of grouped products, casts and permutation in block-scaled formats against separate kernels."""
    whole_graphs: float = 0.0
    """1 where a step of a model with experts in a block-scaled format is one captured graph, which no host issues, and
    tokens travel to experts beside another micro-batch's computation. Megatron-Bridge since 0.5, in MXFP8 recipes of
    DeepSeek-V3 and Qwen3: `cuda_graph_impl="full_iteration"`, `moe_a2a_overlap=True` (its workload configurations).
    """
    adapter_ops: float = 4.5
    """More per adapted matrix, forward (dropout, two products, scale, add, cast)."""
    adapter_forward_passes: float = 3.5
    """Times a LoRA branch reads or writes a value of its matrix's input or output, forward. Eager and without dropout
    the first product reads the input; the second writes the output, its scale reads and writes it, and the sum with the
    matrix's own output is three passes: 1 and 6. Dropout reads and writes the input and a mask of a byte: 2.5 more.
    Compiled, scale and sum are one kernel: 1 and 4."""
    adapter_backward_passes: float = 4.5
    """The same of the gradients: scaled (two passes), read by two products: 4 of the output; the input read by one
    product, its gradient written by another and added to that of the matrix (three): 5. Dropout: 2.5 more. Compiled,
    the sums are part of a kernel that reads the matrix's own gradient anyway: 3."""
    adapted_share: float = 1.0
    """Share of the matrices that usually have an adapter (all linear layers in PEFT; attention in NeMo)."""
    gather_ops: float = 6.0
    """More per layer and pass where weights are gathered (ZeRO-3, FSDP): hooks, copies, stream events."""
    collective_ops: float = 4.0
    """Host time of one tensor-parallel collective, in operations."""
    elementwise: float = 1.0
    """Memory traffic of norms, activations and residuals against fully fused kernels."""
    logit_bytes: float = 18.0
    """Bytes moved per logit, forward and backward, beside the product itself."""
    update_bytes: float = 34.0
    """Bytes moved per owned parameter by clipping and Adam."""
    step_multiple: float = 1.0
    """Of the seconds per step."""
    attention: str = "recent"
    """`recent` (cuDNN), `flash3` (FlashAttention-3 and -4), `flash2`, `unfused`, `compiled` (TPU kernels)."""
    gradient_bytes: float = 2.0
    """Of one gradient on the wire."""
    accumulate_bytes: float = 0.0
    """Moved per parameter and micro-batch to add gradients to a 32-bit buffer."""
    tensor_exposed: float = 1.0
    send_exposed: float = 0.3
    data_hidden: float = 1.0
    """Multiple of the constant; 0 where nothing of the data-parallel traffic hides."""
    selective_traffic: float = 0.0
    """1 where selective recomputation repeats what lies between products (`MemoryProfile.keeps_products`)."""
    stops_early: float = 0.0
    """1 where full recomputation ends before the last product of a layer, whose result the backward pass does not read
    (`torch.utils.checkpoint` with `use_reentrant=False`, since torch 2.1; counted in a pass of this engine). It is what
    transformers does by default since 2026, and what scripts of FSDP and DeepSpeed set. Composer's tables were made
    with torch 1.13.
    """
    moments_visit: float = 0.0
    """1 where moments in host memory come to the device for their step (`MemoryProfile.moments_visit`)."""
    exchanges_heads: float = 0.0
    """1 where context parallelism exchanges positions for heads around attention, and nothing hides it."""
    stages_by_cost: float = 0.0
    """1 where pipeline stages hold blocks by their products, the output projection as one of them."""
    host: float = 1.0
    """Multiple of the host time per operation; 0 where the whole step is one compiled program."""


_MEGATRON_OLD = StackProfile(
    name="megatron-2022",
    family="megatron-classic",
    forward_ops=42.0,
    backward_ops=60.0,
    elementwise=1.1,
    logit_bytes=26.0,
    attention="unfused",
    data_hidden=0.0,
    send_exposed=1.0,
    host=1.4,
)
_MEGATRON_NEW = StackProfile(
    name="megatron-lm",
    family="megatron-recent",
    forward_ops=30.0,
    backward_ops=40.0,
    elementwise=1.0,
    logit_bytes=16.0,
    gradient_bytes=4.0,
    accumulate_bytes=8.0,
    adapted_share=0.25,
)
_TORCHTITAN = StackProfile(
    name="torchtitan",
    family="fsdp",
    forward_ops=24.0,
    backward_ops=36.0,
    local_expert_ops=1.0,
    adapter_ops=3.0,
    adapter_forward_passes=2.5,
    adapter_backward_passes=3.5,
    elementwise=1.25,
    logit_bytes=24.0,
    update_bytes=36.0,
    gradient_bytes=4.0,
    attention="flash2",
    stops_early=1.0,
)
"""Compiled layers; experts run as grouped products (from memory), so nearly nothing is issued per expert."""
_MEGATRON_CORE = replace(_MEGATRON_NEW, name="megatron-core", tensor_exposed=0.6)
"""Its published runs overlap tensor-parallel traffic (`--tp-comm-overlap`; from memory); plain scripts do not."""
_NEMO = replace(_MEGATRON_CORE, name="nemo", gradient_bytes=2.0, accumulate_bytes=4.0, adapted_share=0.12)
"""The recipes of NeMo and Megatron-Bridge keep gradients in 16 bits (`grad_reduce_in_fp32=False`, `grad_sync_dtype:
bf16`; from memory, not read)."""

PROFILES = {
    profile.name: profile
    for profile in (
        replace(_MEGATRON_OLD, name="megatron-2020", elementwise=1.8),
        replace(_MEGATRON_OLD, name="megatron-2021"),
        _MEGATRON_OLD,
        replace(_MEGATRON_OLD, name="megatron-deepspeed", family="megatron-deepspeed", step_multiple=4.0),
        _MEGATRON_NEW,
        _MEGATRON_CORE,
        _NEMO,
        replace(_NEMO, name="megatron-bridge"),
        replace(_NEMO, name="megatron-bridge-2026", fused_experts=0.5, whole_graphs=1.0),
        StackProfile(
            name="composer",
            family="fsdp",
            forward_ops=36.0,
            backward_ops=60.0,
            elementwise=1.3,
            logit_bytes=26.0,
            update_bytes=44.0,
            attention="flash1",
        ),
        StackProfile(
            name="fsdp",
            family="fsdp",
            forward_ops=36.0,
            backward_ops=60.0,
            elementwise=1.5,
            logit_bytes=28.0,
            update_bytes=44.0,
            attention="flash2",
            stops_early=1.0,
        ),
        _TORCHTITAN,
        StackProfile(
            name="nanotron",
            family="fsdp",
            forward_ops=36.0,
            backward_ops=60.0,
            elementwise=1.5,
            logit_bytes=58.0,
            accumulate_bytes=10.0,
            update_bytes=36.0,
            gradient_bytes=4.0,
            attention="flash2",
            tensor_exposed=0.6,
            stages_by_cost=1.0,
        ),
        replace(_TORCHTITAN, name="yafsdp", gather_ops=2.0, gradient_bytes=2.0, elementwise=1.5),
        StackProfile(
            name="deepspeed-zero",
            family="huggingface",
            forward_ops=45.0,
            backward_ops=75.0,
            gather_ops=140.0,
            adapter_forward_passes=4.75,
            adapter_backward_passes=5.75,
            elementwise=2.0,
            logit_bytes=34.0,
            step_multiple=3.0,
            attention="flash2",
            data_hidden=0.55,
            stops_early=1.0,
        ),
        StackProfile(
            name="huggingface",
            family="huggingface",
            host=1.15,
            forward_ops=45.0,
            backward_ops=75.0,
            gather_ops=140.0,
            adapter_forward_passes=4.75,
            adapter_backward_passes=5.75,
            elementwise=2.3,
            logit_bytes=36.0,
            update_bytes=50.0,
            step_multiple=3.0,
            attention="flash2",
            data_hidden=0.55,
            stops_early=1.0,
        ),
        StackProfile(
            name="native",
            family="huggingface",
            forward_ops=45.0,
            backward_ops=75.0,
            gather_ops=70.0,
            collective_ops=175.0,
            elementwise=2.3,
            logit_bytes=36.0,
            update_bytes=44.0,
            attention="flash2",
            selective_traffic=1.0,
            stops_early=1.0,
            moments_visit=1.0,
            exchanges_heads=1.0,
        ),
        StackProfile(
            name="unsloth",
            family="huggingface",
            forward_ops=30.0,
            backward_ops=45.0,
            adapter_ops=3.0,
            adapter_forward_passes=1.5,
            adapter_backward_passes=2.5,
            elementwise=1.3,
            logit_bytes=14.0,
            step_multiple=2.0,
            attention="flash2",
        ),
        StackProfile(
            name="litgpt",
            family="fsdp",
            forward_ops=40.0,
            backward_ops=60.0,
            adapter_forward_passes=4.75,
            adapter_backward_passes=5.75,
            elementwise=2.0,
            logit_bytes=32.0,
            update_bytes=44.0,
            attention="flash2",
            stops_early=1.0,
        ),
        StackProfile(
            name="maxtext",
            family="maxtext",
            forward_ops=0.0,
            backward_ops=0.0,
            expert_ops=0.0,
            local_expert_ops=0.0,
            gather_ops=0.0,
            collective_ops=0.0,
            elementwise=1.0,
            logit_bytes=16.0,
            attention="compiled",
            tensor_exposed=0.6,
            step_multiple=0.3,
            host=0.0,
        ),
        StackProfile(
            name="generic",
            family="generic",
            forward_ops=38.0,
            backward_ops=60.0,
            elementwise=1.6,
            logit_bytes=28.0,
            update_bytes=40.0,
            attention="flash2",
        ),
    )
}
"""By name; where the figures come from stands at the head of the file."""


# -------- Work of a training step, as columns: its layout, its sequences, its number formats, and how its stack works.

RECOMPUTE_SELECTIVE, RECOMPUTE_FULL = RECOMPUTE_CODES[Recompute.SELECTIVE], RECOMPUTE_CODES[Recompute.FULL]
ATTENTION_KERNELS = {"unfused": 0.0, "flash1": 1.0, "flash2": 2.0, "recent": 3.0, "compiled": 3.0, "flash3": 4.0}
"""Code of the attention kernels of a profile."""


@dataclass(frozen=True, kw_only=True)
class StepJob:
    """One training step, or many; every field broadcasts."""

    layouts: Layouts
    seq: Array
    """Tokens of a sequence that are computed."""
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
    trains_ends: Array = field(default_factory=lambda: array(0.0))
    """1 where embedding and output projection are trained beside adapters."""
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
    document: Array = field(default_factory=lambda: array(1e9))
    """Tokens of a sample where packed sequences keep attention inside samples; above `seq`, nothing is masked."""
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
    whole_graphs: Array
    adapter_ops: Array
    adapter_forward_passes: Array
    adapter_backward_passes: Array
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
    send_exposed: Array
    data_hidden: Array
    selective_traffic: Array
    stops_early: Array
    moments_visit: Array
    exchanges_heads: Array
    stages_by_cost: Array
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

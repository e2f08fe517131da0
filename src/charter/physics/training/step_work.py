"""The work of one micro-batch on one rank, before any fitted constant: product time at the ceiling, bytes, messages.

Everything is summed over all layers of the model as if one stage held them; `step_seconds` takes the share of a
stage. `tokens` are those of one micro-batch on one rank.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.training.device_columns import DeviceColumns
from charter.physics.training.model_columns import ModelColumns
from charter.physics.training.product_work import DENSE_KINDS, EXPERT_KINDS, HEAD_KINDS, product_work
from charter.physics.training.step_job import StackColumns, StepJob

FORWARD_SCORES, BACKWARD_SCORES = 12.0, 18.0
"""Bytes per attention score that unfused attention moves in 16 bits. Forward: product written; scale, mask and
softmax read and write (half of it masked away); dropout reads, writes and stores a mask; the value product reads.
Backward: the same and the gradient of each. A counting argument about
Megatron-LM's kernels of 2021; lowered from 15 and 22 when KOR and MLM rows came out too slow."""
TAIL_TOKENS, SHORT_HEAD, LONG_REACH = 600.0, 40.0, 1.3
"""Fused attention reaches `s / (s + 600) d / (d + 40) 1.3` of its rate (at most 1): sequence length and head size at
which it reaches half; judgement from the curves of arXiv:2307.08691 (head sizes 64 and 128, 512 to 16k tokens)."""
MISALIGNED = 0.08
"""Of the batched product rate when the head size is no multiple of 8: no tensor cores (NVIDIA, Matrix Multiplication
Background User's Guide); the share was set on rows of BigScience (BSC) with head sizes 108 and 150."""
ADAPTER_PASSES = 4.0
"""Times a LoRA branch reads or writes the input or output of its matrix, forward: dropout, two products, scale, add."""
AUTOCAST_TRAFFIC = 1.15
"""Memory traffic with 32-bit norms and casts under autocast against 16 bits throughout; judgement."""
SCAN_COST = 3.0
"""Time of a recurrent scan against the same operations of fused attention (arXiv:2405.21060, section 9: slower per
operation, its products are small); judgement."""
DEQUANTISED_BYTES = 8.0
"""Per weight and pass that is unpacked from 4 bits: read, look-ups, 16 bits written and read; judgement."""


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """One micro-batch on one rank through all layers; products have a first axis over kinds and passes."""

    dense_flops: Array
    """Operations of forward, input-gradient and weight-gradient products, divided by what the shape reaches; kinds."""
    dense_bytes: Array
    expert_flops: Array
    expert_bytes: Array
    head_flops: Array
    head_bytes: Array
    cast_bytes: Array
    """Of quantising operands, a third of all three passes."""
    expert_cast_bytes: Array
    attention: Array
    """Operations of the forward scores, divided by what length and head size reach of the kernel's rate."""
    score_bytes: Array
    """Scores that unfused attention moves through memory; 0 where fused."""
    traffic: Array
    """Bytes of memory-bound operations, forward."""
    adapter_bytes: Array
    routed_bytes: Array
    dequantise_bytes: Array
    logit_bytes: Array
    tensor_message: Array
    routed_message: Array
    key_value_message: Array
    stage_message: Array
    rank_parameters: Array
    """Parameters on a rank of an average stage."""
    rank_experts: Array
    trained: Array


NOTHING_DONE = StepWork(**{item.name: array(0.0) for item in fields(StepWork)})
"""Stands where the work is computed later."""


def step_work(model: ModelColumns, device: DeviceColumns, job: StepJob, stack: StackColumns) -> StepWork:
    """The work of one micro-batch."""
    at, m, width = job.layouts, model, job.value_bytes
    tokens = array(at.micro_batch * job.seq / at.context)
    head_tokens = array(tokens * job.head_share)
    dense_flops, dense_bytes, casts = product_work(m, device, job, DENSE_KINDS, tokens)
    expert_flops, expert_bytes, expert_casts = product_work(m, device, job, EXPERT_KINDS, tokens)
    head_flops, head_bytes, _ = product_work(m, device, job, HEAD_KINDS, head_tokens)
    rank, experts = _rank_parameters(m, job)
    trained = np.where(job.frozen > 0, job.adapter_rank * m.trained_share / (at.tensor * at.pipeline), rank)
    adapted = ADAPTER_PASSES * stack.adapted_share * m.adapted_values
    layer_parameters = (m.parameters - m.end_parameters) / at.tensor
    return StepWork(
        dense_flops=dense_flops,
        dense_bytes=dense_bytes,
        expert_flops=expert_flops,
        expert_bytes=expert_bytes,
        head_flops=head_flops,
        head_bytes=head_bytes,
        cast_bytes=casts,
        expert_cast_bytes=expert_casts,
        attention=_attention(m, job, stack, tokens),
        score_bytes=array(
            np.where(stack.attention > 0, 0.0, m.heads / at.tensor * m.attention_layers * tokens * job.seq)
        ),
        traffic=_traffic(m, job, stack, tokens),
        adapter_bytes=array(np.where(job.adapter_rank > 0, width * tokens * adapted / at.tensor, 0.0)),
        routed_bytes=array(width * m.routed_values * tokens / at.tensor),
        dequantise_bytes=array(np.where(job.base_bits < 16, DEQUANTISED_BYTES * layer_parameters, 0.0)),
        logit_bytes=array(stack.logit_bytes * head_tokens * m.vocabulary / at.tensor),
        tensor_message=array(width * tokens * m.hidden),
        routed_message=array(width * tokens * m.hidden * m.experts_per_token / at.tensor),
        key_value_message=array(width * tokens * at.context * m.kv_width / at.tensor),
        stage_message=array(width * tokens * m.hidden / at.tensor),
        rank_parameters=array(rank),
        rank_experts=array(experts),
        trained=array(trained),
    )


def _attention(m: ModelColumns, job: StepJob, stack: StackColumns, tokens: Array) -> Array:
    """Forward operations of scores (all of the square where unfused) and scans over what their shape reaches."""
    fused = stack.attention > 0
    positions = m.attended(job.seq, job.causal)
    seen = np.where(fused, positions, m.attention_layers * job.seq)
    reach = job.seq / (job.seq + TAIL_TOKENS) * m.head_size / (m.head_size + SHORT_HEAD) * LONG_REACH
    aligned = np.where(np.mod(m.head_size, 8) == 0, 1.0, MISALIGNED)
    scores = 2.0 * m.score_width * seen / np.where(fused, np.minimum(reach, 1.0), aligned)
    return array((scores + SCAN_COST * m.scan_flops) * tokens / job.layouts.tensor)


def _traffic(m: ModelColumns, job: StepJob, stack: StackColumns, tokens: Array) -> Array:
    """Forward bytes of norms, rotary, activations and residuals; sequence parallelism divides those of full width."""
    at = job.layouts
    divided = np.where(at.sequence_parallel > 0, at.tensor, 1.0)
    values = m.hidden_passes / divided + m.inner_values / at.tensor
    cast = np.where(job.autocast > 0, AUTOCAST_TRAFFIC, 1.0)
    return array(job.value_bytes * stack.elementwise * cast * tokens * values)


def _rank_parameters(m: ModelColumns, job: StepJob) -> tuple[Array, Array]:
    """Parameters on a rank of an average stage, and the routed experts among them."""
    at = job.layouts
    ends = m.end_parameters / np.where(at.pipeline > 1, 2.0, 1.0)
    experts = m.expert_parameters / (at.expert * at.pipeline)
    layers = (m.parameters - m.end_parameters - m.expert_parameters) / (at.tensor * at.pipeline)
    return array(layers + ends / at.tensor + experts), array(experts)

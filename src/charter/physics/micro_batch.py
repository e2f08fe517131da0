"""One micro-batch on one rank: its work before any fitted constant, its seconds by cause, the least it can take."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from charter.physics.columns import Array, array
from charter.physics.constants import TrainingConstants
from charter.physics.devices import DeviceColumns
from charter.physics.matrix_products import (
    DENSE_DOWN,
    DENSE_KINDS,
    EXPERT_KINDS,
    HEAD_KINDS,
    ProductColumns,
    product_work,
)
from charter.physics.stacks import RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, StackColumns, StepJob

# -------- The work of one micro-batch on one rank, before any fitted constant: product time at the ceiling, bytes,
# messages.
#
# Everything is summed over all layers of the model as if one stage held them; `step_seconds` takes the share of a
# stage. `tokens` are those of one micro-batch on one rank.

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
    indexing: Array
    """Operations that choose the positions of sparse attention, forward; each rank of tensor parallelism does them."""
    score_bytes: Array
    """Scores that unfused attention moves through memory; 0 where fused."""
    traffic: Array
    """Bytes of memory-bound operations, forward."""
    adapter_bytes: Array
    """Of adapters, forward."""
    adapter_backward_bytes: Array
    routed_bytes: Array
    dequantise_bytes: Array
    logit_bytes: Array
    tensor_message: Array
    routed_message: Array
    key_value_message: Array
    heads_message: Array
    """Queries, keys and values of the positions of a rank; then what attention gives."""
    attended_message: Array
    stage_message: Array
    rank_parameters: Array
    """Parameters on a rank of an average stage."""
    rank_experts: Array
    trained: Array


NOTHING_DONE = StepWork(**{item.name: array(0.0) for item in fields(StepWork)})
"""Stands where the work is computed later."""


def step_work(model: ProductColumns, device: DeviceColumns, job: StepJob, stack: StackColumns) -> StepWork:
    """The work of one micro-batch."""
    at, m, width = job.layouts, model, job.value_bytes
    tokens = array(at.micro_batch * job.seq / at.context)
    head_tokens = array(tokens * job.head_share)
    # Each rank of context parallelism has a head of keys at least: fewer heads are repeated.
    exchanged_width = m.heads * m.head_size + np.maximum(m.kv_width, 2 * m.head_size * at.context)
    dense_flops, dense_bytes, casts = product_work(m, device, job, DENSE_KINDS, tokens)
    expert_flops, expert_bytes, expert_casts = product_work(m, device, job, EXPERT_KINDS, tokens)
    head_flops, head_bytes, _ = product_work(m, device, job, HEAD_KINDS, head_tokens)
    rank, experts = _rank_parameters(m, job)
    beside = job.adapter_rank * m.trained_share / (at.tensor * at.pipeline) + job.trains_ends * _rank_ends(m, job)
    trained = np.where(job.frozen > 0, beside, rank)
    adapted = np.where(job.adapter_rank > 0, width * tokens * stack.adapted_share * m.adapted_values / at.tensor, 0.0)
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
        indexing=array((m.indexer_flops + 2.0 * m.indexer_layers * m.indexer_width * _visible(job)) * tokens),
        score_bytes=array(
            np.where(stack.attention > 0, 0.0, m.heads / at.tensor * m.attention_layers * tokens * job.seq)
        ),
        traffic=_traffic(m, job, stack, tokens),
        adapter_bytes=array(stack.adapter_forward_passes * adapted),
        adapter_backward_bytes=array(stack.adapter_backward_passes * adapted),
        routed_bytes=array(width * m.routed_values * tokens / at.tensor),
        dequantise_bytes=array(np.where(job.base_bits < 16, DEQUANTISED_BYTES * layer_parameters, 0.0)),
        logit_bytes=array(stack.logit_bytes * head_tokens * m.vocabulary / at.tensor),
        tensor_message=array(width * tokens * m.hidden),
        routed_message=array(width * tokens * m.hidden * m.experts_per_token / at.tensor),
        key_value_message=array(width * tokens * at.context * m.kv_width / at.tensor),
        # Under autocast rotation has made queries and keys fp32, and they travel with the values.
        heads_message=array(np.where(job.autocast > 0, 4.0, width) * tokens * exchanged_width),
        attended_message=array(width * tokens * m.heads * m.head_size),
        stage_message=array(width * tokens * m.hidden / at.tensor),
        rank_parameters=array(rank),
        rank_experts=array(experts),
        trained=array(trained),
    )


def _attention(m: ProductColumns, job: StepJob, stack: StackColumns, tokens: Array) -> Array:
    """Forward operations of scores (all of the square where unfused) and scans over what their shape reaches.

    Fused kernels that are given the bounds of packed samples compute each sample's own scores.
    """
    fused = stack.attention > 0
    length = np.minimum(job.seq, job.document)
    positions = m.attended(length)
    seen = np.where(fused, positions, m.attention_layers * job.seq)
    reach = length / (length + TAIL_TOKENS) * m.head_size / (m.head_size + SHORT_HEAD) * LONG_REACH
    aligned = np.where(np.mod(m.head_size, 8) == 0, 1.0, MISALIGNED)
    scores = 2.0 * m.score_width * seen / np.where(fused, np.minimum(reach, 1.0), aligned)
    return array((scores + SCAN_COST * m.scan_flops) * tokens / job.layouts.tensor)


def _visible(job: StepJob) -> Array:
    """Positions that a query may see on average."""
    return array(np.minimum(job.seq, job.document) / 2)


def _traffic(m: ProductColumns, job: StepJob, stack: StackColumns, tokens: Array) -> Array:
    """Forward bytes of norms, rotary, activations and residuals; sequence parallelism divides those of full width."""
    at = job.layouts
    divided = np.where(at.sequence_parallel > 0, at.tensor, 1.0)
    values = m.hidden_passes / divided + m.inner_values / at.tensor
    cast = np.where(job.autocast > 0, AUTOCAST_TRAFFIC, 1.0)
    return array(job.value_bytes * stack.elementwise * cast * tokens * values)


def _rank_parameters(m: ProductColumns, job: StepJob) -> tuple[Array, Array]:
    """Parameters on a rank of an average stage, and the routed experts among them."""
    at = job.layouts
    experts = m.expert_parameters / (at.expert * at.pipeline)
    layers = (m.parameters - m.end_parameters - m.expert_parameters) / (at.tensor * at.pipeline)
    return array(layers + _rank_ends(m, job) + experts), array(experts)


def _rank_ends(m: ProductColumns, job: StepJob) -> Array:
    """Embedding and output projection on a rank: in a pipeline the first or the last stage has one of them."""
    at = job.layouts
    return array(m.end_parameters / np.where(at.pipeline > 1, 2.0, 1.0) / at.tensor)


# -------- Seconds of one micro-batch through all layers of a model, by cause, under the constants of a stack.

BACKWARD_ATTENTION = 2.5 * 1.25
"""Of the forward scores: five products against two at 0.8 of the rate (arXiv:2307.08691, sections 3.1, 4.1)."""
DEQUANTISE_OPS = 5.0
"""Operations to unpack one quantised matrix; judgement."""
BACKWARD_ADAPTER = 1.5
"""Operations of an adapter in the backward pass against forward: two gradients of each product; estimate, not
counted."""
BACKWARD_EXPERT = 1.75
"""The same for the operations of each expert: two products, one more cast; estimate, not counted."""
ENCODER_SHARE = 0.6
"""Of the measured product rate that an encoder reaches, attention included; judgement."""


@dataclass(frozen=True, kw_only=True)
class GroupLinks:
    """The device (as far as its links go) of the groups of each kind; None takes that of the step."""

    tensor: DeviceColumns | None = None
    pipeline: DeviceColumns | None = None
    data: DeviceColumns | None = None


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """Everything the time of a step depends on; all of it broadcasts."""

    model: ProductColumns
    device: DeviceColumns
    job: StepJob
    stack: StackColumns
    work: StepWork
    constants: TrainingConstants
    links: GroupLinks | None = None
    """Where the groups are not all on the links that the topology gives them."""

    def device_of(self, kind: Literal["tensor", "pipeline", "data"]) -> DeviceColumns:
        """The device whose links the groups of a kind use."""
        chosen: DeviceColumns | None = getattr(self.links, kind) if self.links is not None else None
        return self.device if chosen is None else chosen


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Seconds of one micro-batch through all layers, and on the head, by cause."""

    products: Array
    experts: Array
    casts: Array
    attention: Array
    traffic: Array
    recompute: Array
    head: Array
    """On the last stage: output projection, cross-entropy, and the encoder in front."""
    host: Array
    """To issue the operations of the layers; hides behind the device."""
    forward_attention: Array

    @property
    def computing(self) -> Array:
        """Return the seconds in which the device computes for the layers."""
        return array(self.products + self.experts + self.casts + self.attention + self.traffic + self.recompute)


def micro_batch(given: StepInputs) -> MicroBatch:
    """Forward, backward and recomputation of one micro-batch, without communication.

    A product takes the larger of its operations over the rate its shape reaches and its bytes over the bandwidth
    (roofline: Williams et al. 2009). Backward: two products each (one where the base is frozen), memory-bound
    operations twice but those of adapters, which are counted, attention 3.1 times with fused kernels.
    """
    device, job, stack, work, c = given.device, given.job, given.stack, given.work, given.constants
    rate, bandwidth = product_rate(given), device.bandwidth
    fused = np.where(job.block_scaled > 0, stack.fused_experts, 1.0)
    dense = np.maximum(work.dense_flops / rate, work.dense_bytes / bandwidth)
    expert = fused * np.maximum(work.expert_flops / (rate * c.grouped_share), work.expert_bytes / bandwidth)
    attention_rate = _attention_rate(given)
    scores = work.score_bytes / bandwidth
    attention = (work.attention + work.indexing) / attention_rate + FORWARD_SCORES * scores
    fused_backward = BACKWARD_ATTENTION * work.attention / attention_rate
    unfused_backward = 2.0 * work.attention / attention_rate + BACKWARD_SCORES * scores
    backward_attention = np.where(stack.attention > 0, fused_backward, unfused_backward)
    casts = c.quantise_traffic * (work.cast_bytes + fused * work.expert_cast_bytes) / bandwidth
    unpack = work.dequantise_bytes / bandwidth
    layer_traffic = c.traffic * (work.traffic + fused * work.routed_bytes) / bandwidth
    traffic = layer_traffic + c.traffic * work.adapter_bytes / bandwidth
    backward_traffic = 2.0 * layer_traffic + c.traffic * work.adapter_backward_bytes / bandwidth
    forward = dense[0::3].sum(axis=0) + expert[0::3].sum(axis=0) + attention + traffic + casts + unpack
    return MicroBatch(
        products=array(dense.sum(axis=0)),
        experts=array(expert.sum(axis=0)),
        casts=array(3.0 * casts + 2.0 * unpack),
        attention=array(attention + backward_attention),
        traffic=array(traffic + backward_traffic),
        recompute=_recomputed(given, forward, attention, traffic, _last_product(given, dense)),
        head=_head(given),
        host=_host(given),
        forward_attention=array(attention),
    )


def product_rate(given: StepInputs) -> Array:
    """Operations per second of a large matrix product in a running step."""
    device, bits, c = given.device, given.job.bits, given.constants
    low = np.where(bits <= 4, device.rate_4, device.rate_8) * c.eight_bit_share
    rate = np.where(bits < 16, low, _wide_rate(given))
    return array(rate * _sustained(given))


def _wide_rate(given: StepInputs) -> Array:
    """Of products in 16 bits, TF32 or 32 bits."""
    device, bits = given.device, given.job.bits
    return array(np.where(bits > 19, device.rate_32, np.where(bits > 16, device.rate_19, device.rate_16)))


def _sustained(given: StepInputs) -> Array:
    device, c = given.device, given.constants
    generation = np.where(device.blackwell > 0, c.blackwell_sustained, 1.0)
    generation = np.where(device.hopper > 0, c.hopper_sustained, generation)
    return array(c.matmul_share * generation * device.sustained)


def _attention_rate(given: StepInputs) -> Array:
    """Fused kernels have a ceiling of their own (8 bits do not speed them up); unfused ones are small products."""
    device, kernel, c = given.device, given.stack.attention, given.constants
    fused = np.where(kernel >= 2, device.flash2, device.flash1)
    fused = np.where(kernel >= 4, device.flash3, np.where(kernel >= 3, device.recent, fused))
    unfused = device.rate_16 * c.matmul_share * c.unfused_attention
    return array(np.where(kernel > 0, fused * c.attention_share, unfused))


def _last_product(given: StepInputs, dense: Array) -> Array:
    """Forward seconds of the last product of dense layers; an adapter beside it reads the layer to the end."""
    count = given.model.count
    before = sum(bool(np.any(count[kind])) for kind in DENSE_KINDS if kind < DENSE_DOWN)
    return array((1.0 - given.job.frozen) * dense[3 * before] if np.any(count[DENSE_DOWN]) else 0.0)


def _recomputed(given: StepInputs, forward: Array, attention: Array, traffic: Array, last: Array) -> Array:
    """Full: the forward pass of the layers again, some to the `last` product; selective: unfused attention and what
    else the policy names.
    """
    at, job = given.job.layouts, given.job
    core = np.where(given.stack.attention > 0, 0.0, attention)
    selected = core + job.module_recompute * forward + given.stack.selective_traffic * traffic
    again = (forward - given.stack.stops_early * last) * job.recompute_share
    full = np.where(at.recompute == RECOMPUTE_FULL, again, 0.0)
    return array(full + np.where(at.recompute == RECOMPUTE_SELECTIVE, selected, 0.0))


def _head(given: StepInputs) -> Array:
    """Output projection in 16 bits, logits through memory, and the encoder (forward and backward)."""
    device, at, work, c = given.device, given.job.layouts, given.work, given.constants
    rate = _wide_rate(given) * c.matmul_share
    products = np.maximum(work.head_flops / rate, work.head_bytes / device.bandwidth).sum(axis=0)
    encoder = 3.0 * given.model.encoder_flops * at.micro_batch / at.tensor / (ENCODER_SHARE * device.rate_16)
    return array(products + c.traffic * work.logit_bytes / device.bandwidth + encoder)


def in_one_graph(given: StepInputs) -> Array:
    """1 where the step is one captured graph (`StackProfile.whole_graphs`)."""
    return array((given.stack.whole_graphs > 0) & (given.job.block_scaled > 0) & (given.model.moe_layers > 0))


def _host(given: StepInputs) -> Array:
    """Host time to issue one micro-batch through all layers."""
    m, at, job, stack = given.model, given.job.layouts, given.job, given.stack
    matrices = m.adapted_matrices / m.layers
    adapter = np.where(job.adapter_rank > 0, stack.adapter_ops * stack.adapted_share * matrices, 0.0)
    unpack = np.where(job.base_bits < 16, DEQUANTISE_OPS * matrices, 0.0)
    routed, local = m.moe_layers / m.layers, np.ceil(m.experts / at.expert) * stack.local_expert_ops
    collective = np.where(at.tensor > 1, 2 * stack.collective_ops, 0.0)
    forward = stack.forward_ops + adapter + unpack + routed * (stack.expert_ops + local) + collective
    backward = stack.backward_ops + BACKWARD_ADAPTER * (adapter + unpack) + collective
    backward = backward + routed * (stack.expert_ops + BACKWARD_EXPERT * local)
    gathered = np.where(at.zero >= 3, 3.0 * stack.gather_ops, 0.0)
    between_products = (at.recompute == RECOMPUTE_SELECTIVE) & (stack.selective_traffic > 0)
    again = np.where((at.recompute == RECOMPUTE_FULL) | between_products, forward, 0.0)
    issued = np.where(in_one_graph(given), 0.0, m.layers * (forward + backward + again + gathered))
    return array(issued * given.constants.host_op_seconds * stack.host * given.device.host)


# -------- A lower bound of the time of a step: what the matrix products of the layers take if nothing is lost.


def least_step_seconds(given: StepInputs) -> Array:
    """Never more than `step_seconds`: dense products of the layers at the best rate, split without loss.

    `m 2 n sum(K N) (2 or 3 passes) / (R TP p)`, times what the step is multiplied by in the end. Every other term of a
    step is at least 0; a shape reaches at most the best rate; the fullest stage holds at least the mean of the layers.
    Experts, attention and the output projection are left out. `given.work` is not read.
    """
    m, at, job, c = given.model, given.job.layouts, given.job, given.constants
    kinds = list(DENSE_KINDS)
    weights = np.sum(m.inner[kinds] * m.columns[kinds] * m.count[kinds], axis=0)
    tokens = at.micro_batch * job.seq / at.context
    flops = 2.0 * tokens * weights * (3.0 - job.frozen) / at.tensor
    spread = c.straggler * np.log2(np.maximum(at.num_accelerators / 8, 1.0))
    seconds = at.accumulation * flops / at.pipeline / product_rate(given)
    return array(seconds * c.unmodelled * (1 + spread))

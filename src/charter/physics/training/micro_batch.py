"""Seconds of one micro-batch through all layers of a model, by cause, under the constants of a stack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.training.constants import TrainingConstants
from charter.physics.training.device_columns import DeviceColumns
from charter.physics.training.model_columns import ModelColumns
from charter.physics.training.step_job import RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, StackColumns, StepJob
from charter.physics.training.step_work import BACKWARD_SCORES, FORWARD_SCORES, StepWork

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

    model: ModelColumns
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
    operations twice, attention 3.1 times with fused kernels.
    """
    device, job, stack, work, c = given.device, given.job, given.stack, given.work, given.constants
    rate, bandwidth = product_rate(given), device.bandwidth
    fused = np.where(job.block_scaled > 0, stack.fused_experts, 1.0)
    dense = np.maximum(work.dense_flops / rate, work.dense_bytes / bandwidth)
    expert = fused * np.maximum(work.expert_flops / (rate * c.grouped_share), work.expert_bytes / bandwidth)
    attention_rate = _attention_rate(given)
    scores = work.score_bytes / bandwidth
    attention = work.attention / attention_rate + FORWARD_SCORES * scores
    fused_backward = BACKWARD_ATTENTION * work.attention / attention_rate
    unfused_backward = 2.0 * work.attention / attention_rate + BACKWARD_SCORES * scores
    backward_attention = np.where(stack.attention > 0, fused_backward, unfused_backward)
    casts = c.quantise_traffic * (work.cast_bytes + fused * work.expert_cast_bytes) / bandwidth
    unpack = work.dequantise_bytes / bandwidth
    traffic = c.traffic * (work.traffic + work.adapter_bytes + fused * work.routed_bytes) / bandwidth
    forward = dense[0::3].sum(axis=0) + expert[0::3].sum(axis=0) + attention + traffic + casts + unpack
    return MicroBatch(
        products=array(dense.sum(axis=0)),
        experts=array(expert.sum(axis=0)),
        casts=array(3.0 * casts + 2.0 * unpack),
        attention=array(attention + backward_attention),
        traffic=array(3.0 * traffic),
        recompute=_recomputed(given, forward, attention),
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
    fused = np.where(kernel >= 3, device.recent, np.where(kernel >= 2, device.flash2, device.flash1))
    unfused = device.rate_16 * c.matmul_share * c.unfused_attention
    return array(np.where(kernel > 0, fused * c.attention_share, unfused))


def _recomputed(given: StepInputs, forward: Array, attention: Array) -> Array:
    """Full: the forward pass of the layers again; selective: unfused attention and what else the policy names."""
    at, job = given.job.layouts, given.job
    core = np.where(given.stack.attention > 0, 0.0, attention)
    selected = core + job.module_recompute * forward
    full = np.where(at.recompute == RECOMPUTE_FULL, forward * job.recompute_share, 0.0)
    return array(full + np.where(at.recompute == RECOMPUTE_SELECTIVE, selected, 0.0))


def _head(given: StepInputs) -> Array:
    """Output projection in 16 bits, logits through memory, and the encoder (forward and backward)."""
    device, at, work, c = given.device, given.job.layouts, given.work, given.constants
    rate = _wide_rate(given) * c.matmul_share
    products = np.maximum(work.head_flops / rate, work.head_bytes / device.bandwidth).sum(axis=0)
    encoder = 3.0 * given.model.encoder_flops * at.micro_batch / at.tensor / (ENCODER_SHARE * device.rate_16)
    return array(products + c.traffic * work.logit_bytes / device.bandwidth + encoder)


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
    again = np.where(at.recompute == RECOMPUTE_FULL, forward, 0.0)
    issued = m.layers * (forward + backward + again + gathered)
    return array(issued * given.constants.host_op_seconds * stack.host)

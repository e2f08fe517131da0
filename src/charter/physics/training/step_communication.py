"""Seconds that a training step waits for other ranks: in the layers, between stages, and once per step."""

from __future__ import annotations

from typing import Literal

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.training.micro_batch import StepInputs
from charter.physics.training.pipeline_bubble import fullest_stage_layers
from charter.physics.training.step_job import RECOMPUTE_FULL
from charter.physics.training.topology import Group, group

HIDDEN_COST = 0.12
"""Of hidden traffic that still delays (it takes multiprocessors and memory bandwidth); judgement."""
SEQUENCE_PARALLEL_TRAFFIC = 1.25
"""Against all-reduces: one more all-gather of each input in the backward pass (Korthikanti et al. 2022, 4.2.2)."""
RING_EXPOSED = 0.15
"""Of context-parallel traffic that delays although attention runs beside it; judgement."""
COMPILED_LATENCY = 0.3
"""Of a collective's latency where a compiler issues it (TPU); judgement."""


def _group(
    given: StepInputs, size: Array, stride: Array, kind: Literal["tensor", "pipeline", "data"] = "data"
) -> Group:
    c = given.constants
    return group(
        given.device_of(kind),
        size,
        stride,
        scaleup_share=c.scaleup_share,
        scaleout_share=c.scaleout_share,
        latency=array(c.latency_seconds * np.where(given.device.compiled > 0, COMPILED_LATENCY, 1.0)),
    )


def _repeated(given: StepInputs) -> Array:
    """Forward traffic is repeated with full recomputation: six collectives for four."""
    return array(np.where(given.job.layouts.recompute == RECOMPUTE_FULL, 1.5, 1.0))


def tensor_parallel(given: StepInputs) -> Array:
    """Per micro-batch: two all-reduces per block pair forward, two backward (Shoeybi et al. 2019, section 3)."""
    at = given.job.layouts
    one = _group(given, at.tensor, array(1.0), "tensor").reduce_seconds(given.work.tensor_message)
    more = np.where(at.sequence_parallel > 0, SEQUENCE_PARALLEL_TRAFFIC, 1.0)
    exposed = given.constants.tensor_exposed * given.stack.tensor_exposed
    return array(2 * given.model.reduced_blocks * _repeated(given) * more * one * exposed)


def expert_parallel(given: StepInputs) -> Array:
    """Per micro-batch: tokens to their experts and back, forward and backward (GShard, arXiv:2006.16668)."""
    m, at = given.model, given.job.layouts
    one = _group(given, at.expert, array(1.0)).exchange_seconds(given.work.routed_message, m.experts_per_token)
    exposed = given.constants.expert_exposed * given.stack.expert_exposed
    return array(4 * m.moe_layers * _repeated(given) * one * exposed)


def context_parallel(given: StepInputs, forward_attention: Array) -> Array:
    """Per micro-batch: keys and values around the ring, once forward and twice backward, beside attention."""
    at = given.job.layouts
    ring = _group(given, at.context, at.tensor).gather_seconds(given.work.key_value_message)
    total = 3 * given.model.attention_layers * ring
    return array(np.maximum(RING_EXPOSED * total, total - forward_attention))


def pipeline_send(given: StepInputs) -> Array:
    """Per micro-batch: one message to each neighbour and chunk."""
    at, stack = given.job.layouts, given.stack
    pair = _group(given, array(2.0), at.tensor * at.context * at.data, "pipeline")
    one = 2 * np.maximum(at.interleave, 1.0) * (pair.latency + given.work.stage_message / pair.message)
    return array(np.where(at.pipeline > 1, one * stack.send_exposed, 0.0))


def sharded_weights(given: StepInputs, busy: Array) -> Array:
    """Per micro-batch with ZeRO-3: weights gathered forward and backward, gradients reduced, less what hides.

    `3 psi` elements (Rajbhandari et al. 2020, section 7), each layer's with a latency of its own; `busy` seconds of
    the stage hide them. Beside a pipeline both move once per step: weights stay gathered, and gradients are summed
    before they are reduced, since every micro-batch would move them again (torchtitan's `reshard_after_forward`).
    """
    at, job, work = given.job.layouts, given.job, given.work
    links = _group(given, np.minimum(at.shards, job.shard_group), at.tensor)
    spread = _group(given, np.maximum(1.0, links.size / at.expert), at.tensor * at.expert)
    stored = 2.0 * job.compression * np.minimum(job.base_bits / 16, 1.0)
    reduced = np.where(job.frozen > 0, 0.0, given.stack.gradient_bytes * job.compression)
    latency = (fullest_stage_layers(given.model.layers, at.pipeline) - 1) * links.latency
    keeps = np.maximum(job.keeps_gathered, at.pipeline > 1)
    passes = 2.0 - keeps + (reduced > 0)
    moved = (2.0 - keeps) * stored + reduced
    own, experts = work.rank_parameters - work.rank_experts, work.rank_experts
    total = links.gather_seconds(moved * own) + spread.gather_seconds(moved * experts) + passes * latency
    fetched = moved * work.rank_parameters / links.size / given.device.host_link
    total = total + np.where(at.offload_parameters > 0, fetched, 0.0)
    total = np.where(at.pipeline > 1, total / at.accumulation, total)
    needed = (at.zero >= 3) & ((links.size > 1) | (at.offload_parameters > 0))
    return array(np.where(needed, _left(given, total, busy), 0.0))


def gradient_reduction(given: StepInputs, busy: Array) -> Array:
    """Per step without ZeRO-3: gradients reduced, with ZeRO-1 and 2 weights gathered, less what hides.

    ZeRO-2 reduces after every micro-batch. `busy` seconds of one micro-batch hide it; with an interleaved pipeline
    each chunk is done at another time of the last p micro-batches (Narayanan et al. 2021, figure 4). With ZeRO-3 only
    what hybrid copies exchange.
    """
    at, job, work = given.job.layouts, given.job, given.work
    ranks = at.data * at.context
    links = _group(given, ranks, at.tensor)
    spread = _group(given, np.maximum(1.0, ranks / at.expert), at.tensor * at.expert)
    times = np.where(at.zero == 2, at.accumulation, 1.0)
    window = np.where(at.interleave > 1, np.minimum(at.accumulation, at.pipeline), times)
    bytes_out = given.stack.gradient_bytes * job.compression * times
    bytes_back = np.where(at.zero >= 1, 2.0, given.stack.gradient_bytes) * job.compression
    experts = np.where(job.frozen > 0, 0.0, work.rank_experts)
    moved = bytes_out + bytes_back
    total = links.gather_seconds(moved * (work.trained - experts)) + spread.gather_seconds(moved * experts)
    total = total + (times - 1) * links.latency
    total = np.where(at.zero < 3, total, _between_copies(given))
    reduces = np.where(at.zero < 3, ranks > 1, at.replicas > 1)
    return array(np.where(reduces, _left(given, total, busy * window), 0.0))


def _between_copies(given: StepInputs) -> Array:
    """Hybrid sharding: every rank reduces the gradients it owns with the ranks that own the same in other copies."""
    at, job, work = given.job.layouts, given.job, given.work
    links = _group(given, at.replicas, at.tensor * at.shards)
    return links.reduce_seconds(given.stack.gradient_bytes * job.compression * work.trained / at.shards)


def _left(given: StepInputs, total: Array, busy: Array) -> Array:
    """Return the data-parallel traffic that computation beside it does not hide."""
    hidden = np.minimum(total, given.constants.data_hidden * given.stack.data_hidden * busy)
    return array(total - hidden * (1 - HIDDEN_COST))

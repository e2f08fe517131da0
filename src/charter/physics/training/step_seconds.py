"""Seconds of an optimizer step as named terms, for many layouts at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from charter.physics.arrays import Array, array
from charter.physics.terms import TermColumn, TermTable
from charter.physics.training.micro_batch import StepInputs, micro_batch
from charter.physics.training.pipeline_bubble import bubble_seconds, fullest_stage_layers, slowest_stage
from charter.physics.training.step_communication import (
    context_parallel,
    expert_parallel,
    gradient_reduction,
    pipeline_send,
    sharded_weights,
    tensor_parallel,
)

HOST_MEMORY_BYTES_PER_SECOND = 150e9
"""That an Adam step on the processors of a node reaches; judgement (DeepSpeed CPU-Adam on two sockets)."""
OFFLOADED_LINK_BYTES, OFFLOADED_HOST_BYTES = 6.0, 28.0
"""Per owned parameter of an offloaded optimizer: a 32-bit gradient out and a 16-bit weight back; Adam's states,
gradient and weight read or written in host memory."""
GRADIENT_BYTES_TOUCHED = 6.0
"""Per parameter that ZeRO does not shard: gradients zeroed, scaled and checked."""

_FORMULAS = {
    "matrix products": ("compute", "m L' sum over products of max(2 M N K / (R share(M, N, K)), bytes / B)",
                        "roofline; tile and wave quantisation: NVIDIA matrix multiplication guide"),
    "expert products": ("compute", "the same over E / EP groups of rows, at the share of grouped products", "roofline"),
    "quantisation": ("compute", "m L' (casts of operands, unpacking of 4-bit weights) / B", "counted bytes"),
    "attention": ("compute", "m L' 2 w s' n (1 + 3.1) / R_attention; unfused: scores through memory",
                  "FlashAttention-2, arXiv:2307.08691"),
    "memory-bound operations": ("compute", "m L' 3 x bytes of norms, activations, residuals, routing, adapters / B",
                                "counted bytes"),
    "recomputation": ("recompute", "m L' share of the forward pass", "Korthikanti et al. 2022, section 5"),
    "output projection": ("compute", "m (slowest stage - m' layers), 3 x 2 n h V / R + logits / B", "roofline"),
    "operation launch": ("launch", "m L' ((device^4 + host^4)^(1/4) - device), host = operations x seconds each",
                         "operations estimated per stack (stack_profiles.py)"),
    "tensor parallel": ("communication", "m L' 4 (6 with full recomputation) reductions of 2 n h bytes, exposed share",
                        "Shoeybi et al. 2019, section 3"),
    "expert parallel": ("communication", "m 4 all-to-alls of 2 n k h bytes per routed layer, exposed share",
                        "GShard, arXiv:2006.16668"),
    "context parallel": ("communication", "m 3 rings of keys and values per layer, less attention",
                         "Ring Attention, arXiv:2310.01889"),
    "pipeline sends": ("communication", "m 2 v (alpha + 2 n h / (TP W)), exposed share", "Narayanan et al. 2021, 2.2"),
    "sharded weights": ("communication", "m (2 gathers + 1 reduction of psi, less what hides)",
                        "Rajbhandari et al. 2020, section 7"),
    "gradient accumulation": ("update", "m psi bytes / B", "32-bit buffer read and written"),
    "pipeline bubble": ("bubble", "(p - 1) / v passes of a mean stage", "Narayanan et al. 2021, section 2.2"),
    "gradient reduction": ("communication", "ring of psi gradients (and weights back), less the last backward pass",
                           "ring: Patarasuk and Yuan 2009"),
    "optimizer": ("update", "bytes of Adam x psi / ranks / B; offloaded: over the host link and through host memory",
                  "every state byte read and written once"),
    "per step": ("update", "seconds per step", "data, clipping, logging (training/constants.py)"),
    "stragglers and the unmodelled": ("overhead", "total x (u (1 + c log2(N / 8)) - 1)", 
                                      "fitted (training/constants.py)"),
}  # fmt: skip
"""Part, formula and source of every term. m micro-batches, L' layers of the fullest stage, n tokens, h hidden, V
vocabulary, k experts per token, psi parameters of a rank, R product rate, B memory bandwidth, W link rate, N
accelerators."""


def smooth_max(first: Array, second: Array) -> Array:
    """The larger of two, a little more where they are near each other.

    >>> round(float(smooth_max(array(1.0), array(3.0))), 3), round(float(smooth_max(array(1.0), array(1.0))), 3)
    (3.009, 1.189)
    """
    low, high = np.minimum(first, second), np.maximum(np.maximum(first, second), 1e-30)
    ratio = (low / high) ** 2
    return array(high * np.sqrt(np.sqrt(1 + ratio * ratio)))


@dataclass(frozen=True, kw_only=True)
class LayerSeconds:
    """One micro-batch through all layers of the model, by cause: what does not depend on the rest of the layout."""

    products: Array
    experts: Array
    casts: Array
    attention: Array
    traffic: Array
    recompute: Array
    issued: Array
    tensor: Array
    expert: Array
    context: Array
    device: Array
    """What the device is busy with, communication inside the layers included."""
    head: Array


def layer_seconds(given: StepInputs) -> LayerSeconds:
    """A micro-batch through the layers, with the communication inside them."""
    one = micro_batch(given)
    tensor, expert = tensor_parallel(given), expert_parallel(given)
    context = context_parallel(given, one.forward_attention)
    device = one.computing + tensor + expert + context
    issued = np.where(given.device.serial > 0, one.host, smooth_max(device, one.host) - device)
    return LayerSeconds(
        products=one.products,
        experts=one.experts,
        casts=one.casts,
        attention=one.attention,
        traffic=one.traffic,
        recompute=one.recompute,
        issued=array(issued),
        tensor=tensor,
        expert=expert,
        context=context,
        device=array(device),
        head=one.head,
    )


def step_values(given: StepInputs, per_micro_batch: LayerSeconds | None = None) -> dict[str, Array]:
    """Seconds of one optimizer step by cause; they sum to the step.

    `m` micro-batches through the fullest of `p` stages, the bubble, and what happens once per step. `per_micro_batch`
    are the seconds of a micro-batch where they are known already (`factored.py`).
    """
    m, at, work, c = given.model, given.job.layouts, given.work, given.constants
    one = per_micro_batch or layer_seconds(given)
    layers, share = one.device + one.issued, fullest_stage_layers(m.layers, at.pipeline) / m.layers
    sends = pipeline_send(given)
    mean_stage = (layers + one.head) / at.pipeline
    slowest = slowest_stage(m.layers, at.pipeline, layers / m.layers, one.head)
    in_layers = {
        **_computed(one),
        "operation launch": one.issued,
        "tensor parallel": one.tensor,
        "expert parallel": one.expert,
        "context parallel": one.context,
    }
    terms = {name: at.accumulation * share * value for name, value in in_layers.items()}
    terms |= {
        "output projection": at.accumulation * np.maximum(slowest - share * layers, 0.0),
        "pipeline sends": at.accumulation * sends,
        "sharded weights": at.accumulation * sharded_weights(given, layers * share),
        "gradient accumulation": at.accumulation * given.stack.accumulate_bytes * work.trained / given.device.bandwidth,
        "pipeline bubble": bubble_seconds(at.pipeline, np.maximum(at.interleave, 1.0), mean_stage + sends),
        "gradient reduction": gradient_reduction(given, mean_stage),
        "optimizer": _optimizer(given),
        "per step": c.step_seconds * given.stack.step_multiple,
    }
    total = sum(terms.values(), start=array(0.0))
    spread = c.straggler * np.log2(np.maximum(at.num_accelerators / 8, 1.0))
    terms["stragglers and the unmodelled"] = total * (c.unmodelled * given.stack.unmodelled * (1 + spread) - 1)
    return {name: array(value) for name, value in terms.items()}


def _computed(one: LayerSeconds) -> dict[str, Array]:
    return {
        "matrix products": one.products,
        "expert products": one.experts,
        "quantisation": one.casts,
        "attention": one.attention,
        "memory-bound operations": one.traffic,
        "recomputation": one.recompute,
    }


def _optimizer(given: StepInputs) -> Array:
    """Clipping and Adam on what a rank owns; offloaded: gradients out, weights back, Adam in host memory."""
    at, job, work = given.job.layouts, given.job, given.work
    ranks = np.maximum(np.minimum(at.shards, job.shard_group), 1.0)
    experts = np.where(job.frozen > 0, 0.0, work.rank_experts)
    replicated = np.where(at.zero >= 1, 0.0, 1.0)
    owned = (work.trained - experts) * np.maximum(replicated, 1 / ranks)
    owned = owned + experts * np.maximum(replicated, np.minimum(1.0, at.expert / ranks))
    touched = np.where(at.zero < 3, GRADIENT_BYTES_TOUCHED * work.trained, 0.0)
    device = given.constants.optimizer_traffic * (given.stack.update_bytes * owned + touched) / given.device.bandwidth
    host = OFFLOADED_HOST_BYTES * owned * given.device.node / HOST_MEMORY_BYTES_PER_SECOND
    return array(
        np.where(at.offload_optimizer > 0, OFFLOADED_LINK_BYTES * owned / given.device.host_link + host, device)
    )


def step_seconds(given: StepInputs) -> Array:
    """Seconds of one optimizer step."""
    return array(sum(step_values(given).values(), start=array(0.0)))


def step_table(given: StepInputs) -> TermTable:
    """The terms of a step with formula and source."""
    columns = []
    for name, values in step_values(given).items():
        part, formula, source = _FORMULAS[name]
        columns.append(TermColumn(name=name, part=part, values=values, unit="seconds", formula=formula, source=source))
    return TermTable(columns=tuple(columns))

"""Seconds of an optimizer step as named terms: compute, waiting for other ranks, pipeline, update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from charter.physics.columns import Array, array
from charter.physics.devices import Group, group
from charter.physics.matrix_products import DENSE_KINDS
from charter.physics.micro_batch import StepInputs, in_one_graph, micro_batch
from charter.physics.stacks import RECOMPUTE_FULL
from charter.physics.terms import TermColumn, TermTable

# -------- Time of a step of several pipeline stages against the pass of its slowest stage.


def fullest_stage_layers(layers: Array, stages: Array) -> Array:
    """Layers of the fullest stage: `ceil(L / p)`."""
    return array(np.ceil(layers / stages))


def slowest_stage(layers: Array, stages: Array, layer: Array, head: Array) -> Array:
    """Seconds of the slowest stage for `layer` seconds per layer and `head` seconds on the last stage.

    Layers that divide evenly are split evenly and the last stage has the head on top. Layers that do not are laid
    out around it (Megatron's uneven first and last stage, DeepSpeed's partitioning by parameters): no stage is
    slower than the even share of everything, the fullest stage, or the head alone.

    >>> [float(slowest_stage(array(layers), array(4), array(1.0), array(1.5))) for layers in (8, 9)]
    [3.5, 3.0]
    """
    fullest = fullest_stage_layers(layers, stages)
    even = np.isclose(layers / stages, fullest)
    uneven = np.maximum(fullest * layer, np.maximum((layers * layer + head) / stages, head))
    return array(np.where(even, fullest * layer + head, uneven))


def layers_by_cost(layers: Array, stages: Array, head: Array) -> tuple[Array, Array]:
    """Layers of the first and the last stage where blocks go to a stage until its share of their cost is passed.

    The output projection is a block too, of the cost of `head` layers (nanotron `build_model`,
    `get_block_compute_costs`).

    >>> [float(end) for end in layers_by_cost(array(16), array(2), array(4.0))]
    [11.0, 5.0]
    """
    share = (layers + head) / stages
    first = np.minimum(layers, np.floor(share) + 1)
    return array(first), array(np.maximum(1.0, layers - np.minimum(layers, np.floor(share * (stages - 1)) + 1)))


def bubble_seconds(stages: Array, chunks: Array, stage: Array) -> Array:
    """Idle time of a step: `(p - 1) / v` passes of an average stage (Narayanan et al. 2021, section 2.2).

    1F1B with one chunk, interleaved with v. Zero-bubble schedules are `(p - 1) / 3` (ZB1P, one chunk): v = 3.

    >>> float(bubble_seconds(array(8), array(2), array(1.0)))
    3.5
    """
    return array((stages - 1) / chunks * stage)


# -------- Seconds that a training step waits for other ranks: in the layers, between stages, and once per step.

HIDDEN_COST = 0.12
"""Of traffic at the rate of the link inside a node that delays although it is hidden, since it takes multiprocessors
and memory bandwidth; judgement: NCCL has 16 channels there, each a block of 132 multiprocessors, and one or two for a
network card."""
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
        congestion=c.congestion,
        latency=array(c.latency_seconds * np.where(given.device.compiled > 0, COMPILED_LATENCY, 1.0)),
    )


def _repeated(given: StepInputs) -> Array:
    """Forward traffic is repeated with full recomputation: six collectives for four."""
    return array(np.where(given.job.layouts.recompute == RECOMPUTE_FULL, 1.5, 1.0))


def layer_reductions(recompute: Array, stops_early: Array, frozen: Array) -> Array:
    """Tensor-parallel reductions of a layer: two forward, two backward, and what recomputation repeats of the first.

    Full: both; one where it ends before the last product and its reduction, to which an adapter beside that product
    does come. Selective policies of stacks that end early keep products, not what is reduced or gathered: as many.

    >>> [float(layer_reductions(array(2.0), array(early), array(0.0))) for early in (0.0, 1.0)]
    [6.0, 5.0]
    """
    early = np.where((stops_early > 0) & (recompute > 0), np.where(frozen > 0, 2.0, 1.0), 0.0)
    return array(4.0 + np.where(stops_early > 0, early, np.where(recompute == RECOMPUTE_FULL, 2.0, 0.0)))


def tensor_parallel(given: StepInputs) -> Array:
    """Per micro-batch: two all-reduces per block pair forward, two backward (Shoeybi et al. 2019, section 3)."""
    at = given.job.layouts
    one = _group(given, at.tensor, array(1.0), "tensor").reduce_seconds(given.work.tensor_message)
    # Charter's engine, of which moments visit, keeps what it has gathered: as much traffic as all-reduces.
    again = (at.sequence_parallel > 0) & (given.stack.moments_visit == 0)
    more = np.where(again, SEQUENCE_PARALLEL_TRAFFIC, 1.0)
    exposed = given.constants.tensor_exposed * given.stack.tensor_exposed
    each = layer_reductions(at.recompute, given.stack.stops_early, given.job.frozen)
    return array(given.model.reduced_blocks * each / 2 * more * one * exposed)


def expert_parallel(given: StepInputs, computing: Array) -> Array:
    """Per micro-batch: tokens to their experts and back, forward and backward (GShard, arXiv:2006.16668).

    Steps of one graph hide them behind what another micro-batch computes.
    """
    m, at = given.model, given.job.layouts
    one = _group(given, at.expert, array(1.0)).exchange_seconds(given.work.routed_message, m.experts_per_token)
    total = 4 * m.moe_layers * _repeated(given) * one
    beside = np.maximum(HIDDEN_COST * total, total - computing)
    return array(np.where(in_one_graph(given) > 0, beside, given.constants.expert_exposed * total))


def context_parallel(given: StepInputs, forward_attention: Array) -> Array:
    """Per micro-batch: keys and values around the ring, once forward and twice backward, beside attention.

    Where positions are exchanged for heads: two all-to-alls of each layer forward, which any recomputation repeats, and
    two backward (Jacobs et al. 2023, arXiv:2309.14509, section 3.2).
    """
    at, work = given.job.layouts, given.work
    links = _group(given, at.context, at.tensor)
    total = 3 * given.model.attention_layers * links.gather_seconds(work.key_value_message)
    around = np.maximum(RING_EXPOSED * total, total - forward_attention)
    one, again = array(1.0), np.where(at.recompute > 0, 3.0, 2.0)
    both = links.exchange_seconds(work.heads_message, one) + links.exchange_seconds(work.attended_message, one)
    return array(np.where(given.stack.exchanges_heads > 0, again * given.model.attention_layers * both, around))


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
    stored = job.value_bytes * job.compression * np.minimum(job.base_bits / 16, 1.0)
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
    return array(np.where(needed, _left(given, total, busy, links), 0.0))


def gradient_reduction(given: StepInputs, busy: Array) -> Array:
    """Per step without ZeRO-3: gradients reduced, with ZeRO-1 and 2 weights gathered, less what hides.

    ZeRO-2 reduces after every micro-batch. `busy` seconds of the backward pass of one micro-batch hide it, since no
    gradient exists before; with an interleaved pipeline each chunk is done at another time of the last p micro-batches
    (Narayanan et al. 2021, figure 4). With ZeRO-3 only what hybrid copies exchange.
    """
    at, job, work = given.job.layouts, given.job, given.work
    ranks = at.data * at.context
    links = _group(given, ranks, at.tensor)
    spread = _group(given, np.maximum(1.0, ranks / at.expert), at.tensor * at.expert)
    times = np.where(at.zero == 2, at.accumulation, 1.0)
    window = np.where(at.interleave > 1, np.minimum(at.accumulation, at.pipeline), times)
    bytes_out = given.stack.gradient_bytes * job.compression * times
    bytes_back = np.where(at.zero >= 1, job.value_bytes, given.stack.gradient_bytes) * job.compression
    experts = np.where(job.frozen > 0, 0.0, work.rank_experts)
    moved = bytes_out + bytes_back
    total = links.gather_seconds(moved * (work.trained - experts)) + spread.gather_seconds(moved * experts)
    total = total + (times - 1) * links.latency
    left = np.where(at.zero < 3, _left(given, total, busy * window, links), _between_copies(given, busy))
    return array(np.where(np.where(at.zero < 3, ranks > 1, at.replicas > 1), left, 0.0))


def _between_copies(given: StepInputs, busy: Array) -> Array:
    """Hybrid sharding: every rank reduces the gradients it owns with the ranks that own the same in other copies."""
    at, job, work = given.job.layouts, given.job, given.work
    links = _group(given, at.replicas, at.tensor * at.shards)
    total = links.reduce_seconds(given.stack.gradient_bytes * job.compression * work.trained / at.shards)
    return _left(given, total, busy, links)


def _left(given: StepInputs, total: Array, busy: Array, links: Group) -> Array:
    """Return the data-parallel traffic that computation beside it does not hide.

    What is hidden slows the computation by the multiprocessors that move it, fewer for a slower wire. Where the wire
    takes longer than both, that costs nothing.
    """
    c = given.constants
    window = c.data_hidden * given.stack.data_hidden * c.unmodelled * busy
    cost = HIDDEN_COST * links.ring / np.maximum(links.local, links.ring)
    return array(np.maximum(total - window, cost * np.minimum(total, window)))


# -------- Seconds of an optimizer step as named terms, for many layouts at once.

HOST_MEMORY_BYTES_PER_SECOND = 150e9
"""That an Adam step on the processors of a node reaches; judgement (DeepSpeed CPU-Adam on two sockets)."""
OFFLOADED_LINK_BYTES, OFFLOADED_HOST_BYTES = 6.0, 28.0
"""Per owned parameter of an offloaded optimizer: a 32-bit gradient out and a 16-bit weight back; Adam's states,
gradient and weight read or written in host memory."""
VISITING_LINK_BYTES = 16.0
"""Per owned parameter whose moments visit the device: both in 32 bits, to it and back, one after the other."""
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
                         "operations estimated per stack (physics/stacks.py)"),
    "tensor parallel": ("communication", "m L' 4 (5 or 6 with recomputation) reductions of 2 n h bytes, exposed share",
                        "Shoeybi et al. 2019, section 3"),
    "expert parallel": ("communication", "m 4 all-to-alls of 2 n k h bytes per routed layer, exposed share",
                        "GShard, arXiv:2006.16668"),
    "context parallel": ("communication", "m 3 rings of keys and values per layer, less attention; native: m 2 (3 with "
                         "recomputation) all-to-alls of queries, keys, values per layer, as many of attention's output",
                         "Ring Attention, arXiv:2310.01889; DeepSpeed-Ulysses, arXiv:2309.14509"),
    "pipeline sends": ("communication", "m 2 v (alpha + 2 n h / (TP W)), exposed share", "Narayanan et al. 2021, 2.2"),
    "sharded weights": ("communication", "m (2 gathers + 1 reduction of psi, less the layers' time)",
                        "Rajbhandari et al. 2020, section 7"),
    "gradient accumulation": ("update", "m psi bytes / B", "32-bit buffer read and written"),
    "pipeline bubble": ("bubble", "(p - 1) / v passes of a mean stage", "Narayanan et al. 2021, section 2.2"),
    "gradient reduction": ("communication", "ring of psi gradients (and weights back), less the last backward pass",
                           "ring: Patarasuk and Yuan 2009"),
    "optimizer": ("update", "bytes of Adam x psi / ranks / B; offloaded: over the host link and through host memory; "
                  "of the native engine, whose moments visit the device: 16 B x psi / ranks / host link beside it",
                  "every state byte read and written once"),
    "layer inputs": ("communication", "m L' 2 x 2 n h bytes (4 n h under autocast) / host link, where they wait on the "
                     "host; nothing hides it: a bound", "counted bytes"),
    "per step": ("update", "seconds per step", "data, clipping, logging (physics/constants.py)"),
    "stragglers and the unmodelled": ("overhead", "u - 1 of all but sharded weights and gradient reduction, then "
                                      "c log2(N / 8) of everything", "fitted (physics/constants.py)"),
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
    tensor, expert = tensor_parallel(given), expert_parallel(given, one.computing)
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

    What no term stands for makes the devices' time longer, and hides as much more traffic of weights and gradients;
    what the wire loses is in its share.

    `m` micro-batches through the fullest of `p` stages, the bubble, and what happens once per step. `per_micro_batch`
    are the seconds of a micro-batch where they are known already (`physics/step_time.py`).
    """
    m, at, work, c = given.model, given.job.layouts, given.work, given.constants
    one = per_micro_batch or layer_seconds(given)
    layers, sends = one.device + one.issued, pipeline_send(given)
    fullest, slowest = _fullest_stage(given, layers / m.layers, one.head)
    share, mean_stage = fullest / m.layers, (layers + one.head) / at.pipeline
    # A forward pass is one of three, and one of two over a frozen base; recomputation is in the backward pass.
    backward = mean_stage - (mean_stage - one.recompute / at.pipeline) / (3 - given.job.frozen)
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
        "gradient reduction": gradient_reduction(given, backward),
        "optimizer": _optimizer(given),
        "layer inputs": at.accumulation * _inputs_to_host(given),
        "per step": c.step_seconds * given.stack.step_multiple,
    }
    total, wires = sum(terms.values(), start=array(0.0)), terms["sharded weights"] + terms["gradient reduction"]
    spread = c.straggler * np.log2(np.maximum(at.num_accelerators / 8, 1.0))
    longer = (total - wires) * (c.unmodelled - 1)
    terms["stragglers and the unmodelled"] = longer + (total + longer) * spread
    return {name: array(value) for name, value in terms.items()}


def _fullest_stage(given: StepInputs, layer: Array, head: Array) -> tuple[Array, Array]:
    """Layers of the fullest stage, and seconds of the slowest."""
    m, stages = given.model, given.job.layouts.pipeline
    kinds = list(DENSE_KINDS)
    weights = np.sum(m.inner[kinds] * m.columns[kinds] * m.count[kinds], axis=0) / m.layers
    first, last = layers_by_cost(m.layers, stages, m.vocabulary * m.hidden / weights)
    by_cost = (given.stack.stages_by_cost > 0) & (stages > 1)
    fullest = np.where(by_cost, first, fullest_stage_layers(m.layers, stages))
    even = slowest_stage(m.layers, stages, layer, head)
    return array(fullest), array(np.where(by_cost, np.maximum(first * layer, last * layer + head), even))


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
    """Clipping and Adam on what a rank owns; offloaded: gradients out, weights back, Adam in host memory.

    Where moments alone are on the host and visit the device, they move, and Adam is the device's.
    """
    at, job, work = given.job.layouts, given.job, given.work
    ranks = np.maximum(np.minimum(at.shards, job.shard_group), 1.0)
    experts = np.where(job.frozen > 0, 0.0, work.rank_experts)
    replicated = np.where(at.zero >= 1, 0.0, 1.0)
    owned = (work.trained - experts) * np.maximum(replicated, 1 / ranks)
    owned = owned + experts * np.maximum(replicated, np.minimum(1.0, at.expert / ranks))
    touched = np.where(at.zero < 3, GRADIENT_BYTES_TOUCHED * work.trained, 0.0)
    device = given.constants.optimizer_traffic * (given.stack.update_bytes * owned + touched) / given.device.bandwidth
    host = OFFLOADED_HOST_BYTES * owned * given.device.node / HOST_MEMORY_BYTES_PER_SECOND
    away = OFFLOADED_LINK_BYTES * owned / given.device.host_link + host
    visiting = device + VISITING_LINK_BYTES * owned / given.device.host_link
    offloaded = np.where((given.stack.moments_visit > 0) & (at.offload_parameters == 0), visiting, away)
    return array(np.where(at.offload_optimizer > 0, offloaded, device))


def _inputs_to_host(given: StepInputs) -> Array:
    """Per micro-batch: the input of each layer to host memory and back. A bound: nothing is taken to hide it."""
    at = given.job.layouts
    # One device and DDP keep hidden states in 32 bits (autocast); sharded and split weights make 16 bits of them.
    is_wide = (at.zero < 2) & (at.tensor == 1)
    hidden = np.where(is_wide, 2.0, 1.0) * given.work.stage_message * at.tensor
    layers = fullest_stage_layers(given.model.layers, at.pipeline)
    return array(at.offload_activations * 2 * layers * hidden / given.device.host_link)


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

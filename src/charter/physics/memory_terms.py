"""Terms of a training step's memory, over columns of layouts: states, activations, logits, buffers, overheads."""

import numpy as np

from charter.physics.columns import Array, array
from charter.physics.kept_activations import SOURCE as ACTIVATION_SOURCE
from charter.physics.memory_rank import Rank, trained_parameters
from charter.physics.terms import ExplainedColumn, column
from charter.spec.layout import Recompute

# -------- The terms of a training step's memory, over arrays of layouts: each names its formula and its source.

ZERO_SOURCE = "Rajbhandari et al. 2020, figure 1"
LAYERS_AHEAD = 1024 / 32
"""Layers that a host can be ahead of its device: 1,024 kernels may wait to run (a limit of CUDA), about 32 a layer."""
ASSUMED = "assumption (physics/constants.py), moved by calibration"


def state_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    """Weights, gradients and optimizer state; with adapters a frozen base and a small trained part."""
    s, lay, states = rank.shape, rank.layouts, rank.constants.states
    dense, experts = trained_parameters(rank)
    owned = {stage: rank.sharded(dense, experts, stage) for stage in (1, 2, 3)}
    # Where 16-bit weights are not a copy there is nothing else to gather.
    copied = (s.second_stage_shards_weights > 0) & (s.parameter_bytes > s.compute_bytes) & (lay.pipeline == 1)
    stored = np.where(copied, owned[2], owned[3])
    total = array(dense + experts)
    device = {"parameters": 1 - lay.offload_parameters, "optimizer": 1 - lay.offload_optimizer}
    # Sharded gradients are where their optimizer steps: ZeRO-Offload (Ren et al. 2021, section 4.2) and FSDP2's
    # `CPUOffloadPolicy` move each to the host once it is reduced.
    away = (
        np.maximum(lay.offload_parameters, lay.offload_optimizer * (1 - s.moments_visit))
        * (lay.zero >= 2)
        * (s.adapter == 0)
    )
    over = "N_rank {total:,.0f}, ZeRO-{zero:.0f} over {group:.0f}"
    # Beside a pipeline gradients are reduced once, after the last micro-batch, and are whole until then.
    summed = np.where((rank.gathers > 0) & (lay.pipeline > 1), total, owned[2])
    numbers = {"total": total, "zero": lay.zero, "group": rank.group}
    source = f"{s.source or 'bytes per parameter of the stack'}; ZeRO: {ZERO_SOURCE}"
    base = _frozen_base(rank) * device["parameters"] * states
    return {
        "base": base_column(rank, base),
        "weights": column(
            "weights",
            "parameters",
            s.parameter_bytes * stored * device["parameters"] * states,
            "{size:g} B x " + over,
            source,
            size=s.parameter_bytes,
            **numbers,
        ),
        "gradients": column(
            "gradients",
            "gradients",
            s.gradient_bytes * summed * (1 - away) * states,
            "{size:g} B x {held:,.0f} of " + over,
            source,
            size=s.gradient_bytes,
            held=array(summed),
            **numbers,
        ),
        "optimizer": column(
            "optimizer",
            "optimizer",
            s.optimizer_bytes * owned[1] * device["optimizer"] * states,
            "{size:g} B x " + over,
            source,
            size=s.optimizer_bytes,
            **numbers,
        ),
    }


def base_column(rank: Rank, values: Array) -> ExplainedColumn:
    """The frozen base of adapters."""
    s, p = rank.shape, rank.parameters
    return column(
        "frozen base",
        "parameters",
        values,
        "{size:.3g} B x {matrices:,.0f}; {rest:,.0f} of ends in 2 or 4 B; over {shards:.0f} (routed experts / EP)",
        "Hu et al. 2021; Dettmers et al. 2023 (nf4: 4.127 bits with double quantisation, embeddings in 16)",
        size=s.base_bytes,
        matrices=p.matrices,
        rest=array(p.total - p.matrices),
        shards=array(np.where(rank.layouts.zero >= 3, rank.group, 1.0)),
    )


def _frozen_base(rank: Rank) -> Array:
    s, p = rank.shape, rank.parameters
    head = s.quantises_head * s.model.head_beside_embedding / rank.layouts.tensor * (s.base_bytes < 2)
    rest = p.total - p.matrices - head
    narrow = np.minimum(s.model.head_beside_embedding / rank.layouts.tensor - head, rest)
    wide = np.where(rank.layouts.zero == 0, s.embedding_bytes, 2.0)
    dense = s.base_bytes * (p.matrices - p.experts + head) + 2.0 * narrow + wide * (rest - narrow)
    return array(np.where(s.adapter > 0, rank.sharded(dense, s.base_bytes * p.experts, 3), 0.0))


def activation_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    """Return the activations that the forward pass keeps on a pipeline stage, and one layer's in its backward pass."""
    return {**_kept_columns(rank), **_live_columns(rank)}


def _again(rank: Rank) -> Array:
    """Share of the layers that the backward pass computes once more, all of each or all but its products."""
    s, lay = rank.shape, rank.layouts
    none = lay.recomputes(Recompute.NONE) * s.compiled
    selective = lay.recomputes(Recompute.SELECTIVE) * (s.products_sharded > 0)
    return array(lay.recomputes(Recompute.FULL) * s.recompute_share + selective + none)


def _products(rank: Rank) -> Array:
    """Bytes of a layer's products per token that selective recomputation keeps beside the layer's input."""
    s, lay = rank.shape, rank.layouts
    selective = lay.recomputes(Recompute.SELECTIVE)
    sharded = s.products_sharded - selective * s.context_sharded
    keeps = np.maximum(selective, lay.recomputes(Recompute.NONE) * s.compiled)
    return array(keeps * (s.products_replicated / sequence_group(rank) + sharded / lay.tensor))


def sequence_group(rank: Rank) -> Array:
    """Ranks that share what tensor parallelism replicates."""
    return array(np.where(rank.layouts.sequence_parallel > 0, rank.layouts.tensor, 1.0))


def joined_share(rank: Rank) -> Array:
    """Positions of other ranks, of all, that Charter's engine joins: two inputs of a layer, and the last norm's."""
    return array((rank.shape.ends_apart > 0) * (1 - 1 / sequence_group(rank)))


def _cast_bytes(rank: Rank) -> Array:
    """Return what autocast keeps beside the list of a layer: two normalised values in fp32, three more casts."""
    s = rank.shape
    wider = 2 * (s.parameter_bytes - s.compute_bytes) + 3 * s.compute_bytes
    return array(np.where(rank.is_autocast > 0, wider * s.hidden, 0.0))


def _repeated_heads(rank: Rank) -> Array:
    """Heads of keys and values beyond the model's own: each process of a row attends with one at least."""
    return array(rank.shape.repeated_head * np.maximum(rank.layouts.context - rank.shape.kv_heads, 0.0))


def _kept_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    s, lay, layers = rank.shape, rank.layouts, rank.parameters.layers
    again, sequence = _again(rank), sequence_group(rank)
    eager = s.keeps_scores * (lay.recompute == 0)
    sharded = np.where(lay.context > 1, s.sharded_ring + _repeated_heads(rank), s.sharded)
    saved_bytes = (s.replicated + _cast_bytes(rank)) / sequence + (sharded + eager * s.scores) / lay.tensor
    joined = 2 * s.compute_bytes * s.hidden * joined_share(rank)
    # Beside adapters hidden states are as wide as the frozen embedding that they come from.
    stream = np.where(
        (s.adapter > 0) & (lay.zero == 0), np.maximum(s.embedding_bytes, s.compute_bytes), s.compute_bytes
    )
    inputs = np.where(rank.is_autocast > 0, s.parameter_bytes, stream) * s.hidden / sequence + _products(rank)
    on_device = rank.constants.activations * rank.tokens * layers * rank.held * (1 - lay.offload_activations)
    shape = "{tokens:,.0f} tokens x {layers:.0f} layers x {held:.4g} micro-batches in flight"
    numbers = {"tokens": rank.tokens, "layers": layers, "held": rank.held}
    encoder = s.encoder_bytes * lay.micro_batch * (rank.stage == "first") * rank.held
    return {
        "kept": column(
            "kept activations",
            "activations",
            (saved_bytes + joined) * on_device * (1 - again),
            "{kept:,.0f} B per token and layer x " + shape,
            ACTIVATION_SOURCE,
            kept=array(saved_bytes + joined),
            **numbers,
        ),
        "inputs": column(
            "layer inputs",
            "activations",
            inputs * on_device * again,
            "{inputs:,.0f} B per token and layer x " + shape,
            "Korthikanti et al. 2022, table 2 (2 s b h per layer); selective: what products give, too",
            inputs=array(inputs),
            **numbers,
        ),
        "encoder": column(
            "encoder activations",
            "activations",
            array(encoder),
            "{encoder:,.0f} B per sequence",
            "the list of a plain layer, per token of the encoder",
            encoder=s.encoder_bytes,
        ),
    }


def _live_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    s, lay, sequence = rank.shape, rank.layouts, sequence_group(rank)
    one = (s.live_replicated + _cast_bytes(rank)) / sequence + (
        s.live_sharded + _repeated_heads(rank) + s.keeps_scores * s.live_scores
    ) / lay.tensor
    one = one + 2 * s.compute_bytes * s.hidden * joined_share(rank)
    gradients = (
        s.backward_replicated * (1 / sequence + joined_share(rank))
        + (s.backward_sharded + s.keeps_scores * s.live_scores) / lay.tensor
    )
    live = np.where((_again(rank) > 0) | (lay.offload_activations > 0), 1.0, 0.0)
    # Under autocast the first norm keeps the layer's input itself, which is counted among those of all layers.
    own = rank.is_autocast * (1 - lay.offload_activations) * s.parameter_bytes * s.hidden / sequence
    alone = array(one - _products(rank) - own)
    return {
        "live": column(
            "one live layer",
            "activations",
            live * alone * rank.tokens * rank.constants.activations,
            "{one:,.0f} B per token x {tokens:,.0f} tokens",
            ACTIVATION_SOURCE,
            one=alone,
            tokens=rank.tokens,
        ),
        "backward": column(
            "gradients of one layer",
            "activations",
            gradients * rank.tokens * rank.constants.activations,
            "{gradients:,.0f} B per token x {tokens:,.0f} tokens",
            "inner values of the widest part of a layer, while its backward pass runs",
            gradients=array(gradients),
            tokens=rank.tokens,
        ),
    }


def _loss_bytes(rank: Rank) -> tuple[Array, Array, Array, Array]:
    """Positions of a tile, bytes per logit of it, bytes at the loss, and those that its backward pass alone has.

    A tile is cut by the part of the vocabulary that a rank has, so that tensor parallelism makes it longer.
    """
    s, lay = rank.shape, rank.layouts
    rows = s.loss_rows * np.where(s.loss_head > 0, lay.tensor, 1.0)
    counted = rank.tokens * s.loss_share
    part = counted / s.loss_parts
    doubled = np.exp2(np.ceil(np.log2(np.maximum(part, 1.0))))
    part = np.where(s.loss_input > 0, np.minimum(doubled, counted), part)
    positions, all_logits = np.minimum(part, rows), counted * s.vocabulary
    logits, head, each = positions * s.vocabulary, s.loss_head, s.loss_bytes + s.loss_split * (lay.tensor > 1)
    stays = np.where(all_logits / lay.tensor <= s.loss_kept, 4 * all_logits, 0.0)
    # Probabilities that stay are not beside the tile; a softmax over ranks has one more of its size.
    forward = (each - 2 * ((stays > 0) & (lay.tensor == 1))) * logits + 4 * head * (s.loss_kept == 0)
    # The gradient of the head is fp32; a tile's part of it is in 16 bits, when the tile's logits are gone.
    tile = np.maximum(forward, (each - 2) * logits + 6 * head)
    beside = s.loss_gradient + s.loss_input * counted * lay.tensor
    per_rank = stays + np.where(head + s.loss_kept > 0, tile, each * logits) + beside
    return array(positions), array(each), array(per_rank), array((tile - forward) * (s.loss_kept > 0))


def logit_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    """Logits, probabilities and their gradients on the stage that has the output projection."""
    s, lay, has_head = rank.shape, rank.layouts, (rank.layouts.pipeline == 1) | (rank.stage == "last")
    positions, each, per_rank, _ = _loss_bytes(rank)
    return {
        "logits": column(
            "logits and loss",
            "logits",
            array(per_rank / lay.tensor * has_head * rank.constants.logits),
            "({per_logit:g} B x {positions:,.0f} positions x vocabulary {vocabulary:,.0f} + {head:,.0f} B) "
            "/ TP {tensor:.0f}",
            "bytes per logit of the cross-entropy in use (physics/memory_profiles.py)",
            per_logit=each,
            head=array(per_rank - each * positions * s.vocabulary),
            positions=positions,
            vocabulary=s.vocabulary,
            tensor=lay.tensor,
        )
    }


# -------- Buffers of a training step: gathered and cast weights, buckets, pipeline and step temporaries, and overheads.


def buffer_columns(rank: Rank) -> dict[str, ExplainedColumn]:
    """Every buffer, by key."""
    return {**_weight_buffers(rank), **_gradient_buffers(rank), **_sequence_buffers(rank), **_step_buffers(rank)}


def _weight_buffers(rank: Rank) -> dict[str, ExplainedColumn]:
    s, p, value = rank.shape, rank.parameters, rank.shape.compute_bytes
    live = np.where(rank.layouts.pipeline > 1, p.total, np.minimum(s.live_parameters, p.total))
    quantised = (s.adapter > 0) & (s.base_bytes < 2)
    stored = np.where(quantised, s.base_bytes, value)
    # Autocast keeps its casts of what is trained; Charter's engine has adapters of its own.
    mixed = np.where(s.adapter == 0, p.total, np.where(s.ends_apart > 0, 0.0, rank.adapters))
    copies = np.where((s.parameter_bytes > value) & (rank.gathers == 0), mixed, 0.0)
    # Beside adapters a tied projection is stored as the embedding is, and cast anew by every product.
    is_cast = (s.adapter > 0) & (s.embedding_bytes > value) & (s.model.head_beside_embedding == 0) & (s.loss_bytes > 0)
    copies = np.where(is_cast & (rank.layouts.zero == 0), s.model.embedding / rank.layouts.tensor, copies)
    head = s.quantises_head * s.model.head_beside_embedding
    matrix = np.maximum(s.model.largest_matrix, head) / rank.layouts.tensor
    return {
        **_gathered_columns(rank, stored, live),
        **_copies_columns(rank, copies),
        "fp8": column(
            "8-bit copies",
            "buffers",
            s.fp8_copies * np.where(rank.gathers > 0, np.minimum(2 * p.layer_unit, p.matrices), p.matrices),
            "{size:g} B x {matrices:,.0f}",
            "TransformerEngine casts each weight once per step, as it is and transposed",
            size=s.fp8_copies,
            matrices=p.matrices,
        ),
        "dequantised": column(
            "dequantised weights",
            "buffers",
            np.where(quantised, value * s.dequantised_copies * matrix, 0.0),
            "{value:g} B x {copies:g} x largest matrix {matrix:,.0f}",
            "bitsandbytes and GPTQ kernels, one matrix at a time",
            value=value,
            copies=s.dequantised_copies,
            matrix=array(matrix),
        ),
    }


def _gathered_columns(rank: Rank, stored: Array, live: Array) -> dict[str, ExplainedColumn]:
    """Gathered weights in each phase; `live` parameters stay gathered in any case."""
    p, value, ends = rank.parameters, rank.shape.compute_bytes, rank.ends
    apart, layer = rank.is_apart > 0, stored * p.layer_unit
    # What is gathered beside the layers, and how many layers: one in use, and the buffer of the last or the next
    # gather, which FSDP2 frees when another begins; at the loss that of the head.
    compiled = rank.shape.compiled > 0
    through = array(np.where(apart, ends.root, np.where(compiled, 0.0, p.end_unit)))
    # Where each token has a loss of its own the head's gradient is made after the forward pass, at whose end FSDP2 let
    # go of that buffer; the last layer's is there by then.
    later = (rank.shape.loss_kept > 0) & (ends.head > 0)
    units = ends.root + np.where(later, 1.0, 2.0) * ends.head
    at_loss = array(np.where(apart, units, np.where(compiled, ends.largest, p.end_unit)))
    two = np.where(compiled, 1.0, 2.0)
    beside: dict[str, tuple[Array, Array]] = {
        "gathered": (through, array(two)),
        "gathered_loss": (at_loss, array(np.where(apart, (ends.head == 0) | later, np.where(compiled, 0.0, 2.0)))),
        "gathered_backward": (through, array(two)),
        "gathered_end": (array(np.where(apart | compiled, 0.0, p.end_unit)), array(np.where(apart, 0.0, two))),
    }
    # ZeRO-2 has all gathered; the buffer of the last gather is beside it.
    last = np.where(later, 0.0, np.where(ends.head > 0, value * ends.head, layer))
    buffer = {"gathered": layer, "gathered_loss": last}
    second = apart & (rank.gathers == 0)
    columns = {}
    for key, (size, layers) in beside.items():
        third = np.maximum(layers * layer + value * size, stored * live) * rank.gathers
        columns[key] = column(
            "gathered weights",
            "buffers",
            np.where(second, buffer.get(key, 0.0), third),
            "max({layers:.0f} layers x {layer:,.0f} x {stored:.3g} B + embedding and head {ends:,.0f} x {value:g} B; "
            "kept gathered {live:,.0f} x {stored:.3g} B)",
            "FSDP2: one layer in use, one prefetched, the root unit; all beside a pipeline; DeepSpeed: "
            "stage3_max_live_parameters",
            value=value,
            stored=array(stored),
            layer=p.layer_unit,
            layers=layers,
            ends=size,
            live=array(live),
        )
    return columns


def _copies_columns(rank: Rank, copies: Array) -> dict[str, ExplainedColumn]:
    """16-bit copies in each phase."""
    s, p, value, ends = rank.shape, rank.parameters, rank.shape.compute_bytes, rank.ends
    products, head = p.total - p.end_unit, (ends.head + ends.root) * (s.scalar == 0)
    auto, again = (rank.is_autocast > 0) & (copies > 0), _again(rank) > 0
    # Layers that are computed again cast again: the cache ends with the forward pass, before the loss's backward pass.
    at_loss = np.where(again, np.maximum(products - _loss_bytes(rank)[3] / value, 0.0), products)
    sizes = {
        "copies": np.where(auto, products, copies),
        "copies_backward": np.where(auto, np.where(again, np.minimum(p.layer_unit, products), products), copies),
        "copies_loss": np.where(auto, at_loss + head, copies),
        "copies_end": np.where(auto | (rank.is_apart > 0), 0.0, copies),
    }
    said = "16-bit copies", "buffers", "{value:g} B x {total:,.0f}", "autocast caches its casts"
    return {
        key: column(*said[:2], value * size, *said[2:], value=value, total=array(size)) for key, size in sizes.items()
    }


def _gradient_buffers(rank: Rank) -> dict[str, ExplainedColumn]:
    s, p, lay = rank.shape, rank.parameters, rank.layouts
    dense, experts = trained_parameters(rank)
    trained = array(dense + experts)
    alone = rank.group <= 1
    part = np.minimum(np.where(alone, s.alone_elements, s.bucket_elements), trained)
    filled = np.where(s.whole_buckets > 0, s.bucket_elements, part)
    buckets = np.where((lay.zero >= 1) & (lay.zero < 3), filled, rank.gathers * s.third_bucket_elements)
    plain = (lay.zero == 0) & ~alone
    buckets, ddp = np.where(plain, s.low_buckets * trained, buckets), np.where(plain, s.ddp_buckets * trained, 0.0)
    return {
        **_unreduced_columns(rank, np.minimum(p.largest_unit, trained)),
        "low": column(
            "16-bit gradients",
            "gradients",
            s.compute_bytes * s.low_gradients * trained,
            "{value:g} B x {trained:,.0f}, beside those to which they are added",
            "DeepSpeed `BF16_Optimizer`, nanotron's gradient accumulator",
            value=s.compute_bytes,
            trained=trained,
        ),
        "buckets": column(
            "communication buckets",
            "buffers",
            s.compute_bytes * buckets + s.gradient_bytes * ddp,
            "{value:g} B x {buckets:,.0f} + {size:g} B x {ddp:,.0f}",
            "DeepSpeed reduce and gather buckets; torch DDP copies gradients into buckets",
            value=s.compute_bytes,
            size=s.gradient_bytes,
            buckets=array(buckets),
            ddp=array(ddp),
        ),
    }


def _unreduced_columns(rank: Rank, unit: Array) -> dict[str, ExplainedColumn]:
    """Gradients that wait for their reduction, beside all activations and when those are gone."""
    s, p, ends, stays, live = rank.shape, rank.parameters, rank.ends, _kept_columns(rank), _live_columns(rank)
    trains = (s.adapter == 0) | (s.trained_ends > 0)
    wide, narrow, layers = s.gradient_bytes, s.compute_bytes, p.layer_unit * (s.adapter == 0)
    # One unit's copy in fp32 lives until the next is reduced. That of a layer exists when what the layer kept is gone.
    waiting = wide * layers - stays["kept"].values / (np.maximum(p.layers, 1.0) * rank.held)
    root = narrow * ends.root * trains
    beside = root + np.maximum(wide * ends.head * trains, np.maximum(waiting, 0.0))
    # Alone, a gradient of the embedding is added to the one that is there.
    alone = wide * s.model.embedding / rank.layouts.tensor * (rank.layouts.accumulation > 1) * trains
    largest = np.maximum(ends.embedding, ends.root)
    last = narrow * (ends.embedding + ends.root) + wide * largest * (1 + 1 / rank.group)
    gathered = np.where(rank.gathers > 0, 2.0, 0.0) * narrow * p.layer_unit
    running = live["live"].values + live["backward"].values
    # The last reduction comes when no layer runs any more: counted is what it takes beyond a layer's backward pass.
    end = np.maximum(last * trains - running, gathered + root + wide * layers)
    apart = rank.is_apart > 0
    # XLA stacks a layer's experts: of gate, up and down one reduces at a time.
    stack = s.model.layer_experts / (3 * rank.layouts.tensor * rank.layouts.expert)
    matrix = np.maximum(np.maximum(stack, s.model.largest_matrix / rank.layouts.tensor), ends.largest)
    unit, each = np.where(s.compiled > 0, np.minimum(matrix, unit), unit), np.where(s.compiled > 0, narrow, wide)
    # An optimizer that steps in the backward pass leaves one gradient; that of a tied embedding waits for its end.
    widest = np.maximum(s.model.largest_matrix, s.model.embedding) / rank.layouts.tensor
    unit = np.where(s.reduces_tensors > 0, np.minimum(widest, unit), unit)
    stepped = narrow * widest * trains * (wide == 0)
    one = each * unit * rank.gathers + stepped
    late = one + stepped * (s.model.head_beside_embedding == 0)
    sizes = {
        "unreduced": np.where(apart, beside, one),
        "unreduced_end": np.where(apart, end, np.where(rank.is_autocast > 0, np.maximum(alone - running, 0.0), late)),
    }
    return {
        key: column(
            "unreduced gradients",
            "buffers",
            size,
            "{size:g} B x largest unit {unit:,.0f}, or {size:g} B + {value:g} B of a unit that is reduced alone",
            "one unit before its reduction",
            size=array(each),
            value=narrow,
            unit=array(unit),
        )
        for key, size in sizes.items()
    }


def _sequence_buffers(rank: Rank) -> dict[str, ExplainedColumn]:
    """Messages between pipeline stages, stage outputs, and sequences gathered over a tensor-parallel group."""
    s, lay = rank.shape, rank.layouts
    state = s.compute_bytes * s.hidden * rank.tokens
    divided = np.where(lay.sequence_parallel > 0, lay.tensor, 1.0)
    messages = np.where(lay.pipeline > 1, 2 + s.stage_outputs * rank.held / lay.tensor, 0.0) / divided
    # Whole outputs of attention and MLP, on the stream that divides them.
    streamed = 2 * s.streamed_outputs * s.reserved * np.minimum(rank.parameters.layers, LAYERS_AHEAD)
    gathered = np.where((lay.sequence_parallel > 0) & (lay.tensor > 1), 2.0 + streamed, 0.0)
    return {
        "messages": column(
            "pipeline messages",
            "buffers",
            state * messages,
            "{copies:.3g} x {state:,.0f} B (hidden states of a micro-batch)",
            "one received, one sent; what the pipeline engine keeps per micro-batch in flight",
            copies=array(messages),
            state=array(state),
        ),
        "gathered_sequence": column(
            "gathered sequence",
            "buffers",
            state * gathered,
            "{copies:.3g} x {state:,.0f} B (hidden states of a micro-batch)",
            "sequence parallelism gathers the input of a projection, forward and backward; outputs on another stream",
            copies=array(gathered),
            state=array(state),
        ),
    }


def gathered_copies(rank: Rank) -> Array:
    """Bytes of all new 16-bit weights where an optimizer step gathers them as lists."""
    s, lay = rank.shape, rank.layouts
    shared = (lay.zero >= 1) & (lay.zero < 3) & (rank.group > 1)
    return array(np.where(shared, s.gather_copies * s.compute_bytes * sum(trained_parameters(rank)), 0.0))


def _step_buffers(rank: Rank) -> dict[str, ExplainedColumn]:
    s, lay = rank.shape, rank.layouts
    dense, experts = trained_parameters(rank)
    owned = rank.sharded(dense, experts, 1)
    at_once = np.minimum(owned, np.where(lay.zero >= 3, s.step_parameters, np.inf)) * (1 - lay.offload_optimizer)
    largest = rank.largest_parameter
    norm = s.norm_bytes * np.minimum(largest, owned) * (1 - lay.offload_optimizer)
    bytes_at_once = array(np.maximum(s.step_bytes * at_once, norm) * rank.constants.step)
    workspace = np.where(s.cpu > 0, 0.0, s.workspace * rank.constants.workspace_bytes)
    return {
        "step": column(
            "optimizer step",
            "buffers",
            bytes_at_once,
            "{size:g} B x {at_once:,.0f}",
            "fp32 gradient of a flat shard, and what Adam computes over lists of tensors",
            size=array(np.where(norm > s.step_bytes * at_once, s.norm_bytes, s.step_bytes)),
            at_once=array(np.where(norm > s.step_bytes * at_once, np.minimum(largest, owned), at_once)),
        ),
        "new_weights": column(
            "gathered new weights",
            "buffers",
            gathered_copies(rank),
            "{value:g} B x {trained:,.0f}",
            "NCCL's outputs of a list of tensors, before they are copied into it (`all_gather_dp_groups`)",
            value=s.compute_bytes,
            trained=array(dense + experts),
        ),
        "workspace": column(
            "workspaces",
            "buffers",
            array(workspace),
            "cuBLAS and fused kernels, {workspace:,.0f} B",
            ASSUMED,
            workspace=array(workspace),
        ),
    }

"""Passes through a model's layers: positions that nobody asks for are left out, and memory is gone over less often.

Transformers' layers write every intermediate result of a norm, a rotation or a gate to memory, and their backward pass
more of them. On processors each is one function of its own here, computed by parts that stay in a core's caches,
and the last layer has queries only where its result is read.

Legend: B sequences, T tokens, M = B x T, N positions that are asked for, W the most of one sequence, C rows of a part,
H hidden size, A heads, D width of a head, I width of the feed-forward part.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.cache_utils import Cache

from charter.engines.native.capabilities import FUSED_TYPES
from charter.models.engine_layout import DEFAULT_ATTENTION
from charter.models.runtime import is_queued, joins_layers
from charter.models.sequence_split import is_split
from charter.models.sharded_load import decoder_layers
from charter.physics.memory_profiles import MOST_ASKED

DENSE = frozenset(
    {"llama", "mistral", "ministral", "qwen2", "qwen3", "gemma", "phi3", "olmo", "olmo2", "olmo3", "smollm3"}
    | {"starcoder2", "stablelm", "glm", "glm4"}
)
"""Model types whose layers end with `mlp`, which treats every position alone, and which keep nothing else of it."""


def give_asked_positions(model: Any) -> None:
    """Let the last layer of a causal model leave out positions (`asked_positions`); its names and weights stay."""
    if model.config.model_type not in DENSE:
        return
    mlp: nn.Module = decoder_layers(model)[-1].get_submodule("mlp")
    kind = type(mlp)
    if not issubclass(kind, AskedPositions):
        mlp.__class__ = type(kind.__name__, (AskedPositions, kind), {"__module__": kind.__module__})


@contextlib.contextmanager
def asked_positions(body: nn.Module, at_N: Tensor) -> Iterator[None]:
    """While open, the last layer of `body` computes the positions `at_N` of all B x T, each named once, whole.

    Layers that are computed again in the backward pass, compiled, or split over positions are left as they are.
    """
    layer = decoder_layers(body)[-1]
    mlp = getattr(layer, "mlp", None)
    is_changed = "forward" in vars(layer) or layer._compiled_call_impl is not None
    if not isinstance(mlp, AskedPositions) or is_split(layer) or is_changed or torch.compiler.is_compiling():
        yield
        return
    mlp.asked_N = at_N
    try:
        yield
    finally:
        mlp.asked_N = None


def asked_hidden(body: Any, at_N: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    """Last hidden states at the positions `at_N` of all B x T, [N, H]."""
    with asked_positions(body, at_N):
        hidden_BTH: Tensor = body(use_cache=False, **without_look(body, inputs), **inputs).last_hidden_state
    hidden_MH = hidden_BTH.flatten(0, 1)
    is_asked_alone = len(hidden_MH) < inputs["input_ids"].numel()  # a layer on processors has left out the others
    return hidden_MH if is_asked_alone else hidden_MH.index_select(0, at_N)


class AskedPositions:
    """Mixed into the class of a layer's feed-forward part, before it."""

    asked_N: Tensor | None = None

    def forward(self, hidden_BTH: Tensor) -> Tensor:
        """The part's own output; where only some positions are asked for, 0 at the others."""
        at_N, hidden_MH = self.asked_N, hidden_BTH.flatten(0, -2)
        if at_N is None or len(at_N) > MOST_ASKED * len(hidden_MH):
            return super().forward(hidden_BTH)  # type: ignore[misc,no-any-return]
        found_NH: Tensor = super().forward(hidden_MH.index_select(0, at_N)[None])[0]  # type: ignore[misc]
        return found_NH.new_zeros(hidden_MH.shape).index_copy(0, at_N, found_NH).view_as(hidden_BTH)


PLAIN_HEADS = frozenset(
    {"llama", "mistral", "mixtral", "ministral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "phi", "phi3"}
    | {"olmo", "olmo2", "olmo3", "olmoe", "smollm3", "starcoder2", "stablelm", "gpt_neox", "glm", "glm4", "gpt_oss"}
)
"""Model types whose logits are the output embeddings' product with the last hidden states, and nothing after it."""


class _NothingCached(Cache):  # type: ignore[misc]
    """Stands for keys and values of earlier tokens, of which there are none."""

    def __init__(self) -> None:
        super().__init__(layers=[])

    def get_seq_length(self, *_: Any) -> int:
        """Return the number of earlier tokens."""
        return 0

    get_query_offset = get_seq_length

    def get_mask_sizes(self, query_length: int, *_: Any) -> tuple[int, int]:
        """Return how many keys a mask covers, and from which on."""
        return query_length, 0

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Return what a layer attends to: its own keys and values."""
        return key_states, value_states


def without_look(body: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return inputs with which transformers does not look into positions for conversations that share a row.

    It does so where no cache is given, and the host waits for the device; rows that are shared have their own mask or
    bounds here (`train/packing.py`). Bodies of other models than `PLAIN_HEADS` may ask more of a cache: they look.
    """
    may_skip = is_queued(inputs["input_ids"].device) and body.config.model_type in PLAIN_HEADS
    return {"past_key_values": _NothingCached()} if may_skip and not torch.compiler.is_compiling() else {}


PART = 2**16
"""Numbers of one part, for each thread: some parts of fp32 (256 KiB each) fit into the caches of a core."""


def _parts(rows: int, width: int) -> Iterator[slice]:
    """Ranges of rows that are computed together: a function of the shapes and of the frozen number of threads."""
    size = max(1, PART * torch.get_num_threads() // width)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


class AddedNorm(torch.autograd.Function):
    """The residual stream with something added to it, and its root mean square norm (Zhang and Sennrich 2019).

    The stream is an output too, so that both of its gradients meet where the norm's is made.
    """

    @staticmethod
    def forward(
        ctx: Any, stream_MH: Tensor, more_MH: Tensor | None, weight_H: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        """Return the stream and its norm."""
        sum_MH = stream_MH if more_MH is None else torch.empty_like(stream_MH)
        unit_MH, normed_MH = torch.empty_like(stream_MH), torch.empty_like(stream_MH)
        scale_M1 = stream_MH.new_empty(len(stream_MH), 1)
        for part in _parts(*stream_MH.shape):
            rows_CH, scale_C1 = sum_MH[part], scale_M1[part]
            if more_MH is not None:
                torch.add(stream_MH[part], more_MH[part], out=rows_CH)
            torch.linalg.vector_norm(rows_CH, dim=-1, keepdim=True, out=scale_C1)
            scale_C1.square_().div_(rows_CH.shape[1]).add_(epsilon).rsqrt_()
            torch.mul(torch.mul(rows_CH, scale_C1, out=unit_MH[part]), weight_H, out=normed_MH[part])
        ctx.save_for_backward(unit_MH, scale_M1, weight_H)
        ctx.is_sum = more_MH is not None
        return sum_MH, normed_MH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_sum_MH: Tensor, by_normed_MH: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of both summands, and that of the weight."""
        unit_MH, scale_M1, weight_H = ctx.saved_tensors
        by_MH, by_weight_H = torch.empty_like(unit_MH), torch.zeros_like(weight_H)
        for part in _parts(*unit_MH.shape):
            unit_CH, by_normed_CH = unit_MH[part], by_normed_MH[part]
            product_CH = by_normed_CH * unit_CH
            by_weight_H.add_(product_CH.sum(0))
            along_C1 = torch.mv(product_CH, weight_H).div_(len(weight_H))[:, None]
            by_CH = torch.mul(by_normed_CH, weight_H, out=by_MH[part])
            by_CH.addcmul_(unit_CH, along_C1, value=-1).mul_(scale_M1[part]).add_(by_sum_MH[part])
        return by_MH, by_MH if ctx.is_sum else None, by_weight_H, None


class Products(torch.autograd.Function):
    """Several linear maps of the same rows; the gradients by the rows add up in the products themselves."""

    @staticmethod
    def forward(ctx: Any, rows_MH: Tensor, *maps: Tensor | None) -> tuple[Tensor, ...]:
        """Return an output for each pair (weight, bias) of `maps`."""
        pairs = list(zip(maps[::2], maps[1::2], strict=True))
        ctx.save_for_backward(rows_MH, *maps[::2])
        ctx.has_bias = [bias is not None for _, bias in pairs]
        return tuple(nn.functional.linear(rows_MH, weight, bias) for weight, bias in pairs)  # type: ignore[arg-type]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *by_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients by the rows, and by each weight and bias."""
        rows_MH, *weights = ctx.saved_tensors
        by_rows_MH: Tensor | None = None
        by_maps: list[Tensor | None] = []
        for number, (by_MN, weight) in enumerate(zip(by_outputs, weights, strict=True)):
            needs_weight, needs_bias = ctx.needs_input_grad[1 + 2 * number : 3 + 2 * number]
            if ctx.needs_input_grad[0]:
                by_rows_MH = torch.mm(by_MN, weight) if by_rows_MH is None else by_rows_MH.addmm_(by_MN, weight)
            by_maps.append(torch.mm(by_MN.t(), rows_MH) if needs_weight else None)
            by_maps.append(by_MN.sum(0) if ctx.has_bias[number] and needs_bias else None)
        return by_rows_MH, *by_maps


def _turned(heads_BTAD: Tensor, cos_BTD: Tensor, sin_BTD: Tensor, sign: int) -> Tensor:
    """Each pair of numbers (i, i + D/2) turned by its angle, or back."""
    half = heads_BTAD.shape[-1] // 2
    turned_BTAD = torch.empty_like(heads_BTAD)
    for part in _parts(len(heads_BTAD), heads_BTAD[0].numel()):
        own = slice(None) if len(cos_BTD) == 1 else part
        cos, sin = cos_BTD[own, :, None, :half], sin_BTD[own, :, None, :half]
        first, second, out = heads_BTAD[part][..., :half], heads_BTAD[part][..., half:], turned_BTAD[part]
        torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-sign)
        torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin, value=sign)
    return turned_BTAD


class Rotated(torch.autograd.Function):
    """Rotary positions (Su et al. 2021, arXiv:2104.09864) of all heads; its gradient is turned back."""

    @staticmethod
    def forward(ctx: Any, heads_BTAD: Tensor, cos_BTD: Tensor, sin_BTD: Tensor) -> Tensor:
        """Return the turned heads."""
        ctx.save_for_backward(cos_BTD, sin_BTD)
        return _turned(heads_BTAD, cos_BTD, sin_BTD, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_turned_BTAD: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the heads."""
        cos_BTD, sin_BTD = ctx.saved_tensors
        return _turned(by_turned_BTAD, cos_BTD, sin_BTD, -1), None, None


class Gated(torch.autograd.Function):
    """silu(gate) x up (Shazeer 2020, arXiv:2002.05202)."""

    @staticmethod
    def forward(ctx: Any, gate_MI: Tensor, up_MI: Tensor, keeps: bool) -> Tensor:
        """Return the product; unless a backward pass keeps the activated gate, it is written over that."""
        active_MI = torch.empty_like(gate_MI)
        product_MI = torch.empty_like(gate_MI) if keeps else active_MI
        for part in _parts(*gate_MI.shape):
            torch.ops.aten.silu.out(gate_MI[part], out=active_MI[part])
            torch.mul(active_MI[part], up_MI[part], out=product_MI[part])
        if keeps:
            ctx.save_for_backward(gate_MI, up_MI, active_MI)
        return product_MI

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_MI: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of gate and up."""
        gate_MI, up_MI, active_MI = ctx.saved_tensors
        by_gate_MI, by_up_MI = torch.empty_like(gate_MI), torch.empty_like(up_MI)
        for part in _parts(*gate_MI.shape):
            torch.mul(by_MI[part], active_MI[part], out=by_up_MI[part])
            by_active_CI = by_MI[part] * up_MI[part]
            torch.ops.aten.silu_backward.grad_input(by_active_CI, gate_MI[part], grad_input=by_gate_MI[part])
        return by_gate_MI, by_up_MI, None


@dataclass(frozen=True)
class AskedQueries:
    """Places of the positions asked for, as many slots in each sequence as that has which asks for most."""

    at_N: Tensor
    slot_N: Tensor
    """Slot of each position, through all of B x W."""
    source_BW: Tensor
    """Position of each slot, through all of B x T; a slot too many reads the sequence's first."""
    column_BW: Tensor

    @staticmethod
    def of(at_N: Tensor, rows: int, width: int) -> "AskedQueries":
        """Lay out ascending positions of `rows` sequences of `width` tokens."""
        row_N = at_N // width
        count_B = torch.bincount(row_N, minlength=rows)
        most = int(count_B.max())
        slot_N = row_N * most + torch.arange(len(at_N)) - (count_B.cumsum(0) - count_B)[row_N]
        source_BW = (torch.arange(rows)[:, None] * width).repeat(1, most)
        source_BW.view(-1)[slot_N] = at_N
        return AskedQueries(at_N, slot_N, source_BW, source_BW % width)

    def mask(self, mask_BATT: Tensor | None, width: int) -> Tensor:
        """The keys that each query sees: [B, 1, W, T]."""
        if mask_BATT is None:
            return (torch.arange(width) <= self.column_BW[:, :, None])[:, None]
        column_BAWT = self.column_BW[:, None, :, None].expand(-1, mask_BATT.shape[1], -1, width)
        return mask_BATT.expand(len(self.column_BW), -1, -1, -1).gather(2, column_BAWT)

    def of_positions(self, values_BTD: Tensor) -> Tensor:
        """Return what belongs to positions, slot by slot."""
        at_BWD = self.column_BW[:, :, None].expand(-1, -1, values_BTD.shape[2])
        return values_BTD.expand(len(self.column_BW), -1, -1).gather(1, at_BWD)


def give_processor_layers(model: Any) -> None:
    """Let the layers of a causal model of plain parts compute as here where they can; names and weights stay."""
    if model.config.model_type not in FUSED_TYPES or model.config.hidden_act != "silu":
        return
    for layer in model.get_decoder().layers:
        kind = type(layer)
        if not issubclass(kind, ProcessorLayer):
            layer.__class__ = type(kind.__name__, (ProcessorLayer, kind), {"__module__": kind.__module__})


class ProcessorLayer:
    """Mixed into a decoder layer's class, before it: two norms, rotated attention, a gated feed-forward part."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **more: Any,
    ) -> Tensor:
        """The layer's own output, [B, T, H]; with positions that are asked for (`asked_positions`) they alone."""
        layer: Any = self
        if position_embeddings is None or not _is_usual(layer, hidden_states, position_embeddings, more):
            inputs = {"attention_mask": attention_mask, "position_embeddings": position_embeddings, **more}
            return super().forward(hidden_states, **inputs)  # type: ignore[misc,no-any-return]
        queries, shape = _asked_queries(layer, hidden_states), hidden_states.shape
        stream_MH = hidden_states.flatten(0, 1)
        first, second = layer.input_layernorm, layer.post_attention_layernorm
        stream_MH, normed_MH = AddedNorm.apply(stream_MH, None, first.weight, first.variance_epsilon)  # type: ignore[no-untyped-call]
        seen = _attention(layer.self_attn, normed_MH, shape[:2], attention_mask, position_embeddings, queries)
        if queries is not None:
            stream_MH = stream_MH.index_select(0, queries.at_N)
        stream_MH, normed_MH = AddedNorm.apply(stream_MH, seen, second.weight, second.variance_epsilon)  # type: ignore[no-untyped-call]
        del seen  # without gradients nothing else would keep it through what is widest
        out_MH: Tensor = stream_MH + _fed(layer.mlp, normed_MH)
        return out_MH[None] if queries is not None else out_MH.view(shape)


def _products(rows_MH: Tensor, *projections: nn.Linear) -> tuple[Tensor, ...]:
    maps = [item for projection in projections for item in (projection.weight, projection.bias)]
    outputs: tuple[Tensor, ...] = Products.apply(rows_MH, *maps)  # type: ignore[no-untyped-call]
    return outputs


def _fed(mlp: Any, normed_MH: Tensor) -> Tensor:
    """The feed-forward part; no name holds its widest arrays, so that a pass without gradients lets them go."""
    product_MI = Gated.apply(*_products(normed_MH, mlp.gate_proj, mlp.up_proj), torch.is_grad_enabled())  # type: ignore[no-untyped-call]
    fed_MH: Tensor = mlp.down_proj(product_MI)
    return fed_MH


def _attention(
    attention: Any,
    normed_MH: Tensor,
    shape: Sequence[int],
    mask: Tensor | None,
    angles: tuple[Tensor, Tensor],
    queries: AskedQueries | None,
) -> Tensor:
    """The attention that is added to the stream, of all positions or of those asked for."""
    from transformers import AttentionInterface

    size, query_angles = attention.head_dim, angles
    if queries is None:
        query, key, value = _products(normed_MH, attention.q_proj, attention.k_proj, attention.v_proj)
        query = query.view(*shape, -1, size)
    else:
        key, value = _products(normed_MH, attention.k_proj, attention.v_proj)
        query = attention.q_proj(normed_MH.index_select(0, queries.source_BW.flatten()))
        query = query.view(*queries.source_BW.shape, -1, size)
        query_angles = (queries.of_positions(angles[0]), queries.of_positions(angles[1]))
        mask = queries.mask(mask, shape[1])
    key, value = key.view(*shape, -1, size), value.view(*shape, -1, size)
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm(query), attention.k_norm(key)
    query, key = Rotated.apply(query, *query_angles), Rotated.apply(key, *angles)  # type: ignore[no-untyped-call]
    seen, _ = AttentionInterface()[DEFAULT_ATTENTION](
        attention,
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        mask,
        dropout=attention.attention_dropout if attention.training else 0.0,
        scaling=attention.scaling,
    )
    seen = seen.flatten(0, 1).flatten(1)
    if queries is not None and len(seen) > len(queries.at_N):
        seen = seen.index_select(0, queries.slot_N)
    added: Tensor = attention.o_proj(seen)
    return added


def _asked_queries(layer: Any, hidden_BTH: Tensor) -> AskedQueries | None:
    """The positions that the last layer is asked for, where leaving out the others is worth it."""
    at_N, (rows, width, _) = getattr(layer.mlp, "asked_N", None), hidden_BTH.shape
    if at_N is None or len(at_N) > MOST_ASKED * rows * width or bool((at_N.diff() <= 0).any()):
        return None
    queries = AskedQueries.of(at_N, rows, width)
    return queries if queries.source_BW.shape[1] <= MOST_ASKED * width else None


def _is_usual(layer: Any, hidden: Tensor, angles: tuple[Tensor, Tensor], more: Mapping[str, Any]) -> bool:
    """Return True if a pass is one of plain matrices in fp32 over complete rows, in a stage that has begun so."""
    if is_queued(hidden.device) or not joins_layers() or torch.is_autocast_enabled("cpu"):
        return False
    if hidden.dtype != torch.float32 or torch.compiler.is_compiling() or is_split(layer):
        return False
    if any(value is not None and value is not False for name, value in more.items() if name != "position_ids"):
        return False
    attention, mlp = layer.self_attn, layer.mlp
    if attention.config._attn_implementation != DEFAULT_ATTENTION or angles[0].shape[-1] != attention.head_dim:
        return False
    projections = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    return all(_is_plain(item) for item in (*projections, mlp.gate_proj, mlp.up_proj, mlp.down_proj))


def _is_plain(projection: nn.Module) -> bool:
    if type(projection) is not nn.Linear or projection._forward_hooks or projection._forward_pre_hooks:
        return False
    return type(projection.weight) in (nn.Parameter, Tensor)

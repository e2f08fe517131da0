"""One token of every row of a batch by joint products, its operations launched at once where a GPU allows it.

Legend: L rows, T columns with room for more, N heads (of queries, keys and values side by side), D values of a head,
H width of the residual stream, R ranks of adapters, V vocabulary.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from charter.engines.native.capabilities import FUSED_TYPES
from charter.models.adapters import adapter_matrices, base_layer
from charter.models.engine_layout import DEFAULT_ATTENTION
from charter.models.runtime import SIXTEEN_BITS, is_queued
from charter.physics.inference_memory import ALIGNED_COLUMNS, ROOM_COLUMNS, aligned_columns


@dataclass
class JointCache:
    """Keys and values of every layer in one tensor each, with room in it, for a `FusedDecoder`.

    Columns that no token has written yet hold 0 and are out of sight, so that every token up to the last column has
    operations of the same shapes.
    """

    pairs_LNTD: list[Tensor]
    """Of each layer: N heads, those of the keys before those of the values."""
    bias_LT: Tensor
    """Added to the scores: 0 where a column is a token, else minus infinity."""
    is_warm: bool = False
    """A token has gone through this memory, operation by operation."""
    graph: "TokenGraph | None" = None
    """The operations of a token over this memory; it ends with it, so that no other batch finds its memory taken."""

    @staticmethod
    def of(
        cache: DynamicCache, mask_LT: Tensor | None, dtype: torch.dtype, row_L: Tensor | slice = slice(None)
    ) -> "JointCache":
        """Take over rows of a cache after the prompts, layer by layer; None as mask where no row is padded."""
        pairs, used = [], cache.layers[0].keys.shape[2]
        columns = aligned_columns(used + ROOM_COLUMNS)
        for layer in cache.layers:
            keys_LHTD, values_LHTD = layer.keys[row_L], layer.values[row_L]
            rows, heads, _, size = keys_LHTD.shape
            pair_LNTD = keys_LHTD.new_zeros((rows, 2 * heads, columns, size), dtype=dtype)
            pair_LNTD[:, :heads, :used], pair_LNTD[:, heads:, :used] = keys_LHTD, values_LHTD
            layer.keys = layer.values = layer._roomy_keys = layer._roomy_values = None
            pairs.append(pair_LNTD)
        bias_LT = pairs[0].new_full((len(pairs[0]), columns), float("-inf"))
        bias_LT[:, :used] = 0.0
        if mask_LT is not None:
            bias_LT[:, :used].masked_fill_(mask_LT[:, :used] == 0, float("-inf"))
        return JointCache(pairs, bias_LT)

    @staticmethod
    def joined(parts: Sequence["JointCache"]) -> "JointCache":
        """Put the rows of several caches below each other, layer by layer; the parts are used up."""
        if len(parts) == 1:
            return parts[0]
        pairs = []
        for layer in range(len(parts[0].pairs_LNTD)):
            pairs.append(torch.cat([part.pairs_LNTD[layer] for part in parts]))
            for part in parts:
                part.pairs_LNTD[layer] = pairs[-1]
        return JointCache(pairs, torch.cat([part.bias_LT for part in parts]))

    def make_room(self, columns: int) -> None:
        """See to it that so many columns fit."""
        if columns > self.bias_LT.shape[1]:
            more = aligned_columns(columns + ROOM_COLUMNS) - self.bias_LT.shape[1]
            pad = torch.nn.functional.pad
            self._change(lambda pair_LNTD: pad(pair_LNTD, (0, 0, 0, more)))
            self.bias_LT = pad(self.bias_LT, (0, more), value=float("-inf"))

    def keep(self, row_L: Tensor, first_column: int) -> int:
        """Go on with some rows, without columns before the first; how many are gone."""
        lost = first_column // ALIGNED_COLUMNS * ALIGNED_COLUMNS
        self._change(lambda pair_LNTD: pair_LNTD[row_L, :, lost:])
        self.bias_LT = self.bias_LT[row_L, lost:]
        return lost

    def _change(self, change: Callable[[Tensor], Tensor]) -> None:
        """Put another tensor in the place of each, and let go of the old one before the next is made."""
        self.graph, self.is_warm = None, False
        for number in range(len(self.pairs_LNTD)):
            self.pairs_LNTD[number] = change(self.pairs_LNTD[number])


@contextlib.contextmanager
def _in_one_column() -> Iterator[None]:
    """Write to one column, which has one order, without torch's strict form: it sorts, and copies all columns."""
    is_strict = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(is_strict, warn_only=only_warns)


@functools.cache
def _recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all recordings: cuBLAS keeps a workspace (32 MiB) for every stream that it has been on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class TokenGraph:
    """The operations of one token as a CUDA graph over the memory of a cache: one launch instead of hundreds."""

    def __init__(self, decoder: "FusedDecoder", ids_L: Tensor, position_LQ: Tensor, cache: JointCache) -> None:
        self._ids_L, self._position_LQ = ids_L.clone(), position_LQ.clone()
        self._column_1 = ids_L.new_zeros(1)
        self._graph = torch.cuda.CUDAGraph()
        stream, now = _recording_stream(ids_L.device), torch.cuda.current_stream(ids_L.device)
        stream.wait_stream(now)
        with torch.cuda.stream(stream):
            # `torch.cuda.graph` would hand all cached memory back to the driver first, and wait for the device.
            self._graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._logits_LV = decoder.one_token(self._ids_L, self._position_LQ, cache, self._column_1)
            finally:
                self._graph.capture_end()
        now.wait_stream(stream)

    def logits(self, ids_L: Tensor, position_LQ: Tensor, column: int) -> Tensor:
        """Logits of these tokens, in memory that the next token writes anew."""
        self._ids_L.copy_(ids_L)
        self._position_LQ.copy_(position_LQ)
        self._column_1.fill_(column)
        self._graph.replay()
        return self._logits_LV


@dataclass(frozen=True)
class _LowRank:
    """Adapters of one product: ranks of projections side by side, each of which ends in its own outputs."""

    down_RH: Tensor
    up_NR: Tensor
    scaling: float

    def added(self, out_LN: Tensor, inputs_LH: Tensor) -> Tensor:
        """Add it to what the base alone gives."""
        low_LR = torch.mm(inputs_LH, self.down_RH.t())
        if out_LN.dtype == low_LR.dtype:
            return torch.addmm(out_LN, low_LR, self.up_NR.t(), alpha=self.scaling)
        return out_LN.add(torch.mm(low_LR, self.up_NR.t()), alpha=self.scaling)


@dataclass(frozen=True)
class _Product:
    """A matrix, with what adapters add to its product."""

    weight_NH: Tensor
    bias_N: Tensor | None = None
    low_rank: _LowRank | None = None

    def of(self, inputs_LH: Tensor) -> Tensor:
        """Return the product."""
        weight_HN = self.weight_NH.t()
        plain = (
            torch.mm(inputs_LH, weight_HN) if self.bias_N is None else torch.addmm(self.bias_N, inputs_LH, weight_HN)
        )
        return plain if self.low_rank is None else self.low_rank.added(plain, inputs_LH)

    def added_to(self, stream_LH: Tensor, inner_LN: Tensor) -> Tensor:
        """Add the product to the residual stream: in one operation where both are of one type."""
        if stream_LH.dtype == inner_LN.dtype:
            stream_LH = torch.addmm(stream_LH, inner_LN, self.weight_NH.t())
        else:
            stream_LH = stream_LH + torch.mm(inner_LN, self.weight_NH.t())
        return stream_LH if self.low_rank is None else self.low_rank.added(stream_LH, inner_LN)


@dataclass(frozen=True)
class _FusedLayer:
    """Weights of one layer, with what is multiplied by the same input in one matrix."""

    norm_H: Tensor
    qkv: _Product
    head_norm_ND: Tensor | None
    """Of queries and keys, where they are normalised per head."""
    out: _Product
    mlp_norm_H: Tensor
    gate_up: _Product
    down: _Product


class FusedDecoder:
    """One token of every row by a third of the operations that the model's own classes launch.

    Few operations matter where a token takes as long as they take to launch. Queries, keys and values are one product,
    gate and up another; one rotation turns all heads, those of the values by nothing, so that keys and values are
    written at once; angles and mask are made once for all layers. Weights in 16 bits are joined in place; of those in
    fp32 there are copies in autocast's type, in place of its own, and the residual stream stays in fp32. Adapters stay
    beside their matrices: merged into 16 bits, most of an update would be rounded away.
    """

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self.model, self.body, self.dtype = model, model.get_decoder(), dtype
        attention = self.body.layers[0].self_attn
        self.size, self.scaling = int(attention.head_dim), float(attention.scaling)
        self.heads, self.kv_heads = model.config.num_attention_heads, model.config.num_key_value_heads
        self.epsilon = float(model.config.rms_norm_eps)
        self.layers = [self._fused(layer) for layer in self.body.layers]
        self.head_VH = self._single(model.get_output_embeddings())
        self._has_graphs = self.head_VH.is_cuda and _has_fixed_angles(self.body.rotary_emb)

    @staticmethod
    def of(model: Any, device: torch.device) -> "FusedDecoder | None":
        """The decoder of a model on an accelerator that computes in 16 bits; None for others."""
        if not is_queued(device) or model.config.model_type not in FUSED_TYPES or not _is_plain_decoder(model):
            return None
        stored = model.get_decoder().layers[0].self_attn.q_proj.weight.dtype
        autocast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else stored
        return FusedDecoder(model, autocast) if autocast in SIXTEEN_BITS.values() else None

    def _fused(self, layer: Any) -> _FusedLayer:
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        head_norm_ND = None
        if hasattr(attention, "q_norm"):
            norms = ((attention.q_norm.weight, self.heads), (attention.k_norm.weight, self.kv_heads))
            head_norm_ND = torch.cat([weight.expand(count, -1) for weight, count in norms]).to(self.dtype)
        return _FusedLayer(
            norm_H=layer.input_layernorm.weight,
            qkv=self._joint(projections),
            head_norm_ND=head_norm_ND,
            out=self._joint((attention.o_proj,)),
            mlp_norm_H=layer.post_attention_layernorm.weight,
            gate_up=self._joint((mlp.gate_proj, mlp.up_proj)),
            down=self._joint((mlp.down_proj,)),
        )

    def _single(self, projection: nn.Module) -> Tensor:
        weight: Tensor = projection.get_parameter("weight").detach().to(self.dtype)
        return weight

    def _joint(self, projections: Sequence[nn.Module]) -> _Product:
        bases = [base_layer(item) for item in projections]
        joint_NH = self._single(bases[0]) if len(bases) == 1 else torch.cat([self._single(item) for item in bases])
        sizes = [item.out_features for item in bases]
        for item, part_NH in zip(bases, torch.split(joint_NH, sizes), strict=True):
            if item.weight.dtype == self.dtype:
                item.weight.data = part_NH
        biases = [item.bias for item in bases if item.bias is not None]
        bias_N = torch.cat(biases).to(self.dtype) if biases else None
        return _Product(joint_NH, bias_N, self._low_rank(projections))

    def _low_rank(self, projections: Sequence[nn.Module]) -> _LowRank | None:
        adapted = [adapter_matrices(item) for item in projections]
        if adapted[0] is None:
            return None
        matrices = [item for item in adapted if item is not None]
        down_RH = torch.cat([first.detach() for first, _, _ in matrices]).to(self.dtype)
        seconds = (second.detach() for _, second, _ in matrices)
        up_NR: Tensor = torch.block_diag(*seconds).to(self.dtype)  # type: ignore[no-untyped-call]
        return _LowRank(down_RH, up_NR, matrices[0][2])

    def logits(self, ids_L: Tensor, position_LQ: Tensor, cache: JointCache, column: int) -> Tensor:
        """Logits after one token of every row, whose keys and values are written to `column`; valid until the next.

        On a GPU the first token over a memory is computed operation by operation, which loads their kernels; the second
        one is recorded as a graph, and all others are one launch each.
        """
        cache.make_room(column + 1)
        if self._has_graphs and cache.is_warm and cache.graph is None:
            cache.graph = TokenGraph(self, ids_L, position_LQ, cache)
        if cache.graph is not None:
            return cache.graph.logits(ids_L, position_LQ, column)
        cache.is_warm = True
        return self.one_token(ids_L, position_LQ, cache, torch.full((1,), column, device=ids_L.device))

    def one_token(self, ids_L: Tensor, position_LQ: Tensor, cache: JointCache, column_1: Tensor) -> Tensor:
        """Logits after one token of every row, operation by operation; nothing here depends on the column's number."""
        with autocast_as_is(ids_L.device, enabled=False):
            stream_LH = torch.nn.functional.embedding(ids_L, self.model.get_input_embeddings().weight)
            angles = self._angles(stream_LH, position_LQ)
            with _in_one_column():
                cache.bias_LT.index_fill_(1, column_1, 0.0)
            shape = (len(ids_L), self.kv_heads, self.heads // self.kv_heads, cache.bias_LT.shape[1])
            bias_LHGT = cache.bias_LT[:, None, None].expand(shape)
            for layer, pair_LNTD in zip(self.layers, cache.pairs_LNTD, strict=True):
                inputs_LH = self._normed(stream_LH, layer.norm_H)
                seen_LN = self._attention(layer, inputs_LH, angles, pair_LNTD, column_1, bias_LHGT)
                stream_LH = layer.out.added_to(stream_LH, seen_LN)
                inner_LN = layer.gate_up.of(self._normed(stream_LH, layer.mlp_norm_H))
                gate_LN, up_LN = inner_LN.chunk(2, -1)
                stream_LH = layer.down.added_to(stream_LH, torch.nn.functional.silu(gate_LN) * up_LN)
            return torch.mm(self._normed(stream_LH, self.body.norm.weight), self.head_VH.t()).float()

    def _normed(self, stream_LH: Tensor, weight_H: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(stream_LH, stream_LH.shape[-1:], weight_H, self.epsilon).to(self.dtype)

    def _angles(self, stream_LH: Tensor, position_LQ: Tensor) -> tuple[Tensor, Tensor]:
        """Factors of every head's values and of their other half; values of attention keep what they are."""
        cos_L1D, sin_L1D = self.body.rotary_emb(stream_LH[:, None], position_ids=position_LQ)
        rotated, half = self.heads + self.kv_heads, self.size // 2
        shape = (len(stream_LH), rotated + self.kv_heads, self.size)
        cos_LND = stream_LH.new_ones(shape, dtype=self.dtype)
        sin_LND = stream_LH.new_zeros(shape, dtype=self.dtype)
        cos_LND[:, :rotated], sin_LND[:, :rotated] = cos_L1D, sin_L1D
        sin_LND[:, :rotated, :half].neg_()
        return cos_LND, sin_LND

    def _attention(
        self,
        layer: _FusedLayer,
        inputs_LH: Tensor,
        angles: tuple[Tensor, Tensor],
        pair_LNTD: Tensor,
        column_1: Tensor,
        bias_LHGT: Tensor,
    ) -> Tensor:
        """Attention of every head, side by side; queries that share a head of keys are read as queries of one head."""
        rows, rotated = len(inputs_LH), self.heads + self.kv_heads
        joint_LND = layer.qkv.of(inputs_LH).view(rows, rotated + self.kv_heads, self.size)
        if layer.head_norm_ND is not None:
            heads_LND = joint_LND[:, :rotated]
            heads_LND.copy_(
                torch.nn.functional.rms_norm(heads_LND, (self.size,), None, self.epsilon) * layer.head_norm_ND
            )
        cos_LND, sin_LND = angles
        joint_LND = torch.addcmul(joint_LND * cos_LND, joint_LND.roll(self.size // 2, -1), sin_LND)
        with _in_one_column():
            pair_LNTD.index_copy_(2, column_1, joint_LND[:, self.heads :, None])
        seen_LHGD = torch.nn.functional.scaled_dot_product_attention(
            joint_LND[:, : self.heads].view(rows, self.kv_heads, -1, self.size),
            pair_LNTD[:, : self.kv_heads],
            pair_LNTD[:, self.kv_heads :],
            attn_mask=bias_LHGT,
            scale=self.scaling,
        )
        return seen_LHGD.reshape(rows, -1)


def autocast_as_is(device: torch.device, **changes: bool) -> contextlib.AbstractContextManager[object]:
    """Autocast as it is, but for some of its settings; nothing where it is not in use."""
    kind = device.type
    if not torch.is_autocast_enabled(kind):
        return contextlib.nullcontext()
    return torch.autocast(kind, torch.get_autocast_dtype(kind), **changes)


def _has_fixed_angles(rotary: Any) -> bool:
    """Return True if no length of a text changes how positions become angles: the host would have to look at them."""
    kind = str(getattr(rotary, "rope_type", "default"))
    return "dynamic" not in kind and kind != "longrope"


def _is_plain_decoder(model: Any) -> bool:
    """Return True if every projection is a whole local matrix, and nothing is hooked to the layers."""
    if model.config._attn_implementation != DEFAULT_ATTENTION or model.config.hidden_act != "silu":
        return False
    for item in model.modules():
        if item._forward_hooks or item._forward_pre_hooks:
            return False
        if isinstance(item, nn.Linear) and (type(item) is not nn.Linear or type(item.weight) is not nn.Parameter):
            return False
    for layer in model.get_decoder().layers:
        mlp, attention = layer.mlp, layer.self_attn
        products = (
            (attention.q_proj, attention.k_proj, attention.v_proj),
            (attention.o_proj,),
            (mlp.gate_proj, mlp.up_proj),
            (mlp.down_proj,),
        )
        if not all(_is_one_product(projections) for projections in products):
            return False
        unbiased = (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        if any(base_layer(item).bias is not None for item in unbiased):
            return False
    return True


def _is_one_product(projections: Sequence[nn.Module]) -> bool:
    """Return True if projections are whole matrices, all with an adapter of one scaling beside them, or all without."""
    scalings = {None if (matrices := adapter_matrices(item)) is None else matrices[2] for item in projections}
    return all(type(base_layer(item)) is nn.Linear for item in projections) and len(scalings) == 1

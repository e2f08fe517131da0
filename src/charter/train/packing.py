"""Conversations that share a row: which ones by a precomputed index, and the batch in which each sees only itself.

B rows of a batch, T tokens of a row.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from charter.errors import StageError
from charter.models.chat import Encoded
from charter.models.context_split import RowParts
from charter.models.engine_layout import DEFAULT_ATTENTION
from charter.models.ranks import Ranks
from charter.models.runtime import EAGER, FLASH, FLEX, SIXTEEN_BITS, on_device

VARLEN = "varlen"
"""Torch's own flash attention over conversations that follow each other in one row, without padding and mask."""


def pack(lengths: Sequence[int], seq_len: int) -> tuple[tuple[int, ...], ...]:
    """Assign conversations to rows of `seq_len` tokens: best fit, longest first; each is in exactly one row.

    A conversation goes to the fullest row that has room. With `n` conversations the sort takes O(n log n) and each
    placement a binary search over the different free lengths; the order depends on the lengths alone.

    Source: Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination" (arXiv:2107.02027); best-fit
    decreasing needs at most 11/9 of the fewest rows and a constant more (Johnson et al. 1974).

    >>> pack([3, 7, 5, 2], 8)
    ((1,), (2, 0), (3,))
    """
    rows: list[list[int]] = []
    with_room: dict[int, list[int]] = {}
    free_lengths: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if not 0 < lengths[item] <= seq_len:
            raise ValueError(f"conversation {item} has {lengths[item]} tokens; a row holds 1 to {seq_len}")
        place = bisect_left(free_lengths, lengths[item])
        if place == len(free_lengths):
            row, free = len(rows), seq_len
            rows.append([])
        else:
            free = free_lengths[place]
            row = with_room[free].pop()
            if not with_room[free]:
                free_lengths.pop(place)
        rows[row].append(item)
        room = free - lengths[item]
        if room:
            if not with_room.setdefault(room, []):
                insort(free_lengths, room)
            with_room[room].append(row)
    return tuple(tuple(row) for row in rows)


def check_packable(config: Any, seq_len: int) -> None:
    """Refuse to let conversations share a row in a model with layers that no mask of ours keeps them apart in.

    The mask takes the place of a layer's own, a sliding window with it; a recurrent state or a convolution passes from
    one conversation to the next whatever the mask.
    """
    if reason := _other_attention(config, seq_len, carries="from one conversation of a row to the next"):
        raise StageError(f"{config.model_type} has {reason}; conversations cannot share rows: use packing: false")


def own_parts(ranks: Ranks, config: Any, attention: str, seq_len: int) -> RowParts | None:
    """Return how processes share each row (context parallelism), from now on; None where each has complete rows.

    Masks are those of complete rows in every layer.
    """
    if ranks.context_size == 1:
        return None
    if reason := _other_attention(config, seq_len, carries="from one token of a row to the next"):
        raise StageError(f"{config.model_type} has {reason}; processes cannot share rows: use context: 1")
    return RowParts(ranks, config, attention)


def _other_attention(config: Any, seq_len: int, *, carries: str) -> str:
    """Return what layers do other than attend to all earlier tokens of a row; empty where there is nothing."""
    for layer in DynamicCache(config=config).layers:
        if type(layer) is DynamicLayer:
            continue
        if not isinstance(layer, DynamicSlidingWindowLayer):
            return f"layers that carry a state {carries}"
        if layer.sliding_window < seq_len:
            return f"layers that attend to the last {layer.sliding_window} tokens only, fewer than seq_len {seq_len}"
    return ""


@dataclass(frozen=True)
class PackedBatch:
    """Rows of several conversations, padded at the right."""

    ids_BT: Tensor
    counted_BT: Tensor
    """Tokens that the loss counts; never the first of a conversation, which nothing of its own predicts."""
    positions_BT: Tensor
    """From 0 in every conversation; in the padding too, so that it is a sequence of its own."""
    segments_BT: Tensor
    """1, 2, ... for the conversations of a row, 0 for padding."""

    def flattened(self, multiple: int = 1) -> "PackedBatch":
        """The same tokens as one row without padding, which is what flash attention reads.

        Conversations are numbered on from row to row; since no first token is counted, the loss is the same sum. Where
        the row has to be a `multiple`, tokens that count for nothing follow, as a conversation of their own.
        """
        is_used_BT = self.segments_BT > 0
        columns = [item[is_used_BT] for item in (self.ids_BT, self.counted_BT, self.positions_BT)]
        rest = torch.arange(-len(columns[0]) % multiple)
        more = (torch.zeros_like(rest), torch.zeros_like(rest, dtype=torch.bool), rest)
        ids_N, counted_N, positions_N = (torch.cat(both) for both in zip(columns, more, strict=True))
        values = (ids_N, counted_N, positions_N, (positions_N == 0).cumsum(0))
        return PackedBatch(*(values_N[None] for values_N in values))

    @property
    def tokens(self) -> int:
        """Tokens that are not padding."""
        return int((self.segments_BT > 0).sum())


def packed_batch(rows: Sequence[Sequence[Encoded]], *, padding: int, multiple: int = 1) -> PackedBatch:
    """The conversations of each row end to end, as wide as the longest row needs, by a `multiple`."""
    width = max(sum(len(item.ids) for item in row) for row in rows)
    width += -width % multiple
    ids_BT = torch.full((len(rows), width), padding, dtype=torch.long)
    counted_BT = torch.zeros((len(rows), width), dtype=torch.bool)
    positions_BT = torch.zeros((len(rows), width), dtype=torch.long)
    segments_BT = torch.zeros((len(rows), width), dtype=torch.long)
    for index, row in enumerate(rows):
        start = 0
        for number, item in enumerate(row, start=1):
            end = start + len(item.ids)
            ids_BT[index, start:end] = torch.as_tensor(item.ids, dtype=torch.long)
            counted_BT[index, start:end] = torch.as_tensor(item.is_answer, dtype=torch.bool)
            counted_BT[index, start] = False
            positions_BT[index, start:end] = torch.arange(end - start)
            segments_BT[index, start:end] = number
            start = end
        positions_BT[index, start:] = torch.arange(width - start)
    return PackedBatch(ids_BT, counted_BT, positions_BT, segments_BT)


def attention_mask(segments_BT: Tensor) -> Tensor:
    """Return the attention mask, shape (B, 1, T, T): a token sees those of its own conversation, up to itself."""
    width = segments_BT.shape[1]
    causal_TT = torch.ones(width, width, dtype=torch.bool, device=segments_BT.device).tril()
    same_BTT = segments_BT[:, :, None] == segments_BT[:, None, :]
    return (same_BTT & causal_TT)[:, None]


def block_mask(segments_BT: Tensor) -> BlockMask:
    """Return `attention_mask` in the form of flex attention: which blocks are skipped, and a rule inside the others."""

    def sees(b: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (segments_BT[b, query] == segments_BT[b, key])

    rows, width = segments_BT.shape
    return create_block_mask(sees, rows, None, width, width, device=str(segments_BT.device))


def packed_attention(attention: str, *, dtype: str, dropout: float, device: torch.device) -> str:
    """Return how conversations of a row are kept apart: by bounds where torch's fused attention takes them.

    Under a mask the deterministic backward pass on an H200 takes 68 times as long for 16 conversations in 8,192 tokens,
    and 9 times as long as where it may add up in any order (docs/reference/first-gpu.md).

    >>> packed_attention("sdpa", dtype="bf16", dropout=0.0, device=torch.device("cuda"))
    'varlen'
    >>> packed_attention("sdpa", dtype="bf16", dropout=0.0, device=torch.device("cpu"))
    'sdpa'
    """
    has_bounds = attention == DEFAULT_ATTENTION and device.type == "cuda" and dtype in SIXTEEN_BITS and not dropout
    return VARLEN if has_bounds else attention


def take_bounds() -> None:
    """Let `sdpa` of transformers' models take bounds of conversations, where it is given them, in place of a mask."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        cu_seq_lens_q: Tensor | None = None,
        max_length_q: int = 0,
        **more: Any,
    ) -> tuple[Tensor, None]:
        """Attend within the bounds; without them as transformers does."""
        if cu_seq_lens_q is None:
            plain: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **more)
            return plain
        return _attend_in_bounds(query, key, value, cu_seq_lens_q, max_length_q, scale=more.get("scaling")), None

    AttentionInterface.register(DEFAULT_ATTENTION, attend)


def _attend_in_bounds(
    query: Tensor, key: Tensor, value: Tensor, bounds_N: Tensor, longest: int, *, scale: float | None
) -> Tensor:
    """Attention of one row (1, heads, T, size) whose conversations begin at `bounds_N`; shape (1, T, heads, size)."""
    from torch.nn.attention.varlen import varlen_attn

    # Rotation has made queries and keys fp32 again under autocast, which does not know this operation.
    q, k, v = (item[0].transpose(0, 1).to(value.dtype) for item in (query, key, value))
    if q.shape[1] != k.shape[1]:  # torch 2.11 has no `enable_gqa` here
        k, v = (item.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for item in (k, v))
    options: dict[str, Any] = {"scale": scale, "window_size": (-1, 0)}
    result: Any = varlen_attn(q, k, v, bounds_N, bounds_N, longest, longest, **options)
    attended: Tensor = result[None]
    return attended


def model_inputs(batch: PackedBatch, *, attention: str, device: torch.device) -> dict[str, Any]:
    """Return the inputs of a Hugging Face model under which conversations of a row do not see each other.

    `sdpa` takes the mask as booleans, `eager` as what is added to the scores, `flex_attention` as a BlockMask: any
    tensor it would add to the scores, so that booleans let every token see every other. Flash attention, the package's
    and torch's own (`varlen`, after `take_bounds`), takes no mask but one row without padding (`flattened`) and where
    its conversations begin; without that, transformers looks for positions that begin again in every layer, and the
    processor waits for the device each time.
    """
    inputs: dict[str, Any] = {
        "input_ids": on_device(batch.ids_BT, device),
        "position_ids": on_device(batch.positions_BT, device),
    }
    if attention in (FLASH, VARLEN):
        if len(batch.ids_BT) != 1 or not bool(batch.segments_BT.all()):
            raise ValueError("attention by bounds reads one row without padding: give it `batch.flattened()`")
        return inputs | _conversation_bounds(batch.positions_BT[0], device)
    segments_BT = on_device(batch.segments_BT, device)
    if attention == FLEX:
        return inputs | {"attention_mask": block_mask(segments_BT)}
    mask_B1TT = attention_mask(segments_BT)
    if attention == EAGER:
        mask_B1TT = torch.where(mask_B1TT, 0.0, torch.finfo(torch.float32).min)
    return inputs | {"attention_mask": mask_B1TT}


def _conversation_bounds(positions_T: Tensor, device: torch.device) -> dict[str, Any]:
    """Return where the conversations of a row begin, and the longest, by the names of transformers' flash attention."""
    begins_N = (positions_T == 0).nonzero().squeeze(1)
    bounds_N = torch.cat([begins_N, begins_N.new_tensor([len(positions_T)])]).to(torch.int32)
    longest, bounds_N = int(bounds_N.diff().max()), on_device(bounds_N, device)
    return {
        "cu_seq_lens_q": bounds_N,
        "cu_seq_lens_k": bounds_N,
        "max_length_q": longest,
        "max_length_k": longest,
    }

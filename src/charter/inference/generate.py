"""Sample answers from a language model, with randomness that depends on the sample alone.

Legend: B sequences, Q prompt tokens (padded at the left), R answer tokens, V vocabulary, L answers not yet finished.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from charter.inference.fused import FusedDecoder, JointCache, autocast_as_is
from charter.models.engine_layout import DEFAULT_ATTENTION
from charter.models.language_model import LanguageModel
from charter.models.length_groups import CUDA_PASS_TOKENS, length_groups
from charter.models.runtime import is_queued, on_device, precision, reads_prompts_once
from charter.physics.inference_memory import DRAWN_LOGITS, PASS_TOKENS, ROOM_TOKENS


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values; `keys` and `values` are the part in use of larger tensors."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append columns."""
        key_states = key_states.to(value_states.dtype)  # under autocast rotation makes fp32 of them, attention 16 bits
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[:, :, :0], value_states[:, :, :0]
            self._roomy_keys, self._roomy_values = self.keys, self.values
        used, more = self.keys.shape[2], key_states.shape[2]
        if used + more > self._roomy_keys.shape[2]:
            self._roomy_keys = _with_room(self.keys, more + ROOM_TOKENS)
            self._roomy_values = _with_room(self.values, more + ROOM_TOKENS)
        self.keys, self.values = self._roomy_keys[:, :, : used + more], self._roomy_values[:, :, : used + more]
        self.keys[:, :, used:], self.values[:, :, used:] = key_states, value_states
        return self.keys, self.values

    def keep(self, row_L: Tensor, first_column: int) -> None:
        """Go on with some rows, without the first columns."""
        self.keys, self.values = self.keys[row_L, :, first_column:], self.values[row_L, :, first_column:]
        self._roomy_keys, self._roomy_values = self.keys, self.values


def _with_room(part_LHTD: Tensor, columns: int) -> Tensor:
    rows, heads, used, size = part_LHTD.shape
    extended_LHTD = part_LHTD.new_empty((rows, heads, used + columns, size))
    extended_LHTD[:, :, :used] = part_LHTD
    return extended_LHTD


def new_cache(config: Any) -> DynamicCache:
    """The model's own kind of cache, with room in it where every layer keeps everything.

    Layers with a sliding window or a recurrent state have caches of their own, which stay as they are.
    """
    cache = DynamicCache(config=config)
    if cache.layers and all(type(layer) is DynamicLayer for layer in cache.layers):
        cache.layers = [RoomyLayer() for _ in cache.layers]
    return cache


def _repeats(cache: DynamicCache) -> bool:
    """Return True if a row of a cache is its keys and values alone, so that rows may be taken more than once."""
    return all(type(layer) in (RoomyLayer, DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)


def keep_rows(cache: DynamicCache | JointCache, row_L: Tensor, first_column: int) -> int:
    """Go on with some rows of a cache; how many columns it has lost at its left, 0 where it cannot lose any."""
    if isinstance(cache, JointCache):
        return cache.keep(row_L, first_column)
    layers = [layer for layer in cache.layers if isinstance(layer, RoomyLayer)]
    if len(layers) < len(cache.layers):
        cache.batch_select_indices(row_L)
        return 0
    for layer in layers:
        layer.keep(row_L, first_column)
    return first_column


@dataclass(frozen=True)
class SamplingSettings:
    """Settings of drawing the next token."""

    max_new_tokens: int
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    dtype: str = "fp32"


def uniform_draws(seeds: Sequence[int], count: int) -> Tensor:
    """`count` uniform numbers in [0, 1) for each seed: row b depends on `seeds[b]` alone."""
    rows = [torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in seeds]
    return torch.stack(rows)


def choose(logits_BV: Tensor, draw_B: Tensor, settings: SamplingSettings) -> Tensor:
    """The first token whose cumulative probability exceeds the draw; the likeliest one at temperature 0."""
    if settings.temperature == 0:
        return logits_BV.argmax(-1)
    rows = max(1, DRAWN_LOGITS // logits_BV.shape[1])
    if rows >= len(logits_BV):
        return _drawn(logits_BV, draw_B, settings)
    parts = zip(torch.split(logits_BV, rows), torch.split(draw_B, rows), strict=True)
    return torch.cat([_drawn(some_BV, some_B, settings) for some_BV, some_B in parts])


def _drawn(logits_BV: Tensor, draw_B: Tensor, settings: SamplingSettings) -> Tensor:
    """Tokens of some rows: their probabilities in fp64 and the sums of these need several times the logits' memory."""
    probability_BV = torch.softmax(logits_BV.float() / settings.temperature, -1).double()
    if settings.top_p < 1:
        sorted_BV, order_BV = torch.sort(probability_BV, dim=-1, descending=True, stable=True)
        outside_BV = prefix_sums(sorted_BV) - sorted_BV >= settings.top_p
        probability_BV = probability_BV.masked_fill(outside_BV.gather(-1, order_BV.argsort(-1)), 0)
    block_BMK = _blocks(probability_BV)
    sum_BM = block_BMK.sum(-1)
    until_BM = sum_BM @ _upper(sum_BM)
    target_B = draw_B.to(until_BM) * until_BM[:, -1]
    block_B = _first_above(until_BM, target_B, sum_BM)
    inside_BK = block_BMK.gather(1, block_B[:, None, None].expand(-1, 1, block_BMK.shape[2])).squeeze(1)
    before_B = (until_BM - sum_BM).gather(1, block_B[:, None]).squeeze(1)
    token_B = _first_above(before_B[:, None] + inside_BK @ _upper(inside_BK), target_B, inside_BK)
    return block_B * block_BMK.shape[2] + token_B


def prefix_sums(values_BV: Tensor) -> Tensor:
    """Inclusive running sums along the last dimension.

    >>> prefix_sums(torch.tensor([[1.0, 2.0, 3.0]])).tolist()
    [[1.0, 3.0, 6.0]]
    """
    block_BMK = _blocks(values_BV)
    sum_BM = block_BMK.sum(-1)
    before_BM = sum_BM @ _upper(sum_BM) - sum_BM
    return (block_BMK @ _upper(block_BMK) + before_BM[:, :, None]).flatten(1)[:, : values_BV.shape[1]]


def _blocks(values_BV: Tensor) -> Tensor:
    """[B, M, K] with K about the root of V, padded with zeros."""
    size = math.isqrt(values_BV.shape[1] - 1) + 1
    count = -(-values_BV.shape[1] // size)
    padded = torch.nn.functional.pad(values_BV, (0, size * count - values_BV.shape[1]))
    return padded.view(len(values_BV), count, size)


def _upper(like: Tensor) -> Tensor:
    """The square matrix whose product from the right makes running sums of the last dimension."""
    width = like.shape[-1]
    return torch.ones((width, width), dtype=like.dtype, device=like.device).triu()


def _first_above(until_BN: Tensor, target_B: Tensor, weight_BN: Tensor) -> Tensor:
    """The first index whose running sum exceeds the target; at most the last one that has weight."""
    first_B = (until_BN <= target_B[:, None]).sum(-1)
    places_N = torch.arange(until_BN.shape[1], device=until_BN.device)
    last_B = torch.where(weight_BN > 0, places_N, 0).amax(-1)
    return torch.minimum(first_B, last_B)


__all__ = ["Answers", "SamplingSettings", "answer_texts", "choose", "generate", "pad_left", "uniform_draws"]
Watch = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Told of every step the rows of the batch [L], their logits [L, V] and the tokens drawn [L]; which of them end there.
Rows that have ended may be among them for a while."""
CPU_STEP_TOKENS = 16
"""What one more pass for one more token costs on a CPU, in tokens of its work.

Measured with prompts of the HH data's lengths and models of 1 and 7 million weights: groups by 8 to 32 took within 10 %
of the best time, all rows in one group 1.5 times.
"""
LOOK_TOKENS = 16
"""On an accelerator the host looks at every 16th token which rows have ended: it waits for all that was launched."""
PROMPT_TOKENS = int(PASS_TOKENS)
"""Tokens of prompts that one pass reads on an accelerator, at most, and one prompt at least: what fills it."""
STAYING_SHARE = 0.75
"""Finished rows leave once this share or less goes on: each time costs a copy of the cache."""


@dataclass(frozen=True)
class Answers:
    """Prompts and sampled answers as padded tensors."""

    prompt_BQ: Tensor
    prompt_mask_BQ: Tensor
    answer_BR: Tensor
    answer_mask_BR: Tensor
    """True up to and including the end token."""
    log_probability_BR: Tensor | None = None
    """log p of each answer token where the generator is another engine than the trainer."""

    def rows(self, part: slice | Tensor, device: torch.device) -> "Answers":
        """Some of the rows, on a device."""
        values = (self.prompt_BQ, self.prompt_mask_BQ, self.answer_BR, self.answer_mask_BR, self.log_probability_BR)
        return Answers(*(None if value is None else value[part].to(device) for value in values))  # type: ignore[arg-type]


def joined(parts: Sequence[Answers], *, padding: int) -> Answers:
    """Rows of several samplings below each other: prompts to the right edge, answers to the left, as each has them."""
    if len(parts) == 1:
        return parts[0]

    def stacked(values: Sequence[Tensor], fill: float, *, is_prompt: bool) -> Tensor:
        width = max(value.shape[1] for value in values)
        missing = [width - value.shape[1] for value in values]
        sides = [(count, 0) if is_prompt else (0, count) for count in missing]
        pad = torch.nn.functional.pad
        return torch.cat([pad(value, side, value=fill) for value, side in zip(values, sides, strict=True)])

    chosen = [item.log_probability_BR for item in parts]
    given = [value for value in chosen if value is not None]
    return Answers(
        stacked([item.prompt_BQ for item in parts], padding, is_prompt=True),
        stacked([item.prompt_mask_BQ for item in parts], 0, is_prompt=True),
        stacked([item.answer_BR for item in parts], padding, is_prompt=False),
        stacked([item.answer_mask_BR for item in parts], 0, is_prompt=False),
        stacked(given, 0.0, is_prompt=False) if len(given) == len(parts) else None,
    )


def pad_left(rows: Sequence[Sequence[int]], *, padding: int, width: int | None = None) -> tuple[Tensor, Tensor]:
    """Ids and mask, padded at the left to `width` or to the longest row.

    >>> pad_left([[1, 2], [3]], padding=0)[0].tolist()
    [[1, 2], [0, 3]]
    """
    width = max(len(row) for row in rows) if width is None else width
    ids = torch.full((len(rows), width), padding, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for index, row in enumerate(rows):
        if row:
            ids[index, width - len(row) :] = torch.tensor(row)
            mask[index, width - len(row) :] = 1
    return ids, mask


@torch.no_grad()
def generate(
    language_model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    seeds: Sequence[int],
    settings: SamplingSettings,
    prompt_width: int | None = None,
    tell: Callable[[], None] = lambda: None,
    watch: Watch | None = None,
    agree: Callable[[Tensor], Tensor] = lambda token_L: token_L,
    on: torch.device | None = None,
) -> Answers:
    """Sample one answer per prompt with a key/value cache; `tell` is called at every token.

    Draw t of sequence b depends on `seeds[b]` and t alone. Logits still depend on the shape of the batch, so for
    bit-exact replay the caller repeats the same batch whole; within it prompts of like length go together.
    `prompt_width` pads the returned prompts, not what the model reads. `watch` may end answers before their end token;
    their masks then go on to the longest. Processes that each hold parts of the weights must make the same passes:
    `agree` turns what one of them drew into what all go on with. `on` is where the model computes, unless it is where
    its weights are.
    """
    model = language_model.model.eval()
    device = next(model.parameters()).device if on is None else on
    padding, end = language_model.padding_id, language_model.end_id
    draws_BR = on_device(uniform_draws(seeds, settings.max_new_tokens), device)
    answer_BR = torch.full(draws_BR.shape, padding, dtype=torch.long, device=device)
    longest, looks_each = 0, LOOK_TOKENS if is_queued(device) else 1
    with precision(settings.dtype, device):
        fused = FusedDecoder.of(model, device)
        for rows in _groups(prompts, settings.max_new_tokens, device):
            texts = [prompts[row] for row in rows]
            batch = _Unfinished.of(language_model, rows, texts, settings.max_new_tokens, device)
            for step in range(settings.max_new_tokens):
                if not len(batch.row_L):
                    break
                logits_LV = batch.next_logits(model, fused)
                if step < settings.min_new_tokens:
                    logits_LV[:, end] = float("-inf")
                token_L = agree(choose(logits_LV, draws_BR[batch.row_L, step], settings))
                answer_BR[batch.row_L, step] = torch.where(batch.finished_L, padding, token_L)
                stops_L = False if watch is None else watch(batch.row_L, logits_LV, token_L)
                batch.extend(token_L, (token_L == end) | stops_L, look=(step + 1) % looks_each == 0)
                longest = max(longest, step + 1)
                tell()
    answer_BR = answer_BR[:, :longest]
    mask_BR = _until_end(answer_BR, end)
    if looks_each > 1 and watch is None:
        longest = int(mask_BR.any(0).sum())
        answer_BR, mask_BR = answer_BR[:, :longest], mask_BR[:, :longest]
    ids_BQ, mask_BQ = (on_device(item, device) for item in pad_left(prompts, padding=padding, width=prompt_width))
    return Answers(ids_BQ, mask_BQ, answer_BR, mask_BR)


def _until_end(answer_BR: Tensor, end: int) -> Tensor:
    """True up to and including the first end token."""
    places_R = torch.arange(answer_BR.shape[1], device=answer_BR.device)
    last_B = torch.where(answer_BR == end, places_R, answer_BR.shape[1]).amin(1)
    return places_R <= last_B[:, None]


def _groups(prompts: Sequence[Sequence[int]], max_new_tokens: int, device: torch.device) -> list[list[int]]:
    """Rows with prompts of like length, each group a batch of its own: padding is read anew at every token.

    Prompts alone decide, so that a replay of the whole batch has the same groups.
    """
    each = CUDA_PASS_TOKENS if device.type == "cuda" else CPU_STEP_TOKENS
    return length_groups([len(prompt) for prompt in prompts], pass_tokens=each * max_new_tokens)


@dataclass
class _Unfinished:
    """The rows that the model still reads, with their keys and values.

    Finished rows leave when they are a quarter of the batch: a rule of the batch alone, so that a replay meets the same
    shapes and therefore the same bits.
    """

    row_L: Tensor
    """Which rows of the whole batch."""
    finished_L: Tensor
    ids_LQ: Tensor
    """What the model reads next."""
    position_LQ: Tensor
    mask_LT: Tensor | None
    """Which columns are tokens, room for all answers included; None where no row is padded."""
    columns: int
    cache: Any
    first_rows: Sequence[int]
    """Rows whose prompts are read: of each run of equal ones the first, where that is shared; none afterwards."""
    attention: str = DEFAULT_ATTENTION

    @staticmethod
    def of(
        language_model: LanguageModel,
        rows: Sequence[int],
        prompts: Sequence[Sequence[int]],
        room: int,
        device: torch.device,
    ) -> "_Unfinished":
        """A group's rows and prompts, before the first token."""
        width = max(1, *map(len, prompts))
        ids_LQ, mask_LQ = pad_left(prompts, padding=language_model.padding_id, width=width)
        position_LQ = (mask_LQ.cumsum(1) - 1).clamp_min(0)
        is_padded = not bool(mask_LQ.all())
        mask_LT = torch.cat([mask_LQ, mask_LQ.new_ones((len(rows), room))], 1) if is_padded else None
        cache = new_cache(language_model.model.config)
        shares = reads_prompts_once(device) and _repeats(cache)
        return _Unfinished(
            row_L=on_device(torch.tensor(rows), device),
            finished_L=torch.zeros(len(rows), dtype=torch.bool, device=device),
            ids_LQ=on_device(ids_LQ, device),
            position_LQ=on_device(position_LQ, device),
            mask_LT=None if mask_LT is None else on_device(mask_LT, device),
            columns=width,
            cache=cache,
            first_rows=[
                row for row in range(len(prompts)) if not (shares and row and prompts[row] == prompts[row - 1])
            ],
            attention=str(language_model.model.config._attn_implementation),
        )

    def next_logits(self, model: Any, fused: FusedDecoder | None) -> Tensor:
        """Logits of the token after what was read, in fp32."""
        if isinstance(self.cache, JointCache) and fused is not None:
            return fused.logits(self.ids_LQ[:, 0], self.position_LQ, self.cache, self.columns - 1)
        if fused is None:
            return self._model_logits(model)
        # What autocast keeps of weights would be a second copy of them beside the decoder's.
        with autocast_as_is(self.ids_LQ.device, cache_enabled=False):
            if not all(isinstance(layer, RoomyLayer) for layer in self.cache.layers):
                return self._model_logits(model)
            return self._prompt_logits(model, fused.dtype)

    def _prompt_logits(self, model: Any, dtype: torch.dtype) -> Tensor:
        """Logits after the prompts, some of which are read at a time: all would need more memory than the answers."""
        prompts_each = max(1, PROMPT_TOKENS // self.ids_LQ.shape[1])
        logits, caches = [], []
        for start in range(0, len(self.first_rows), prompts_each):
            firsts = self.first_rows[start : start + prompts_each]
            end = next(iter(self.first_rows[start + prompts_each :]), len(self.row_L))
            read, again = self._shared(firsts, end)
            out = self._call(model, new_cache(model.config), read)
            logits.append(out.logits[:, -1].float()[again])
            mask_LT = None if self.mask_LT is None else self.mask_LT[firsts[0] : end]
            caches.append(JointCache.of(out.past_key_values, mask_LT, dtype, again))
        self.cache = JointCache.joined(caches)
        return torch.cat(logits)

    def _shared(self, firsts: Sequence[int], end: int) -> tuple[slice | Tensor, slice | Tensor]:
        """Rows to read for those from the first of `firsts` up to `end`, and whose keys each of these then has."""
        if len(firsts) == end - firsts[0]:
            return slice(firsts[0], end), slice(None)
        runs = enumerate(itertools.pairwise([*firsts, end]))
        places = [place for place, (start, stop) in runs for _ in range(start, stop)]
        read, again = (on_device(torch.tensor(rows), self.ids_LQ.device) for rows in (list(firsts), places))
        return read, again

    def _model_logits(self, model: Any) -> Tensor:
        firsts, self.first_rows = self.first_rows, ()
        read, again = self._shared(firsts, len(self.row_L)) if firsts else (slice(None), slice(None))
        out = self._call(model, self.cache, read)
        self.cache = out.past_key_values
        logits_LV: Tensor = out.logits[:, -1].float()
        if not isinstance(again, Tensor):
            return logits_LV
        keep_rows(self.cache, again, 0)
        return logits_LV[again]

    def _call(self, model: Any, cache: Any, rows: slice | Tensor) -> Any:
        mask = self._mask()
        return model(
            input_ids=self.ids_LQ[rows],
            attention_mask=None if mask is None else mask[rows],
            position_ids=self.position_LQ[rows],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )

    def _mask(self) -> Tensor | None:
        """Columns that are tokens.

        On an accelerator a mask of one query is given as sdpa takes it: transformers would look into it at every token
        for padding, and the host would wait.
        """
        if self.mask_LT is None:
            return None
        mask_LT = self.mask_LT[:, : self.columns]
        is_plain = all(isinstance(layer, RoomyLayer) for layer in self.cache.layers)
        if self.attention != DEFAULT_ATTENTION or not is_plain or not is_queued(mask_LT.device):
            return mask_LT
        return mask_LT.bool()[:, None, None] if self.ids_LQ.shape[1] == 1 else mask_LT

    def extend(self, token_L: Tensor, ends_L: Tensor, *, look: bool) -> None:
        """Append a token to every row; with `look`, let finished rows go when there are enough of them."""
        self.finished_L = self.finished_L | ends_L
        self.ids_LQ, self.position_LQ = token_L[:, None], self.position_LQ[:, -1:] + 1
        self.columns += 1
        if not look:
            return
        rest = len(self.row_L) - int(self.finished_L.sum())
        if rest > len(self.row_L) * STAYING_SHARE:
            return
        unfinished_L = (~self.finished_L).nonzero().squeeze(1)
        self.row_L, self.finished_L = self.row_L[unfinished_L], self.finished_L[unfinished_L]
        self.ids_LQ, self.position_LQ = self.ids_LQ[unfinished_L], self.position_LQ[unfinished_L]
        if rest:
            self._keep(unfinished_L)

    def _keep(self, rows: Tensor) -> None:
        """Let go of what the cache holds of other rows, and of columns that are padding in all that stay."""
        empty = 0
        if self.mask_LT is not None:
            self.mask_LT = self.mask_LT[rows]
            empty = int(self.mask_LT.any(0).int().argmax())
        lost = keep_rows(self.cache, rows, empty)
        self.columns -= lost
        if self.mask_LT is not None:
            self.mask_LT = self.mask_LT[:, lost:]


def answer_texts(language_model: LanguageModel, answers: Answers) -> list[str]:
    """The sampled answers as text, without the end token."""
    texts = []
    for row, mask in zip(answers.answer_BR.tolist(), answers.answer_mask_BR.tolist(), strict=True):
        text_ids = [token for token, keep in zip(row, mask, strict=True) if keep and token != language_model.end_id]
        texts.append(str(language_model.tokenizer.decode(text_ids, skip_special_tokens=True)).strip())
    return texts

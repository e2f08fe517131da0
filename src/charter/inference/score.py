"""Log-probabilities of given tokens, and scores of given answers.

Legend: B sequences, T tokens, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from charter.data.dataset import Turn
from charter.errors import DataError
from charter.inference.generate import pad_left
from charter.models.chat import encode_answer, encode_prompt
from charter.models.context_split import PARTS, RowParts
from charter.models.language_model import LanguageModel
from charter.models.layer_passes import PLAIN_HEADS, asked_hidden
from charter.models.length_groups import CPU_PASS_TOKENS, CUDA_PASS_TOKENS, equal_groups, length_groups, token_batches
from charter.models.preference import PreferenceModel, pool, pooled_positions
from charter.models.runtime import on_device, precision
from charter.physics.inference_memory import SCORING_ROWS, SCORING_TOKENS

Ids = Sequence[int] | npt.NDArray[np.int32]
"""Tokens of one row."""


def first_token_ids(tokenizer: object, choices: Sequence[str]) -> tuple[int, ...]:
    """The first token of each choice; choices that begin alike cannot be told apart and are refused."""
    ids = tuple(tokenizer(choice, add_special_tokens=False)["input_ids"][0] for choice in choices)  # type: ignore[operator]
    if len(set(ids)) != len(ids):
        raise DataError(f"this tokenizer writes {', '.join(map(repr, choices))} with the same first token")
    return ids


def next_token_log_probabilities(
    language_model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    choices: Sequence[int],
    *,
    read: Sequence[int] | None = None,
    dtype: str = "fp32",
    call: Callable[..., Any] | None = None,
) -> Tensor:
    """log p of each choice as the next token after each prompt, as [B, len(choices)], differentiable.

    With `read`, the mean of these over the last `read[b]` positions of prompt b. `call` runs the model or what
    wraps it.
    """
    device = next(language_model.model.parameters()).device
    counts_B1 = torch.tensor([1] * len(prompts) if read is None else list(read), device=device)[:, None]
    width = int(counts_B1.max())
    ids, mask = (item.to(device) for item in pad_left(prompts, padding=language_model.padding_id))
    with precision(dtype, device):
        logits_BWV = (call or language_model.model)(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp_min(0),
            use_cache=False,
            logits_to_keep=width,
        ).logits
    chosen_BWC = torch.log_softmax(logits_BWV.float(), -1)[:, :, list(choices)]
    is_read_BW = torch.arange(width, device=device) >= width - counts_B1
    return (chosen_BWC * is_read_BW[:, :, None]).sum(1) / counts_B1


class AnswerEncoding(Protocol):
    """Settings by which a preference model reads an answer."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the model."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that are stored beside its weights."""


def encode_scored(
    model: AnswerEncoding, turns: Sequence[Turn], answer: str, *, max_tokens: int
) -> tuple[list[int], int]:
    """The ids that a preference model reads for an answer, and how many of them are the answer.

    The answer keeps at most 3/4 of the tokens; the context is cut at the left to what is left.
    """
    context_turns = turns[-1:] if model.settings["context"] == "last_turn" else turns
    answer_ids = encode_answer(model.tokenizer, context_turns, answer, max_tokens=max_tokens * 3 // 4)
    context = encode_prompt(model.tokenizer, context_turns, max_tokens=max_tokens - len(answer_ids))
    return context + answer_ids, len(answer_ids)


def pad_right(rows: Sequence[Ids], answer_lengths: Sequence[int], *, padding: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask and answer mask, padded at the right.

    >>> ids, mask, answer = pad_right([[5, 6, 7], [8]], [2, 1], padding=0)
    >>> ids.tolist(), answer.tolist()
    ([[5, 6, 7], [8, 0, 0]], [[False, True, True], [True, False, False]])
    """
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), padding, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    answer = torch.zeros((len(rows), width), dtype=torch.bool)
    for index, (row, length) in enumerate(zip(rows, answer_lengths, strict=True)):
        ids[index, : len(row)] = torch.as_tensor(row)
        mask[index, : len(row)] = 1
        answer[index, len(row) - length : len(row)] = True
    return ids, mask, answer


def score_rows(
    model: PreferenceModel,
    rows: Sequence[Ids],
    answer_lengths: Sequence[int],
    *,
    dtype: str = "fp32",
    call: Callable[..., Tensor] | None = None,
    groups: int | None = None,
    row_parts: RowParts | None = None,
) -> Tensor:
    """Raw preference scores of encoded answers, one per row, differentiable.

    `call` runs the scalar model or what wraps it. Rows of like length go through it together, so that little is
    padding; with `groups`, in that many passes whatever the lengths, as sharded models need. Processes that share
    rows by `row_parts` have the same scores.
    """
    device = next(model.scalar.parameters()).device
    lengths = [len(row) for row in rows]
    if groups is None:
        pass_tokens = CUDA_PASS_TOKENS if device.type == "cuda" else CPU_PASS_TOKENS
        parts = length_groups(lengths, pass_tokens=pass_tokens)
    else:
        parts = equal_groups(lengths, groups=groups)
    scores = []
    for part in parts:
        padded = pad_right(
            [rows[index] for index in part],
            [answer_lengths[index] for index in part],
            padding=model.language_model.padding_id,
        )
        # What is read is counted on the host: on an accelerator it would have to wait for the count.
        ids_BT, _, answer_BT = padded
        read_BT, count_B = pooled_positions(answer_BT, pooling=model.settings["pooling"]), None
        if row_parts is not None:
            all_B = read_BT.sum(1).clamp_min(1)
            ids_BT, read_BT = row_parts.cut(ids_BT), row_parts.cut(read_BT)
            count_B = on_device(read_BT.sum(1) / all_B, device)
        at_N = on_device(read_BT.flatten().nonzero().squeeze(1), device)
        more = {} if row_parts is None else {PARTS: row_parts}
        with precision(dtype, device):
            value_N = (call or model.scalar)(on_device(ids_BT, device), at_N=at_N, **more)
        score_B = pool(value_N, at_N, on_device(read_BT, device))
        if row_parts is not None and count_B is not None:
            row_parts.check()
            score_B = row_parts.total(score_B * count_B)
        scores.append(score_B)
    order = torch.tensor([index for part in parts for index in part])
    return torch.cat(scores)[on_device(order.argsort(), device)]


@torch.no_grad()
def score_answers(
    model: PreferenceModel,
    conversations: Sequence[tuple[Sequence[Turn], str]],
    *,
    dtype: str = "fp32",
    groups: int | None = None,
) -> Tensor:
    """Normalised rewards of answers, one per conversation, scored by batches of at most `SCORING_TOKENS` tokens.

    With `groups` (see `score_rows`), which several processes need, by as many rows as all of them may score at once
    whatever the lengths.
    """
    model.scalar.eval()
    limit = int(model.settings["seq_len"])
    encoded = [encode_scored(model, turns, answer, max_tokens=limit) for turns, answer in conversations]
    if groups is None:
        batches = token_batches([len(row) for row, _ in encoded], budget_tokens=SCORING_TOKENS)
    else:
        rows = max(1, min(SCORING_ROWS, SCORING_TOKENS // limit))
        batches = [slice(start, start + rows) for start in range(0, len(encoded), rows)]
    scores = [
        score_rows(model, [row for row, _ in encoded[part]], [n for _, n in encoded[part]], dtype=dtype, groups=groups)
        for part in batches
    ]
    return model.normalise(torch.cat(scores)) if scores else torch.zeros(0)


LEAST_SHARED_TOKENS, LEAST_SHARED_PART = 16, 0.2
"""Below this a common beginning is not worth a mask of its own, with which attention cannot skip what comes later.
Judgement: both orders of a pair share about half."""
LARGEST_FAMILY = 4
"""Rows: attention is computed between endings too, and thrown away. Both orders under two principles are four."""
PASS_TOKENS = 16384
"""Most tokens of one pass: 16384 x 4096 hidden x 4 bytes is 0.25 GiB for one activation."""


@dataclass(frozen=True)
class PrefixFamily:
    """Rows with a common beginning."""

    rows: tuple[int, ...]
    shared: int
    """Tokens that all of them begin with; 0 for a row alone."""


def is_packable(language_model: LanguageModel) -> bool:
    """Return True if the model takes a mask of its own in every layer, and its logits are a plain product."""
    config = language_model.model.config
    layers = DynamicCache(config=config).layers
    keeps_all = bool(layers) and all(type(layer) is DynamicLayer for layer in layers)
    return keeps_all and config.model_type in PLAIN_HEADS and config._attn_implementation == "sdpa"


@torch.no_grad()
def last_token_log_probabilities(
    language_model: LanguageModel, rows: Sequence[Sequence[int]], tokens: Sequence[int], *, dtype: str = "fp32"
) -> Tensor:
    """log p of each token as the next one after each row, as [B, C]; for a model that `is_packable`.

    Which rows go together hangs on the rows alone, so a replay of all of them is exact.
    """
    device = next(language_model.model.parameters()).device
    families = families_of(rows)
    lengths = [item.shared + sum(len(rows[row]) - item.shared for row in item.rows) for item in families]
    found_BC = torch.zeros((len(rows), len(tokens)), device=device)
    pass_tokens = CUDA_PASS_TOKENS if device.type == "cuda" else CPU_PASS_TOKENS
    for group in length_groups(lengths, pass_tokens=pass_tokens):
        most = max(1, PASS_TOKENS // lengths[group[-1]])
        for start in range(0, len(group), most):
            part = [families[index] for index in group[start : start + most]]
            read = torch.tensor([row for item in part for row in item.rows], device=device)
            found_BC[read] = _read(language_model, rows, part, dtype=dtype)[:, list(tokens)]
    return found_BC


def families_of(rows: Sequence[Sequence[int]]) -> list[PrefixFamily]:
    """Rows put together by their common beginnings; a row's last token is never shared.

    >>> beginning = list(range(100, 120))
    >>> families_of([[*beginning, 1], [7, 8], [*beginning, 2, 3]])
    [PrefixFamily(rows=(1,), shared=0), PrefixFamily(rows=(0, 2), shared=20)]
    """
    families: list[PrefixFamily] = []
    for row in sorted(range(len(rows)), key=lambda index: (list(rows[index]), index)):
        last = families[-1] if families else None
        if last is not None and len(last.rows) < LARGEST_FAMILY:
            together = [rows[index] for index in last.rows] + [rows[row]]
            shared = min(_common(together[0], together[-1]), last.shared or len(together[0]), *map(_sharable, together))
            if shared >= max(LEAST_SHARED_TOKENS, LEAST_SHARED_PART * max(map(len, together))):
                families[-1] = PrefixFamily((*last.rows, row), shared)
                continue
        families.append(PrefixFamily((row,), 0))
    return families


def _sharable(row: Sequence[int]) -> int:
    return len(row) - 1


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second))


def _read(
    language_model: LanguageModel, rows: Sequence[Sequence[int]], families: Sequence[PrefixFamily], *, dtype: str
) -> Tensor:
    """Log-probabilities after the last token of every row, in the families' order, [N, V]."""
    device = next(language_model.model.parameters()).device
    ids_FT, position_FT, ending_FT, at_N = _packed(rows, families, padding=language_model.padding_id)
    mask = None if all(len(item.rows) == 1 for item in families) else _mask(ending_FT).to(device)
    at_N = at_N.to(device)
    body = language_model.model.get_decoder()
    inputs = {"input_ids": ids_FT.to(device), "attention_mask": mask, "position_ids": position_FT.to(device)}
    with precision(dtype, device):
        logits_NV = language_model.model.get_output_embeddings()(asked_hidden(body, at_N, inputs))
    return torch.log_softmax(logits_NV.float(), -1)


def _packed(
    rows: Sequence[Sequence[int]], families: Sequence[PrefixFamily], *, padding: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids, positions, the number of each token's ending (0: common; -1: padding), and where each row ends."""
    packed: list[list[int]] = []
    positions: list[list[int]] = []
    endings: list[list[int]] = []
    at: list[tuple[int, int]] = []
    for item in families:
        ids = list(rows[item.rows[0]][: item.shared])
        place, ending = list(range(item.shared)), [0] * item.shared
        for number, row in enumerate(item.rows, start=1):
            rest = rows[row][item.shared :]
            ids += rest
            place += range(item.shared, len(rows[row]))
            ending += [number] * len(rest)
            at.append((len(packed), len(ids) - 1))
        packed.append(ids)
        positions.append(place)
        endings.append(ending)
    width = max(map(len, packed))
    ids_FT, position_FT, ending_FT = (
        torch.tensor([[*item, *[fill] * (width - len(item))] for item in values])
        for values, fill in ((packed, padding), (positions, 0), (endings, -1))
    )
    return ids_FT, position_FT, ending_FT, torch.tensor([family * width + column for family, column in at])


def _mask(ending_FT: Tensor) -> Tensor:
    """Return the attention mask, [F, 1, T, T]: a token attends to earlier ones that are common or of its ending."""
    width = ending_FT.shape[1]
    before_TT = torch.ones((width, width), dtype=torch.bool).tril()
    own_FTT = ending_FT[:, :, None] == ending_FT[:, None, :]
    common_F1T = ending_FT[:, None, :] == 0
    return ((own_FTT | common_F1T) & before_TT)[:, None]


ChoiceIds = tuple[tuple[int, ...], ...]


def choice_ids(tokenizer: object, choices: Sequence[str]) -> ChoiceIds:
    """As many tokens of each choice as tell it from the others: one where they all begin differently."""
    ids_of_choices = tuple(tuple(tokenizer(choice, add_special_tokens=False)["input_ids"]) for choice in choices)  # type: ignore[operator]
    if len(set(ids_of_choices)) < len(ids_of_choices) or not all(ids_of_choices):
        raise DataError(f"this tokenizer writes {', '.join(map(repr, choices))} with the same tokens, or with none")
    first = tuple(ids[:1] for ids in ids_of_choices)
    return first if len(set(first)) == len(first) else ids_of_choices


def choice_values(
    language_model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    choices: ChoiceIds,
    *,
    read: Sequence[int] | None = None,
    dtype: str = "fp32",
) -> Tensor:
    """log p of each choice after each prompt, as [B, len(choices)].

    One pass over the prompts for each beginning that several choices share; one in all where none do. `read` is
    for choices of one token (see `next_token_log_probabilities`).
    """
    starts = sorted(
        {ids[:length] for ids in choices for length in range(len(ids))}, key=lambda start: (len(start), start)
    )
    if len(starts) > 1 and read is not None and set(read) != {1}:
        raise DataError("choices of several tokens are read after the last token of a question only")
    is_packed = (read is None or set(read) == {1}) and is_packable(language_model)
    value_B: dict[tuple[int, ...], Tensor] = {}
    for start in starts:
        following = sorted({ids[len(start)] for ids in choices if len(ids) > len(start) and ids[: len(start)] == start})
        rows = [[*prompt, *start] for prompt in prompts]
        if is_packed:
            value_BF = last_token_log_probabilities(language_model, rows, following, dtype=dtype)
        else:
            own = read if not start else None
            value_BF = next_token_log_probabilities(language_model, rows, following, read=own, dtype=dtype)
        before_B = value_B.get(start, torch.zeros(()))
        value_B |= {(*start, token): before_B + value_BF[:, place] for place, token in enumerate(following)}
    return torch.stack([_alone(value_B, ids, choices) for ids in choices], 1)


def _alone(value_B: dict[tuple[int, ...], Tensor], ids: tuple[int, ...], choices: ChoiceIds) -> Tensor:
    """log p of a choice less the probability that it goes on to be a longer one."""
    longer = [other for other in choices if len(other) > len(ids) and other[: len(ids)] == ids]
    nearest = [other for other in longer if not any(other != item and other[: len(item)] == item for item in longer)]
    if not nearest:
        return value_B[ids]
    share_B = torch.stack([(value_B[other] - value_B[ids]).exp() for other in nearest]).sum(0)
    # Rounding may bring the share to 1: what is left is then less than one part in 2^23, the last bit of fp32.
    return value_B[ids] + torch.log1p(-share_B.clamp_max(1 - 2**-23))

"""Log-probabilities of given tokens, and scores of given answers.

Legend: B sequences, T tokens, V vocabulary.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from charter.errors import DataError
from charter.inference.generate import pad_left
from charter.models.chat import encode_answer, encode_prompt
from charter.models.language_model import LanguageModel
from charter.models.length_groups import CPU_PASS_TOKENS, CUDA_PASS_TOKENS, equal_groups, length_groups, token_batches
from charter.models.preference import PreferenceModel, pool, pooled_positions
from charter.models.runtime import precision
from charter.spec.dataset import Turn

Ids = Sequence[int] | npt.NDArray[np.int32]
"""Tokens of one row."""
SCORING_TOKENS, SCORING_ROWS = 32768, 64
"""Of one batch of answers that are only scored. 32768 tokens x 4096 hidden x 4 bytes: one activation is 0.5 GiB."""


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


class Reads(Protocol):
    """What decides how a preference model reads an answer."""

    @property
    def tokenizer(self) -> Any: ...
    @property
    def settings(self) -> dict[str, Any]: ...


def encode_scored(model: Reads, turns: Sequence[Turn], answer: str, *, max_tokens: int) -> tuple[list[int], int]:
    """The ids that a preference model reads for an answer, and how many of them are the answer.

    The answer keeps at most 3/4 of the tokens; the context is cut at the left to what is left.
    """
    seen = turns[-1:] if model.settings["context"] == "last_turn" else turns
    answer_ids = encode_answer(model.tokenizer, seen, answer, max_tokens=max_tokens * 3 // 4)
    context = encode_prompt(model.tokenizer, seen, max_tokens=max_tokens - len(answer_ids))
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
) -> Tensor:
    """Raw preference scores of encoded answers, one per row, differentiable.

    `call` runs the scalar model or what wraps it. Rows of like length go through it together, so that little is
    padding; with `groups`, in that many passes whatever the lengths, as sharded models need.
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
        ids_BT, _, answer_BT = (item.to(device) for item in padded)
        read_BT = pooled_positions(answer_BT, pooling=model.settings["pooling"])
        at_N = read_BT.flatten().nonzero().squeeze(1)
        with precision(dtype, device):
            value_N = (call or model.scalar)(ids_BT, at_N=at_N)
        scores.append(pool(value_N, read_BT))
    order = torch.tensor([index for part in parts for index in part], device=device)
    return torch.cat(scores)[order.argsort()]


@torch.no_grad()
def score_answers(
    model: PreferenceModel,
    conversations: Sequence[tuple[Sequence[Turn], str]],
    *,
    budget_tokens: int = SCORING_TOKENS,
    dtype: str = "fp32",
    groups: int | None = None,
) -> Tensor:
    """Normalised rewards of answers, one per conversation, scored by batches of at most `budget_tokens` tokens.

    With `groups` (see `score_rows`), which several processes need, by `SCORING_ROWS` rows instead.
    """
    model.scalar.eval()
    limit = int(model.settings["seq_len"])
    encoded = [encode_scored(model, turns, answer, max_tokens=limit) for turns, answer in conversations]
    if groups is None:
        batches = token_batches([len(row) for row, _ in encoded], budget_tokens=budget_tokens)
    else:
        batches = [slice(start, start + SCORING_ROWS) for start in range(0, len(encoded), SCORING_ROWS)]
    scores = [
        score_rows(model, [row for row, _ in encoded[part]], [n for _, n in encoded[part]], dtype=dtype, groups=groups)
        for part in batches
    ]
    return model.normalise(torch.cat(scores)) if scores else torch.zeros(0)

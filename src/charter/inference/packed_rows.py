"""Rows that begin alike, read once where they do: both orders of a question share its conversation.

A packed row is the common beginning followed by what is different in each row of a family. A mask keeps the endings
apart and positions count on from the beginning in each, so every ending reads what it would read alone. Rows are padded
at the right, where causal attention does not look.

Legend: F families (packed rows), T tokens, B rows, N positions that are read, C tokens whose log-probability is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from charter.models.asked_positions import asked_positions
from charter.models.language_model import LanguageModel
from charter.models.length_groups import CPU_PASS_TOKENS, CUDA_PASS_TOKENS, length_groups
from charter.models.runtime import precision
from charter.models.token_forward import PLAIN_HEADS

LEAST_SHARED_TOKENS, LEAST_SHARED_PART = 16, 0.2
"""Below this a common beginning is not worth a mask of its own, with which attention cannot skip what comes later.
Judgement: both orders of a pair share about half."""
LARGEST_FAMILY = 4
"""Rows: attention is computed between endings too, and thrown away. Both orders under two principles are four."""
PASS_TOKENS = 16384
"""Most tokens of one pass: 16384 x 4096 hidden x 4 bytes is 0.25 GiB for one activation."""


@dataclass(frozen=True)
class Family:
    """Rows with a common beginning."""

    rows: tuple[int, ...]
    shared: int
    """Tokens that all of them begin with; 0 for a row alone."""


def is_packable(language_model: LanguageModel) -> bool:
    """Whether the model takes a mask of its own in every layer, and its logits are a plain product."""
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


def families_of(rows: Sequence[Sequence[int]]) -> list[Family]:
    """Rows put together by their common beginnings; a row's last token is never shared.

    >>> beginning = list(range(100, 120))
    >>> families_of([[*beginning, 1], [7, 8], [*beginning, 2, 3]])
    [Family(rows=(1,), shared=0), Family(rows=(0, 2), shared=20)]
    """
    families: list[Family] = []
    for row in sorted(range(len(rows)), key=lambda index: (list(rows[index]), index)):
        last = families[-1] if families else None
        if last is not None and len(last.rows) < LARGEST_FAMILY:
            together = [rows[index] for index in last.rows] + [rows[row]]
            shared = min(_common(together[0], together[-1]), last.shared or len(together[0]), *map(_sharable, together))
            if shared >= max(LEAST_SHARED_TOKENS, LEAST_SHARED_PART * max(map(len, together))):
                families[-1] = Family((*last.rows, row), shared)
                continue
        families.append(Family((row,), 0))
    return families


def _sharable(row: Sequence[int]) -> int:
    return len(row) - 1


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return min(len(first), len(second))


def _read(
    language_model: LanguageModel, rows: Sequence[Sequence[int]], families: Sequence[Family], *, dtype: str
) -> Tensor:
    """Log-probabilities after the last token of every row, in the families' order, [N, V]."""
    device = next(language_model.model.parameters()).device
    ids_FT, position_FT, ending_FT, at_N = _packed(rows, families, padding=language_model.padding_id)
    mask = None if all(len(item.rows) == 1 for item in families) else _mask(ending_FT).to(device)
    at_N = at_N.to(device)
    body = language_model.model.get_decoder()
    with precision(dtype, device), asked_positions(body, at_N):
        hidden_FTH = body(
            input_ids=ids_FT.to(device), attention_mask=mask, position_ids=position_FT.to(device), use_cache=False
        ).last_hidden_state
        logits_NV = language_model.model.get_output_embeddings()(hidden_FTH.flatten(0, 1).index_select(0, at_N))
    return torch.log_softmax(logits_NV.float(), -1)


def _packed(
    rows: Sequence[Sequence[int]], families: Sequence[Family], *, padding: int
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
    """Which token looks at which, [F, 1, T, T]: at those before it that are common or of its own ending."""
    width = ending_FT.shape[1]
    before_TT = torch.ones((width, width), dtype=torch.bool).tril()
    own_FTT = ending_FT[:, :, None] == ending_FT[:, None, :]
    common_F1T = ending_FT[:, None, :] == 0
    return ((own_FTT | common_F1T) & before_TT)[:, None]

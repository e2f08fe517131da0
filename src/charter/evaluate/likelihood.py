"""Likelihood of given continuations under a model, read in batches of like length.

Legend: B rows, W positions whose successors are asked for, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from charter.feedback.records import in_batches
from charter.inference.generate import pad_left
from charter.models.language_model import LanguageModel

MAX_LOGITS = 2**26
"""Logits that are held at once: 256 MiB of fp32."""


@dataclass(frozen=True)
class Continuation:
    """Tokens that are given, and those after them whose probability is asked for."""

    given: tuple[int, ...]
    asked: tuple[int, ...]


@dataclass(frozen=True)
class Likelihood:
    """Likelihood of one continuation under a model."""

    log_probability: float
    """Of all of its tokens, in nats."""
    is_greedy: bool
    """Whether each of its tokens was the most probable one."""


def likelihoods(model: LanguageModel, rows: Sequence[Continuation], *, batch: int) -> list[Likelihood]:
    """The likelihood of each row; rows of like length are read together, `batch` at most."""
    order = sorted(range(len(rows)), key=lambda index: len(rows[index].given) + len(rows[index].asked))
    by_row: dict[int, Likelihood] = {}
    for part in in_batches(order, batch):
        size = rows_per_forward(max(len(rows[index].asked) for index in part), model)
        for some in in_batches(part, size):
            by_row |= zip(some, _read(model, [rows[index] for index in some]), strict=True)
    return [by_row[index] for index in range(len(rows))]


def rows_per_forward(width: int, model: LanguageModel) -> int:
    """Return the number of rows that may keep `width` distributions over the vocabulary at once; at least one."""
    return max(1, MAX_LOGITS // (width * int(model.model.config.vocab_size)))


@torch.no_grad()
def _read(model: LanguageModel, rows: Sequence[Continuation]) -> list[Likelihood]:
    device = next(model.model.parameters()).device
    ids, mask = (
        item.to(device) for item in pad_left([[*row.given, *row.asked] for row in rows], padding=model.padding_id)
    )
    width = max(len(row.asked) for row in rows)
    logits_BWV = (
        model.model(  # all but the last token, whose successor is not asked for
            input_ids=ids[:, :-1],
            attention_mask=mask[:, :-1],
            position_ids=(mask[:, :-1].cumsum(1) - 1).clamp_min(0),
            use_cache=False,
            logits_to_keep=width,
        )
        .logits[:, -width:]
        .float()
    )
    asked_BW = ids[:, -width:]
    chosen_BW = logits_BWV.gather(-1, asked_BW[:, :, None]).squeeze(-1)
    log_probability_BW = chosen_BW - torch.logsumexp(logits_BWV, -1)
    greedy_BW = logits_BWV.argmax(-1) == asked_BW
    from_the_end = torch.arange(width, 0, -1, device=device)
    counted_BW = from_the_end <= torch.tensor([len(row.asked) for row in rows], device=device).unsqueeze(1)
    sums: list[float] = (log_probability_BW * counted_BW).sum(1).tolist()
    greedy: list[bool] = (greedy_BW | ~counted_BW).all(1).tolist()
    return [Likelihood(*pair) for pair in zip(sums, greedy, strict=True)]

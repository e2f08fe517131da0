"""Sample answers from a language model, with randomness that depends on the sample alone.

Legend: B sequences, Q prompt tokens (padded at the left), R answer tokens, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from charter.models.language_model import LanguageModel
from charter.models.runtime import precision


@dataclass(frozen=True)
class SamplingSettings:
    """How the next token is drawn."""

    max_new_tokens: int
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    dtype: str = "fp32"


@dataclass(frozen=True)
class Answers:
    """Prompts and sampled answers as padded tensors."""

    prompt_BQ: Tensor
    prompt_mask_BQ: Tensor
    answer_BR: Tensor
    answer_mask_BR: Tensor
    """True up to and including the end token."""


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


def uniform_draws(seeds: Sequence[int], count: int) -> Tensor:
    """`count` uniform numbers in [0, 1) for each seed: row b depends on `seeds[b]` alone."""
    rows = [torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in seeds]
    return torch.stack(rows)


def choose(logits_BV: Tensor, draw_B: Tensor, settings: SamplingSettings) -> Tensor:
    """The next token by inverting the distribution function at the draw; the likeliest one at temperature 0."""
    if settings.temperature == 0:
        return logits_BV.argmax(-1)
    probabilities_BV = torch.softmax(logits_BV.float() / settings.temperature, -1).double()
    if settings.top_p < 1:
        sorted_BV, order_BV = torch.sort(probabilities_BV, dim=-1, descending=True, stable=True)
        outside_BV = sorted_BV.cumsum(-1) - sorted_BV >= settings.top_p
        probabilities_BV = probabilities_BV.masked_fill(outside_BV.gather(-1, order_BV.argsort(-1)), 0)
    cumulative_BV = probabilities_BV.cumsum(-1)
    target_B1 = draw_B.to(cumulative_BV)[:, None] * cumulative_BV[:, -1:]
    chosen_B = torch.searchsorted(cumulative_BV, target_B1, right=True).squeeze(-1)
    last_possible_B = (probabilities_BV > 0).long().cumsum(-1).argmax(-1)
    return torch.minimum(chosen_B, last_possible_B)


@torch.no_grad()
def generate(
    language_model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    seeds: Sequence[int],
    settings: SamplingSettings,
    prompt_width: int | None = None,
) -> Answers:
    """Sample one answer per prompt with a key/value cache.

    Draw t of sequence b depends on `seeds[b]` and t alone. Logits still depend on the shape of the batch, so
    for bit-exact replay the caller repeats the same batch whole.
    """
    model = language_model.model.eval()
    device = next(model.parameters()).device
    ids_BQ, mask_BQ = (
        item.to(device) for item in pad_left(prompts, padding=language_model.padding_id, width=prompt_width)
    )
    draws_BR = uniform_draws(seeds, settings.max_new_tokens).to(device)
    end = language_model.end_id
    mask, position_B, step_ids, cache = mask_BQ, mask_BQ.sum(1) - 1, ids_BQ, None
    positions = (mask_BQ.cumsum(1) - 1).clamp_min(0)
    finished_B = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    tokens: list[Tensor] = []
    masks: list[Tensor] = []
    with precision(settings.dtype, device):
        for step in range(settings.max_new_tokens):
            out = model(
                input_ids=step_ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache, logits_BV = out.past_key_values, out.logits[:, -1].float()
            if step < settings.min_new_tokens:
                logits_BV[:, end] = float("-inf")
            token_B = choose(logits_BV, draws_BR[:, step], settings)
            token_B = torch.where(finished_B, language_model.padding_id, token_B)
            tokens.append(token_B)
            masks.append(~finished_B)
            finished_B = finished_B | (token_B == end)
            if bool(finished_B.all()):
                break
            position_B = position_B + 1
            step_ids, positions = token_B[:, None], position_B[:, None]
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
    return Answers(ids_BQ, mask_BQ, torch.stack(tokens, 1), torch.stack(masks, 1))


def answer_texts(language_model: LanguageModel, answers: Answers) -> list[str]:
    """The sampled answers as text, without the end token."""
    texts = []
    for row, mask in zip(answers.answer_BR.tolist(), answers.answer_mask_BR.tolist(), strict=True):
        kept = [token for token, keep in zip(row, mask, strict=True) if keep and token != language_model.end_id]
        texts.append(str(language_model.tokenizer.decode(kept, skip_special_tokens=True)).strip())
    return texts

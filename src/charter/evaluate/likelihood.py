"""Likelihood of given continuations under a model, sampled answers, and how far it moved from another model on them.

Rows are read in batches of like length. Legend: B rows, W positions whose successors are asked for, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from charter.data.dataset import Prompt
from charter.errors import StageError
from charter.feedback.local_models import SampledAnswers, check_context, sample, sampling_settings
from charter.feedback.records import in_batches
from charter.inference.generate import Answers, generate, pad_left
from charter.inference.turns import ReplyStore, Start, Tools, TurnTaking
from charter.models.language_model import LanguageModel
from charter.spec.stage import EvalStage

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


@dataclass(frozen=True, kw_only=True)
class RoleAnswers:
    """Answers of one model to a set of prompts."""

    texts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    """Without the end token."""
    batches: tuple[SampledAnswers, ...]


def answer_prompts(
    model: LanguageModel, prompts: Sequence[Prompt], *, seeds: Sequence[int], spec: EvalStage, role: str
) -> RoleAnswers:
    """One answer per prompt, with a seed for each."""
    check_context(model, spec, role=role)
    batches = [
        sample(model, [prompt.turns for prompt, _ in part], seeds=[seed for _, seed in part], spec=spec)
        for part in in_batches(list(zip(prompts, seeds, strict=True)), spec.rollout_batch)
    ]
    rows = [
        tuple(token for token, keep in zip(row, mask, strict=True) if keep and token != model.end_id)
        for batch in batches
        for row, mask in zip(batch.answers.answer_BR.tolist(), batch.answers.answer_mask_BR.tolist(), strict=True)
    ]
    texts = tuple(text for batch in batches for text in batch.texts)
    return RoleAnswers(texts=texts, tokens=tuple(rows), batches=tuple(batches))


def play_prompts(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    *,
    seeds: Sequence[int],
    spec: EvalStage,
    role: str,
    tools: Tools,
    directory: Path,
) -> RoleAnswers:
    """One answer of several turns per prompt; its text is the last turn. Replies are stored in a directory."""
    assert spec.environment is not None
    taking = TurnTaking(spec.environment, tools, model, spec.max_prompt_tokens)
    items = [Start(prompt.turns, prompt.columns, seed) for prompt, seed in zip(prompts, seeds, strict=True)]
    played = [
        item
        for number, part in enumerate(in_batches(items, spec.rollout_batch))
        for item in taking.play(
            part,
            sampling_settings(spec),
            lambda contexts, own, settings: generate(model, contexts, seeds=own, settings=settings),
            ReplyStore(directory / f"{role}-{number:06d}.jsonl"),
        )
    ]
    if failed := [item.reason for item in played if item.why == "failed"]:
        raise StageError(f"the environment failed in {len(failed)} of {len(played)} answers (the first: {failed[0]})")
    tokens = [
        tuple(token for token, own in zip(item.ids[item.prompt_tokens :], item.is_own, strict=True) if own)
        for item in played
    ]
    return RoleAnswers(texts=tuple(item.text for item in played), tokens=tuple(tokens), batches=())


@torch.no_grad()
def divergences(ours: LanguageModel, theirs: LanguageModel, answers: RoleAnswers, spec: EvalStage) -> list[float]:
    """KL(ours | theirs) over each of our own answers, in nats per answer.

    The sum over the answer's tokens of the divergence of the two next-token distributions there: the mean over
    answers has the expectation of the mean log-ratio, with less variance, and is never negative.
    """
    sums: list[float] = []
    for batch in answers.batches:
        rows = rows_per_forward(batch.answers.answer_BR.shape[1], ours)
        for part in _parts(batch.answers, rows):
            mine_BRV, other_BRV = (_log_distribution(model, part, spec) for model in (ours, theirs))
            difference_BRV = torch.where(mine_BRV.isneginf(), 0.0, mine_BRV - other_BRV)
            per_token_BR = (mine_BRV.exp() * difference_BRV).sum(-1)
            sums += (per_token_BR * part.answer_mask_BR).sum(1).double().tolist()
    return sums


def _log_distribution(model: LanguageModel, answers: Answers, spec: EvalStage) -> torch.Tensor:
    """The next-token distributions that answers are sampled from: temperature and minimum length, not top_p."""
    mask = torch.cat([answers.prompt_mask_BQ, answers.answer_mask_BR.long()], 1)
    width = answers.answer_BR.shape[1]
    logits = (
        model.model(
            input_ids=torch.cat([answers.prompt_BQ, answers.answer_BR], 1),
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp_min(0),
            use_cache=False,
            logits_to_keep=width + 1,
        )
        .logits[:, :-1]
        .float()
    )
    logits[:, : spec.min_new_tokens, model.end_id] = float("-inf")
    return torch.log_softmax(logits / (spec.temperature or 1.0), -1)


def _parts(answers: Answers, rows: int) -> list[Answers]:
    fields = (answers.prompt_BQ, answers.prompt_mask_BQ, answers.answer_BR, answers.answer_mask_BR)
    return [Answers(*part) for part in zip(*(torch.split(field, rows) for field in fields), strict=True)]

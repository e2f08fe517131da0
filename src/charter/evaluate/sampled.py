"""Answers of one model to prompts, and how far it moved from another model on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from charter.data.dataset import Prompt
from charter.errors import StageError
from charter.evaluate.likelihood import rows_per_forward
from charter.feedback.local_models import SampledAnswers, check_context, sample, sampling_settings
from charter.feedback.records import in_batches
from charter.inference.generate import Answers, generate
from charter.inference.turns import ReplyStore, Start, Tools, TurnTaking
from charter.models.language_model import LanguageModel
from charter.spec.stage import EvalStage


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

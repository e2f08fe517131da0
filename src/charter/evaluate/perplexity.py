"""The loss of a model on answers that humans chose."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from charter.evaluate.bench import Bench, rows_per_forward
from charter.evaluate.figures import Figure, ratio
from charter.feedback.records import in_batches
from charter.inference.generate import pad_left
from charter.inference.score import token_log_probabilities
from charter.models.chat import encode_answer, encode_prompt
from charter.models.language_model import LanguageModel
from charter.spec.dataset import Pair


@dataclass(frozen=True, kw_only=True)
class AnswerLoss:
    """Loss of a model on one answer."""

    nats: float
    tokens: int
    """End token included."""
    text_bytes: int
    cut: bool
    """Whether prompt and answer were longer than the model's context."""


def perplexity(bench: Bench) -> list[Figure]:
    """Loss of the policy, and of what it is measured against, on the held-out answers humans chose."""
    found = []
    for role in ("policy", "against"):
        if not bench.has(role):
            continue
        losses = answer_losses(bench.model(role), bench.pairs, batch=bench.spec.rollout_batch)
        cut = sum(loss.cut for loss in losses)
        note = "chosen answers of held-out pairs, given their prompts; end token counted"
        note += f"; {cut} cut to the model's context" if cut else ""
        key, label = f"perplexity.{role}", f"Held-out loss of {role}"
        nats, tokens = [loss.nats for loss in losses], [float(loss.tokens) for loss in losses]
        found.append(ratio(f"{key}.nats_per_token", label, nats, tokens, unit="nats/token", note=note))
        bits, sizes = [value / math.log(2) for value in nats], [float(loss.text_bytes) for loss in losses]
        found.append(ratio(f"{key}.bits_per_byte", label, bits, sizes, unit="bits/byte", note=note))
    return found


def answer_losses(model: LanguageModel, pairs: Sequence[Pair], *, batch: int) -> list[AnswerLoss]:
    """The loss on each chosen answer, given its prompt; texts of like length are read together."""
    limit = int(model.model.config.max_position_embeddings)
    encoded = [_encode(model, pair, limit) for pair in pairs]
    order = sorted(range(len(pairs)), key=lambda index: len(encoded[index][0]))
    nats = [0.0] * len(pairs)
    for part in in_batches(order, batch):
        size = rows_per_forward(max(len(encoded[index][1]) for index in part) + 1, model)
        for some in in_batches(part, size):
            rows, lengths = [encoded[index][0] for index in some], [len(encoded[index][1]) for index in some]
            for index, value in zip(some, _nats(model, rows, lengths), strict=True):
                nats[index] = value
    return [_loss(model, value, answer, cut) for value, (_, answer, cut) in zip(nats, encoded, strict=True)]


def _encode(model: LanguageModel, pair: Pair, limit: int) -> tuple[list[int], list[int], bool]:
    """The ids of prompt and answer, those of the answer, and whether anything was cut.

    The answer keeps at most 3/4 of the context; the prompt is cut at the left to what is left.
    """
    whole = encode_answer(model.tokenizer, pair.prompt, pair.chosen)
    prompt = encode_prompt(model.tokenizer, pair.prompt)
    answer = whole[: limit * 3 // 4]
    return [*prompt, *answer][-limit:], answer, len(prompt) + len(whole) > limit


def _loss(model: LanguageModel, nats: float, answer: Sequence[int], cut: bool) -> AnswerLoss:
    text = str(model.tokenizer.decode(answer, skip_special_tokens=True))
    return AnswerLoss(nats=nats, tokens=len(answer), text_bytes=len(text.encode()), cut=cut)


@torch.no_grad()
def _nats(model: LanguageModel, rows: Sequence[Sequence[int]], answer_lengths: Sequence[int]) -> list[float]:
    device = next(model.model.parameters()).device
    ids, mask = (item.to(device) for item in pad_left(rows, padding=model.padding_id))
    width = max(answer_lengths)
    logits = model.model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp_min(0),
        use_cache=False,
        logits_to_keep=width + 1,
    ).logits
    log_probability = token_log_probabilities(logits, ids[:, -logits.shape[1] :])
    from_the_end = torch.arange(log_probability.shape[1], 0, -1, device=device)
    counted = from_the_end <= torch.tensor(answer_lengths, device=device).unsqueeze(1)
    found: list[float] = (-(log_probability * counted).sum(1)).tolist()
    return found

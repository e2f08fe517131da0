"""The loss of a model on answers that humans chose."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from charter.evaluate.bench import Bench
from charter.evaluate.figures import Figure, ratio
from charter.evaluate.likelihood import Continuation, likelihoods
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
    """The loss on each chosen answer, given its prompt."""
    limit = int(model.model.config.max_position_embeddings)
    encoded = [_encode(model, pair, limit) for pair in pairs]
    read = likelihoods(model, [row for row, _ in encoded], batch=batch)
    return [
        _loss(model, -found.log_probability, row.asked, cut) for found, (row, cut) in zip(read, encoded, strict=True)
    ]


def _encode(model: LanguageModel, pair: Pair, limit: int) -> tuple[Continuation, bool]:
    """The ids of prompt and answer, and whether anything was cut.

    The answer keeps at most 3/4 of the context; the prompt is cut at the left to what is left.
    """
    whole = encode_answer(model.tokenizer, pair.prompt, pair.chosen)
    prompt = encode_prompt(model.tokenizer, pair.prompt)
    answer = whole[: limit * 3 // 4]
    kept = prompt[-(limit - len(answer)) :]
    return Continuation(tuple(kept), tuple(answer)), len(prompt) + len(whole) > limit


def _loss(model: LanguageModel, nats: float, answer: Sequence[int], cut: bool) -> AnswerLoss:
    text = str(model.tokenizer.decode(answer, skip_special_tokens=True))
    return AnswerLoss(nats=nats, tokens=len(answer), text_bytes=len(text.encode()), cut=cut)

"""Sample answers to conversations: from turns to text, with one seed per answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from charter.data.dataset import Turn
from charter.errors import DataError
from charter.feedback.asks import Sample, Text
from charter.inference.generate import Answers, SamplingSettings, answer_texts, generate
from charter.models.chat import encode_prompt
from charter.models.language_model import LanguageModel
from charter.spec.stage_base import Sampling


@dataclass(frozen=True)
class SampledAnswers:
    """Answers to one batch of conversations."""

    texts: tuple[str, ...]
    answers: Answers

    @property
    def tokens(self) -> int:
        """Tokens generated, end tokens included."""
        return int(self.answers.answer_mask_BR.sum())


def sampling_settings(spec: Sampling) -> SamplingSettings:
    """A stage's sampling fields as the generator reads them."""
    return SamplingSettings(
        max_new_tokens=spec.max_new_tokens,
        min_new_tokens=spec.min_new_tokens,
        temperature=spec.temperature,
        top_p=spec.top_p,
    )


def check_context(language_model: LanguageModel, spec: Sampling, *, role: str) -> None:
    """Refuse prompts and answers that together are longer than the model was built for."""
    limit = getattr(language_model.model.config, "max_position_embeddings", None)
    needed = spec.max_prompt_tokens + spec.max_new_tokens
    if limit is not None and needed > limit:
        raise DataError(
            f"{role} takes {limit} tokens; max_prompt_tokens {spec.max_prompt_tokens} + max_new_tokens "
            f"{spec.max_new_tokens} = {needed}: lower one of them"
        )


def sample(
    language_model: LanguageModel, conversations: Sequence[Sequence[Turn]], *, seeds: Sequence[int], spec: Sampling
) -> SampledAnswers:
    """One answer per conversation; prompts are cut at the left to `max_prompt_tokens`.

    The batch is padded to its longest prompt, so its shape is a function of the batch alone and a replay of the
    whole batch is exact.
    """
    prompts = [
        encode_prompt(language_model.tokenizer, turns, max_tokens=spec.max_prompt_tokens) for turns in conversations
    ]
    answers = generate(language_model, prompts, seeds=seeds, settings=sampling_settings(spec))
    return SampledAnswers(tuple(answer_texts(language_model, answers)), answers)


def sample_texts(language_model: LanguageModel, asks: Sequence[Sample]) -> list[Text]:
    """The texts that were asked for, in one batch; a `prefill` is part of the prompt, and of the text."""
    settings = {
        SamplingSettings(
            max_new_tokens=ask.max_new_tokens,
            min_new_tokens=ask.min_new_tokens,
            temperature=ask.temperature,
            top_p=ask.top_p,
        )
        for ask in asks
    }
    if len(settings) > 1:
        raise DataError("texts drawn in different ways are asked for one kind after the other")
    prompts = [_prompt(language_model, ask) for ask in asks]
    answers = generate(language_model, prompts, seeds=[ask.seed for ask in asks], settings=settings.pop())
    ends = (answers.answer_BR == language_model.end_id).any(1).tolist()
    tokens = answers.answer_mask_BR.sum(1).tolist()
    return [
        Text(
            text=f"{ask.prefill} {text}".strip() if ask.prefill else text,
            tokens=count,
            is_finished=end,
            prompt_tokens=len(prompt),
        )
        for ask, text, count, end, prompt in zip(
            asks, answer_texts(language_model, answers), tokens, ends, prompts, strict=True
        )
    ]


def _prompt(language_model: LanguageModel, ask: Sample) -> list[int]:
    tokenizer = language_model.tokenizer
    prompt = encode_prompt(tokenizer, ask.turns, max_tokens=ask.max_prompt_tokens)
    if not ask.prefill:
        return prompt
    opening: list[int] = tokenizer(ask.prefill, add_special_tokens=False)["input_ids"]
    return prompt + opening

"""Suites by likelihood: multiple-choice questions, and the loss on answers that humans chose."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from charter.artifacts.job import stage_rows
from charter.data.dataset import Pair, Turn, read_questions
from charter.data.rows import LETTERS, ChoiceQuestion
from charter.errors import DataError
from charter.evaluate import statistics
from charter.evaluate.bench import Bench
from charter.evaluate.figures import Figure, figure_of, mean, proportion, ratio
from charter.evaluate.likelihood import Continuation, likelihoods
from charter.evaluate.statistics import ConfidenceInterval, of_mean
from charter.feedback.records import in_batches
from charter.inference.score import first_token_ids, next_token_log_probabilities
from charter.models.chat import encode_answer, encode_prompt
from charter.models.language_model import LanguageModel

INSTRUCTION = "Answer with the letter of the right choice."
OPENING = "("
"""How the answer begins; the letter comes next."""


@dataclass(frozen=True, kw_only=True)
class AnsweredQuestion:
    """One question, answered in every way."""

    letter: int
    letter_confidence: float
    """Probability of that letter among the letters shown."""
    answer: int
    """The choice with the highest probability."""
    answer_per_byte: int
    """The one with the highest probability per byte, which does not favour short choices."""


def multiple_choice(bench: Bench) -> list[Figure]:
    """Return the share of questions that the policy, and each model it is measured against, answers right."""
    questions, skipped = stage_rows(bench.job, "questions", read_questions)
    for line in skipped.lines():
        print(line, flush=True)
    if not questions:
        raise DataError(f"stage {bench.job.stage} needs `questions`; name a data set of them")
    figures = _baselines(questions)
    for role in ("policy", "against"):
        if bench.has(role):
            answered = answer_all(bench.model(role), questions, batch=bench.spec.rollout_batch)
            figures += _figures(role, questions, answered)
    return figures


def answer_all(model: LanguageModel, questions: Sequence[ChoiceQuestion], *, batch: int) -> list[AnsweredQuestion]:
    """Every question in every way."""
    letters = _letter_probabilities(model, questions, batch)
    limit = int(model.model.config.max_position_embeddings)
    rows = [_continuation(model, item, choice, limit) for item in questions for choice in item.choices]
    read = iter(likelihoods(model, rows, batch=batch))
    answered = []
    for item, probabilities in zip(questions, letters, strict=True):
        totals = [next(read).log_probability for _ in item.choices]
        per_byte = [value / len(choice.encode()) for value, choice in zip(totals, item.choices, strict=True)]
        letter = _best(probabilities)
        answered.append(
            AnsweredQuestion(
                letter=letter,
                letter_confidence=probabilities[letter],
                answer=_best(totals),
                answer_per_byte=_best(per_byte),
            )
        )
    return answered


def question_text(item: ChoiceQuestion) -> str:
    """The question with its choices as the model is shown them.

    >>> print(question_text(ChoiceQuestion("q", "Which is larger?", ("A mouse", "A cow"), 1)))
    Which is larger?
    (A) A mouse
    (B) A cow
    Answer with the letter of the right choice.
    """
    choices = "\n".join(f"({letter}) {choice}" for letter, choice in zip(LETTERS, item.choices, strict=False))
    return f"{item.question}\n{choices}\n{INSTRUCTION}"


@torch.no_grad()
def _letter_probabilities(
    model: LanguageModel, questions: Sequence[ChoiceQuestion], batch: int
) -> list[tuple[float, ...]]:
    """The probabilities of the letters shown, among them; questions of like length are read together."""
    most = max(len(item.choices) for item in questions)
    ids = first_token_ids(model.tokenizer, LETTERS[:most])
    opening: list[int] = model.tokenizer(OPENING, add_special_tokens=False)["input_ids"]
    limit = int(model.model.config.max_position_embeddings) - len(opening)
    prompts = [
        encode_prompt(model.tokenizer, (Turn("user", question_text(item)),), max_tokens=limit) + opening
        for item in questions
    ]
    by_prompt: dict[int, tuple[float, ...]] = {}
    for part in in_batches(sorted(range(len(prompts)), key=lambda index: len(prompts[index])), batch):
        rows = next_token_log_probabilities(model, [prompts[index] for index in part], ids)
        for index, row in zip(part, rows, strict=True):
            shown = row[: len(questions[index].choices)].double()
            by_prompt[index] = tuple(torch.softmax(shown, -1).tolist())
    return [by_prompt[index] for index in range(len(prompts))]


def _continuation(model: LanguageModel, item: ChoiceQuestion, choice: str, limit: int) -> Continuation:
    """The choice's own words, without the end of the turn: its fixed cost would favour long choices, per byte."""
    choice_ids: list[int] = model.tokenizer(choice, add_special_tokens=False)["input_ids"][: limit * 3 // 4]
    prompt_ids = encode_prompt(model.tokenizer, (Turn("user", item.question),), max_tokens=limit - len(choice_ids))
    return Continuation(tuple(prompt_ids), tuple(choice_ids))


def _figures(role: str, questions: Sequence[ChoiceQuestion], answered: Sequence[AnsweredQuestion]) -> list[Figure]:
    key, name = f"multiple_choice.{role}", role.title()
    pairs = list(zip(questions, answered, strict=True))
    letter = [float(reply.letter == item.answer) for item, reply in pairs]
    answer = [float(reply.answer == item.answer) for item, reply in pairs]
    per_byte = [float(reply.answer_per_byte == item.answer) for item, reply in pairs]
    first = [float(reply.letter == 0) for reply in answered]
    figures = [
        proportion(f"{key}.letter", f"{name} right, by letter", letter, note="all choices shown, next token read"),
        proportion(f"{key}.answer", f"{name} right, by answer", answer, note="probability of the choice's own words"),
        proportion(f"{key}.answer_per_byte", f"{name} right, by answer per byte", per_byte),
        proportion(f"{key}.first_option", f"{name} chooses (A)", first, note="by letter"),
        _calibration_error(key, name, answered, letter),
    ]
    groups = sorted({item.group for item in questions})
    for group in groups if len(groups) > 1 else ():
        own = [value for (item, _), value in zip(pairs, letter, strict=True) if item.group == group]
        label = f"{name} right, by letter: {group or 'the rest'}"
        figures.append(proportion(f"{key}.letter.{group or 'other'}", label, own))
    return figures


def _calibration_error(key: str, name: str, answered: Sequence[AnsweredQuestion], right: Sequence[float]) -> Figure:
    """Return the calibration error: the distance between the letters' probabilities and the share that is right."""
    confidences = [reply.letter_confidence for reply in answered]
    terms = statistics.gap_terms(confidences, right, lowest=0.0)
    gap = of_mean(terms)
    chance = statistics.chance_gap(confidences, lowest=0.0)
    return figure_of(
        f"{key}.ece",
        f"Calibration error of the {name.lower()}, by letter",
        sum(terms) / len(terms),
        ConfidenceInterval(low=max(gap.low, 0.0), high=gap.high),
        len(terms),
        "probability",
        f"normal, s/sqrt(n), {statistics.BINS} bins with their signs held",
        f"a calibrated model would come out near {chance:.3f} on so few questions",
    )


def _baselines(questions: Sequence[ChoiceQuestion]) -> list[Figure]:
    """Return the baselines: the share that is right without reading the questions."""
    chance = [1 / len(item.choices) for item in questions]
    longest = [float(_best([len(choice) for choice in item.choices]) == item.answer) for item in questions]
    return [
        mean("multiple_choice.chance", "Baseline: a choice at random", chance, unit="share"),
        proportion("multiple_choice.longest", "Baseline: the longest choice", longest),
    ]


def _best(values: Sequence[float]) -> int:
    """The place of the largest; the first of equals."""
    return max(range(len(values)), key=lambda index: values[index])


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
    figures = []
    for role, name in (("policy", "the policy"), ("against", "the model before")):
        if not bench.has(role):
            continue
        losses = answer_losses(bench.model(role), bench.pairs, batch=bench.spec.rollout_batch)
        cut = sum(loss.cut for loss in losses)
        note = "chosen answers of held-out pairs, given their prompts; end token counted"
        note += f"; {cut} cut to the model's context" if cut else ""
        key, label = f"perplexity.{role}", f"Held-out loss of {name}"
        nats, tokens = [loss.nats for loss in losses], [float(loss.tokens) for loss in losses]
        figures.append(ratio(f"{key}.nats_per_token", label, nats, tokens, unit="nats/token", note=note))
        bits, sizes = [value / math.log(2) for value in nats], [float(loss.text_bytes) for loss in losses]
        figures.append(ratio(f"{key}.bits_per_byte", label, bits, sizes, unit="bits/byte", note=note))
    return figures


def answer_losses(model: LanguageModel, pairs: Sequence[Pair], *, batch: int) -> list[AnswerLoss]:
    """The loss on each chosen answer, given its prompt."""
    limit = int(model.model.config.max_position_embeddings)
    encoded = [_encode(model, pair, limit) for pair in pairs]
    read = likelihoods(model, [row for row, _ in encoded], batch=batch)
    return [
        _loss(model, -likelihood.log_probability, row.asked, cut)
        for likelihood, (row, cut) in zip(read, encoded, strict=True)
    ]


def _encode(model: LanguageModel, pair: Pair, limit: int) -> tuple[Continuation, bool]:
    """The ids of prompt and answer, and whether anything was cut.

    The answer keeps at most 3/4 of the context; the prompt is cut at the left to what is left.
    """
    answer_ids = encode_answer(model.tokenizer, pair.prompt, pair.chosen)
    prompt = encode_prompt(model.tokenizer, pair.prompt)
    answer = answer_ids[: limit * 3 // 4]
    prompt_end = prompt[-(limit - len(answer)) :]
    return Continuation(tuple(prompt_end), tuple(answer)), len(prompt) + len(answer_ids) > limit


def _loss(model: LanguageModel, nats: float, answer: Sequence[int], cut: bool) -> AnswerLoss:
    text = str(model.tokenizer.decode(answer, skip_special_tokens=True))
    return AnswerLoss(nats=nats, tokens=len(answer), text_bytes=len(text.encode()), cut=cut)

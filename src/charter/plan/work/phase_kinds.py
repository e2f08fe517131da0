"""The building blocks of workloads: one phase each, and what they assume."""

from dataclasses import replace
from math import ceil

from charter.physics.generation import USUAL_SPREAD, ResponseLengths
from charter.plan.work.corpus import Corpus, Library
from charter.plan.work.phase import PADDING_GROWTH, PADDING_SOURCE, Phase, padded
from charter.spec.rewards import Environment
from charter.spec.stage import Optimization, Sampling

PRINCIPLE_TOKENS = 50.0
"""Mean tokens of a principle with the frame of its question; the shipped constitution has 30 to 60."""
BYTES_PER_TOKEN_OF_TEXT = 4.0
"""Bytes of UTF-8 English per token, for the size of written records."""
LONGEST_OVER_MEAN = 3.0
"""Cut-off of a judged text over its mean length, where no stage field says it."""
FEEDBACK_SOURCE = "wording of the questions in charter.feedback"


def train(
    role: str,
    *,
    steps: float,
    batch: int,
    tokens: float,
    longest: float,
    ragged: bool = True,
    unit: int = 1,
    logit_share: float = 1.0,
) -> Phase:
    """Optimizer steps on one role; no sequence is longer than `longest`."""
    return Phase(
        name=f"train {role}",
        work="train",
        role=role,
        steps=steps,
        batch=batch,
        prompt_tokens=tokens,
        longest_tokens=longest,
        ragged=ragged,
        unit=unit,
        logit_share=logit_share,
    )


def forward(
    name: str,
    role: str,
    steps: float,
    batch: int,
    tokens: float,
    *,
    logit_share: float = 1.0,
    ragged: bool = False,
) -> Phase:
    """A forward pass over whole sequences: log-probabilities, rewards, values or choices."""
    return Phase(
        name=name,
        work="score",
        role=role,
        steps=steps,
        batch=batch,
        prompt_tokens=tokens,
        longest_tokens=LONGEST_OVER_MEAN * tokens if ragged else tokens,
        ragged=ragged,
        logit_share=logit_share,
    )


def answers(
    name: str, role: str, sequences: float, stage: Sampling, prompt_tokens: float, *, ragged: bool = True
) -> Phase:
    """Answers are counted at their longest: batch decoding ends with the longest answer of the batch.

    That is `max_new_tokens`, or the longest of a batch around `mean_new_tokens` where the stage says it.

    Prompts are padded to the longest of the batch, except where the stage pads them to a fixed width.
    """
    unpadded = prompt_tokens
    if ragged:
        prompt_tokens = padded(prompt_tokens, stage.rollout_batch, longest=float(stage.max_prompt_tokens))
    return Phase(
        name=name,
        work="generate",
        role=role,
        steps=ceil(sequences / stage.rollout_batch),
        batch=stage.rollout_batch,
        prompt_tokens=prompt_tokens,
        unpadded_tokens=unpadded if ragged else 0.0,
        new_tokens=longest_answer(stage),
        mean_new_tokens=float(stage.mean_new_tokens or 0),
        longest_tokens=prompt_tokens + stage.max_new_tokens,
    )


def in_turns(phase: Phase, environment: Environment | None, library: Library) -> Phase:
    """The answers of a phase in n turns, each of which reads its whole context anew, and the calls between them.

    A turn reads P + (n - 1) / 2 (L + O) tokens in the mean and writes L, for P of the prompt, L = new tokens / n and O
    of a reply. The native engine keeps no cache from one turn to the next; one that does reads P + (n - 1) O in all.
    """
    if environment is None:
        return phase
    turns, reply = expected_turns(environment), environment.observation_tokens
    between = (turns - 1) / 2 * (phase.new_tokens / turns + reply)
    library.assume(
        "turns of an answer",
        turns,
        "mean_turns, else max_turns; each reads all before it again, with replies of observation_tokens",
        "2026-11",
    )
    calls = (turns - 1) / turns
    library.assume("seconds of a tool's call", environment.mean_tool_time, "mean_tool_time of the stage", "2026-11")
    return replace(
        phase,
        steps=phase.steps * turns,
        prompt_tokens=phase.prompt_tokens + between,
        unpadded_tokens=phase.unpadded_tokens and phase.unpadded_tokens + between,
        new_tokens=phase.new_tokens / turns,
        mean_new_tokens=phase.mean_new_tokens / turns,
        longest_tokens=phase.longest_tokens + environment.most_observed_tokens,
        call_seconds=calls * environment.mean_tool_time / environment.concurrency,
    )


def expected_turns(environment: Environment) -> float:
    """Turns of an answer that a plan counts."""
    return min(environment.mean_turns or environment.max_turns, environment.max_turns)


def reply_tokens(environment: Environment | None) -> tuple[float, float]:
    """Tokens of the replies in an answer: as many as a plan counts, and at most."""
    if environment is None:
        return 0.0, 0.0
    counted = (expected_turns(environment) - 1) * environment.observation_tokens
    return counted, float(environment.most_observed_tokens)


def longest_answer(stage: Sampling) -> float:
    """Expected tokens of the longest answer of a batch.

    >>> from charter.spec.stage import GenerateStage
    >>> said = {"policy": "p", "prompts": ("d",), "max_new_tokens": 2000, "rollout_batch": 16}
    >>> longest_answer(GenerateStage(**said)), round(longest_answer(GenerateStage(**said, mean_new_tokens=200)), -2)
    (2000.0, 500.0)
    """
    if stage.mean_new_tokens is None or stage.mean_new_tokens >= stage.max_new_tokens:
        return float(stage.max_new_tokens)
    lengths = ResponseLengths(mean=stage.mean_new_tokens, limit=stage.max_new_tokens, spread=USUAL_SPREAD)
    return lengths.longest_of(stage.rollout_batch)


def question_tokens(pairs: Corpus, format: str, library: Library) -> float:
    """Tokens of the judge's question about a pair: one answer of it, or both."""
    assume_question(library)
    answers = 2 if format == "multiple_choice" else 1
    return pairs.prompt_tokens + answers * pairs.response_tokens + PRINCIPLE_TOKENS


def questions_per_pair(format: str, both_orders: bool) -> int:
    """Two answers asked apart, or both orders of one question, double the questions."""
    return 2 if format != "multiple_choice" or both_orders else 1


def assume_padding(library: Library) -> None:
    """Note how much padding is counted."""
    library.assume("padding: 1 + x ln(sequences of a micro-batch)", PADDING_GROWTH, PADDING_SOURCE, "2026-11")


def assume_length(library: Library, stage: Sampling) -> None:
    """Note how long answers are taken to be."""
    if stage.mean_new_tokens is not None:
        spread = f"lognormal, deviation {USUAL_SPREAD:g} of the mean (judgement), cut at max_new_tokens"
        library.assume("answer length where a stage says a mean", "mean_new_tokens", spread, "2026-11")
        return
    library.assume("answer length", "max_new_tokens", "a batch decodes until its longest answer ends", "2026-11")


def assume_question(library: Library) -> None:
    """Note how long questions are taken to be."""
    library.assume("tokens of a principle and its question", PRINCIPLE_TOKENS, FEEDBACK_SOURCE, "2026-11")


def training_steps(stage: Optimization, rows: float) -> float:
    """Optimizer steps: as given, or `ceil(epochs x rows / global batch)`; one epoch when neither is given."""
    if stage.steps is not None:
        return float(stage.steps)
    epochs = 1.0 if stage.epochs is None else stage.epochs
    return float(ceil(epochs * rows / stage.global_batch))

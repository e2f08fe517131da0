"""Questions of a stage to its models, and their answers: plain values, whoever computes them.

A stage's records are made by a generator (`drive.Making`) that yields lists of these questions and is sent the
replies. It knows neither torch nor HTTP, so the same text is asked, and the same rules read the answer, whether the
model is in this process or behind an endpoint.

Requests of a stage for text, by its sampling fields, and the facts that its records keep of the texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from charter.artifacts.job import Job
from charter.data.dataset import Turn
from charter.feedback.wording import Question
from charter.spec.stage_base import Sampling


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Ask for text: one answer to a conversation."""

    role: str
    """Which of the stage's models is asked: `policy`, `critic`, `judge`."""
    turns: tuple[Turn, ...]
    seed: int
    """Of this answer alone (`draw_seed`); with the conversation it identifies the answer."""
    temperature: float
    top_p: float = 1.0
    max_new_tokens: int = 512
    min_new_tokens: int = 0
    max_prompt_tokens: int | None = 512
    """Where the model is in this process, longer prompts are cut at the left; None: a `Question` among the turns is
    shortened by its parts, so that all fits the model."""
    prefill: str = ""
    """How the answer begins; it is part of the reply's text."""


@dataclass(frozen=True, kw_only=True)
class Choose:
    """Ask which of a few letters comes next after a question."""

    role: str
    question: Question
    choices: tuple[str, ...]
    """One letter or figure each: `("A", "B")`, `("1", ..., "10")`."""
    turns: tuple[Turn, ...] = ()
    """Conversation before the question, for a judge that is asked as an assistant: after its chain of thought."""
    seed: int = 0
    """Tells attempts at one question apart: another one is another request to a server."""
    votes: int = 0
    """Sampled answers to be counted where a server gives no log-probabilities; 0: log-probabilities are wanted."""


Ask = Sample | Choose


@dataclass(frozen=True, kw_only=True)
class Text:
    """The reply to `Sample`."""

    text: str
    tokens: int
    """Generated, end token included."""
    is_finished: bool = True
    """Whether it ended by itself; false where `max_new_tokens` cut it."""
    prompt_tokens: int = 0
    model: str = ""
    """What the server says it is; empty for a model of this process."""
    refusal: str = ""
    """Why a server would not answer (content filter), in its words; the text is then empty."""


@dataclass(frozen=True, kw_only=True)
class ChoiceReply:
    """The reply to `Choose`."""

    log_probabilities: tuple[float, ...] | None
    """One for each choice, natural logarithm, not normalised among them; None where the model gave none."""
    missing: tuple[bool, ...] = ()
    """Which choices were not among the log-probabilities given: theirs is the upper bound that the rest leaves."""
    votes: tuple[int, ...] = ()
    """How many sampled answers stated each choice, where votes were asked for."""
    problem: str = ""
    """Why there are neither log-probabilities nor votes."""
    text: str = ""
    """What the model would have said, for the record of an invalid answer."""
    tokens: int = 0
    prompt_tokens: int = 0
    model: str = ""
    refusal: str = ""


Reply = Text | ChoiceReply


def sample_of(spec: Sampling, role: str, turns: Sequence[Turn], *, seed: int) -> Sample:
    """The question for one answer to a conversation."""
    return Sample(
        role=role,
        turns=tuple(turns),
        seed=seed,
        temperature=spec.temperature,
        top_p=spec.top_p,
        max_new_tokens=spec.max_new_tokens,
        min_new_tokens=spec.min_new_tokens,
        max_prompt_tokens=spec.max_prompt_tokens,
    )


def text_facts(job: Job, role: str, *texts: Text) -> dict[str, Any]:
    """Return the origin of a text: the model's fingerprint, the server's own name, the seed, the tokens generated."""
    return {
        role: job.only(role).fingerprint,
        f"{role}_model": texts[-1].model,
        "finished": texts[-1].is_finished,
        "tokens": sum(text.tokens for text in texts),
        "seed": job.seed,
    }

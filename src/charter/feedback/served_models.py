"""Answers the questions of a stage with a model behind an endpoint.

Here a question becomes requests, and what came back an answer. Who sends them, stores the answers and counts the money
is `inference/endpoint`. A server knows no padding and cuts no prompts: `min_new_tokens` and `max_prompt_tokens` are not
sent.

Log-probabilities of a few choices are read out of the alternatives that a server gives for one token: at most the 20
likeliest, as text, each tokenizer with its own marks for spaces. All ways to write a choice count for it. A choice that
is not among them gets the largest log-probability that it can have, and is marked.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from charter.artifacts.draws import draw_seed
from charter.data.dataset import Turn
from charter.errors import DataError
from charter.feedback.asking import Ask, ChoiceReply, Choose, Reply, Sample, Text
from charter.feedback.wording import conversation_text
from charter.inference.endpoint.call import CallReply, CallRequest
from charter.spec.project import Serving
from charter.spec.stage import VOTE_TOKENS

NEXT_TURN = "\nHuman:"
"""Where the answer of a model that only continues text ends."""
LARGEST_SEED = 2**31
"""Seeds are sent below it: some servers read 32 bits."""
CONTENT_FILTER = "content_filter"


class AnsweringPool(Protocol):
    """Methods of `EndpointPool` that are needed here."""

    def submit(self, requests: Sequence[CallRequest]) -> "Future[list[CallReply]]":
        """The replies, in the order of the requests."""

    def confirm(self) -> None:
        """Raise where a server has another model than before."""

    def settled_micro_usd(self) -> int:
        """Known cost of the calls that were settled here."""


class ServedModel:
    """One served model: `requests` says what is sent for a question, `reply` reads what came back."""

    def __init__(self, declared: str, name: str, serving: Serving, pool: AnsweringPool, *, revision: str = "") -> None:
        self._declared, self._name, self._serving, self.pool = declared, name, serving, pool
        self._revision = revision
        self._opens = serving.api == "completions" or serving.prefill

    def requests(self, ask: Ask) -> list[CallRequest]:
        """Return the requests of one question: one; several for votes; none where the server cannot answer."""
        if isinstance(ask, Sample):
            return [self._text_request(ask)]
        if ask.question.read_from is not None:
            raise DataError(not_served(self._name))
        if ask.votes:
            return [self._choice_request(ask, vote=number) for number in range(ask.votes)]
        return [self._choice_request(ask)] if self._serving.gives_log_probabilities else []

    def reply(self, ask: Ask, replies: Sequence[CallReply]) -> Reply:
        """The answer to one question."""
        if isinstance(ask, Sample):
            return self._text(ask, replies[0])
        if not replies:
            return ChoiceReply(log_probabilities=None, problem=NONE_GIVEN)
        return self._counted(ask, replies) if ask.votes else self._read(ask, replies[0])

    def settled_micro_usd(self) -> int:
        """Known cost of this process's calls to this model so far."""
        return self.pool.settled_micro_usd()

    def _text_request(self, ask: Sample) -> CallRequest:
        continues = self._serving.api == "completions"
        return CallRequest(
            declared=self._declared,
            revision=self._revision,
            model=self._name,
            turns=() if continues else _plain(ask.turns),
            prompt=_opened(conversation_text(ask.turns), ask.prefill) if continues else "",
            prefill=ask.prefill if self._serving.prefill and not continues else "",
            max_new_tokens=ask.max_new_tokens + self._serving.thinking_tokens,
            temperature=ask.temperature,
            top_p=ask.top_p,
            seed=ask.seed % LARGEST_SEED,
            stop=(NEXT_TURN,) if continues else (),
            is_message=self._serving.api == "messages",
        )

    def _choice_request(self, ask: Choose, *, vote: int | None = None) -> CallRequest:
        """The question, so that the next token is the choice; an assistant that cannot be led in is told so."""
        continues = self._serving.api == "completions"
        lead_in = ask.question.lead_in.strip()
        content = ask.question.body if self._opens else f"{ask.question.body}\n\n{only(lead_in, ask.choices)}"
        turns = (*_plain(ask.turns), Turn("user", content))
        prompt = f"{conversation_text(turns)}\n\nAssistant: {lead_in}" if ask.turns else str(ask.question)
        seed = ask.seed if vote is None else draw_seed(ask.seed, "vote", vote)
        return CallRequest(
            declared=self._declared,
            revision=self._revision,
            model=self._name,
            turns=() if continues else turns,
            prompt=prompt if continues else "",
            prefill=lead_in if self._serving.prefill and not continues else "",
            max_new_tokens=1 if vote is None else VOTE_TOKENS + self._serving.thinking_tokens,
            temperature=0.0 if vote is None else 1.0,
            seed=seed % LARGEST_SEED,
            top_log_probabilities=TOP if vote is None else 0,
            is_message=self._serving.api == "messages",
        )

    def _text(self, ask: Sample, reply: CallReply) -> Text:
        is_led_in = ask.prefill and self._opens and not reply.text.startswith(ask.prefill)
        refusal = _refusal(reply)
        return Text(
            text="" if refusal else well_formed(_opened("", ask.prefill) + reply.text if is_led_in else reply.text),
            tokens=reply.completion_tokens,
            is_finished=reply.finish_reason == "stop",
            prompt_tokens=reply.prompt_tokens,
            model=reply.model,
            refusal=refusal,
        )

    def _read(self, ask: Choose, reply: CallReply) -> ChoiceReply:
        """The choice by log-probabilities of the first token."""
        first = reply.log_probabilities[0].top if reply.log_probabilities else ()
        choices_read = read_choices(first, ask.choices)
        return ChoiceReply(
            log_probabilities=choices_read.log_probabilities,
            missing=choices_read.missing,
            problem=choices_read.problem,
            text=well_formed(reply.text),
            tokens=reply.completion_tokens,
            prompt_tokens=reply.prompt_tokens,
            model=reply.model,
            refusal=_refusal(reply),
        )

    def _counted(self, ask: Choose, replies: Sequence[CallReply]) -> ChoiceReply:
        """The choice by votes; they count when more than half of them can be read."""
        read = [choice_in(reply.text, ask.choices, opened=self._opens) for reply in replies]
        votes = tuple(sum(choice == choice_read for choice_read in read) for choice in ask.choices)
        refusals = [refusal for reply in replies if (refusal := _refusal(reply))]
        problem = "" if sum(votes) > len(replies) / 2 else "votes that cannot be read"
        return ChoiceReply(
            log_probabilities=None,
            votes=() if problem else votes,
            problem=problem,
            text=well_formed(replies[0].text),
            tokens=sum(reply.completion_tokens for reply in replies),
            prompt_tokens=sum(reply.prompt_tokens for reply in replies),
            model=replies[0].model,
            refusal=refusals[0] if len(refusals) > len(replies) / 2 else "",
        )


def not_served(name: str) -> str:
    """Return the refusal of a format that reads every token of an answer, for a served model."""
    return (
        f"model {name!r} is served, and the format yes_no_mean reads the judge's choice at every token of the answer, "
        "which no endpoint gives\n  use format: multiple_choice or yes_no, or a judge in process"
    )


def only(lead_in: str, choices: Sequence[str]) -> str:
    """Return the instruction for an assistant whose answer cannot be begun for it.

    >>> only("The better answer is (", ("A", "B"))
    'The better answer is? Answer with A or B only.'
    """
    question = lead_in.rstrip(" (:")
    return f"{question}? Answer with {', '.join(choices[:-1])} or {choices[-1]} only."


def well_formed(text: str) -> str:
    r"""Text without lone surrogates, which no file in UTF-8 can hold, and without spaces around it.

    >>> well_formed(" a\ud800b ")
    'a\ufffdb'
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()


def _opened(text: str, prefill: str) -> str:
    """Text for a model that continues it, up to where its answer goes on."""
    turn = f"{text}\n\nAssistant:" if text else ""
    return f"{turn} {prefill}" if prefill and turn else turn or prefill


def _plain(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    return tuple(Turn(turn.role, str(turn.content)) for turn in turns)


def _refusal(reply: CallReply) -> str:
    text = well_formed(reply.refusal)
    return text or (CONTENT_FILTER if reply.finish_reason == CONTENT_FILTER else "")


TOP = 20
"""Alternatives asked for: the most that OpenAI's API gives, and vLLM's and SGLang's default limit."""
NONE_GIVEN = "no log-probabilities given"
LEAST_REST = 1e-6
"""Log-probabilities come as rounded 32-bit numbers: what 20 of them leave of 1 is not known better than this."""
_SPACE_MARKS = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n"})
"""How byte-level BPE and SentencePiece write a space and a line break in a token's name."""


@dataclass(frozen=True)
class ChoiceReading:
    """Log-probabilities of the choices, read from the alternatives of a reply."""

    log_probabilities: tuple[float, ...] | None
    missing: tuple[bool, ...] = ()
    problem: str = ""


def read_choices(top: Sequence[tuple[str, float]], choices: Sequence[str]) -> ChoiceReading:
    """The log-probability of each choice, summed over the tokens that write it.

    >>> found = read_choices([("A", math.log(0.5)), (" A", math.log(0.25)), ("B", math.log(0.125))], ("A", "B"))
    >>> [round(math.exp(value), 3) for value in found.log_probabilities], found.missing
    ([0.75, 0.125], (False, False))
    """
    if not top:
        return ChoiceReading(None, problem=NONE_GIVEN)
    if any(math.isnan(value) or value > LEAST_REST for _, value in top):
        return ChoiceReading(None, problem="log-probabilities that are none")
    masses = [sum(math.exp(value) for token, value in top if is_written(token, choice)) for choice in choices]
    missing = tuple(mass == 0 for mass in masses)
    if all(missing):
        return ChoiceReading(None, problem="none of the choices among the alternatives")
    bound = _bound(top)
    return ChoiceReading(tuple(bound if mass == 0 else math.log(mass) for mass in masses), missing)


def is_written(token: str, choice: str) -> bool:
    """Return True if a token is a way to write a choice: with space, bracket, full stop, or small if nothing precedes.

    >>> [is_written(token, "A") for token in ("A", " A", "ĠA", "▁A", "(A", "A)", "a", " a", "An", "B")]
    [True, True, True, True, True, True, True, False, False, False]
    """
    text = token.translate(_SPACE_MARKS)
    bare = text.strip().removeprefix("(").removesuffix(".").removesuffix(")")
    return bare == choice or (bare == choice.lower() and not text[:1].isspace())


def _bound(top: Sequence[tuple[str, float]]) -> float:
    """The most that a token outside the alternatives can have: no more than the least of them, nor than the rest."""
    rest = 1 - sum(math.exp(value) for _, value in top)
    return min(min(value for _, value in top), math.log(max(rest, LEAST_REST)))


LONGEST_ANSWER = 200
"""Characters: a choice with its wording and brackets is shorter; an essay is not searched for letters."""

_PLAIN = re.compile(
    r"(?:the better answer is|better answer|answer|choice|rating)?\s*:?\s*(?P<open>\*\*|\(|\[|\"|')?\s*"
    r"(?P<choice>[A-Za-z]|[0-9]{1,2})\s*(?P<close>\*\*|\)|\]|\"|')?\s*[.!]?",
    re.IGNORECASE | re.ASCII,
)
_CLOSES = {"**": "**", "(": ")", "[": "]", '"': '"', "'": "'"}
_KEYS = ("answer", "choice", "rating")


@dataclass(frozen=True)
class Unreadable:
    """Reason why a text is no choice."""

    reason: str


def choice_in(text: str, choices: Sequence[str], *, opened: bool = False) -> str | Unreadable:
    """The one choice that a text states.

    `opened`: it goes on after "(", so that only what comes first counts.

    >>> choice_in(" (B). ", ("A", "B")), choice_in('{"answer": "A"}', ("A", "B"))
    ('B', 'A')
    >>> choice_in("A or B", ("A", "B")), choice_in("A) is better because", ("A", "B"), opened=True)
    (Unreadable(reason='not one of A, B alone'), 'A')
    """
    if opened:
        return _first(text, choices)
    stripped = text.strip()
    if not stripped:
        return Unreadable("empty answer")
    if len(stripped) > LONGEST_ANSWER:
        return Unreadable("longer than an answer")
    if stripped[0] in "{[" and stripped[-1] in "}]" and stripped[0] == "{":
        return _in_json(stripped, choices)
    match = _PLAIN.fullmatch(stripped)
    if match is None or not _brackets_match(match["open"], match["close"]):
        return Unreadable(f"not one of {', '.join(choices)} alone")
    return _named(match["choice"], choices)


def _first(text: str, choices: Sequence[str]) -> str | Unreadable:
    """Return the choice before the closing bracket."""
    head, bracket, _ = text.lstrip().partition(")")
    if not bracket and len(head.strip()) > max(map(len, choices)):
        return Unreadable("no choice before a closing bracket")
    return _named(head.strip(), choices)


def _brackets_match(opening: str | None, closing: str | None) -> bool:
    """`A)` is common; `(A` is an answer that was cut."""
    return closing == _CLOSES[opening] if opening is not None else closing in (None, ")")


def _named(text: str, choices: Sequence[str]) -> str | Unreadable:
    same = [choice for choice in choices if choice.upper() == text.upper() and text.isascii()]
    return same[0] if len(same) == 1 else Unreadable(f"not one of {', '.join(choices)} alone")


def _in_json(text: str, choices: Sequence[str]) -> str | Unreadable:
    """`{"answer": "A"}`, with nothing else in it."""

    def unique(pairs: list[tuple[str, object]]) -> Mapping[str, object]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("a key is given twice")
        return dict(pairs)

    def refuse(constant: str) -> object:
        raise ValueError(f"{constant} is not JSON")

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError):
        return Unreadable("not valid JSON")
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in _KEYS:
        return Unreadable("JSON without exactly one answer")
    (stated,) = value.values()
    if isinstance(stated, bool) or not isinstance(stated, str | int):
        return Unreadable("JSON whose answer is not text")
    return _named(str(stated), choices)

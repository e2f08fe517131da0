"""Identity of the model behind a name: what replies call themselves, what a server lists, and eight fixed questions.

Two models can have one served name, so a name proves nothing. The eight questions (canaries) are put to a server when
it is first used, whenever it was away, and every so many answers; what comes back is compared with a baseline of five
repeats that the run keeps. Servers answer a fixed question with small differences (the order of sums in a batch), which
the repeats measure; other weights differ by far more. `ExchangeReader` reads an exchange in the light of earlier ones.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from charter.artifacts import durable
from charter.data.dataset import Turn
from charter.errors import DataError
from charter.inference.endpoint.call import CallReply, CallRequest
from charter.inference.endpoint.gate import SpendingGate
from charter.inference.endpoint.lanes import Lane
from charter.inference.endpoint.parsing import message_in_error, usage_in
from charter.inference.endpoint.rules import Answered, GiveUp, RequestTarget, Step, TryAgain, step_after
from charter.inference.endpoint.transport import MAX_COMPLETION_TOKENS, MAX_TOKENS, Received, TransportFailure
from charter.physics.identity_questions import QUESTIONS, READ_TOKENS, TEXT_TOKENS
from charter.spec.project import Serving

TOP_ALTERNATIVES = 5
"""Most alternatives that OpenAI's completions and vLLM's default give."""
LEAST_LIMIT = 0.03
"""Mean total variation below which two rounds are of one model, whatever the repeats say.

Judgement: sums in another order move a log-probability of bfloat16 logits by about 0.01 to 0.05, a probability of 0.5
thus by up to 0.02; one epoch of preference training moves open first tokens by more than 0.1."""
NOISE_FACTOR = 3.0
"""Distance that counts as change, over the largest between repeats (judgement: ten pairs see most of the noise)."""
TEXTS_THAT_MAY_DIFFER = 1
"""Of eight greedy texts, beyond those that already differ between repeats: a near tie may fall otherwise."""

TURN_SECONDS = 0.05
"""Between two looks whether the process that makes the baseline is done."""

How = Literal["log_probabilities", "text", "none"]
Answer = Mapping[str, float] | str
"""Probabilities of the first token's alternatives, or the text."""


class ModelChangedError(DataError):
    """Another model answers under a name than before."""

    def __init__(self, message: str, *, since: float = 0.0) -> None:
        super().__init__(message)
        self.since = since
        """When the server was last known to be the same, in seconds since 1970; 0 where nothing of it was used."""


class ModelIds:
    """The model that answered so far, for every name that was asked for: replies say it."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, str]] = {}

    def check(self, asked: str, answered: str, where: str) -> None:
        """Take note of who answered; DataError when it was somebody else before.

        The name asked for and the one that answers may differ from the start: an alias stands for a dated revision.
        A reply without a name (a prompt that was filtered) says nothing.
        """
        if not answered:
            return
        first, before = self._first.setdefault(asked, (answered, where))
        if first == answered:
            return
        raise DataError(
            f"asked for {asked!r}, {where} answers as {answered!r}, where {before} was {first!r} before: labels of "
            "two models must not be mixed. Bring the first one back and run again, or start the stage anew"
        )


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Answers of a model to the fixed questions when it was first asked, and what its server listed then."""

    how: How
    repeats: tuple[tuple[Answer, ...], ...]
    """One entry for each repeat, with an answer for each question."""
    endpoint: str
    at: float
    why: str = ""
    """Why the questions cannot be compared, where `how` is none."""
    listed: Mapping[str, str] = field(default_factory=dict)
    """`root` and `digest` of the server's list of models."""

    @property
    def limit(self) -> float:
        """Distance beyond which a round is of another model.

        Log-probabilities: 3 times the largest distance between two repeats, at least `LEAST_LIMIT`. Texts: those that
        differ between repeats, and one more.
        """
        if self.how == "text":
            alone = (distance(self.repeats[i], _without(self.repeats, i), self.how) for i in range(len(self.repeats)))
            return max(alone, default=0.0) + TEXTS_THAT_MAY_DIFFER
        apart = (distance(one, [other], self.how) for one, other in combinations(self.repeats, 2))
        return max(LEAST_LIMIT, NOISE_FACTOR * max(apart, default=0.0))

    def is_other(self, answers: Sequence[Answer]) -> bool:
        """Return True if a round of answers is of another model."""
        return self.how != "none" and distance(answers, self.repeats, self.how) > self.limit


def distance(answers: Sequence[Answer], repeats: Sequence[Sequence[Answer]], how: How) -> float:
    """Return the distance of a round of answers from the nearest of several: 0 for equal ones.

    Log-probabilities: mean over the questions of the total variation between the first token's distributions, each
    compared with the nearest repeat; from 0 to 1. Texts: questions whose answer no repeat gave.

    >>> distance([{"A": 0.75, "B": 0.25}], [[{"A": 0.5, "B": 0.5}], [{"A": 0.25, "B": 0.75}]], "log_probabilities")
    0.25
    >>> distance(["red", "two"], [["red", "one"], ["blue", "one"]], "text")
    1.0
    """
    if how == "text":
        return float(sum(text not in [one[i] for one in repeats] for i, text in enumerate(answers)))
    nearest = (
        min((_total_variation(answer, one[i]) for one in repeats), default=0.0) for i, answer in enumerate(answers)
    )
    return sum(nearest) / max(1, len(answers))


def _total_variation(one: Answer, other: Answer) -> float:
    """Half the sum of differences; what neither names is taken as equal, which can only hide a difference."""
    if isinstance(one, str) or isinstance(other, str):
        return float(one != other)
    named = one.keys() | other.keys()
    rest = abs(sum(one.values()) - sum(other.values()))
    return (sum(abs(one.get(token, 0.0) - other.get(token, 0.0)) for token in sorted(named)) + rest) / 2


def _without(repeats: Sequence[Sequence[Answer]], index: int) -> list[Sequence[Answer]]:
    return [one for number, one in enumerate(repeats) if number != index]


def answer_in(reply: CallReply, how: How) -> Answer | None:
    """Return what is compared of a reply; None where it has no log-probabilities, though they are wanted."""
    if how == "text":
        return f"refused: {reply.refusal}" if reply.refusal else reply.text
    if not reply.log_probabilities:
        return None
    first = reply.log_probabilities[0]
    top = first.top or ((first.token, first.log_probability),)
    return {token: round(math.exp(value), 6) for token, value in top}


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """Fixed questions of one model in one run, and the files where what came back is kept."""

    declared: str
    """Name of the model in charter.yaml."""
    served: str
    revision: str
    """Fingerprint of the model: what it is taken to be."""
    continues: bool
    """Whether the server continues plain text, instead of a chat."""
    is_message: bool = False
    """Whether it is asked by Anthropic's Messages API."""
    gives_log_probabilities: bool
    directory: Path
    """Of the run: every stage that asks this model compares it with the same baseline."""
    every: int
    """Answers of one server between two rounds."""

    def requests(self, how: How) -> list[CallRequest]:
        """Return one round."""
        is_read = how == "log_probabilities"
        return [
            CallRequest(
                declared=self.declared,
                revision=self.revision,
                model=self.served,
                turns=() if self.continues else (Turn("user", question),),
                prompt=question if self.continues else "",
                max_new_tokens=READ_TOKENS if is_read else TEXT_TOKENS,
                temperature=0.0,
                seed=0,
                top_log_probabilities=TOP_ALTERNATIVES if is_read else 0,
                is_message=self.is_message,
            )
            for question in QUESTIONS
        ]

    @property
    def manners(self) -> tuple[How, ...]:
        """Ways to compare, the sharper first."""
        return ("log_probabilities", "text") if self.gives_log_probabilities else ("text",)

    def baseline(self) -> Baseline | None:
        """The baseline of the run; None before the first server was asked."""
        if not self._path.exists():
            return None
        content = durable.read_json(self._path)
        try:
            return Baseline(**{**content, "repeats": tuple(tuple(one) for one in content["repeats"])})
        except (TypeError, KeyError) as error:
            raise DataError(f"{self._path} is not a baseline of a model ({error}); move it away to ask again") from None

    @asynccontextmanager
    async def first_asker(self) -> AsyncIterator[None]:
        """Hold the right to make the baseline; of several stages that begin at once, the others wait for it."""
        from filelock import FileLock, Timeout

        durable.make_dir(self.directory)
        lock = FileLock(f"{self._path}.lock", timeout=0, is_singleton=False, thread_local=False)
        while not lock.is_locked:
            try:
                lock.acquire()
            except Timeout:
                await asyncio.sleep(TURN_SECONDS)
        try:
            yield
        finally:
            lock.release()

    def keep(self, baseline: Baseline) -> Baseline:
        """Write the first baseline; of several processes that are at it, the first one's is everybody's."""
        durable.make_dir(self.directory)
        durable.write_new(self._path, durable.json_text(asdict(baseline)).encode())
        first = self.baseline()
        assert first is not None
        return first

    def sound_until(self) -> float:
        """Return the time of the last round that an earlier process of the run passed; 0 where none did."""
        try:
            content = durable.read_json(self._sound_path) if self._sound_path.exists() else {}
            return float(content.get("at", 0.0))
        except (DataError, AttributeError, TypeError, ValueError):
            return 0.0

    def note_sound(self, at: float) -> None:
        """Remember up to when every answer is known to be the model's."""
        durable.write_hint(self._sound_path, {"at": at})

    @property
    def _path(self) -> Path:
        return self.directory / f"{self.declared}-{self.revision[:8]}.json"

    @property
    def _sound_path(self) -> Path:
        return self.directory / f"{self.declared}-{self.revision[:8]}.sound.json"


def listed_identity(body: Any, served: str) -> dict[str, str]:
    """Return what a server's list of models says of one: the last part of its root, and a digest of its weights.

    A server of one model may list it under another name than it is asked for.

    >>> listed_identity({"data": [{"id": "m", "root": "/models/llama-8b/"}]}, "m")
    {'root': 'llama-8b'}
    >>> listed_identity({"data": [{"id": "other", "digest": "sha256:1"}]}, "m")
    {'digest': 'sha256:1'}
    >>> listed_identity({"data": [{"id": "other", "digest": "sha256:1"}, {"id": "m"}]}, "m")
    {}
    """
    entries = list(_entries(body.get("data") if isinstance(body, dict) else None))
    entry = next((item for item in entries if item.get("id") == served), entries[0] if len(entries) == 1 else {})
    texts = {name: entry.get(name) for name in ("root", "digest")}
    identity = {name: value for name, value in texts.items() if isinstance(value, str) and value}
    if "root" in identity:
        identity["root"] = identity["root"].rstrip("/").rpartition("/")[2][:200]
    return identity


def _entries(value: Any) -> Iterable[Mapping[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


def changed_listing(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the difference between two listings in words; empty where they do not contradict each other.

    >>> changed_listing({"root": "a"}, {"root": "b", "digest": "1"})
    "it lists root 'b', where it was 'a'"
    """
    words = [f"{name} {now[name]!r}, where it was {old!r}" for name, old in before.items() if now.get(name, old) != old]
    return f"it lists {', '.join(words)}" if words else ""


def changed_error(canaries: Canaries, endpoint: str, why: str, *, since: float, dropped: int) -> ModelChangedError:
    """Return the error for a server that answers as another model; `since` is when it was last known to be the same."""
    suspects = f"; {dropped} answers since the last round are forgotten" if dropped else ""
    return ModelChangedError(
        f"{endpoint} no longer serves the model that {canaries.declared!r} was (revision {canaries.revision[:8]}): "
        f"{why}{suspects}\n  bring that one back and run again; or take the new one as a revision of its own: "
        f"`charter run --accept-model {canaries.declared}` keeps what is done, and starts anew what is not",
        since=since,
    )


@dataclass(frozen=True, kw_only=True)
class ServerSetting:
    """One served model of a project."""

    name: str
    """The model's name in the project."""
    serving: Serving
    endpoints: tuple[str, ...]
    """Addresses of all servers that answer for it."""
    tell: Callable[[], None]
    """Called when answers come."""
    canaries: Canaries | None = None
    """Fixed questions that show when a server has another model; None asks none."""
    gate: SpendingGate | None = None
    """Of the stage's money; None lets every request pass."""
    directory: Path | None = None
    """Where the slips of files under way lie; for models that are asked by the batch interface."""


class ExchangeReader:
    """Reads the exchanges of one pool."""

    def __init__(self, setting: ServerSetting) -> None:
        self.limit_name = MAX_TOKENS
        """What the servers call the limit of generated tokens, as far as is known."""
        self._setting = setting
        self._models = ModelIds()
        self._fixed: dict[str, str] = {}
        """Questions that are put again and again, by the ids of their replies."""

    def read_stored(self, request: CallRequest, reply: CallReply) -> None:
        """Take note of a stored answer; DataError when another model gave it."""
        self._models.check(request.model, reply.model, "the store of answers")

    def read(
        self, exchange: Received | TransportFailure, request: CallRequest, lane: Lane, *, may_repeat: bool = False
    ) -> Step:
        """Return the next step; an answer of another model, or an old one over again, is no answer.

        `may_repeat`: the question was put before in the same words, so that the same reply is expected.
        """
        key_reference = self._setting.serving.api_key
        step = step_after(
            exchange,
            request,
            RequestTarget(name=self._setting.name, endpoint=lane.endpoint, key_reference=key_reference),
        )
        if isinstance(exchange, TransportFailure):
            return step
        if isinstance(step, GiveUp) and exchange.status == 400 and MAX_COMPLETION_TOKENS.encode() in exchange.body:
            self.limit_name = MAX_COMPLETION_TOKENS
            return TryAgain(cause="spelling", detail=message_in_error(exchange.body), cost="refused")
        if not isinstance(step, Answered):
            return step
        is_repeat = lane.repeats(step.parsed.id, exchange.body)
        if may_repeat:
            # Some servers name a reply by its request: a fixed question gets the same one, and no other.
            is_repeat = is_repeat and self._fixed.get(step.parsed.id) != request.key
            self._fixed[step.parsed.id] = request.key
        if is_repeat:
            return TryAgain(cause="invalid", detail="an earlier reply over again", cost="unknown")
        try:
            self._models.check(request.model, step.parsed.reply.model, lane.endpoint)
        except DataError as error:
            return GiveUp(error=error, stops_all=True, usage=usage_in(step.parsed.reply))
        return step

"""Requests to a server, its replies, and their price: plain values, whichever API they go by.

A price of x USD per million tokens is x micro-USD per token.
"""

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property

from charter.data.dataset import Turn
from charter.spec.project import Serving

KEY_SCHEMA = "charter.call/3"


@dataclass(frozen=True, kw_only=True)
class CallRequest:
    """One question to one served model. Equal requests have the same stored answer."""

    declared: str
    """Name of the model in charter.yaml: its identity. Two models are two, whatever their servers call them."""
    model: str
    """Name of the model on its server, which may be `default` for every model of a proxy."""
    revision: str = ""
    """Fingerprint of the model: of its weights where they are known here, else of the revision that the file names."""
    turns: tuple[Turn, ...] = ()
    """A chat; empty where `prompt` is given."""
    prompt: str = ""
    """Plain text to continue (`/completions`)."""
    prefill: str = ""
    """How the assistant's turn begins; only for servers that continue a last turn of the assistant."""
    max_new_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    top_log_probabilities: int = 0
    """How many alternatives of each token are wanted with their log-probabilities; servers give at most 20."""
    is_message: bool = False
    """Put by Anthropic's Messages API. Not in the key: like an address, it says how, not what."""

    @cached_property
    def key(self) -> str:
        """Return the name of the answer in the store: SHA-256 of the model, the question and how it is drawn.

        The model is its name in charter.yaml with its revision. Address, port and replica are not in it: a server that
        comes back elsewhere is not asked, or paid, again.
        """
        turns = [(turn.role, turn.content) for turn in self.turns]
        drawn = (self.max_new_tokens, self.temperature, self.top_p, self.seed, self.stop, self.top_log_probabilities)
        named = (KEY_SCHEMA, self.declared, self.revision, self.model)
        text = json.dumps([*named, turns, self.prompt, self.prefill, *drawn], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class TokenAlternatives:
    """One generated token, and what else could have stood there."""

    token: str
    log_probability: float
    top: tuple[tuple[str, float], ...]
    """Tokens with their log-probabilities, most likely first."""


@dataclass(frozen=True, kw_only=True)
class CallReply:
    """The parsed, checked answer of a server."""

    text: str
    finish_reason: str
    """`stop`, `length`, `content_filter`, or what the server says."""
    model: str
    """What the server says answered."""
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    refusal: str = ""
    log_probabilities: tuple[TokenAlternatives, ...] = ()
    """One per generated token; empty where none were asked for or given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Token counts that a server says it will bill."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


TOKENS_PER_TURN = 32
"""Bound of what a chat template puts around a turn: role names and markers, 3 to 8 tokens in published templates."""
TOKENS_PER_PROMPT = 256
"""Bound of what a template puts in front: a default system prompt with a date has 20 to 60 tokens."""

CHARACTERS_PER_TOKEN = 4
"""Of English text, about, as OpenAI's help pages say; only limits per minute use it, and usage corrects it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """Prices of one server's tokens; None where they are not known."""

    is_billed: bool
    input: float | None
    cached_input: float | None
    output: float | None

    def micro_usd(self, *, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int | None:
        """The cost of these tokens, to the nearest micro-USD."""
        if not self.is_billed:
            return 0
        if self.input is None or self.output is None:
            return None
        cached = self.input if self.cached_input is None else self.cached_input
        full = (prompt_tokens - cached_tokens) * self.input + cached_tokens * cached
        return round(full + completion_tokens * self.output)

    def most_micro_usd(self, request: CallRequest) -> int | None:
        """Return the most that a request can cost: a token is at least one byte, and no token is cached."""
        if not self.is_billed:
            return 0
        if self.input is None or self.output is None:
            return None
        return math.ceil(most_prompt_tokens(request) * self.input + request.max_new_tokens * self.output)


def prices_of(serving: Serving, *, share: float = 1.0) -> Prices:
    """The prices that a project gives, or a share of them."""

    def part(price: float | None) -> float | None:
        return None if price is None else share * price

    return Prices(
        is_billed=serving.billed,
        input=part(serving.usd_per_million_input_tokens),
        cached_input=part(serving.cached_input_usd_per_million_tokens),
        output=part(serving.usd_per_million_output_tokens),
    )


def most_prompt_tokens(request: CallRequest) -> int:
    """A bound of the tokens of a prompt that needs no tokenizer."""
    texts = [request.prompt, request.prefill, *(turn.content for turn in request.turns)]
    size = sum(len(text) if text.isascii() else len(text.encode("utf-8", "replace")) for text in texts)
    return size + TOKENS_PER_TURN * (len(request.turns) + 1) + TOKENS_PER_PROMPT


def is_disputed(usage: Usage, request: CallRequest) -> bool:
    """Return True if a server reports more tokens than its request allows: then nobody here knows what it bills.

    >>> asked = CallRequest(declared="m", model="m", prompt="hello", max_new_tokens=10)
    >>> is_disputed(Usage(prompt_tokens=12, cached_tokens=0, completion_tokens=10), asked)
    False
    >>> is_disputed(Usage(prompt_tokens=2**31 - 1, cached_tokens=0, completion_tokens=10), asked)
    True
    """
    most_completion = request.max_new_tokens + TOKENS_PER_TURN
    return usage.prompt_tokens > most_prompt_tokens(request) or usage.completion_tokens > most_completion


def guessed_tokens(request: CallRequest) -> float:
    """Estimate the tokens of a request in a limit of tokens per minute: providers add what may be generated."""
    size = len(request.prompt) + sum(len(turn.content) for turn in request.turns)
    return size / CHARACTERS_PER_TOKEN + request.max_new_tokens

"""Price of a call: micro-USD from the tokens a server reports, and a bound before it is sent.

A price of x USD per million tokens is x micro-USD per token.
"""

import math
from dataclasses import dataclass

from charter.inference.endpoint.call import CallRequest, Usage
from charter.spec.project import Serving

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

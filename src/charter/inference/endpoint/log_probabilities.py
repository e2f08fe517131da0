"""Log-probabilities of generated tokens, in the two layouts that servers use."""

from collections.abc import Mapping
from typing import Any

from charter.inference.endpoint.call import TokenAlternatives
from charter.inference.endpoint.shapes import InvalidReplyError, a_list, a_log_probability, a_text

LONGEST_TOKEN = 4096
"""In characters; runs of blanks are the longest tokens there are, some hundred."""


def chat_tokens(value: object) -> tuple[TokenAlternatives, ...]:
    """Of `/chat/completions`: `content` is an array of tokens, each with its own `top_logprobs`."""
    if not isinstance(value, dict):
        raise InvalidReplyError("logprobs is not an object")
    if value.get("content") is None:
        return ()
    return tuple(_chat_token(item) for item in a_list(value, "content"))


def completion_tokens(value: object) -> tuple[TokenAlternatives, ...]:
    """Of `/completions`: arrays side by side, one of which maps each alternative to its log-probability.

    TGI and newer llama.cpp servers use the layout of the chat here too.
    """
    if not isinstance(value, dict):
        raise InvalidReplyError("logprobs is not an object")
    if "content" in value and "tokens" not in value:
        return chat_tokens(value)
    tokens, own = a_list(value, "tokens"), a_list(value, "token_logprobs")
    top = value.get("top_logprobs")
    tops = [None] * len(tokens) if top is None else a_list(value, "top_logprobs")
    if not len(tokens) == len(own) == len(tops):
        raise InvalidReplyError("the arrays of logprobs are not of one length")
    return tuple(_completion_token(*parts) for parts in zip(tokens, own, tops, strict=True))


def _chat_token(item: object) -> TokenAlternatives:
    if not isinstance(item, dict):
        raise InvalidReplyError("a token of logprobs is not an object")
    top = [_pair(entry) for entry in ([] if item.get("top_logprobs") is None else a_list(item, "top_logprobs"))]
    token, log_probability = _pair(item)
    return _alternatives(token, log_probability, top)


def _pair(entry: object) -> tuple[str, float]:
    if not isinstance(entry, dict):
        raise InvalidReplyError("an alternative of logprobs is not an object")
    return a_text(entry, "token", most=LONGEST_TOKEN), a_log_probability(entry.get("logprob"))


def _completion_token(token: object, own: object, top: object) -> TokenAlternatives:
    named: Mapping[str, Any] = {"token": token}
    if top is not None and not isinstance(top, dict):
        raise InvalidReplyError("top_logprobs of a token is not an object")
    pairs = [
        (a_text({"token": other}, "token", most=LONGEST_TOKEN), a_log_probability(value))
        for other, value in (top or {}).items()
    ]
    return _alternatives(a_text(named, "token", most=LONGEST_TOKEN), a_log_probability(own), pairs)


def _alternatives(token: str, log_probability: float, top: list[tuple[str, float]]) -> TokenAlternatives:
    top.sort(key=lambda pair: -pair[1])
    return TokenAlternatives(token=token, log_probability=log_probability, top=tuple(top))

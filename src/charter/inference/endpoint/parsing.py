"""The body of a reply: a server is not trusted, so every type, length and number is looked at before use.

What does not hold is an `InvalidReplyError`, never a guess. `json.loads` alone accepts NaN and Infinity, reads 1e400
as infinity, keeps the last of two equal keys, and fails with RecursionError on deep nesting; here all of these are one
error. Layouts: https://platform.openai.com/docs/api-reference (`chat/create`, `completions/create`), which vLLM,
SGLang, TGI and llama.cpp follow; https://platform.claude.com/docs/en/api/messages/create.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from charter.inference.endpoint.call import CallReply, CallRequest, TokenAlternatives, Usage

MOST_DIGITS = 18
"""Of an integer: every count and time of an API fits in 64 bits."""


class StrictJsonError(ValueError):
    """A text is not JSON with one meaning; the message says why, without the text."""


def strict_loads(body: bytes) -> Any:
    """The value of a UTF-8 text of JSON.

    >>> strict_loads(b'{"a": [1, 2.5, null]}')
    {'a': [1, 2.5, None]}
    """
    try:
        return _DECODER.decode(body.decode("utf-8"))
    except StrictJsonError:
        raise
    except RecursionError:
        raise StrictJsonError("is nested too deep") from None
    except UnicodeDecodeError:
        raise StrictJsonError("is not UTF-8") from None
    except ValueError as error:
        where = f" (at character {error.pos})" if isinstance(error, json.JSONDecodeError) else ""
        raise StrictJsonError(f"is not JSON{where}") from None


def is_encodable(text: str) -> bool:
    """Return True if a text has no half of a surrogate pair, which JSON can spell but UTF-8 cannot hold."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise StrictJsonError("has the same key twice")
    return members


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise StrictJsonError("has a number beyond all bounds")
    return value


def _int(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise StrictJsonError(f"has an integer of more than {MOST_DIGITS} digits")
    return int(text)


def _constant(name: str) -> NoReturn:
    raise StrictJsonError(f"has the number {name}")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs, parse_float=_float, parse_int=_int, parse_constant=_constant, strict=True
)


class InvalidReplyError(Exception):
    """A reply that cannot be used; `usage` is what it is billed all the same, where it says so."""

    usage: Usage | None = None


def a_map(source: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object."""
    value = source.get(name)
    if not isinstance(value, dict):
        raise InvalidReplyError(f"{name} is {_what(value)}, not an object")
    return value


def a_list(source: Mapping[str, Any], name: str) -> list[Any]:
    """An array."""
    value = source.get(name)
    if not isinstance(value, list):
        raise InvalidReplyError(f"{name} is {_what(value)}, not an array")
    return value


def a_text(source: Mapping[str, Any], name: str, *, most: int | None = None, default: str | None = None) -> str:
    """A text that UTF-8 can hold; null is the default where there is one."""
    value = source.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise InvalidReplyError(f"{name} is {_what(value)}, not a text")
    if most is not None and len(value) > most:
        raise InvalidReplyError(f"{name} has {len(value)} characters, {most} at most")
    if not is_encodable(value):
        raise InvalidReplyError(f"{name} has half of a surrogate pair")
    return value


def a_count(source: Mapping[str, Any], name: str) -> int:
    """A whole number, not negative."""
    value = source.get(name)
    if type(value) is not int or value < 0:
        raise InvalidReplyError(f"{name} is {_what(value)}, not a count")
    return value


def a_log_probability(value: object) -> float:
    """A logarithm of a probability: at most 0, but for rounding."""
    if type(value) not in (int, float) or not float(value) <= ROUNDING:  # type: ignore[arg-type]
        raise InvalidReplyError(f"a log-probability is {_what(value)}")
    return min(float(value), 0.0)  # type: ignore[arg-type]


ROUNDING = 1e-3
"""Log-probabilities are often computed in 16 bits: bf16 has 8 bits of mantissa, so that 0 comes out as up to 2^-10."""


def one_line(text: str, most: int) -> str:
    """A text for a message: printable, on one line, shortened."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text[: 2 * most])
    shown = " ".join(shown.split())
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def _what(value: object) -> str:
    if value is None:
        return "missing"
    if isinstance(value, bool | int | float):
        return f"{value}"[:40]
    if isinstance(value, str):
        return "a text"
    return "an array" if isinstance(value, list) else "an object"


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


MOST_TOKENS = 1 << 31
"""In one reply; more is not a count of tokens."""
TOO_LONG = re.compile(
    r"context (length|size|window)|context has \d+ tokens|max_model_len|inputs.{0,40}tokens|prompt is too long"
    r"|maximum (allowed|model) length|request is too large",
    re.IGNORECASE,
)
"""How servers say that one prompt does not fit: OpenAI, vLLM and SGLang (context length, maximum length), llama.cpp
(context size), TGI (`inputs` must have less tokens), Cloudflare (request is too large), and ours."""
TOO_LONG_CODES = ("context_length_exceeded", "request_too_large")
"""`error.code` or `error.type` of the same (OpenAI and OpenRouter; Anthropic)."""
LONGEST_NAME = 512
LEAST_BYTES, BYTES_PER_ALTERNATIVE = 256 << 10, 512
"""Of a reply; a token with its bytes and its log-probability mostly takes 60 to 150."""
FAILED = ("error", "abort")
"""`finish_reason` of gateways whose provider broke off (OpenRouter), and of servers that are stopped, put to sleep or
get new weights while they answer (vLLM, SGLang): the text so far is no answer."""
LONGEST_REFUSAL = 4096
FILTERED = ("content_filter", "content_policy_violation")
"""`error.code` of a server that will not answer this prompt (Azure OpenAI; OpenAI and OpenRouter)."""
BLOCKED = re.compile(
    r"content filtering policy|violating our usage policy|(prompt|response) blocked due to security", re.IGNORECASE
)
"""The same in words, under codes that mean other things too: Anthropic, OpenAI's `invalid_prompt`, Cloudflare."""
NO_CREDIT_CODES = ("insufficient_quota", "credit_balance_exhausted", "billing_error", "enforced_spend_limit_reached")
"""`error.code`, `error.type` or `error.details.error_code` of an account that cannot pay (OpenAI; Anthropic)."""
NO_CREDIT = re.compile(
    r"credit balance is too low|specified (api )?usage limits|used up your daily free allocation", re.IGNORECASE
)
"""The same in words: Anthropic, Cloudflare. Others call a limit per minute a quota too (Gemini): that word alone says
nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsed:
    """A valid reply, and the id that the server gave it."""

    reply: CallReply
    id: str


def parse_reply(body: bytes, request: CallRequest) -> Parsed:
    """The answer in a body; an InvalidReplyError when it is not one to this request."""
    if len(body) > (most := most_bytes(request)):
        raise InvalidReplyError(f"the reply has {len(body):,} bytes, {most:,} at most for what was asked")
    document = _loaded(body)
    try:
        usage = (message_usage_of if request.is_message else usage_of)(document)
    except InvalidReplyError:
        _raise_error_in(document, body)
        raise
    try:
        _raise_error_in(document, body)
        return (_message if request.is_message else _parsed)(document, usage, request)
    except InvalidReplyError as error:
        error.usage = usage
        raise


def most_bytes(request: CallRequest) -> int:
    """Return the bytes that a reply to a request has at most: taking one apart holds up all other requests.

    >>> most_bytes(CallRequest(declared="m", model="m", max_new_tokens=1, top_log_probabilities=20))
    272896
    """
    return LEAST_BYTES + request.max_new_tokens * (1 + request.top_log_probabilities) * BYTES_PER_ALTERNATIVE


def usage_of(reply: Mapping[str, Any]) -> Usage:
    """The tokens of a reply."""
    usage = a_map(reply, "usage")
    prompt, completion = a_count(usage, "prompt_tokens"), a_count(usage, "completion_tokens")
    details = usage.get("prompt_tokens_details")
    cached = 0
    if details is not None:
        if not isinstance(details, dict):
            raise InvalidReplyError("usage.prompt_tokens_details is not an object")
        cached = 0 if details.get("cached_tokens") is None else a_count(details, "cached_tokens")
    return _usage(prompt, cached, completion)


def message_usage_of(reply: Mapping[str, Any]) -> Usage:
    """The tokens of a reply of the Messages API, which counts those of a cache apart.

    None is written to a cache but where a request says so, which none of ours does.

    >>> message_usage_of({"usage": {"input_tokens": 5, "cache_read_input_tokens": 20, "output_tokens": 1}})
    Usage(prompt_tokens=25, cached_tokens=20, completion_tokens=1)
    """
    usage = a_map(reply, "usage")
    written, cached = (
        0 if usage.get(name) is None else a_count(usage, name)
        for name in ("cache_creation_input_tokens", "cache_read_input_tokens")
    )
    return _usage(a_count(usage, "input_tokens") + written + cached, cached, a_count(usage, "output_tokens"))


def _usage(prompt: int, cached: int, completion: int) -> Usage:
    if max(prompt, completion) > MOST_TOKENS or cached > prompt:
        raise InvalidReplyError(f"usage cannot be: {prompt} prompt, {cached} cached, {completion} completion tokens")
    return Usage(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=completion)


def usage_in(reply: CallReply) -> Usage:
    """The tokens of a valid reply."""
    return Usage(
        prompt_tokens=reply.prompt_tokens,
        cached_tokens=reply.cached_tokens,
        completion_tokens=reply.completion_tokens,
    )


def refusal_in_error(body: bytes) -> str | None:
    """Return an error's reason not to answer this one prompt, if its body gives one: filtered, or too long."""
    fault = error_in(body)
    words = _words_of(fault)
    code = next((name for name in FILTERED if name in (fault.get("code"), fault.get("type"))), "")
    metadata = fault.get("metadata")
    if not code and (BLOCKED.search(words) or (isinstance(metadata, dict) and "flagged_input" in metadata)):
        code = FILTERED[0]
    if code:
        return one_line(f"{code}: {words}", LONGEST_REFUSAL)
    if TOO_LONG.search(words) or fault.get("code") in TOO_LONG_CODES or fault.get("type") in TOO_LONG_CODES:
        return one_line(f"too long for the server: {words}", LONGEST_REFUSAL)
    return None


def is_out_of_credit(body: bytes) -> bool:
    """Return True if an error says that the account cannot pay, which waiting does not change."""
    fault = error_in(body)
    details = fault.get("details")
    codes = (fault.get("code"), fault.get("type"), details.get("error_code") if isinstance(details, dict) else None)
    return any(code in NO_CREDIT_CODES for code in codes) or NO_CREDIT.search(_words_of(fault)) is not None


def message_in_error(body: bytes) -> str:
    """Return an error's message in one line; the beginning of the body where it has no known layout."""
    message = error_in(body).get("message")
    return one_line(message if isinstance(message, str) else body.decode("utf-8", "replace"), 300)


def error_in(body: bytes) -> Mapping[str, Any]:
    """The object `error` of a body, the first of several (Cloudflare), or the whole of a flat one; else empty."""
    try:
        document = strict_loads(body)
    except StrictJsonError:
        return {}
    if not isinstance(document, dict):
        return {}
    fault = document.get("error") or document.get("errors") or document
    if isinstance(fault, list):
        fault = fault[0]
    return fault if isinstance(fault, dict) else {"message": fault}


def _words_of(fault: Mapping[str, Any]) -> str:
    message = fault.get("message")
    return message if isinstance(message, str) else ""


def _raise_error_in(document: Mapping[str, Any], body: bytes) -> None:
    """Refuse a reply that carries an error, whatever its status and the rest of it say (OpenRouter)."""
    if document.get("error"):
        raise InvalidReplyError(f"the server says inside a reply: {message_in_error(body)}")


def _loaded(body: bytes) -> Mapping[str, Any]:
    try:
        document = strict_loads(body)
    except StrictJsonError as error:
        raise InvalidReplyError(f"the body {error}") from None
    if not isinstance(document, dict):
        raise InvalidReplyError("the body is not an object")
    return document


def _parsed(document: Mapping[str, Any], usage: Usage, request: CallRequest) -> Parsed:
    choices = a_list(document, "choices")
    if len(choices) != 1 or not isinstance(choices[0], dict):
        raise InvalidReplyError(f"there are {len(choices)} choices, one was asked for")
    choice = choices[0]
    if choice.get("index", 0) != 0:
        raise InvalidReplyError("the only choice does not have index 0")
    finish = a_text(choice, "finish_reason", most=LONGEST_NAME, default="stop")
    if finish in FAILED or choice.get("error") is not None:
        raise InvalidReplyError(f"the server says that it broke off (finish_reason: {finish})")
    text, refusal = _words(choice, finish, is_chat=bool(request.turns))
    logprobs = choice.get("logprobs")
    read = chat_tokens if request.turns else completion_tokens
    most = request.top_log_probabilities
    tokens = read(logprobs) if most and logprobs is not None else ()
    if (widest := max((len(token.top) for token in tokens), default=0)) > most + 1:
        raise InvalidReplyError(f"a token has {widest} alternatives, {most} were asked for")
    reply = CallReply(
        text=text,
        finish_reason=finish,
        model=a_text(document, "model", most=LONGEST_NAME),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        refusal=refusal,
        log_probabilities=tokens,
    )
    return Parsed(reply=reply, id=a_text(document, "id", most=LONGEST_NAME, default=""))


STOP_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": FILTERED[0],
}
"""Of the Messages API, in the other API's words (https://platform.claude.com/docs/en/build-with-claude/
handling-stop-reasons). What begins a tool's turn or pauses one is no answer: no request offers a tool."""


def _message(document: Mapping[str, Any], usage: Usage, request: CallRequest) -> Parsed:
    """Read a reply of the Messages API: blocks of text one after the other, without the thoughts between them."""
    if document.get("role") != "assistant":
        raise InvalidReplyError("the message is not the assistant's")
    reason = a_text(document, "stop_reason", most=LONGEST_NAME)
    if reason not in STOP_REASONS:
        raise InvalidReplyError(f"the server says that it broke off (stop_reason: {one_line(reason, 40)})")
    blocks = a_list(document, "content")
    if not all(isinstance(block, dict) for block in blocks):
        raise InvalidReplyError("a block of content is not an object")
    text = "".join(a_text(block, "text") for block in blocks if block.get("type") == "text")
    details = document.get("stop_details")
    refusal = ""
    if reason == "refusal":
        said = a_text(details, "explanation", default="") if isinstance(details, dict) else ""
        refusal = one_line(said, LONGEST_REFUSAL) or reason
    reply = CallReply(
        text="" if refusal else text,
        finish_reason=STOP_REASONS[reason],
        model=a_text(document, "model", most=LONGEST_NAME),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        refusal=refusal,
    )
    return Parsed(reply=reply, id=a_text(document, "id", most=LONGEST_NAME, default=""))


def _words(choice: Mapping[str, Any], finish: str, *, is_chat: bool) -> tuple[str, str]:
    """The text, and the refusal where there is one: then the text is empty."""
    if not is_chat:
        text = a_text(choice, "text")
        return ("", finish) if finish in FILTERED else (text, "")
    message = a_map(choice, "message")
    if message.get("role", "assistant") != "assistant":
        raise InvalidReplyError("the message is not the assistant's")
    refusal = a_text(message, "refusal", most=LONGEST_REFUSAL, default="")
    if finish in FILTERED and not refusal:
        refusal = finish
    if refusal:
        return "", refusal
    # A model that still thinks when its tokens are used up has said nothing yet.
    return a_text(message, "content", default="" if finish == "length" else None), ""


def json_object(body: bytes) -> Mapping[str, Any] | None:
    """Return the JSON object of a body; None where it is none."""
    try:
        value = strict_loads(body)
    except StrictJsonError:
        return None
    return value if isinstance(value, dict) else None


def batch_reasons(state: Mapping[str, Any] | None) -> str:
    """Return why a provider refused a batch, in its words."""
    errors = (state or {}).get("errors")
    data = errors.get("data") if isinstance(errors, dict) else None
    said = [str(item.get("message")) for item in data or () if isinstance(item, dict)]
    return one_line("; ".join(said), 300) or "it does not say why"


def created_at(batch: Mapping[str, Any]) -> float:
    """Return when a batch began, in seconds since 1970: later than any where it does not say.

    >>> created_at({"created_at": "1970-01-01T00:01:00.5Z"}), created_at({"created_at": 60}), created_at({})
    (60.5, 60.0, inf)
    """
    said = batch.get("created_at")
    try:
        return datetime.fromisoformat(said).timestamp() if isinstance(said, str) else float(said or "inf")
    except (TypeError, ValueError):
        return float("inf")

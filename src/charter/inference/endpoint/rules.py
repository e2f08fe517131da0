"""Step after an exchange: an answer, another try after a wait, or the end of the stage. Pure.

What was refused before any work costs nothing (425, 429, 503, 4xx that ends the stage, no connection). Where the work
may have been done, nobody here knows whether it is billed (any other 5xx, a gateway that gave up waiting, a broken or
late reply, a prompt that is filtered or too long), and the call stays unknown. The next try waits as the server says,
else by capped exponential back-off with full jitter (Brooker 2015, "Exponential Backoff and Jitter", AWS Architecture
Blog), drawn by counter (`draws.draw_seed`), so that a rerun waits alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Literal

from charter.artifacts.draws import draw_seed
from charter.errors import CharterError, DataError
from charter.inference.endpoint.call import CallReply, CallRequest, Usage
from charter.inference.endpoint.parsing import (
    InvalidReplyError,
    Parsed,
    error_in,
    is_out_of_credit,
    message_in_error,
    one_line,
    parse_reply,
    refusal_in_error,
)
from charter.inference.endpoint.transport import Received, TransportFailure

FIRST_SECONDS = 0.5
MOST_SECONDS = 60.0
"""Limits per minute are the longest that providers publish, so that waiting longer cannot help."""


def wait_seconds(key: str, attempt: int, retry_after: str, now: float) -> float:
    """Seconds before attempt `attempt + 1` at a request; `now` in seconds since 1970, for dates."""
    longest = min(MOST_SECONDS, FIRST_SECONDS * 2.0 ** min(attempt - 1, 20))
    drawn = longest * (draw_seed(0, key, "wait", attempt) / 2**63)
    retry_seconds = told_seconds(retry_after, now)
    # Those who are told the same time must not all come back at once.
    return drawn if retry_seconds is None else retry_seconds + min(drawn, 0.1 * retry_seconds + FIRST_SECONDS)


def told_seconds(retry_after: str, now: float) -> float | None:
    """Return the seconds from now in a Retry-After header, at most `MOST_SECONDS`; None when it says nothing.

    >>> told_seconds("2", 0.0), told_seconds("Thu, 01 Jan 1970 00:00:05 GMT", 1.0), told_seconds("soon", 0.0)
    (2.0, 4.0, None)
    """
    text = retry_after.strip()
    if not text or len(text) > 64:
        return None
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return min(float(text), MOST_SECONDS)
    try:
        moment = parsedate_to_datetime(text)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), MOST_SECONDS)


def utc_now() -> float:
    """Seconds since 1970, for the ledger and for dates of servers; never for measuring how long something took."""
    return datetime.now(tz=UTC).timestamp()


Cost = Literal["answered", "refused", "unknown"]
AGAIN: Mapping[int, tuple[str, Cost]] = MappingProxyType(
    {
        402: ("busy", "refused"),  # OpenRouter, with a Retry-After: what is under way has taken the credit
        408: ("timeout", "unknown"),  # Azure says so of its own work too, not of a request that arrived late alone
        409: ("busy", "unknown"),
        423: ("busy", "unknown"),
        425: ("busy", "refused"),
        429: ("busy", "refused"),
        503: ("busy", "refused"),
        529: ("busy", "unknown"),  # Anthropic: overloaded
    }
)
"""Statuses after which the same request may succeed, with the cause they are counted under and what they cost. So may
every other 5xx, as `server` and unknown: gateways have many of their own (520 to 526 of Cloudflare)."""
OF_ONE_PROMPT = (400, 403, 413, 422, 424)
"""Statuses that may be about this prompt alone, if their body says so: 403 of OpenRouter's moderation, 424 of
Cloudflare's guardrails."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """A valid reply."""

    parsed: Parsed
    is_bill_known: bool = True
    """False of a refusal in an error, which names no tokens: Azure may bill a prompt that is filtered or too long. And
    of one before the first token in a reply of Anthropic's: its category decides."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TryAgain:
    """No answer this time."""

    cause: str
    """`busy`, `server`, `timeout`, `connect`, `broken`, `oversize`, `invalid`."""
    detail: str
    cost: Cost
    retry_after: str = ""
    usage: Usage | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GiveUp:
    """Asking again cannot help."""

    error: CharterError
    stops_all: bool
    """Whether every other request would fail the same way."""
    usage: Usage | None = None
    """What the useless reply is billed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestTarget:
    """Server and model of a request, for messages."""

    name: str
    """The model's name in the project."""
    endpoint: str
    key_reference: str | None


Step = Answered | TryAgain | GiveUp


def step_after(exchange: Received | TransportFailure, request: CallRequest, target: RequestTarget) -> Step:
    """Return the meaning of one exchange for its request."""
    if isinstance(exchange, TransportFailure):
        cost: Cost = "unknown" if exchange.was_sent else "refused"
        return TryAgain(cause=exchange.cause, detail=exchange.detail, cost=cost)
    if 200 <= exchange.status < 300:
        try:
            parsed = parse_reply(exchange.body, request)
            is_early = request.is_message and bool(parsed.reply.refusal) and not parsed.reply.completion_tokens
            return Answered(parsed=parsed, is_bill_known=not is_early)
        except InvalidReplyError as error:
            if error.usage is None and (refusal := refusal_in_error(exchange.body)) is not None:
                return _refused(refusal)
            cost = "unknown" if error.usage is None else "answered"
            return TryAgain(cause="invalid", detail=str(error), cost=cost, usage=error.usage)
    if _cannot_pay(exchange):
        return _no_use(exchange, target)
    if (later := AGAIN.get(exchange.status)) is not None or exchange.status >= 500:
        cause, cost = later or ("server", "unknown")
        if exchange.status == 503 and not error_in(exchange.body):
            cost = "unknown"  # a page of a proxy, which also says so when it lost a server that was at work
        detail = f"status {exchange.status}: {message_in_error(exchange.body)}"
        return TryAgain(cause=cause, detail=detail, cost=cost, retry_after=exchange.retry_after)
    if exchange.status in OF_ONE_PROMPT and (refusal := refusal_in_error(exchange.body)) is not None:
        return _refused(refusal, is_bill_known=exchange.is_free)
    return _no_use(exchange, target)


def _cannot_pay(received: Received) -> bool:
    """Return True if the account has no credit; a 402 that names a time to wait is about what is under way."""
    if received.status == 402:
        return not received.retry_after
    return 400 <= received.status < 500 and is_out_of_credit(received.body)


def _refused(refusal: str, *, is_bill_known: bool = False) -> Answered:
    """The answer of a server that filters a prompt or cannot hold it: that it does not answer."""
    reply = CallReply(
        text="",
        finish_reason="content_filter",
        model="",
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        refusal=refusal,
    )
    return Answered(parsed=Parsed(reply=reply, id=""), is_bill_known=is_bill_known)


def _no_use(received: Received, target: RequestTarget) -> GiveUp:
    """The error for a status that stays the same however often one asks."""
    head = f"{target.endpoint}, which answers for {target.name}, says {received.status}"
    reason = message_in_error(received.body)
    place = f"serving.{target.name}"
    if _cannot_pay(received):
        text = f"{head} ({reason}): the account has no credit left, or its spending limit is reached; pay or raise the "
        text += "limit there and run again: what was answered is kept"
        return GiveUp(error=DataError(text), stops_all=True)
    match received.status:
        case 401 | 403:
            key = f"the key at {target.key_reference}" if target.key_reference else f"that no {place}.api_key is given"
            return GiveUp(error=DataError(f"{head} ({reason}); check {key}"), stops_all=True)
        case 404 | 405:
            text = f"{head} ({reason}); check {place}.endpoint, which mostly ends in /v1, and {place}.model"
            return GiveUp(error=DataError(text), stops_all=True)
        case status if 300 <= status < 400:
            text = f"{head} and points to {one_line(received.location, 200) or 'nowhere'}; redirects are not followed, "
            text += f"as they would hand the key to another host: put the right address into {place}.endpoint"
            return GiveUp(error=DataError(text), stops_all=True)
        case 400 | 413 | 422:
            text = f"{head} ({reason}); the request is wrong for this server: a field that it does not know, say "
            text += f"({place}: prefill, log_probabilities, api)"
            return GiveUp(error=DataError(text), stops_all=False)
        case _:
            return GiveUp(error=DataError(f"{head} ({reason}), which is no answer"), stops_all=True)


def trouble_of(exchange: Received | TransportFailure) -> tuple[str, bool]:
    """Return what went wrong, and whether asking again cannot help."""
    if isinstance(exchange, TransportFailure):
        return f"{exchange.cause}: {exchange.detail}", False
    text = f"status {exchange.status}: {message_in_error(exchange.body)}"
    return text, 300 <= exchange.status < 500 and exchange.status not in AGAIN


def retry_after_of(exchange: Received | TransportFailure) -> str:
    """Return the time that a server asks to wait; empty where it asks for none."""
    return exchange.retry_after if isinstance(exchange, Received) else ""


def is_open_end(exchange: Received | TransportFailure) -> bool:
    """Return True if what was asked may have been done all the same, or may be done yet."""
    return isinstance(exchange, TransportFailure) or exchange.status >= 500

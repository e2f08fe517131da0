"""Feedback from an endpoint: what it costs per token, and how long its rate limits make it take."""

from __future__ import annotations

from dataclasses import dataclass

from charter.errors import UsageError

MILLION = 1e6
SECONDS_PER_MINUTE = 60.0
BATCH_SECONDS = 8 * 3600.0
"""Of a round of questions by file: a third of the 24 hours within which providers promise it. Nobody measured it, and
p90 is three times as long: the promise."""
TOKENS_PER_SECOND, FIRST_TOKEN_SECONDS = 60.0, 1.0
"""Of one answer as it streams: judgement, since nobody measured it."""


@dataclass(frozen=True, kw_only=True)
class ApiPrice:
    """Price and limits of one endpoint, as its page prints them."""

    input_usd_per_million: float | None
    """None where no price is known; then only the time is."""
    output_usd_per_million: float | None
    cached_input_usd_per_million: float | None = None
    """Of prompt tokens the endpoint has seen before; the full price when left out."""
    batch_discount: float = 0.0
    """Share taken off when answers may take a day."""
    by_batch: bool = False
    """Questions go by file, and no limit per minute holds them."""
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    """Of prompts and answers together."""
    cached_share: float = 0.0
    """Of a prompt, that former requests left in the endpoint's cache: instructions and few-shot examples in front."""
    concurrency: float = 64.0
    """Requests in flight at once."""
    thinking_tokens: float = 0.0
    """Written before each answer, and charged like it."""

    @property
    def is_known(self) -> bool:
        """Return True if tokens have a price, were it zero."""
        return self.input_usd_per_million is not None and self.output_usd_per_million is not None

    def __post_init__(self) -> None:
        prices = (self.input_usd_per_million or 0.0, self.output_usd_per_million or 0.0)
        if min(prices) < 0 or not 0 <= self.batch_discount < 1:
            raise UsageError("an API price is not negative, and a batch discount is a share below 1")
        if not 0 <= self.cached_share <= 1:
            raise UsageError(f"the cached share of a prompt is between 0 and 1, not {self.cached_share:g}")


@dataclass(frozen=True, kw_only=True)
class ApiJudgement:
    """Time and money of a number of requests."""

    seconds: float
    usd: float | None
    """None without a price."""
    bound_by: str
    """`requests per minute`, `tokens per minute`, `concurrency` or `batch window`."""


def api_judgement(
    price: ApiPrice,
    *,
    requests: float,
    input_tokens: float,
    output_tokens: float,
) -> ApiJudgement:
    """Seconds and dollars of `requests` requests of `input_tokens` and `output_tokens` tokens each.

    Seconds: those of a batch, or the slowest of the three limits, `requests / rpm`, `tokens / tpm`, and `requests x
    answer time / concurrency`. The price's `cached_share` of the prompt is a prefix seen before.
    Retries after refused requests are not counted.

    >>> price = ApiPrice(input_usd_per_million=3.0, output_usd_per_million=15.0, requests_per_minute=1000)
    >>> found = api_judgement(price, requests=100_000, input_tokens=1000, output_tokens=10)
    >>> round(found.usd), round(found.seconds / 60), found.bound_by
    (315, 100, 'requests per minute')
    """
    usd = _usd(price, requests, input_tokens, output_tokens)
    if price.by_batch:
        return ApiJudgement(seconds=BATCH_SECONDS if requests else 0.0, usd=usd, bound_by="batch window")
    answer = FIRST_TOKEN_SECONDS + output_tokens / TOKENS_PER_SECOND
    limits = {
        "requests per minute": (requests, price.requests_per_minute),
        "tokens per minute": (requests * (input_tokens + output_tokens), price.tokens_per_minute),
    }
    times = {name: SECONDS_PER_MINUTE * amount / rate for name, (amount, rate) in limits.items() if rate}
    times["concurrency"] = answer * requests / min(price.concurrency, max(requests, 1.0))
    bound_by = max(times, key=lambda name: times[name])
    return ApiJudgement(seconds=times[bound_by], usd=usd, bound_by=bound_by)


def _usd(price: ApiPrice, requests: float, input_tokens: float, output_tokens: float) -> float | None:
    """Return `requests x (input tokens x their price + output tokens x theirs)`; None without a price."""
    fresh, written = price.input_usd_per_million, price.output_usd_per_million
    if fresh is None or written is None:
        return None
    share = price.cached_share
    cached = fresh if price.cached_input_usd_per_million is None else price.cached_input_usd_per_million
    per_input = share * cached + (1 - share) * fresh
    usd = requests * (input_tokens * per_input + output_tokens * written) / MILLION
    return usd * (1 - price.batch_discount)

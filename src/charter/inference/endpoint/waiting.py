"""Wait before the next try: as the server says, else capped exponential back-off with full jitter.

Source of full jitter: Brooker 2015, "Exponential Backoff and Jitter" (AWS Architecture Blog). The draw is
counter-based (`draws.draw_seed`), so that a rerun waits alike.
"""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from charter.artifacts.draws import draw_seed

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

"""From when a plan's catalog and prices are, and how old that makes them."""

from datetime import date, timedelta

from charter.catalog.price_book import STALE_DAYS, as_of_key
from charter.plan.plan import PREFIX, Plan


def dates_line(plan: Plan, today: date | None) -> list[str]:
    """`catalog 2026-11`, `prices 2026-08-20 (92 days old)`: the newest entry used, and the oldest price used."""
    parts = []
    entries = [stage.option.place.accelerator for stage in plan.stages if not stage.option.place.is_cpu]
    dates = [entry.provenance.as_of for entry in entries if as_of_key(entry.provenance.as_of)[0]]
    if dates:
        parts.append(f"catalog {short_date(max(dates, key=as_of_key))}")
    priced = [stage.option.price for stage in plan.stages if stage.option.price.usd_per_hour]
    dated = [price.as_of for price in priced if as_of_key(price.as_of)[0]]
    if dated:
        oldest = min(dated, key=as_of_key)
        parts.append(f"prices {short_date(oldest)}{age_note(oldest, today)}")
    return parts


def short_date(as_of: str) -> str:
    """The date in a text, as precise as it is there.

    >>> short_date("2026-08-20"), short_date("2026-11 (read)"), short_date("2026 (inferred)"), short_date("now")
    ('2026-08-20', '2026-11', '2026', 'now')
    """
    year, month, day = as_of_key(as_of)
    if not year:
        return as_of
    return f"{year}" + (f"-{month:02d}" if month else "") + (f"-{day:02d}" if month and day else "")


def age_days(as_of: str, today: date | None) -> int | None:
    """Days since then; None where the text names no day and no month, or `today` is not known.

    >>> age_days("2026-11-02", date(2026, 11, 20)), age_days("2026", date(2026, 11, 20))
    (18, None)
    """
    year, month, day = as_of_key(as_of)
    if today is None or not month:
        return None
    then = date(year, month, 1) + timedelta(days=max(day, 1) - 1)
    return max(0, (today - then).days)


def age_note(as_of: str, today: date | None) -> str:
    """` (18 days old)`; that the day is not known; nothing without `today`."""
    if today is None:
        return ""
    days = age_days(as_of, today)
    if days is None:
        return " (day not known)"
    return f" ({days} days old{', stale' if days > STALE_DAYS else ''})"


def is_stale(name: str, as_of: str, today: date | None) -> bool:
    """Return True if an assumption is a price and older than 60 days, or said to be; other figures do not age."""
    days = age_days(as_of, today)
    return name.startswith(PREFIX) or ("price" in name and days is not None and days > STALE_DAYS)

"""Words for amounts and differences of compared runs, in a terminal and on a page. Pure."""

from charter.report.results import figure_text
from charter.report.run_compare.figures import FigureRow
from charter.report.run_compare.money import Spent
from charter.report.run_compare.noise import Difference, Measured
from charter.units import format_seconds, format_usd

VERDICTS = {
    "higher": "higher, beyond noise",
    "lower": "lower, beyond noise",
    "within noise": "within noise",
    "no interval": "no interval",
}


def value_text(value: Measured | None, unit: str) -> str:
    """A figure with its interval.

    >>> value_text(Measured(value=0.577, low=0.509, high=0.643), "share")
    '57.7 % (50.9 to 64.3)'
    """
    if value is None:
        return "-"
    shown = figure_text(value.value, unit, with_unit=True)
    if value.low is None or value.high is None:
        return shown
    return f"{shown} ({figure_text(value.low, unit)} to {figure_text(value.high, unit)})"


def difference_text(found: Difference | None, unit: str) -> str:
    """A difference with its interval and sign; of shares in percentage points.

    >>> difference_text(Difference(value=0.02, low=-0.01, high=0.05), "share")
    '+2.0 points (-1.0 to +5.0)'
    """
    if found is None:
        return "-"
    unit_words = " points" if unit == "share" else f" {unit}" if unit else ""
    shown = _signed(found.value, unit) + unit_words
    if found.low is None or found.high is None:
        return shown
    return f"{shown} ({_signed(found.low, unit)} to {_signed(found.high, unit)})"


def verdict_text(row: FigureRow, index: int) -> str:
    """Return the verdict on whether a run differs from the first beyond noise, and what they do not share."""
    difference = row.differences[index]
    if difference is None:
        return ""
    words = VERDICTS[difference.verdict]
    return f"{words}, but measured with another {' and '.join(row.yardsticks)}" if row.yardsticks else words


def _signed(value: float, unit: str) -> str:
    text = figure_text(value, unit)
    return text if text.startswith("-") else f"+{text}"


def time_text(item: Spent) -> str:
    """The time, with the ratio to the first run."""
    return format_seconds(item.seconds) + _times(item.seconds_ratio)


def usd_text(item: Spent) -> str:
    """The cost, with the ratio to the first run."""
    return format_usd(item.usd) + _times(item.usd_ratio)


def waste_text(item: Spent) -> str:
    """Return the amount lost to kills and failed attempts in words; `nothing` where that is none."""
    if not item.lost_seconds:
        return "nothing"
    money = "" if item.lost_usd is None else f", {format_usd(item.lost_usd)}"
    share = "" if item.kept_share is None else f" ({1 - item.kept_share:.1%})"
    return f"{format_seconds(item.lost_seconds)}{money}{share}"


def planned_text(item: Spent) -> str:
    """Planned time and cost; a dash where there was no plan."""
    if item.planned_seconds is None:
        return "-"
    money = "" if item.planned_usd is None else f", {format_usd(item.planned_usd)}"
    return f"{format_seconds(item.planned_seconds)}{money}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None or round(ratio, 2) == 1.0 else f" ({ratio:.2f} x)"

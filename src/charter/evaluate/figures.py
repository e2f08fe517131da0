"""One measured figure with its interval, and how it is written."""

from collections.abc import Sequence
from dataclasses import dataclass

from charter.evaluate import intervals
from charter.evaluate.intervals import Interval

SHARE = "share"
DECIMALS = 6
"""Figures are rounded to six decimals, half to even, so that the last bits of a sum do not show."""


HEADLINES = frozenset(
    {
        "judge_agreement.judge",
        "judge_agreement.all_unseen",
        "judge_agreement.shorter_answer",
        "pm_accuracy.reward",
        "pm_accuracy.bag_of_words",
        "win_rate.reward_against",
        "win_rate.reward_policy",
        "win_rate.policy",
        "win_rate.kl_policy",
        "win_rate.control_own",
        "win_rate.kl_control",
        "independent_check.policy",
        "independent_check.control",
        "independent_check.difference",
    }
)
"""The figures that a summary shows; the report has them all."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A value with its 95 % interval, and what it was measured on."""

    key: str
    """`suite.what`."""
    label: str
    value: float
    low: float
    high: float
    n: int
    """Independent rows: pairs, prompts or texts."""
    unit: str
    method: str
    """How the interval was made."""
    note: str = ""

    @property
    def headline(self) -> bool:
        """Whether the figure belongs in a summary."""
        return self.key in HEADLINES or (
            self.key.startswith("pm_accuracy.also.") and not self.key.endswith(("_over_words", "_over_shorter"))
        )


def proportion(key: str, label: str, wins: Sequence[float], *, note: str = "") -> Figure:
    """The share of wins, a tie counting one half, with its standard error in the note."""
    n, total = len(wins), float(sum(wins))
    error = f"standard error {100 * intervals.standard_error(total, n):.1f} points"
    ties = sum(win == 0.5 for win in wins)
    parts = [error, f"{ties} ties counted as one half" if ties else "", note]
    return _figure(
        key, label, total / n, intervals.wilson(total, n), n, SHARE, "Wilson score", "; ".join(p for p in parts if p)
    )


def mean(key: str, label: str, values: Sequence[float], *, unit: str, note: str = "") -> Figure:
    """A mean over independent rows."""
    value = sum(values) / len(values)
    return _figure(key, label, value, intervals.of_mean(values), len(values), unit, "normal, s/sqrt(n)", note)


def ratio(
    key: str, label: str, numerators: Sequence[float], denominators: Sequence[float], *, unit: str, note: str = ""
) -> Figure:
    """A ratio of sums over independent rows."""
    value = sum(numerators) / sum(denominators)
    interval = intervals.of_ratio(numerators, denominators)
    return _figure(key, label, value, interval, len(numerators), unit, "linearised ratio", note)


def difference(
    key: str,
    label: str,
    first: Sequence[float],
    second: Sequence[float],
    *,
    seed: int,
    unit: str = SHARE,
    note: str = "",
) -> Figure:
    """The mean difference of two measures on the same rows."""
    values = [a - b for a, b in zip(first, second, strict=True)]
    interval = intervals.paired_bootstrap(values, seed=seed)
    method = f"paired bootstrap, {intervals.RESAMPLES} resamples"
    return _figure(key, label, sum(values) / len(values), interval, len(values), unit, method, note)


def _figure(
    key: str, label: str, value: float, interval: Interval, n: int, unit: str, method: str, note: str
) -> Figure:
    return Figure(
        key=key,
        label=label,
        value=_rounded(value),
        low=_rounded(interval.low),
        high=_rounded(interval.high),
        n=n,
        unit=unit,
        method=method,
        note=note,
    )


def _rounded(value: float) -> float:
    return round(value, DECIMALS) + 0.0  # no negative zero

"""One measured figure with its interval, and how it is written."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from charter.evaluate import statistics
from charter.evaluate.statistics import ConfidenceInterval, Floats

SHARE = "share"
PAIRED = "paired bootstrap"
"""How the interval of a difference is made."""
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
        "judge_win_rate.policy",
        "judge_win_rate.policy_length_controlled",
        "judge_win_rate.control",
        "pm_calibration.reward.ece",
        "multiple_choice.policy.letter",
        "multiple_choice.policy.answer",
        "refusal.policy.refused",
        "refusal.policy.over_refused",
        "probes.same_verdict",
        "goodhart.reward_slope",
        "goodhart.quality_slope",
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
    at: float | None = None
    """Where it belongs on the axis of a curve: a bin's mean confidence, a checkpoint's KL."""

    @property
    def is_difference(self) -> bool:
        """Return True for a difference of two shares on the same rows, which is in percentage points."""
        return self.unit == SHARE and self.method.startswith(PAIRED)

    @property
    def headline(self) -> bool:
        """Return True if the figure belongs in a summary."""
        return (
            self.key in HEADLINES
            or (self.key.startswith("pm_accuracy.also.") and not self.key.endswith(("_over_words", "_over_shorter")))
            or self.key.startswith("lm_eval.")
        )


def proportion(key: str, label: str, wins: Sequence[float], *, note: str = "", at: float | None = None) -> Figure:
    """The share of wins, a tie counting one half, with its standard error in the note."""
    n, total = len(wins), float(sum(wins))
    error = f"standard error {100 * statistics.standard_error(total, n):.1f} points"
    ties = sum(win == 0.5 for win in wins)
    parts = [error, f"{ties} tie{'' if ties == 1 else 's'} counted as one half" if ties else "", note]
    interval, remarks = statistics.wilson(total, n), "; ".join(part for part in parts if part)
    return figure_of(key, label, total / n, interval, n, SHARE, "Wilson score", remarks, at)


def mean(
    key: str, label: str, values: Sequence[float], *, unit: str, note: str = "", at: float | None = None
) -> Figure:
    """A mean over independent rows."""
    value, interval = sum(values) / len(values), statistics.of_mean(values)
    return figure_of(key, label, value, interval, len(values), unit, "normal, s/sqrt(n)", note, at)


def ratio(
    key: str, label: str, numerators: Sequence[float], denominators: Sequence[float], *, unit: str, note: str = ""
) -> Figure:
    """A ratio of sums over independent rows."""
    value = sum(numerators) / sum(denominators)
    interval = statistics.of_ratio(numerators, denominators)
    return figure_of(key, label, value, interval, len(numerators), unit, "linearised ratio", note)


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
    interval = statistics.paired_bootstrap(values, seed=seed)
    method = f"{PAIRED}, {statistics.RESAMPLES} resamples"
    return figure_of(key, label, sum(values) / len(values), interval, len(values), unit, method, note)


def resampled(
    key: str,
    label: str,
    statistic: Callable[[Floats], Floats],
    rows: Floats,
    *,
    seed: int,
    unit: str,
    note: str = "",
) -> list[Figure]:
    """A statistic of the column means of independent rows; nothing where it has no value on them."""
    result = statistics.bootstrapped(statistic, rows, seed=seed)
    if result is None:
        return []
    method = f"bootstrap over rows, {statistics.RESAMPLES} resamples"
    return [figure_of(key, label, *result, len(rows), unit, method, note)]


def figure_of(
    key: str,
    label: str,
    value: float,
    interval: ConfidenceInterval,
    n: int,
    unit: str,
    method: str,
    note: str = "",
    at: float | None = None,
) -> Figure:
    """A figure with its numbers rounded."""
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
        at=None if at is None else _rounded(at),
    )


def _rounded(value: float) -> float:
    return round(value, DECIMALS) + 0.0  # no negative zero

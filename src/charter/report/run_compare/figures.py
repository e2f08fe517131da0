"""Evaluations of several runs side by side, and whether they differ beyond noise. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from charter.report.measured_curves import is_point
from charter.report.results import all_results
from charter.report.run_compare.noise import Difference, Measured, difference
from charter.report.run_compare.read import Side

YARDSTICKS: Mapping[str, tuple[str, ...]] = {
    "perplexity": ("pairs",),
    "judge_agreement": ("pairs",),
    "pm_accuracy": ("pairs",),
    "pm_calibration": ("pairs",),
    "win_rate": ("against", "reward", "prompts"),
    "judge_win_rate": ("against", "judge", "prompts"),
    "independent_check": ("against", "prompts", "independent_pairs"),
    "multiple_choice": ("questions",),
    "exact_match": ("prompts",),
    "refusal": ("refusal_prompts", "benign_prompts", "judge"),
    "probes": ("probes",),
    "goodhart": ("against", "reward", "prompts", "judge", "independent_pairs"),
}
"""What a suite measures with and against: figures of two runs are of one measure where these are the same."""


@dataclass(frozen=True, kw_only=True)
class FigureRow:
    """One figure of every run; None where a run does not have it."""

    key: str
    labels: tuple[str, ...]
    """Of the runs that have it, each wording once."""
    unit: str
    values: tuple[Measured | None, ...]
    numbers: tuple[int | None, ...]
    """Independent rows behind each figure."""
    differences: tuple[Difference | None, ...]
    """Of each run to the first; None for the first, and where either has no figure."""
    yardsticks: tuple[str, ...]
    """Inputs of the evaluation that are not the same in all runs, of those that the figure is measured with."""
    headline: bool

    @property
    def suite(self) -> str:
        """The suite that measured it."""
        return self.key.partition(".")[0]


def figure_rows(sides: Sequence[Side]) -> tuple[FigureRow, ...]:
    """Every figure that a run has, in the order of the first run that has it; points of curves are left out."""
    by_side = [_figures(side) for side in sides]
    keys = dict.fromkeys(key for figures in by_side for key in figures)
    return tuple(_row(key, [figures.get(key) for figures in by_side], _unlike(key, sides)) for key in keys)


def _figures(side: Side) -> dict[str, Mapping[str, Any]]:
    """The figures of all evaluation stages by key; the first stage that has one counts."""
    by_name: dict[str, Mapping[str, Any]] = {}
    for _, results in all_results(side.run):
        for figure in results.get("figures", []):
            if figure.get("value") is not None and not is_point(figure):
                by_name.setdefault(str(figure.get("key") or figure.get("label") or ""), figure)
    return by_name


def _row(key: str, figures: Sequence[Mapping[str, Any] | None], yardsticks: tuple[str, ...]) -> FigureRow:
    values = tuple(_measured(figure) for figure in figures)
    first = values[0]
    there = [figure for figure in figures if figure is not None]
    return FigureRow(
        key=key,
        labels=tuple(dict.fromkeys(str(figure.get("label") or key) for figure in there)),
        unit=str(there[0].get("unit") or ""),
        values=values,
        numbers=tuple(None if figure is None else _number(figure.get("n")) for figure in figures),
        differences=tuple(
            None if index == 0 or value is None or first is None else difference(value, first)
            for index, value in enumerate(values)
        ),
        yardsticks=yardsticks,
        headline=any(bool(figure.get("headline")) for figure in there),
    )


def _measured(figure: Mapping[str, Any] | None) -> Measured | None:
    if figure is None:
        return None
    low, high = figure.get("low"), figure.get("high")
    return Measured(
        value=float(figure["value"]),
        low=None if low is None else float(low),
        high=None if high is None else float(high),
    )


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _unlike(key: str, sides: Sequence[Side]) -> tuple[str, ...]:
    """The inputs that a figure is measured with and that differ between the runs that have said theirs."""
    roles = YARDSTICKS.get(key.partition(".")[0], ())
    inputs = [evaluated for side in sides if (evaluated := _evaluation_inputs(side)) is not None]
    return tuple(role for role in roles if len({str(evaluated.get(role)) for evaluated in inputs}) > 1)


def _evaluation_inputs(side: Side) -> Mapping[str, Any] | None:
    """Fingerprints of what the run's first evaluation reads, by role."""
    for name, _ in all_results(side.run):
        identity = (side.run.stages[name].job or {}).get("identity")
        if isinstance(identity, Mapping) and isinstance(identity.get("inputs"), Mapping):
            inputs: Mapping[str, Any] = identity["inputs"]
            return inputs
    return None

"""A sweep's results: settings side by side, paired over seeds, with intervals that know how many were compared."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charter.errors import UsageError
from charter.evaluate.outcome import read_results
from charter.physics.terms import t_quantile, t_within
from charter.report.cost import titled_table
from charter.report.results import POINTS, figure_text, unit_of
from charter.run.graph import Pipeline
from charter.run.sweep import SweepPlan, find_sweep, pipelines, sweep_points
from charter.spec.project import Project
from charter.spec.sweep import Point, SweepMetric
from charter.units import format_seconds, format_usd

if TYPE_CHECKING:
    from rich.console import Console

LEVEL = 0.95
"""Of intervals, for all comparisons of a sweep together."""


@dataclass(frozen=True, kw_only=True)
class PointFigure:
    """The metric of one point; None with the reason where there is none."""

    point: Point
    value: float | None
    why: str = ""
    unit: str = ""
    is_difference: bool = False
    half_width: float | None = None
    """Of the evaluation's own 95 % interval; None where it has none."""


@dataclass(frozen=True, kw_only=True)
class SettingSummary:
    """One setting over its seeds, and against the first setting."""

    name: str
    values: tuple[float, ...]
    missing: tuple[str, ...]
    """Why points have no value; they are no zeros."""
    mean: float | None
    low: float | None
    high: float | None
    """Student's t over seeds; None with fewer than two, or where all are equal."""
    difference: float | None = None
    """Mean of the differences from the first setting, seed by seed."""
    difference_low: float | None = None
    difference_high: float | None = None
    pairs: int = 0
    p_value: float | None = None
    """Of no difference, two-sided, after Holm's correction for all comparisons; None where differences are equal."""


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """The table of a sweep."""

    name: str
    metric: SweepMetric
    unit: str
    settings: tuple[SettingSummary, ...]
    comparisons: int

    @property
    def smallest_difference(self) -> float | None:
        """Return the difference that so many seeds would show in half of all sweeps, by the spread that was seen.

        Half the width of a single comparison's interval, the mean over settings; None without two seeds.
        """
        widths = [
            max(setting.difference_high - setting.difference, setting.difference - setting.difference_low)
            for setting in self.settings
            if setting.difference is not None
            and setting.difference_low is not None
            and setting.difference_high is not None
        ]
        return sum(widths) / len(widths) if widths else None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "schema": "charter.sweep/1",
            "sweep": self.name,
            "metric": vars(self.metric),
            "unit": self.unit,
            "comparisons": self.comparisons,
            "level": LEVEL,
            "smallest_difference": self.smallest_difference,
            "settings": [vars(setting) | {"values": list(setting.values)} for setting in self.settings],
        }


def read_sweep(path: Path, project: Project, root: Path, name: str) -> SweepResult:
    """Return the results of a sweep as far as its points are; `path` is the directory or file of the project.

    UsageError where there is no such sweep, or where it says no metric.
    """
    metric = find_sweep(project, name).metric
    if metric is None:
        raise UsageError(
            f"sweep {name!r} says no metric\n  for example  metric: {{stage: eval, figure: exact_match.policy}}"
        )
    points = tuple(pipelines(sweep_points(path, project, name), root))
    return sweep_result(name, metric, measured_points(points, metric))


def measured_points(points: Sequence[tuple[Point, Pipeline]], metric: SweepMetric) -> list[PointFigure]:
    """Return the metric of every point, read from its evaluation's outputs."""
    return [_measured(point, pipeline.stages[metric.stage].directory, metric) for point, pipeline in points]


def _measured(point: Point, directory: Path, metric: SweepMetric) -> PointFigure:
    results = read_results(directory)
    if results is None:
        return PointFigure(point=point, value=None, why=f"{metric.stage} is not finished")
    figures = {str(figure.get("key")): figure for figure in results["figures"] if isinstance(figure, Mapping)}
    figure = figures.get(metric.figure, {})
    value = figure.get("value")
    if not isinstance(value, int | float):
        return PointFigure(
            point=point,
            value=None,
            why=f"{metric.stage} has no figure {metric.figure}; it has {', '.join(_alike(metric.figure, figures))}",
        )
    low, high = figure.get("low"), figure.get("high")
    return PointFigure(
        point=point,
        value=float(value),
        unit=str(figure.get("unit") or ""),
        is_difference=unit_of(figure) == POINTS,
        half_width=(high - low) / 2 if isinstance(low, int | float) and isinstance(high, int | float) else None,
    )


def _alike(key: str, keys: Iterable[str]) -> list[str]:
    """Return the keys of the same suite; where there is none, the suites.

    >>> _alike("win_rate", ["loss.policy", "win_rate.policy", "win_rate.control"])
    ['win_rate.policy', 'win_rate.control']
    >>> _alike("accuracy", ["loss.policy", "win_rate.policy", "win_rate.control"])
    ['loss.*', 'win_rate.*']
    """
    suite = key.partition(".")[0]
    return [item for item in keys if item.partition(".")[0] == suite] or list(
        dict.fromkeys(f"{item.partition('.')[0]}.*" for item in keys)
    )


def sweep_result(name: str, metric: SweepMetric, measured: Sequence[PointFigure]) -> SweepResult:
    """Return settings in their order, each compared with the first over the seeds that both have."""
    by_setting: dict[str, dict[int, PointFigure]] = {}
    for item in measured:
        by_setting.setdefault(item.point.setting, {})[item.point.repetition] = item
    names = list(by_setting)
    values = {
        setting: {seed: item.value for seed, item in by_setting[setting].items() if item.value is not None}
        for setting in names
    }
    first = values[names[0]] if names else {}
    paired = {
        setting: [values[setting][seed] - first[seed] for seed in sorted(values[setting].keys() & first.keys())]
        for setting in names[1:]
    }
    corrected = holm(
        {setting: _p_value(differences) for setting, differences in paired.items() if _have_spread(differences)}
    )
    comparisons = len(corrected)
    read = next((item for item in measured if item.value is not None), None)
    bounds = (-math.inf, math.inf) if read is None else _bounds(read)
    settings = []
    for setting in names:
        own = tuple(values[setting].values())
        mean, low, high = _cut(_by_spread(own, LEVEL), *bounds)
        # Bonferroni's level for intervals: together they hold with LEVEL, however many settings the sweep has.
        level = 1 - (1 - LEVEL) / max(1, comparisons)
        span = bounds[1] - bounds[0]
        difference = _cut(_by_spread(paired.get(setting, ()), level), -span, span)
        missing = dict.fromkeys(item.why for item in by_setting[setting].values() if item.value is None)
        settings.append(
            SettingSummary(
                name=setting,
                values=own,
                missing=tuple(missing),
                mean=mean,
                low=low,
                high=high,
                difference=difference[0],
                difference_low=difference[1],
                difference_high=difference[2],
                pairs=len(paired.get(setting, ())),
                p_value=corrected.get(setting),
            )
        )
    unit = "" if read is None else read.unit
    return SweepResult(name=name, metric=metric, unit=unit, settings=tuple(settings), comparisons=comparisons)


def _bounds(figure: PointFigure) -> tuple[float, float]:
    """Return the least and the greatest value that a figure can have."""
    if figure.unit != "share":
        return -math.inf, math.inf
    return (-1.0 if figure.is_difference else 0.0), 1.0


Ends = tuple[float | None, float | None, float | None]


def _cut(ends: Ends, least: float, greatest: float) -> Ends:
    """Return mean, low and high without what no value can be: an interval keeps its level when only that is cut off."""
    mean, low, high = ends
    return mean, None if low is None else max(low, least), None if high is None else min(high, greatest)


def interval(values: Sequence[float], level: float) -> Ends:
    """Return mean, low and high of Student's interval; no ends with fewer than two values.

    `mean +- t(level, n - 1) * s / sqrt(n)`, for values that are independent and about normal.

    >>> [round(end, 3) for end in interval([1.0, 2.0, 3.0], 0.95)]
    [2.0, -0.484, 4.484]
    >>> interval([1.0], 0.95)
    (1.0, None, None)
    """
    if not values:
        return None, None, None
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None, None
    half = t_quantile(level, len(values) - 1) * _standard_error(values)
    return mean, mean - half, mean + half


def _have_spread(values: Sequence[float]) -> bool:
    """Return True if values say how far chance moves them: two or more, and not equal but for rounding."""
    return len(values) > 1 and not math.isclose(min(values), max(values), rel_tol=1e-9, abs_tol=1e-12)


def _by_spread(values: Sequence[float], level: float) -> Ends:
    """Return Student's interval; the mean alone where equal values would make it a point that claims to be sure."""
    mean, low, high = interval(values, level)
    return (mean, low, high) if _have_spread(values) else (mean, None, None)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values that hold for all of them together (Holm 1979).

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'c': 0.06, 'b': 0.06}
    """
    corrected, most = dict[str, float](), 0.0
    for rank, (name, value) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        most = max(most, min(1.0, value * (len(p_values) - rank)))
        corrected[name] = most
    return corrected


def _p_value(differences: Sequence[float]) -> float:
    mean = math.fsum(differences) / len(differences)
    return 1 - t_within(abs(mean) / _standard_error(differences), len(differences) - 1)


def _standard_error(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


def print_sweep_plan(bill: SweepPlan, console: "Console") -> None:
    """Print the bill of a sweep: a line per stage, with how many versions of it there are and who reads them."""
    table = titled_table("", "Stage", right=("Versions", "Points", "Done", "Time p50-p90", "Cost p50-p90"))
    for stage in dict.fromkeys(item.stage for item in bill.stages):
        own = replace(bill, stages=tuple(item for item in bill.stages if item.stage == stage))
        counts = (len(own.stages), sum(item.points for item in own.stages), sum(item.is_done for item in own.stages))
        table.add_row(stage, *map(str, counts), *_spans(own.total("seconds"), own.total("usd")))
    console.print(table)
    seconds, usd = _spans(bill.total("seconds", left=True), bill.total("usd", left=True))
    budget = "no budget is set" if bill.budget_usd is None else f"the budget is {format_usd(bill.budget_usd)}"
    console.print(
        f"{len(bill.points)} points, {len(bill.stages)} stages, of which {bill.shared} serve several points. "
        f"Left: {seconds}, points one after the other, {usd}; {budget}.",
        markup=False, highlight=False,
    )  # fmt: skip
    if len(bill.points) > 1 and not bill.shared:
        words = "Nothing is shared: a field or a seed reaches the first stage; `seeded` says which stages vary."
        console.print(words, markup=False, highlight=False)
    for label, why in bill.refused.items():
        console.print(f"cannot be planned: {label}: {why}", markup=False, highlight=False)


def _spans(seconds: Mapping[str, float], usd: Mapping[str, float]) -> tuple[str, str]:
    return (
        f"{format_seconds(seconds['p50'])} to {format_seconds(seconds['p90'])}" if seconds else "no time planned",
        f"{format_usd(usd['p50'])} to {format_usd(usd['p90'])}" if usd else "unpriced",
    )


@dataclass(frozen=True, kw_only=True)
class SweepTable:
    """A result as people read it, in a terminal and on a page."""

    title: str
    rows: tuple[tuple[str, ...], ...]
    """A cell for each of `headings`."""
    seeds: tuple[str, ...]
    """Values of a setting's seeds, by row."""
    missing: tuple[str, ...]
    words: str
    headings: tuple[str, ...]


HEADINGS = ("Setting", "Seeds", "Mean", "95 % interval", "Minus the first", "Joint interval", "p (Holm)")


def sweep_table(result: SweepResult) -> SweepTable:
    """Return the table of a result, and what it does and does not show."""

    def text(value: float | None) -> str:
        return "" if value is None else figure_text(value, result.unit)

    def ends(low: float | None, high: float | None) -> str:
        return "" if low is None or high is None else f"{text(low)} to {text(high)}"

    metric, unit = result.metric, {"": "", "share": " (%)"}.get(result.unit, f" ({result.unit})")
    return SweepTable(
        title=f"Sweep {result.name}: {metric.figure} of {metric.stage}{unit}, to {metric.goal}",
        rows=tuple(
            (
                setting.name, str(len(setting.values)), text(setting.mean), ends(setting.low, setting.high),
                text(setting.difference), ends(setting.difference_low, setting.difference_high),
                _p_text(setting.p_value),
            )
            for setting in result.settings
        ),
        seeds=tuple(", ".join(map(text, setting.values)) for setting in result.settings),
        missing=_missing(result.settings),
        words=words_of(result),
        headings=HEADINGS,
    )  # fmt: skip


def _p_text(value: float | None) -> str:
    """Return a p-value as people read it.

    >>> _p_text(None), _p_text(0.0421), _p_text(1e-9)
    ('', '0.042', '< 0.001')
    """
    if value is None:
        return ""
    return "< 0.001" if value < 0.0005 else f"{value:.3f}"


def _missing(settings: Sequence[SettingSummary]) -> tuple[str, ...]:
    """Say why points have no value, each reason once."""
    by_why: dict[str, list[str]] = {}
    for setting in settings:
        for why in setting.missing:
            by_why.setdefault(why, []).append(setting.name)
    return tuple(f"No value at a point of {' and of '.join(names)}: {why}." for why, names in by_why.items())


def print_sweep(result: SweepResult, console: "Console") -> None:
    """Print the table of a result."""
    shown = sweep_table(result)
    table = titled_table(shown.title, shown.headings[0], right=shown.headings[1:])
    for row in shown.rows:
        table.add_row(*row)
    console.print(table)
    for line in (*shown.missing, shown.words):
        console.print(line, markup=False, highlight=False)


def words_of(result: SweepResult) -> str:
    """Say what the table shows: which settings differ, out of how many comparisons."""
    first = result.settings[0].name if result.settings else ""
    equal = [setting.name for setting in result.settings if setting.pairs > 1 and setting.p_value is None]
    without = (
        f"No interval and no p for {', '.join(equal)}: the difference is the same at every seed, so nothing shows how "
        "far chance moves it. Do the seeds reach a stage that the figure depends on (`seeded`)?"
    )
    if not result.comparisons:
        alone = "No setting can be compared: that needs two seeds that both settings have."
        return without if equal else alone
    better = [
        setting.name
        for setting in result.settings
        if setting.difference_low is not None
        and setting.difference_high is not None
        and (setting.difference_low > 0 if result.metric.goal == "maximise" else setting.difference_high < 0)
    ]
    said = (
        f"Better than {first!r}: {', '.join(better)}" if better else f"No setting is shown to be better than {first!r}"
    )
    many = "comparison" if result.comparisons == 1 else "comparisons"
    joint = (
        f"{said}. {result.comparisons} {many}, paired by seed; at a level of 95 %, all joint intervals hold at once."
    )
    return f"{joint} {without}" if equal else joint

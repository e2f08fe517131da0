"""A project's pilot: what finished runs of several sizes say of more labels, a larger judge or another method.

A pilot is a sweep with a metric. Of a field with a size (pairs, steps, a model's parameters) a learning curve goes
through the runs; of a method its runs are compared directly. What no run says anything of is named, and has no figure.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from charter.engines.project import load_project
from charter.errors import DataError, UsageError
from charter.physics.scaling.fit import FEWEST_SIZES
from charter.physics.scaling.study import Z95, CurveRun, LearningCurve, Scale, learning_curve
from charter.physics.shapes import count_parameters
from charter.physics.terms import MOST_FREEDOM, t_quantile
from charter.plan.project_plan import read_model
from charter.report.cost import titled_table
from charter.report.results import POINTS, figure_text
from charter.report.sweep import LEVEL, PointFigure, interval, measured_points
from charter.run.sweep import SweepPoint, pipelines, plan_sweep, sweep_points
from charter.spec.project import Project
from charter.spec.stage_base import MODEL
from charter.spec.sweep import Point, Sweep, SweepMetric, Value
from charter.units import format_count, format_seconds, format_usd

if TYPE_CHECKING:
    from rich.console import Console

What = Literal["labels", "judge", "method", "model", "training"]
INSTEAD: Mapping[What, str] = {
    "labels": "three numbers of pairs, like {pipeline.label.pairs: [500, 1000, 2000]}",
    "judge": "three judges, like {pipeline.label.judge: [small, middle, large]}",
    "method": "stages that make the policy, like {pipeline.eval.policy: [dpo, ppo]}, with two seeds",
}
"""The sweep that would be a pilot of a choice, where the file has none; other choices are ranked where it has one."""
AMOUNTS: Mapping[str, What] = {
    "pairs": "labels",
    "num_prompts": "training",
    "episodes": "training",
    "steps": "training",
    "epochs": "training",
}
"""Fields of stages that say how much; of `pairs` a judge labels each."""
METHOD_FIELDS = frozenset({"adapter", "estimator"})


@dataclass(frozen=True, kw_only=True)
class PilotChoice:
    """One thing to buy, with what it brings and what is left to pay for it."""

    what: What
    field: str
    old: str
    new: str
    gain: float | None
    low: float | None
    high: float | None
    basis: str
    """The runs behind the gain, or why there is none."""
    usd: float | None = None
    """Of the stages that are not computed yet, at p50; None where the plan has no price."""
    seconds: float | None = None
    verdict: str = "fits"

    def is_shown(self, goal: str) -> bool:
        """Return True if the interval lies on the better side of no change."""
        if self.low is None or self.high is None:
            return False
        return self.low > 0 if goal == "maximise" else self.high < 0


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Choices by one figure: those that fit first, then by expected gain."""

    metric: SweepMetric
    unit: str
    choices: tuple[PilotChoice, ...]

    @property
    def fitting(self) -> tuple[PilotChoice, ...]:
        """Return the choices that budget and deadline allow and that have a gain with an interval."""
        return tuple(item for item in self.choices if item.verdict == "fits" and item.low is not None)


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """Rankings by figure, and what the pilot says nothing of."""

    rankings: tuple[Ranking, ...]
    silent: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "schema": "charter.pilot/1",
            "level": LEVEL,
            "rankings": [
                {
                    "metric": vars(ranking.metric),
                    "unit": ranking.unit,
                    "choices": [vars(item) | {"shown": item.is_shown(ranking.metric.goal)} for item in ranking.choices],
                }
                for ranking in self.rankings
            ],
            "no_pilot": list(self.silent),
        }


@dataclass(frozen=True, kw_only=True)
class _Series:
    """Runs that differ in one field and their seed."""

    sweep: str
    field: str
    what: What
    metric: SweepMetric
    old: Value
    runs: tuple[PointFigure, ...]
    sizes: Mapping[Value, float]
    """Of every value, whether it was run or not; empty of a method."""

    @property
    def measured(self) -> tuple[PointFigure, ...]:
        """Return the runs that have a figure."""
        return tuple(run for run in self.runs if run.value is not None)

    def value_of(self, run: PointFigure) -> Value:
        """Return a run's value of the field."""
        return run.point.values[self.field]

    def by_seed(self, value: Value) -> dict[int, PointFigure]:
        """Return the runs of a value by their repetition."""
        return {run.point.repetition: run for run in self.measured if self.value_of(run) == value}


@dataclass(frozen=True, kw_only=True)
class PilotQuestion:
    """A project as it stands, and what may be spent on it."""

    path: Path
    project: Project
    root: Path
    overrides: Sequence[str] = ()
    budget_usd: float | None = None
    deadline_seconds: float | None = None
    env: Mapping[str, str]
    """What `${NAME}` in the file stands for."""

    def cost(self, field: str, value: Value) -> tuple[float | None, float | None, str]:
        """Return p50 of what is left to pay and to wait for with a value, and whether that is allowed."""
        overrides = [*self.overrides, f"{field}={value}"]
        project = load_project(self.path, overrides=overrides, env=self.env)
        point = Point(values={field: value}, repetition=0, overrides=tuple(overrides))
        bill = plan_sweep([SweepPoint(sweep="", point=point, project=project)], self.root)
        if bill.refused:
            return None, None, next(iter(bill.refused.values()))
        usd, seconds = (bill.total(what, left=True).get("p50") for what in ("usd", "seconds"))
        if self.budget_usd is not None and (usd is None or usd > self.budget_usd):
            return usd, seconds, "no price" if usd is None else "over budget"
        is_late = self.deadline_seconds is not None and (seconds or 0.0) > self.deadline_seconds
        return usd, seconds, "late" if is_late else "fits"


def read_pilot(question: PilotQuestion) -> Pilot:
    """Return what the sweeps of a project say of what could be bought next.

    UsageError where no sweep has a metric: there is no pilot then.
    """
    sweeps = {name: sweep for name, sweep in question.project.sweeps.items() if sweep.metric is not None}
    if not sweeps:
        raise UsageError(
            "there is no pilot: no sweep of charter.yaml has a metric\n  for example  sweeps: {labels: {over: "
            "{pipeline.label.pairs: [500, 1000, 2000]}, metric: {stage: eval, figure: judge_win_rate.policy}}}"
        )
    series, silent = [], list[str]()
    varied = set[What | None]()
    for name, sweep in sweeps.items():
        varied |= {_what(question.project, field, sweep.metric.stage) for field in sweep.over if sweep.metric}
        for item in _series(question, name, sweep):
            if isinstance(item, str):
                silent.append(item)
            else:
                series.append(item)
    for what, instead in INSTEAD.items():
        if what not in varied and _is_chosen(question.project, what):
            silent.append(f"no pilot of {what}: no sweep with a metric varies it; it needs {instead}")
    by_metric: dict[tuple[str, str], list[_Series]] = {}
    for item in series:
        by_metric.setdefault((item.metric.stage, item.metric.figure), []).append(item)
    rankings = [_ranking(question, items, silent) for items in by_metric.values()]
    return Pilot(rankings=tuple(item for item in rankings if item.choices), silent=tuple(dict.fromkeys(silent)))


def _is_chosen(project: Project, what: What) -> bool:
    """Return True if a project has something of this sort to choose at all."""
    role = {"labels": "candidates", "judge": "judge"}.get(what)
    return role is None or any(role in stage.REFERENCES for stage in project.pipeline.values())


# -------- Series: the runs of a sweep that differ in one field.


def _series(question: PilotQuestion, name: str, sweep: Sweep) -> Iterator[_Series | str]:
    """Yield the series of a sweep; in words what cannot be bought, or has too few runs."""
    assert sweep.metric is not None
    project = question.project
    points = sweep_points(question.path, project, name, question.overrides, question.env)
    projects = {item.point.overrides: item.project for item in points}
    figures = measured_points(tuple(pipelines(points, question.root)), sweep.metric)
    for field, values in sweep.over.items():
        what = _what(project, field, sweep.metric.stage)
        if what is None:
            yield f"sweep {name}: {field} is a setting, not bought; `charter report --sweep {name}` compares its values"
            continue
        others = {other: _base(project, other, own) for other, own in sweep.over.items() if other != field}
        runs = tuple(run for run in figures if all(run.point.values[key] == own for key, own in others.items()))
        sizes = {}
        for run in runs:
            value = run.point.values[field]
            if what != "method" and value not in sizes:
                sizes[value] = _size(what, field, value, projects[run.point.overrides], question.root)
        item = _Series(
            sweep=name, field=field, what=what, metric=sweep.metric, old=_standing(project, field, values), runs=runs,
            sizes=sizes,
        )  # fmt: skip
        if (few := _too_few(item)) is not None:
            yield few
        else:
            yield item


def _too_few(series: _Series) -> str | None:
    """Return why a series is no pilot, None where it is one."""
    finished = {series.value_of(run) for run in series.measured}
    whys = dict.fromkeys(run.why for run in series.runs if run.value is None)
    unfinished = f" ({'; '.join(whys)})" if whys else ""
    start = f"no pilot of {series.what} in sweep {series.sweep}"
    if series.what == "method":
        others = finished - {series.old}
        few = series.old not in finished or not others
        return f"{start}: {series.field} {series.old} and another are to be compared{unfinished}" if few else None
    sizes = {series.sizes[value] for value in finished}
    if len(sizes) >= FEWEST_SIZES:
        return None
    return f"{start}: {len(sizes)} of {FEWEST_SIZES} sizes of {series.field} have a figure{unfinished}"


def _what(project: Project, field: str, measured: str) -> What | None:
    """Return what is bought with more of a field; None of a setting that costs nothing by itself.

    `measured` is the evaluation by which is compared: its policy is the method, and its judge is no choice.
    """
    section, name, own, *_ = (*field.split("."), "", "")
    if section == "models" and own in ("model", "architecture"):
        return "judge" if name in _judges(project, measured) else "model"
    if section == "data" and own == "limit":
        readers = {stage.kind for stage in project.pipeline.values() if name in _names(stage)}
        return "labels" if readers & {"label", "preference_model", "dpo"} else "training"
    stage = project.pipeline.get(name) if section == "pipeline" else None
    if stage is None:
        return None
    if own in METHOD_FIELDS or (name, own) == (measured, "policy"):
        return "method"
    if stage.REFERENCES.get(own) == MODEL:
        return None if name == measured else "judge" if own == "judge" else "model"
    return AMOUNTS.get(own)


def _judges(project: Project, measured: str) -> set[str]:
    """Return the models that judge: named by a stage as its judge, or what a judge is trained from."""
    judges = (getattr(stage, "judge", None) for name, stage in project.pipeline.items() if name != measured)
    names = {str(judge) for judge in judges if judge is not None}
    return names | {str(getattr(project.pipeline[name], "init", "")) for name in names & project.pipeline.keys()}


def _names(stage: Any) -> set[str]:
    values = (getattr(stage, role, None) for role in stage.REFERENCES)
    return {name for value in values for name in ((value,) if isinstance(value, str) else value or ())}


def _standing(project: Project, field: str, values: Sequence[Value]) -> Value:
    """Return a field's value in the file where it is one of a sweep's kind, else the sweep's first."""
    standing: Any = project
    for part in field.split("."):
        standing = standing.get(part) if isinstance(standing, Mapping) else getattr(standing, part, None)
    if standing is None or is_dataclass(standing) or not isinstance(standing, bool | int | float | str):
        return values[0]
    return standing


def _base(project: Project, field: str, values: Sequence[Value]) -> Value:
    """Return the value of a sweep that stands for a field while another one is looked at."""
    standing = _standing(project, field, values)
    return standing if standing in values else values[0]


def _size(what: What, field: str, value: Value, project: Project, root: Path) -> float:
    """Return the size of a value: a number as it is, a model by its parameters."""
    if what in ("judge", "model"):
        parts = field.split(".")
        return _parameters(parts[1] if parts[0] == "models" else str(value), project, root)
    if isinstance(value, bool | str):
        raise UsageError(f"sweep over {field}: {value!r} is no amount; write a number")
    return float(value)


def _parameters(name: str, project: Project, root: Path) -> float:
    """Return the parameters of a model, or of the model that a stage trains."""
    seen = set[str]()
    while name in project.pipeline and name not in seen:
        seen.add(name)
        stage = project.pipeline[name]
        name = str(getattr(stage, "init", None) or getattr(stage, "policy", ""))
    if name not in project.models:
        raise UsageError(f"{name!r} is no model whose size is known, so it is no point of a learning curve")
    shape = read_model(name, project, root).architecture
    if shape is None:
        raise UsageError(f"model {name!r} is only reached by address: its size is not known, so it is on no curve")
    return float(count_parameters(shape).total)


# -------- Choices: what a series says of values that could be bought.


def _ranking(question: PilotQuestion, series: Sequence[_Series], silent: list[str]) -> Ranking:
    metric = series[0].metric
    first = next(run for item in series for run in item.measured)
    pending = [choice for item in series for choice in _choices(question, item, silent)]
    # Bonferroni's level, as in a sweep's report: the intervals of all choices hold together.
    level = 1 - (1 - LEVEL) / max(1, len(pending))
    choices = [choice.at(level) for choice in pending]
    sign = 1 if metric.goal == "maximise" else -1

    def order(choice: PilotChoice) -> tuple[bool, bool, float]:
        return choice.verdict != "fits", choice.low is None, -sign * (choice.gain or 0.0)

    unit = POINTS if first.unit == "share" else first.unit
    return Ranking(metric=metric, unit=unit, choices=tuple(sorted(choices, key=order)))


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A choice whose interval waits for the number of choices."""

    choice: PilotChoice
    curve: LearningCurve | None = None
    sizes: tuple[float, float] = (1.0, 1.0)
    differences: tuple[float, ...] = ()
    sampling_error: float = 0.0
    """Standard error of the mean difference by the figures' own intervals."""

    def at(self, level: float) -> PilotChoice:
        """Return the choice with its gain, and the interval of a level."""
        if self.curve is not None:
            gain, low, high = self.curve.gain(*self.sizes, level=level)
            return replace(self.choice, gain=gain, low=low, high=high)
        mean, start, end = interval(self.differences, level)
        if mean is None or start is None or end is None:
            return replace(self.choice, gain=mean)
        # Two seeds may agree by chance: no interval is narrower than the sample of the evaluations allows.
        half = max((end - start) / 2, t_quantile(level, MOST_FREEDOM) * self.sampling_error)
        return replace(self.choice, gain=mean, low=mean - half, high=mean + half)


def _choices(question: PilotQuestion, series: _Series, silent: list[str]) -> Iterator[_Pending]:
    if series.what == "method":
        yield from _methods(question, series, silent)
        return
    try:
        curve = learning_curve(
            [
                CurveRun(size=series.sizes[series.value_of(run)], value=run.value, half_width=run.half_width)
                for run in series.measured
                if run.value is not None
            ],
            _scale(series),
        )
    except DataError as error:
        silent.append(f"no pilot of {series.what} in sweep {series.sweep}: {error}")
        return
    if series.what in ("judge", "model"):
        yield from _models(question, series, curve, silent)
    else:
        yield from _amounts(question, series, curve)


def _scale(series: _Series) -> Scale:
    """Return the scale on which a figure is a line: odds of a share, logarithm of a loss."""
    runs = series.measured
    values = [run.value for run in runs if run.value is not None]
    if any(run.is_difference for run in runs) or min(values) <= 0:
        return "plain"
    if all(run.unit == "share" for run in runs) and max(values) < 1:
        return "odds"
    return "logarithm" if series.metric.goal == "minimise" else "plain"


def _amounts(question: PilotQuestion, series: _Series, curve: LearningCurve) -> Iterator[_Pending]:
    """Yield the largest amount that budget, deadline and the curve's reach allow, or the least that is too much."""
    old, reach = float(series.old), _most(question, series.field, curve.reach)
    amounts = {size for size in series.sizes.values() if old < size <= reach}
    double = curve.sizes[-1]
    while (double := 2 * double) <= reach:
        amounts.add(double)
    ladder = sorted(amounts)
    low, high, best = 0, len(ladder), None
    while low < high:  # more costs more: the largest that fits is found by halving
        middle = (low + high) // 2
        usd, seconds, verdict = question.cost(series.field, _plain(ladder[middle]))
        choice = _choice(series, _number(old), _number(ladder[middle]), _basis(series, curve, ladder[middle]))
        choice = replace(choice, usd=usd, seconds=seconds, verdict=verdict)
        if verdict == "fits" or best is None or best.choice.verdict != "fits":
            best = _Pending(choice=choice, curve=curve, sizes=(old, ladder[middle]))
        low, high = (middle + 1, high) if verdict == "fits" else (low, middle)
    if best is not None:
        yield best


def _plain(amount: float) -> int | float:
    return int(amount) if amount.is_integer() else amount


def _most(question: PilotQuestion, field: str, reach: float) -> float:
    """Return how far an amount may go: a data set has no more rows than its file."""
    section, name, *_ = field.split(".")
    if section != "data":
        return reach
    from charter.data.dataset import data_facts

    spec = question.project.data[name]
    return min(reach, float(data_facts(question.root / spec.path, replace(spec, limit=None)).rows))


def _models(question: PilotQuestion, series: _Series, curve: LearningCurve, silent: list[str]) -> Iterator[_Pending]:
    old = series.sizes.get(series.old)
    if old is None:
        silent.append(f"no pilot of {series.what}: {series.old}, which the file has, is no value of {series.sweep}")
        return
    for value, size in series.sizes.items():
        if size == old:
            continue
        if size > curve.reach:
            most = format_count(curve.reach)
            silent.append(f"no pilot of {series.what} {value}: the sizes that were run reach to {most} parameters")
            continue
        usd, seconds, verdict = question.cost(series.field, value)
        choice = _choice(series, str(series.old), str(value), _basis(series, curve, size))
        choice = replace(choice, usd=usd, seconds=seconds, verdict=verdict)
        yield _Pending(choice=choice, curve=curve, sizes=(old, size))


def _methods(question: PilotQuestion, series: _Series, silent: list[str]) -> Iterator[_Pending]:
    """Yield the other methods that were run, by their differences from the file's, seed by seed."""
    before = series.by_seed(series.old)
    for value in dict.fromkeys(series.value_of(run) for run in series.runs):
        if value == series.old:
            continue
        own = series.by_seed(value)
        common = sorted(before.keys() & own.keys())
        if not common:
            silent.append(f"no pilot of method {value}: it has no figure")
            continue
        basis = f"measured, {len(common)} seeds" if len(common) > 1 else "measured with one seed: no interval"
        usd, seconds, verdict = question.cost(series.field, value)
        choice = _choice(series, str(series.old), str(value), basis)
        choice = replace(choice, usd=usd, seconds=seconds, verdict=verdict)
        pairs = [(before[seed], own[seed]) for seed in common]
        widths = math.hypot(*(run.half_width or 0.0 for pair in pairs for run in pair))
        yield _Pending(
            choice=choice,
            differences=tuple((new.value or 0.0) - (old.value or 0.0) for old, new in pairs),
            sampling_error=widths / Z95 / len(pairs),
        )


def _choice(series: _Series, old: str, new: str, basis: str) -> PilotChoice:
    return PilotChoice(
        what=series.what, field=series.field, old=old, new=new, gain=None, low=None, high=None, basis=basis
    )


def _basis(series: _Series, curve: LearningCurve, size: float) -> str:
    beyond = size / curve.sizes[-1]
    far = f", {beyond:.3g} times the largest" if beyond > 1 else ""
    return f"curve, {len(curve.runs)} runs of {len(curve.sizes)} sizes{far}"


def _number(value: float) -> str:
    return f"{int(value):,}" if value.is_integer() else f"{value:g}"


def print_pilot(pilot: Pilot, console: "Console") -> None:
    """Print the rankings, what they do and do not show, and what has no pilot."""
    for ranking in pilot.rankings:
        metric = ranking.metric
        table = titled_table(f"Expected gain in {metric.figure} of {metric.stage}, to {metric.goal}")
        unit = f" ({ranking.unit})" if ranking.unit else ""
        for heading in ("What", "Choice", f"Gain{unit}", "Interval", "Left to pay", "Time", "Verdict", "By"):
            table.add_column(heading, justify="right" if heading[:4] in ("Gain", "Left", "Time") else "left")
        for item in ranking.choices:
            ends = (
                "none" if item.low is None or item.high is None
                else f"{_gain(item.low, ranking.unit)} to {_gain(item.high, ranking.unit)}"
            )  # fmt: skip
            table.add_row(
                item.what, f"{item.field.rpartition('.')[2]} {item.old} to {item.new}",
                "" if item.gain is None else _gain(item.gain, ranking.unit), ends,
                "unpriced" if item.usd is None else format_usd(item.usd),
                "" if item.seconds is None else format_seconds(item.seconds), item.verdict, item.basis,
            )  # fmt: skip
        console.print(table)
        console.print(_words(ranking), markup=False, highlight=False)
    for line in pilot.silent:
        console.print(f"{line[0].upper()}{line[1:]}.", markup=False, highlight=False)


def _gain(value: float, unit: str) -> str:
    text = figure_text(value, unit)
    return text if unit == POINTS or value < 0 else f"+{text}"


def _words(ranking: Ranking) -> str:
    """Say what to buy, and how sure that is."""
    fitting = [item for item in ranking.fitting if math.isfinite(item.gain or 0.0)]
    if not fitting:
        return "Nothing that fits has a gain with an interval."
    best = fitting[0]
    unit = f" {ranking.unit}" if ranking.unit else ""
    words = f"First: {best.field}={best.new.replace(',', '')}, {_gain(best.gain or 0.0, ranking.unit)}{unit}"
    if not best.is_shown(ranking.metric.goal):
        words += "; not shown, its interval holds no change"
    elif len(fitting) > 1 and _overlap(best, fitting[1]):
        words += "; its lead over the second is not shown, their intervals overlap"
    return f"{words}. At a level of 95 %, all intervals hold at once."


def _overlap(one: PilotChoice, other: PilotChoice) -> bool:
    ends = (one.low, one.high, other.low, other.high)
    low, high, other_low, other_high = (value if value is not None else 0.0 for value in ends)
    return low <= other_high and other_low <= high

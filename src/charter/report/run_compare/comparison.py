"""Runs side by side as plain values, read from their directories: figures beyond noise, money, curves.

What tables, pages and `charter plan compare --json` show. Pure but for the reading."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from charter.errors import CharterError, UsageError
from charter.ledger.store import LEDGER_FILE
from charter.report.html import CURVES, thinned
from charter.report.overview import Overview, StageView, lost, overview
from charter.report.plan_cells import NO_SPREAD, ratio
from charter.report.read import RUN, RunFiles, StageFiles, read_run
from charter.report.results import all_results, is_point
from charter.spec import PROJECT_FILE
from charter.tracking.base import series


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the runs."""

    label: str
    run: RunFiles
    view: Overview
    file: Mapping[str, Any] = field(default_factory=dict)
    """`charter.yaml` with presets expanded and defaults written out, as it is now; empty where it does not load."""


def has_run(path: Path) -> bool:
    """Return True if a path names a project that has run, or its run directory.

    A project whose ledger is on a server is known by its plan.
    """
    run_dir = project_dir_of(path) / RUN
    return (run_dir / "plan.json").is_file() or (run_dir / LEDGER_FILE).is_file()


def project_dir_of(path: Path) -> Path:
    """The project of a path: the directory itself, that of its `charter.yaml`, or the one above its run directory."""
    if path.is_file():
        return path.parent
    is_run_dir = path.name == RUN and not (path / PROJECT_FILE).exists() and (path / "stages").is_dir()
    return path.parent if is_run_dir else path


def read_sides(paths: Sequence[Path], labels: Sequence[str], *, with_metrics: bool = True) -> tuple[Side, ...]:
    """Every run with its label; UsageError for a path that has none."""
    sides = []
    for path, label in zip(paths, labels, strict=True):
        directory = project_dir_of(path)
        if not directory.is_dir():
            raise UsageError(f"there is no {path}; give the directory of a project that has run")
        run = read_run(directory, with_metrics=with_metrics)
        sides.append(Side(label=label, run=run, view=overview(run), file=_file(directory)))
    return tuple(sides)


def _file(directory: Path) -> Mapping[str, Any]:
    """A file that no longer loads does not stop a comparison of what was run."""
    from charter.engines.project import load_project
    from charter.spec.bind import plain

    path = directory / PROJECT_FILE
    if not path.is_file():
        return {}
    try:
        content = plain(load_project(path, env=dict(os.environ)))
    except CharterError:
        return {}
    return content if isinstance(content, dict) else {}


Verdict = Literal["higher", "lower", "within noise", "no interval"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A figure and its 95 % interval; no interval where none was computed."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A figure less another one, in their own unit, with the 95 % interval of the difference."""

    value: float
    low: float | None
    high: float | None

    @property
    def verdict(self) -> Verdict:
        """`higher` or `lower` where the whole interval is on one side of zero."""
        if self.low is None or self.high is None:
            return "no interval"
        return "higher" if self.low > 0 else "lower" if self.high < 0 else "within noise"


def difference(figure: Measured, base: Measured) -> Difference:
    """`figure - base`, with an interval made of both intervals.

    low = d - sqrt((f - f_low)^2 + (b_high - b)^2), high = d + sqrt((f_high - f)^2 + (b - b_low)^2), d = f - b.

    Units are those of the figures. Source: Zou and Donner 2008, Statistics in Medicine 27:1693; of shares with Wilson
    intervals it is method 10 of Newcombe 1998, Statistics in Medicine 17:873. True for independent figures. Of two
    policies asked the same prompts the real interval is narrower as far as they agree prompt by prompt, so `within
    noise` is said too often rather than too rarely. It covers the choice of prompts, not another training seed.

    >>> found = difference(Measured(value=0.7, low=0.6, high=0.8), Measured(value=0.5, low=0.4, high=0.6))
    >>> round(found.low, 3), round(found.high, 3), found.verdict
    (0.059, 0.341, 'higher')
    """
    apart = figure.value - base.value
    if figure.low is None or figure.high is None or base.low is None or base.high is None:
        return Difference(value=apart, low=None, high=None)
    return Difference(
        value=apart,
        low=apart - math.hypot(figure.value - figure.low, base.high - base.value),
        high=apart + math.hypot(figure.high - figure.value, base.value - base.low),
    )


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
        numbers=tuple(
            figure["n"] if figure is not None and isinstance(figure.get("n"), int) else None for figure in figures
        ),
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


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Time and money of one run, or of one of its stages."""

    name: str
    state: str
    attempts: int
    seconds: float
    usd: float | None
    planned_seconds: float | None
    planned_usd: float | None
    lost_seconds: float
    """To kills and failed attempts."""
    lost_usd: float | None
    calls: int
    """To servers."""
    seconds_ratio: float | None = None
    """To the first run; None for the first, and where the first has none."""
    usd_ratio: float | None = None

    @property
    def kept_share(self) -> float | None:
        """The share of the time that was not lost."""
        return 1 - self.lost_seconds / self.seconds if self.seconds else None


def totals(sides: Sequence[Side]) -> tuple[Spent, ...]:
    """Every run in all."""
    row = _money_row([_spent(side.label, side.view) for side in sides])
    return tuple(item for item in row if item is not None)


def stage_spending(sides: Sequence[Side]) -> tuple[tuple[Spent | None, ...], ...]:
    """Stages that answer each other, one row each."""
    views = [{stage.name: stage for stage in side.view.stages} for side in sides]
    spending = []
    for group in stage_groups(sides):
        row = [None if name is None else _spent(name, view[name]) for view, name in zip(views, group, strict=True)]
        spending.append(_money_row(row))
    return tuple(spending)


def _spent(name: str, view: Overview | StageView) -> Spent:
    wasted = lost(view.totals, "kills") + lost(view.totals, "failures")
    plan = (view.plan or NO_SPREAD).p50
    return Spent(
        name=name,
        state=view.state,
        attempts=view.totals.attempts,
        seconds=view.actual.seconds,
        usd=view.actual.usd,
        planned_seconds=plan.seconds or None,
        planned_usd=plan.usd,
        lost_seconds=wasted.seconds,
        lost_usd=wasted.usd,
        calls=view.calls.requests,
    )


def _money_row(row: Sequence[Spent | None]) -> tuple[Spent | None, ...]:
    first = row[0]
    return tuple(
        item
        if item is None or first is None or index == 0
        else replace(item, seconds_ratio=ratio(item.seconds, first.seconds), usd_ratio=ratio(item.usd, first.usd))
        for index, item in enumerate(row)
    )


@dataclass(frozen=True, kw_only=True)
class CurveLine:
    """One metric of one stage of one run; long ones are means of equal numbers of steps."""

    side: int
    stage: str
    points: tuple[tuple[int, float], ...]
    mean_of: int


@dataclass(frozen=True, kw_only=True)
class CurvePanel:
    """One metric of the stages that answer each other."""

    title: str
    metric: str
    lines: tuple[CurveLine, ...]

    @property
    def is_equal(self) -> bool:
        """Return True if several runs have the same curve: nothing to compare."""
        return len(self.lines) > 1 and len({line.points for line in self.lines}) == 1


def stage_groups(sides: Sequence[Side]) -> list[tuple[str | None, ...]]:
    """Stages that answer each other, one name per run: of the same name, else the only ones of a kind that are left.

    The order is that of the first run; a stage that no other run has an answer to stands alone.
    """
    kinds = [{stage.name: stage.kind for stage in side.view.stages} for side in sides]
    names = list(dict.fromkeys(name for table in kinds for name in table))
    shared = {name for name in names if sum(name in table for table in kinds) > 1}
    groups: list[tuple[str | None, ...]] = []
    for name in names:
        if any(name in group for group in groups):
            continue
        kind = next(table[name] for table in kinds if name in table)
        left = [[other for other, of in table.items() if of == kind and other not in shared] for table in kinds]
        is_taken = any(kinds[0].get(other) == kind for other in shared)
        if name in shared or is_taken or any(len(unmatched) > 1 for unmatched in left):
            groups.append(tuple(name if name in table else None for table in kinds))
        else:
            groups.append(tuple(unmatched[0] if unmatched else None for unmatched in left))
    return groups


def _panels(sides: Sequence[Side]) -> Iterator[CurvePanel]:
    for group in stage_groups(sides):
        title = " / ".join(dict.fromkeys(name for name in group if name is not None))
        for metric in CURVES:
            lines = tuple(_lines(sides, group, metric))
            if lines:
                yield CurvePanel(title=title, metric=metric, lines=lines)


def _lines(sides: Sequence[Side], group: Sequence[str | None], metric: str) -> Iterator[CurveLine]:
    for index, (side, name) in enumerate(zip(sides, group, strict=True)):
        files = None if name is None else side.run.stages.get(name)
        points = [] if files is None else list(series(files.metrics, metric))
        if name is not None and len({value for _, value in points}) > 1:
            drawn: Mapping[str, Any] = thinned(points)
            yield CurveLine(
                side=index,
                stage=name,
                points=tuple((int(step), float(value)) for step, value in drawn["points"]),
                mean_of=int(drawn["mean_of"]),
            )


COMPUTED = ("models", "data", "constitution", "pipeline", "seed")
"""Sections that say what is computed; the others say where and how."""
LEFT_OUT = ("name",)
Values = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SpecRow:
    """One value that is not the same in all runs; None where a run does not have it."""

    path: str
    values: tuple[str | None, ...]

    @property
    def is_computed(self) -> bool:
        """Return True if it is about what is computed, and not about where and how."""
        return self.path.partition(".")[0] in COMPUTED


def spec_rows(sides: Sequence[Side]) -> tuple[SpecRow, ...]:
    """Differences of the files, and of stages as they were run where every run that has the stage has started it.

    What is computed comes first. A stage that not all runs have is one row.
    """
    tables = [dict(flat({key: value for key, value in side.file.items() if key != "pipeline"})) for side in sides]
    for name in _stage_names(sides):
        for table, values in zip(tables, _stage_values(name, sides), strict=True):
            table.update(values)
    paths = dict.fromkeys(path for table in tables for path in table)
    rows = [SpecRow(path=path, values=tuple(table.get(path) for table in tables)) for path in paths]
    differing = [row for row in rows if len(set(row.values)) > 1 and row.path not in LEFT_OUT]
    return tuple(sorted(differing, key=lambda row: not row.is_computed))


def flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Nested values by dotted paths, as text; a list of plain values is one value.

    >>> flat({"budget": {"limit": 20.0}, "clouds": ["aws", "gcp"]})
    [('budget.limit', '20'), ('clouds', 'aws, gcp')]
    """
    if isinstance(value, Mapping):
        return [pair for name, item in value.items() for pair in flat(item, f"{path}.{name}" if path else str(name))]
    if isinstance(value, list | tuple):
        if all(not isinstance(item, Mapping | list | tuple) for item in value):
            return [(path, ", ".join(map(_text, value)))]
        return [pair for index, item in enumerate(value) for pair in flat(item, f"{path}.{index}")]
    return [(path, _text(value))]


def _text(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return str(value).lower()
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case float():
            return f"{value:g}"
    return str(value)


def _stage_names(sides: Sequence[Side]) -> list[str]:
    """Every stage once: of the files, and of the runs."""
    return list(dict.fromkeys(name for side in sides for name in (*_pipeline(side), *side.run.stages)))


def _pipeline(side: Side) -> Mapping[str, Any]:
    stages = side.file.get("pipeline")
    return stages if isinstance(stages, Mapping) else {}


def _stage_values(name: str, sides: Sequence[Side]) -> list[dict[str, str]]:
    path = f"pipeline.{name}"
    files = [side.run.stages.get(name) for side in sides]
    written = [_pipeline(side).get(name) for side in sides]
    readable = [job is not None or text is not None for job, text in zip(files, written, strict=True)]
    if not all(readable):
        kinds = [_kind(stage, text) for stage, text in zip(files, written, strict=True)]
        return [{path: f"a stage of kind {kind}"} if there else {} for kind, there in zip(kinds, readable, strict=True)]
    if all(stage is not None and stage.job for stage in files):
        return [dict(flat(_as_run(stage), path)) for stage in files if stage is not None]
    return [dict(flat(text or {}, path)) for text in written]


def _kind(stage: StageFiles | None, written: Any) -> str:
    if isinstance(written, Mapping) and "kind" in written:
        return str(written["kind"])
    return str(_identity(stage).get("kind", "")) if stage else ""


def _as_run(stage: StageFiles) -> dict[str, Any]:
    """Return the values with which a stage was started: settings, inputs by name, the constitution and the seed."""
    identity, inputs = _identity(stage), (stage.job or {}).get("inputs") or {}
    names = {
        role: [str(item.get("name")) for item in items if isinstance(item, Mapping)]
        for role, items in inputs.items()
        if isinstance(items, list)
    }
    constitution = {"constitution": str(identity["constitution"])[:12]} if identity.get("constitution") else {}
    return {"kind": identity.get("kind"), **names, **(identity.get("spec") or {}), **constitution}


def _identity(stage: StageFiles) -> Mapping[str, Any]:
    identity = (stage.job or {}).get("identity")
    return identity if isinstance(identity, Mapping) else {}


SCHEMA = "charter.run-comparison/1"


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Two or more runs; every difference and ratio is to the first."""

    labels: tuple[str, ...]
    projects: tuple[str, ...]
    spec: tuple[SpecRow, ...]
    figures: tuple[FigureRow, ...]
    curves: tuple[CurvePanel, ...]
    totals: tuple[Spent, ...]
    stages: tuple[tuple[Spent | None, ...], ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON of `charter plan compare --json` for runs."""
        return {
            "schema": SCHEMA,
            "runs": [
                {"label": label, "project": project, **asdict(spent), "kept_share": spent.kept_share}
                for label, project, spent in zip(self.labels, self.projects, self.totals, strict=True)
            ],
            "spec": [{**asdict(row), "is_computed": row.is_computed} for row in self.spec],
            "figures": [_figure_json(row) for row in self.figures],
            "stages": [[None if item is None else asdict(item) for item in row] for row in self.stages],
            "curves": [asdict(panel) for panel in self.curves],
            "notes": list(self.notes),
        }


def compare_runs(sides: Sequence[Side]) -> RunComparison:
    """Put runs side by side."""
    figures = figure_rows(sides)
    return RunComparison(
        labels=tuple(side.label for side in sides),
        projects=tuple(side.run.project for side in sides),
        spec=spec_rows(sides),
        figures=figures,
        curves=tuple(_panels(sides)),
        totals=totals(sides),
        stages=stage_spending(sides),
        notes=tuple(_notes(sides, figures)),
    )


def _notes(sides: Sequence[Side], figures: Sequence[FigureRow]) -> list[str]:
    notes = [f"{side.label}: {note}" for side in sides for note in side.run.notes]
    for side in sides:
        if side.view.state != "done":
            notes.append(f"{side.label} is not done ({side.view.state}): its figures go as far as it has run.")
    tested = sum(item is not None and item.low is not None for row in figures for item in row.differences)
    if tested:
        notes.append(
            f"{tested} differences have an interval; of runs that do not differ at all, "
            f"about {tested * 0.05:.1f} of them would be beyond noise by chance."
        )
        notes.append("Intervals cover the choice of prompts and pairs, not another training seed.")
    unlike = sorted({role for row in figures for role in row.yardsticks})
    if unlike:
        notes.append(
            f"The evaluations do not share {', '.join(unlike)}: figures marked with it are not of one measure, "
            "and their difference is not only one of the models."
        )
    return notes


def _figure_json(row: FigureRow) -> dict[str, Any]:
    verdicts = [None if item is None else item.verdict for item in row.differences]
    return {**asdict(row), "verdicts": verdicts}

"""Runs side by side as plain values: what tables, pages and `charter plan compare --json` show. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from charter.report.read import StageFiles
from charter.report.run_compare.curves import CurvePanel, curve_panels
from charter.report.run_compare.figures import FigureRow, figure_rows
from charter.report.run_compare.money import Spent, stage_spending, totals
from charter.report.run_compare.read import Side

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
        curves=curve_panels(sides),
        totals=totals(sides),
        stages=stage_spending(sides),
        notes=tuple(_notes(sides, figures)),
    )


def _notes(sides: Sequence[Side], figures: Sequence[FigureRow]) -> list[str]:
    notes = [f"{side.label}: {note}" for side in sides for note in side.run.notes]
    for side in sides:
        if side.view.state != "done":
            notes.append(f"{side.label} is {side.view.state}: its figures are those so far.")
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

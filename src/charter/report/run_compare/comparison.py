"""Runs side by side as plain values: what tables, pages and `charter plan compare --json` show. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from charter.report.run_compare.curves import CurvePanel, curve_panels
from charter.report.run_compare.figures import FigureRow, figure_rows
from charter.report.run_compare.money import Spent, stage_spending, totals
from charter.report.run_compare.read import Side
from charter.report.run_compare.spec import SpecRow, spec_rows

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

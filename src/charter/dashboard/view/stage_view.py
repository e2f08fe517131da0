"""The page of one stage. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from charter.dashboard.snapshot import Snapshot, StageNow
from charter.dashboard.tails import LogTail
from charter.dashboard.view.curves import Curve, PhaseShare, Steady
from charter.dashboard.view.eta import eta_of
from charter.dashboard.view.meter_view import MeterView
from charter.dashboard.view.run_view import StageRow, run_view
from charter.evaluate.outcome import EvaluationOutcome, outcome_of
from charter.ledger import Accounted
from charter.report.results import interval_text, value_text


@dataclass(frozen=True, kw_only=True)
class StageFigure:
    """A measured figure as the page writes it."""

    label: str
    value: str
    interval: str
    number: str
    note: str


def figure_rows(results: Mapping[str, Any]) -> tuple[StageFigure, ...]:
    """The figures of an evaluation, in their order."""
    return tuple(
        StageFigure(
            label=str(figure.get("label") or figure.get("key") or ""),
            value=value_text(figure),
            interval=interval_text(figure),
            number=f"{figure['n']:,}" if isinstance(figure.get("n"), int) else "",
            note=str(figure.get("note") or ""),
        )
        for figure in results["figures"]
    )


@dataclass(frozen=True, kw_only=True)
class RunBeside:
    """The same stage of another run, whose curves lie over this one's."""

    key: str
    label: str
    curves: tuple[Curve, ...]

    def curve(self, metric: str) -> Curve | None:
        """Its curve of a metric; None where it has logged none that changes."""
        return next((curve for curve in self.curves if curve.metric == metric), None)


@dataclass(frozen=True, kw_only=True)
class CurvesBeside:
    """Runs whose curves lie over those of a stage, and runs that may."""

    runs: tuple[RunBeside, ...] = ()
    choices: tuple[tuple[str, str, bool], ...] = ()
    """Key and label of each run with a stage of this name and kind, and whether it is chosen."""
    asked: bool = False
    """Whether the choice is shown."""

    def of(self, metric: str) -> tuple[tuple[str, Curve], ...]:
        """The curves of a metric by the label of their run."""
        return tuple((run.label, curve) for run in self.runs if (curve := run.curve(metric)) is not None)


@dataclass(frozen=True, kw_only=True)
class StagePage:
    """One stage, its curves and its log."""

    row: StageRow
    stage: StageNow
    before: StageNow | None
    after: StageNow | None
    readers: tuple[str, ...]
    """Stages that read what this one makes."""
    attempts: tuple[Accounted, ...]
    more_attempts: int
    """Older ones that are not shown."""
    curves: tuple[Curve, ...]
    steady: Steady
    phases: tuple[PhaseShare, ...]
    log: LogTail
    meter: MeterView | None
    """None where nothing was metered."""
    ends_in: float | None
    outcome: EvaluationOutcome | None = None
    """Of a finished evaluation."""
    figures: tuple[StageFigure, ...] = ()
    beside: CurvesBeside = CurvesBeside()
    has_samples: bool = False
    """Whether it has written something to read."""
    log_search: str = ""
    """The text of the lines that `log` has; empty where it is the end of the log."""

    @property
    def phase_parts(self) -> tuple[tuple[str, float], ...]:
        """The shares of the phases, with the class of each one's colour."""
        return tuple((f"t{index}", phase.share) for index, phase in enumerate(self.phases))


def stage_view(
    snapshot: Snapshot,
    name: str,
    *,
    curves: Sequence[Curve],
    steady: Steady = (),
    phases: Sequence[PhaseShare],
    log: LogTail,
    log_search: str = "",
    attempts: Sequence[Accounted],
    meter: MeterView | None = None,
    results: Mapping[str, Any] | None = None,
    beside: CurvesBeside | None = None,
    has_samples: bool = False,
) -> StagePage:
    """The page of the stage of that name, which must be there."""
    rows = run_view(snapshot).rows
    index = next(index for index, row in enumerate(rows) if row.name == name)
    row = rows[index]
    eta = eta_of(snapshot)
    return StagePage(
        row=row,
        stage=row.stage,
        before=rows[index - 1].stage if index else None,
        after=rows[index + 1].stage if index + 1 < len(rows) else None,
        readers=tuple(other.name for other in snapshot.stages if name in other.inputs),
        attempts=tuple(reversed(attempts)),
        more_attempts=row.attempts - len(attempts),
        curves=tuple(curves),
        steady=steady,
        phases=tuple(phases),
        log=log,
        meter=meter,
        ends_in=eta.ends_in.get(name),
        outcome=None if results is None else outcome_of(name, results),
        beside=beside or CurvesBeside(),
        has_samples=has_samples,
        log_search=log_search,
        figures=() if results is None else figure_rows(results),
    )

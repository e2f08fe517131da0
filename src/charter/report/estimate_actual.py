"""Estimate against actual: time, memory and cost of every stage beside the plan's p10 to p90, and in words. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from charter.engines.project import load_project
from charter.errors import CharterError
from charter.physics.fitted import Pace, load
from charter.plan.project_plan import CALIBRATION_FILE
from charter.report.overview import Overview, StageView, overview
from charter.report.plan_cells import NO_SPREAD
from charter.report.read import RunFiles, StageFiles, read_run
from charter.run.planned import measured_paces
from charter.units import format_bytes, format_seconds, format_usd

PROCESSOR = "cpu"
"""The accelerator of a stage that computes on processors, as plans name it."""
Place = Literal["inside", "above", "below", "open"]
"""Of an actual value against p10 to p90; open while the stage runs, or where there is no band."""


@dataclass(frozen=True, kw_only=True)
class Against:
    """One quantity of one stage: what was planned, and what was."""

    p10: float | None
    p50: float | None
    p90: float | None
    actual: float | None
    is_final: bool

    @property
    def ratio(self) -> float | None:
        """Actual over planned at the median, of a finished stage."""
        if not self.is_final or self.actual is None or not self.p50:
            return None
        return self.actual / self.p50

    @property
    def place(self) -> Place:
        """Return the place of the actual value: below, inside or above the band, or open."""
        if not self.is_final or self.actual is None or self.p10 is None or self.p90 is None or self.p10 == self.p90:
            return "open"
        return "above" if self.actual > self.p90 else "below" if self.actual < self.p10 else "inside"


@dataclass(frozen=True, kw_only=True)
class StageAccuracy:
    """One stage."""

    name: str
    kind: str
    state: str
    accelerator: str
    seconds: Against
    usd: Against
    tensor_bytes: Against
    """Peak of tensors; planned without what the process and its libraries take."""
    process_bytes: Against
    """Peak of all that the stage's processes took; planned with their tensors and libraries."""


@dataclass(frozen=True, kw_only=True)
class PaceLine:
    """A factor on the estimated time of a kind of stage: what plans use now, and what this run shows."""

    accelerator: str
    kind: str
    used: float | None
    """Of the project's `calibration.json`; None where it has none, and plans use the shipped constants."""
    shown: float | None
    """What this run's steps say, as `charter validate calibrate -C` would store it."""
    steps: int


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """A whole run against its plan."""

    stages: tuple[StageAccuracy, ...]
    paces: tuple[PaceLine, ...]

    def inside(self, quantity: str) -> tuple[int, int]:
        """Return the number of finished stages within p10 to p90, and the number of which that can be said."""
        places = [getattr(stage, quantity).place for stage in self.stages]
        settled = [place for place in places if place != "open"]
        return settled.count("inside"), len(settled)

    def bias(self, quantity: str) -> float | None:
        """The geometric mean of actual over planned over finished stages; None where there is none.

        exp(mean(log(actual / p50))), dimensionless. 1 is unbiased, above it the plan said too little. It says nothing
        of how far single stages are off.
        """
        ratios = [ratio for stage in self.stages if (ratio := getattr(stage, quantity).ratio) is not None and ratio > 0]
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def accuracy(run: RunFiles, view: Overview, *, used: Iterable[Pace] = (), shown: Iterable[Pace] = ()) -> Accuracy:
    """Every planned stage; `used` are the paces that plans rest on now, `shown` those of this run's steps."""
    stages = tuple(_stage(stage, run.stages.get(stage.name)) for stage in view.stages if stage.plan is not None)
    return Accuracy(stages=stages, paces=pace_lines(tuple(used), tuple(shown)))


def _stage(stage: StageView, files: StageFiles | None) -> StageAccuracy:
    done = stage.state == "done"
    plan = stage.plan or NO_SPREAD
    ran = stage.totals.attempts > 0

    def against(amount: str) -> Against:
        p10, p50, p90, actual = (getattr(item, amount) for item in (plan.p10, plan.p50, plan.p90, stage.actual))
        return Against(p10=p10, p50=p50, p90=p90, actual=actual if ran else None, is_final=done)

    return StageAccuracy(
        name=stage.name,
        kind=stage.kind,
        state=stage.state,
        accelerator=str(stage.planned_stage.get("accelerator") or ""),
        seconds=against("seconds"),
        usd=against("usd"),
        tensor_bytes=tensor_memory(files, done=done),
        process_bytes=process_memory(stage.planned_stage, files, done=done),
    )


def tensor_memory(files: StageFiles | None, *, done: bool) -> Against:
    """Return the peak of the engine's tensors beside its own count, as its metrics say; a plan gives it no interval."""
    points = () if files is None else files.metrics
    measured = [point.values["peak_bytes"] for point in points if "peak_bytes" in point.values]
    said = [point.values["planned_peak_bytes"] for point in points if "planned_peak_bytes" in point.values]
    return Against(
        p10=None,
        p50=said[-1] if said else None,
        p90=None,
        actual=max(measured) if measured else None,
        is_final=done,
    )


def process_memory(planned: Mapping[str, Any], files: StageFiles | None, *, done: bool) -> Against:
    """Return the most that was metered of an accelerator, or of processes that need none, beside the plan's total."""
    band = planned.get("peak_bytes_range") or {}
    meter = None if files is None else files.meter
    measured: int | None = None
    if meter is not None:
        resident = meter.resident_peak_bytes if planned.get("accelerator") == PROCESSOR else None
        measured = meter.gpu_memory_peak_bytes if meter.gpus else resident
    return Against(
        p10=band.get("p10"),
        p50=planned.get("peak_bytes"),
        p90=band.get("p90"),
        actual=measured or None,
        is_final=done,
    )


def pace_lines(used: Sequence[Pace], shown: Sequence[Pace]) -> tuple[PaceLine, ...]:
    """One line per accelerator and kind of stage that either knows."""
    now = {(pace.accelerator, pace.kind): pace for pace in used}
    fresh = {(pace.accelerator, pace.kind): pace for pace in shown}
    return tuple(
        PaceLine(
            accelerator=accelerator,
            kind=kind,
            used=known_pace.factor if (known_pace := now.get((accelerator, kind))) else None,
            shown=measured.factor if (measured := fresh.get((accelerator, kind))) else None,
            steps=measured.steps if measured else 0,
        )
        for accelerator, kind in sorted({*now, *fresh})
    )


def accuracy_chart(found: Accuracy) -> dict[str, Any]:
    """Ratios to the planned median: the band and the actual value of every stage, by quantity."""
    panels = []
    for quantity in ("seconds", "tensor_bytes", "process_bytes", "usd"):
        rows = [
            {"stage": stage.name, "low": _over(item.p10, item.p50), "high": _over(item.p90, item.p50),
             "ratio": item.ratio, "place": item.place}
            for stage in found.stages
            if (item := getattr(stage, quantity)).ratio is not None
        ]  # fmt: skip
        if rows:
            panels.append({"quantity": quantity, "rows": rows})
    return {"stages": [stage.name for stage in found.stages], "panels": panels}


def _over(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


QUANTITIES = (
    ("seconds", "Time", format_seconds),
    ("tensor_bytes", "Memory of tensors", format_bytes),
    ("process_bytes", "Memory of the process", format_bytes),
    ("usd", "Cost", format_usd),
)
PLACES = {"inside": "within p10-p90", "above": "above p90", "below": "below p10", "open": ""}


def accuracy_rows(found: Accuracy) -> dict[str, Any]:
    """Plain JSON: a table per quantity that any stage has, and the paces."""
    tables = [_quantity(found, *quantity) for quantity in QUANTITIES]
    return {"quantities": [table for table in tables if table], "paces": [_pace(line) for line in found.paces]}


def _quantity(found: Accuracy, key: str, name: str, text: Any) -> dict[str, Any] | None:
    rows = [
        {"stage": stage.name, "kind": stage.kind, "state": stage.state, **_against(getattr(stage, key), text)}
        for stage in found.stages
        if getattr(stage, key).p50 or getattr(stage, key).actual
    ]
    if all(row["actual"] == "-" for row in rows):
        return None
    inside, settled = found.inside(key)
    bias = found.bias(key)
    shown = "" if bias is None else f"{bias:.2f}"
    return {"key": key, "name": name, "rows": rows, "inside": inside, "told": settled, "bias": shown}


def _against(item: Against, text: Any) -> dict[str, Any]:
    return {
        "planned": "-" if item.p50 is None else text(item.p50),
        "band": "-" if item.p10 is None or item.p90 is None else f"{text(item.p10)} to {text(item.p90)}",
        "actual": "-" if item.actual is None else text(item.actual),
        "ratio": "" if item.ratio is None else f"{item.ratio:.2f}",
        "place": item.place,
        "place_words": PLACES[item.place],
    }


def _pace(line: PaceLine) -> dict[str, Any]:
    return {
        "accelerator": line.accelerator,
        "kind": line.kind,
        "used": "shipped constants" if line.used is None else f"{line.used:.2f} x",
        "shown": "-" if line.shown is None else f"{line.shown:.2f} x",
        "steps": line.steps,
    }


# -------- Reading what estimate against actual is made from: the run, the paces in use, the paces that its steps show.


def read_accuracy(root: Path) -> Accuracy:
    """The run in a project directory beside its plan; UsageError where there is neither."""
    run = read_run(root)
    return accuracy(run, overview(run), used=_used(root), shown=_shown(root))


def _used(root: Path) -> tuple[Pace, ...]:
    """The paces of the project's own calibration, which its next plan uses."""
    path = root / CALIBRATION_FILE
    return load(path).paces if path.is_file() else ()


def _shown(root: Path) -> tuple[Pace, ...]:
    """Return the calibration that this run would store; nothing where the project can no longer be planned."""
    try:
        return measured_paces(load_project(root), root)
    except CharterError:
        return ()

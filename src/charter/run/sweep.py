"""A sweep as it is planned and run: every point an ordinary run of the same directory.

A stage's directory is named after its fingerprint, so points share what they have in common without being told to, a
point that is done stays done when the grid grows, and a killed sweep goes on where it stood.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from charter.engines.project import load_project
from charter.errors import BudgetError, CharterError, ExitCode, StageError, UsageError
from charter.run.graph import Pipeline, build_pipeline
from charter.run.staleness import assess
from charter.spec.graph import execution_order, stage_inputs
from charter.spec.project import Project
from charter.spec.sections import Budget
from charter.spec.sweep import POINT_TAG, SWEEP_TAG, Point, Sweep, points_of
from charter.units import format_usd

GOES_ON = (ExitCode.STAGE, ExitCode.DATA, ExitCode.INFEASIBLE)
"""Ends of a point that say nothing of the others; a budget, a missing package and a stop concern all of them."""


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """A point with the project that it is."""

    sweep: str
    point: Point
    project: Project

    def to_json(self) -> dict[str, Any]:
        """Return which point it is, as the event of a run's start has it."""
        point = self.point
        return {
            "sweep": self.sweep,
            "label": point.label,
            "values": dict(point.values),
            "repetition": point.repetition,
        }


@dataclass(frozen=True, kw_only=True)
class StageBill:
    """A stage of a sweep under one fingerprint, with the points that share it."""

    stage: str
    fingerprint: str
    points: int
    is_done: bool
    seconds: Mapping[str, float]
    """p10, p50, p90; nothing where the plan has none."""
    usd: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """The bill of a sweep: every stage once, however many points read it."""

    points: tuple[Point, ...]
    stages: tuple[StageBill, ...]
    budget_usd: float | None
    refused: Mapping[str, str]
    """Why a point cannot be planned, by its label."""

    def total(self, what: str, *, left: bool = False) -> dict[str, float]:
        """Return the sum of `seconds` or `usd` over the stages, or over those that are not done; empty without prices.

        Ends are summed as they are: what makes one point slow makes all of them slow.
        """
        bills = [bill for bill in self.stages if not (left and bill.is_done)]
        if bills and not any(getattr(bill, what) for bill in bills):
            return {}
        return {end: sum(getattr(bill, what).get(end, 0.0) for bill in bills) for end in ("p10", "p50", "p90")}

    @property
    def shared(self) -> int:
        """Return how many stages more than one point reads."""
        return sum(bill.points > 1 for bill in self.stages)

    def check_budget(self) -> None:
        """Raise BudgetError where what is left costs more than the budget at p50."""
        left_usd = self.total("usd", left=True).get("p50", 0.0)
        if self.budget_usd is not None and left_usd > self.budget_usd:
            limit = format_usd(self.budget_usd)
            raise BudgetError(f"the sweep is over its budget of {limit} at p50 ({format_usd(left_usd)})")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "points": [{"label": point.label, "overrides": list(point.overrides)} for point in self.points],
            "stages": [vars(bill) | {"seconds": dict(bill.seconds), "usd": dict(bill.usd)} for bill in self.stages],
            "shared_stages": self.shared,
            "total": {what: self.total(what) for what in ("seconds", "usd")},
            "left": {what: self.total(what, left=True) for what in ("seconds", "usd")},
            "budget_usd": self.budget_usd,
            "refused": dict(self.refused),
        }


def find_sweep(project: Project, name: str) -> Sweep:
    """Return a sweep of the file; UsageError where there is none of that name."""
    if name not in project.sweeps:
        names = ", ".join(project.sweeps) or "none; write one under `sweeps:` in charter.yaml"
        raise UsageError(f"there is no sweep {name!r}; this project has {names}")
    return project.sweeps[name]


def sweep_points(
    path: Path, project: Project, name: str, overrides: Sequence[str] = (), env: Mapping[str, str] = os.environ
) -> tuple[SweepPoint, ...]:
    """Return the points with their projects, read from `path` with their overrides after those given."""
    sweep = find_sweep(project, name)
    reads = {stage: stage_inputs(project, stage) for stage in execution_order(project)}
    points = points_of(sweep, seed=project.seed, reads=reads)
    return tuple(
        SweepPoint(sweep=name, point=point, project=_project_of(path, point, sweep, name, overrides, env))
        for point in points
    )


def _project_of(
    path: Path, point: Point, sweep: Sweep, name: str, overrides: Sequence[str], env: Mapping[str, str]
) -> Project:
    project = load_project(path, overrides=[*overrides, *point.overrides], env=env)
    budget = project.budget
    if sweep.budget is not None:
        budget = replace(budget, limit=sweep.budget) if budget else Budget(limit=sweep.budget)
    return replace(project, budget=budget, tags={**project.tags, SWEEP_TAG: name, POINT_TAG: point.label})


def pipelines(points: Sequence[SweepPoint], root: Path) -> Iterator[tuple[Point, Pipeline]]:
    """Yield the stages of every point under their fingerprints; nothing is written."""
    for item in points:
        yield item.point, build_pipeline(item.project, root)


def plan_sweep(points: Sequence[SweepPoint], root: Path) -> SweepPlan:
    """Plan every point, and count every stage once."""
    from charter.plan.project_plan import plan_project

    bills: dict[tuple[str, str], StageBill] = {}
    refused: dict[str, str] = {}
    plans: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for item, (point, pipeline) in zip(points, pipelines(points, root), strict=True):
        # A seed changes no estimate: points of one setting have one plan.
        key = tuple(f"{name}={value}" for name, value in point.values.items())
        try:
            plans[key] = plans.get(key) or plan_project(item.project, root).to_json()
        except CharterError as error:
            refused[point.label] = str(error).split("\n")[0]
            continue
        planned = {stage["name"]: stage for stage in plans[key]["stages"]}
        for name, stage in pipeline.stages.items():
            bill = bills.get((name, stage.fingerprint))
            bills[name, stage.fingerprint] = (
                replace(bill, points=bill.points + 1)
                if bill
                else StageBill(
                    stage=name,
                    fingerprint=stage.fingerprint,
                    points=1,
                    is_done=assess(stage, root).done,
                    seconds=_ends(planned.get(name, {}).get("seconds")),
                    usd=_ends(planned.get(name, {}).get("usd")),
                )
            )
    return SweepPlan(
        points=tuple(item.point for item in points),
        stages=tuple(bills.values()),
        budget_usd=budget.limit if (budget := points[0].project.budget) else None,
        refused=refused,
    )


def _ends(value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping):
        return {}
    return {end: float(value[end]) for end in ("p10", "p50", "p90") if isinstance(value.get(end), int | float)}


def run_sweep(points: Sequence[SweepPoint], run: Callable[[SweepPoint], object], tell: Callable[[str], None]) -> None:
    """Run every point, one after the other; one that fails is named at the end and keeps no other from running."""
    failed: list[tuple[Point, CharterError]] = []
    for number, item in enumerate(points, start=1):
        tell(f"point {number} of {len(points)}: {item.point.label}")
        try:
            run(item)
        except CharterError as error:
            if error.exit_code not in GOES_ON:
                raise
            failed.append((item.point, error))
            tell(f"  failed: {str(error).splitlines()[0]}")
    if failed:
        lines = [f"{len(failed)} of {len(points)} points failed:"]
        lines += [f"  {point.label}: {str(error).splitlines()[0]}" for point, error in failed]
        raise StageError("\n".join(lines))

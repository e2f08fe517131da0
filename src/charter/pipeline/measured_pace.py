"""Paces of a run: what its stages took per step so far, over what the planner says of them."""

from pathlib import Path

from charter.calibration.pace import Pace, joined, seconds_per_step
from charter.pipeline.graph import build_pipeline
from charter.pipeline.staleness import assess
from charter.plan.physics.knowledge import shipped
from charter.plan.project_plan import plan_project
from charter.spec.project import Project
from charter.tracking.jsonl import read_metrics

METRICS = "metrics.jsonl"


def measured_paces(project: Project, root: Path) -> tuple[Pace, ...]:
    """One pace for each accelerator and kind of stage that has logged at least three steps.

    The estimate it is compared with uses the shipped constants, so that calibrating twice changes nothing.
    """
    planned = plan_project(project, root, knowledge=shipped())
    pipeline = build_pipeline(project, root)
    found = []
    for name, stage in pipeline.stages.items():
        points = [(point.step, point.time) for point in read_metrics(stage.directory / METRICS)]
        measured = seconds_per_step([(step, clock) for step, clock in points if clock is not None])
        estimate = planned.stage(name)
        steps = assess(stage, pipeline.root).target_step
        if measured is None or estimate is None or not steps or not estimate.option.overhead.useful_seconds:
            continue
        seconds, count = measured
        found.append(
            Pace(
                accelerator=estimate.option.place.accelerator.name,
                kind=stage.spec.kind,
                factor=seconds * steps / estimate.option.overhead.useful_seconds,
                steps=count,
                source=f"steps of {project.name}",
            )
        )
    return joined(found)

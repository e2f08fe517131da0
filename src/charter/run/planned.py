"""The plan of a run: made before its first stage starts, kept in `plan.json`."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from charter import __version__
from charter.artifacts import durable
from charter.artifacts.checkpoints import Position
from charter.artifacts.job import PlannedStep, read_execution, write_planned_step
from charter.artifacts.stage_dir import METRICS
from charter.artifacts.stage_state import checkpoint_position
from charter.errors import DataError
from charter.launch.launcher import HERE
from charter.launch.machine import stage_processes
from charter.physics.fitted import Pace, joined, seconds_per_step
from charter.physics.terms import Term
from charter.plan.knowledge import shipped
from charter.plan.machine import probe_machine
from charter.plan.offers import LOCAL, may_run_here
from charter.plan.plan import SCHEMA as PLAN_SCHEMA
from charter.plan.plan import InfeasiblePlanError, Plan
from charter.plan.probe import full_steps
from charter.plan.project_plan import plan_project
from charter.plan.stage_plan import StagePlan
from charter.run.graph import Pipeline, PlannedStage, build_pipeline
from charter.run.paths import run_dir
from charter.run.served import steps_at_once
from charter.run.staleness import assess
from charter.spec.execution import Execution, execution_from_json, resolved
from charter.spec.project import Project
from charter.spec.stage import TRAINS
from charter.spec.stage_base import Stage
from charter.tracking.base import read_metrics
from charter.tracking.run_facts import PLAN_FILE


def executions_for(planned: Mapping[str, Execution], project: Project, engine: str) -> dict[str, Execution]:
    """Return what the plan decides of the stages that an engine runs, by name.

    On processors a plan depends on measured speeds and the result on the layout, so that the file alone decides there.
    On this machine its own accelerators are used, as many as the file says.
    """
    executions = {}
    for name, execution in planned.items():
        stage = project.pipeline.get(name)
        if stage is None or not execution.accelerator:
            continue
        if engine in HERE:
            is_here = execution.infra == LOCAL and stage.kind in TRAINS
            if not is_here or execution.accelerators != stage_processes(project, stage):
                continue
        executions[name] = execution
    return executions


def resolved_project(
    pipeline: Pipeline, planned: "PlanNow", engine: str, *, reshard: bool = False
) -> tuple[Project, dict[str, Execution]]:
    """Return the project with what will run in the resources of its stages, and what will run by stage.

    A stage with a checkpoint goes on as what it was started as, whatever is planned today; one that was started without
    a plan goes on by the file.
    """
    chosen = executions_for(planned.executions, pipeline.project, engine)
    for name, stage in pipeline.stages.items():
        if reshard or checkpoint_position(stage.directory) == Position(0):
            continue
        started = read_execution(stage.directory)
        if started is None:
            chosen.pop(name, None)
        else:
            chosen[name] = started
    return resolved(pipeline.project, chosen), chosen


NOT_TENSORS = "overhead"
"""The part of a peak that no tensor holds: process, device context, communicators, slack of the allocator."""
PHASE_OF_WORK = {"generate": "generate", "score": "score", "reference": "score", "train": "update"}
"""How a phase's name starts in a plan, and what the meter calls it."""


def write_planned_steps(plan: Plan, stages: Iterable[PlannedStage]) -> None:
    """Put `planned.json` into the directories of stages that are planned for this machine and have none."""
    for stage in stages:
        stage_plan = plan.stage(stage.name)
        if stage_plan is not None and stage_plan.option.place.infra == "local":
            planned = planned_step(stage.spec, stage_plan)
            if planned is not None:
                write_planned_step(stage.directory, planned)


def planned_step(stage: Stage, planned: StagePlan) -> PlannedStep | None:
    """One step of a stage; None where its number of steps is not known."""
    steps = full_steps(stage, planned)
    if not steps:
        return None
    option = planned.option
    processes = option.place.processes
    return PlannedStep(
        seconds_per_step=option.overhead.useful_seconds / steps,
        seconds_by_phase={name: value / steps for name, value in seconds_by_phase(option.time_terms).items()},
        peak_bytes=sum(term.value for term in option.peak.terms if term.part != NOT_TENSORS) / processes,
        bytes_by_part={name: value / processes for name, value in option.peak.by_part().items() if name != NOT_TENSORS},
        flops_per_step=planned.done.useful_flops / steps,
    )


def seconds_by_phase(terms: Iterable[Term]) -> Mapping[str, float]:
    """Seconds of generate, score and update; what belongs to no phase (a measured pace) is shared out in proportion.

    >>> from charter.physics.terms import Term
    >>> made = [Term(name="", part=part, value=value, unit="seconds", formula="", source="")
    ...         for part, value in (("generate", 3.0), ("train policy", 1.0), ("measured pace", 4.0))]
    >>> dict(seconds_by_phase(made))
    {'generate': 6.0, 'update': 2.0}
    """
    by_phase: dict[str, float] = defaultdict(float)
    shared = 0.0
    for term in terms:
        phase = PHASE_OF_WORK.get(term.part.split(" ")[0])
        if phase is None:
            shared += term.value
        else:
            by_phase[phase] += term.value
    total = sum(by_phase.values())
    return {name: value * (1 + shared / total) for name, value in by_phase.items()} if total else {}


@dataclass(frozen=True, kw_only=True)
class PlanNow:
    """The planner's answer before a run starts: a plan, or the reason why there is none."""

    plan: Plan | None = None
    """None also where the plan that the run has kept still holds."""
    problem: str = ""
    overflow: InfeasiblePlanError | None = None
    """Where the reason is that a stage needs more memory than there is."""
    executions: Mapping[str, Execution] = field(default_factory=dict)
    """What would run by the plan, of every stage that it places."""
    key: str = ""
    """Of all that the plan follows from."""


def plan_of_this_schema(document: object) -> Mapping[str, Any] | None:
    """Return a plan that this Charter can read; None for one of another schema, whose figures may mean other things."""
    if not isinstance(document, Mapping) or document.get("schema", PLAN_SCHEMA) != PLAN_SCHEMA:
        return None
    return document


def plan_now(project: Project, root: Path) -> PlanNow:
    """Plan a project as it is now; never raises, since a run on this machine's processors does not depend on it."""
    try:
        from charter.plan.project_plan import plan_project

        plan = plan_project(project, root)
        executions = {stage.name: stage.execution for stage in plan.stages if stage.execution is not None}
        return PlanNow(plan=plan, executions=executions)
    except Exception as error:
        # Only bytes that do not fit say that the run must fail. All other errors leave the run as it is: data that
        # cannot be read is reported by the run itself, a missing price or place says nothing about memory, and
        # where no layout was laid out at all (a number format, a division of the batch), the limit may be the
        # planner's own; the checks before the start know what the engines can do.
        overflow = error if isinstance(error, InfeasiblePlanError) and error.is_overflow else None
        return PlanNow(problem=f"{type(error).__name__}: {error}", overflow=overflow)


def plan_of_run(pipeline: Pipeline, *, replan: bool = False) -> PlanNow:
    """Return the plan that the run has kept, as long as nothing that it follows from has changed; else plan now.

    So a price that moved overnight changes nothing about a run that has begun, and a layout that somebody has changed
    in `plan.json` is what runs.
    """
    key = plan_key(pipeline)
    if not replan:
        try:
            document = durable.read_json(run_dir(pipeline.root) / PLAN_FILE)
            if document.get("key") == key:
                read = {item["name"]: item["execution"] for item in document["stages"]}
                executions = {name: execution_from_json(item) for name, item in read.items() if item is not None}
                return PlanNow(executions=executions, key=key)
        except (DataError, AttributeError, KeyError, TypeError):
            pass  # no plan that can be read: a new one is made
    return replace(plan_now(pipeline.project, pipeline.root), key=key)


def plan_key(pipeline: Pipeline) -> str:
    """Return a hash of what a plan follows from: the file, the data behind it, and this version of Charter."""
    marks = [stage.asked_fingerprint for stage in pipeline.stages.values()]
    return hashlib.sha256(repr((__version__, pipeline.project, marks)).encode()).hexdigest()[:16]


def keep_plan(planned: PlanNow, root: Path, stages: Iterable[PlannedStage] = ()) -> str:
    """Write the plan into the run, and its figures for a step beside each stage; returns what went wrong."""
    if planned.plan is None:
        return planned.problem
    try:
        durable.write_json(run_dir(root) / PLAN_FILE, {**planned.plan.to_json(), "key": planned.key})
        write_planned_steps(planned.plan, stages)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def measured_paces(project: Project, root: Path) -> tuple[Pace, ...]:
    """One pace for each accelerator and kind of stage that has logged at least three steps.

    The estimate it is compared with uses the shipped constants, so that calibrating twice changes nothing, and a quiet
    machine: a pace stands for other programs too.
    """
    machine = replace(probe_machine(), busy_cores=0.0) if may_run_here(project) else None
    planned = plan_project(project, root, machine=machine, knowledge=shipped())
    pipeline = build_pipeline(project, root)
    paces = []
    for name, stage in pipeline.stages.items():
        points = [(point.step, point.time) for point in read_metrics(stage.directory / METRICS)]
        measured = seconds_per_step(
            [(step, clock) for step, clock in points if clock is not None], at_once=steps_at_once(project, stage)
        )
        estimate = planned.stage(name)
        steps = assess(stage, pipeline.root).target_step
        if measured is None or estimate is None or not steps or not estimate.option.overhead.useful_seconds:
            continue
        seconds, count = measured
        paces.append(
            Pace(
                accelerator=estimate.option.place.accelerator.name,
                kind=stage.spec.kind,
                factor=seconds * steps / estimate.option.overhead.useful_seconds,
                steps=count,
                source=f"steps of {project.name}",
            )
        )
    return joined(paces)

"""The plan of a run: made before its first stage starts, kept in `plan.json`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.planned_step import PlannedStep, write_planned_step
from charter.calibration.pace import Pace, joined, seconds_per_step
from charter.estimate.terms import Term
from charter.launch.hosted_engine import HOSTED_DEGREES
from charter.launch.machine import LAYOUT_DEFAULTS, asked_layout
from charter.plan.hardware.place import LOCAL
from charter.plan.physics.knowledge import shipped
from charter.plan.plan import InfeasiblePlanError, Plan
from charter.plan.probe import full_steps
from charter.plan.project_plan import plan_project
from charter.plan.stages.stage_plan import StagePlan
from charter.run.graph import PlannedStage, build_pipeline
from charter.run.paths import run_dir
from charter.run.staleness import assess
from charter.spec.layout import Layout
from charter.spec.project import Project
from charter.spec.stage import TRAINS, Stage, is_hosted
from charter.tracking.jsonl import read_metrics


def frozen_layout(layout: Layout, stage: Stage) -> dict[str, str | int]:
    """A planned layout by the names that a stage's job freezes, without what is as by default.

    The planner counts the sequences of a micro-batch, the engine rows. Sequence parallelism is not run: it changes
    where numbers lie, not which.

    >>> from charter.spec.layout import ZeroStage
    >>> from charter.spec.stage import SftStage
    >>> frozen_layout(Layout(data=4, zero=ZeroStage.PARAMETERS, micro_batch=8), SftStage(init="b", data=("d",)))
    {'world_size': 4, 'zero': 3, 'micro_batch': 8}
    """
    offload = "all" if layout.offload_parameters else "optimizer" if layout.offload_optimizer else "none"
    found: dict[str, str | int] = {
        "world_size": layout.num_accelerators,
        "zero": int(layout.zero),
        "replicas": layout.replicas,
        "tensor": layout.tensor,
        "micro_batch": max(1, layout.micro_batch // stage.SEQUENCES_PER_ROW),
        "recompute": layout.recompute.value,
        "offload": offload,
    }
    own = {name: int(getattr(layout, name)) for name in HOSTED_DEGREES} if is_hosted(stage) else {}
    return {
        **{name: value for name, value in found.items() if value != LAYOUT_DEFAULTS[name]},
        **{name: value for name, value in own.items() if value != HOSTED_DEGREES[name]},
    }


def planned_layouts(plan: Plan, project: Project) -> Mapping[str, Mapping[str, str | int]]:
    """What the plan decides of the layouts of stages on this machine's accelerators, by stage; the file comes first.

    On processors a plan depends on measured speeds and the result on the layout, so that only the file decides there.
    """
    found = {}
    for name, stage in project.pipeline.items():
        planned = plan.stage(name)
        if planned is None or stage.kind not in TRAINS or planned.option.place.is_cpu:
            continue
        layout, asked = planned.option.layout, asked_layout(project, stage)
        if planned.option.place.infra == LOCAL and layout.num_accelerators == asked["world_size"]:
            found[name] = {key: value for key, value in frozen_layout(layout, stage).items() if key not in asked}
    return found


NOT_TENSORS = "overhead"
"""The part of a peak that no tensor holds: process, device context, communicators, slack of the allocator."""
PHASE_OF_WORK = {"generate": "generate", "score": "score", "reference": "score", "train": "update"}
"""How a phase's name starts in a plan, and what the meter calls it."""


def write_planned_steps(plan: Plan, stages: Iterable[PlannedStage]) -> None:
    """Put `planned.json` into the directories of stages that are planned for this machine and have none."""
    for stage in stages:
        made = plan.stage(stage.name)
        if made is not None and made.option.place.infra == "local":
            planned = planned_step(stage.spec, made)
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

    >>> from charter.estimate.terms import Term
    >>> made = [Term(name="", part=part, value=value, unit="seconds", formula="", source="")
    ...         for part, value in (("generate", 3.0), ("train policy", 1.0), ("measured pace", 4.0))]
    >>> dict(seconds_by_phase(made))
    {'generate': 6.0, 'update': 2.0}
    """
    known: dict[str, float] = defaultdict(float)
    shared = 0.0
    for term in terms:
        phase = PHASE_OF_WORK.get(term.part.split(" ")[0])
        if phase is None:
            shared += term.value
        else:
            known[phase] += term.value
    total = sum(known.values())
    return {name: value * (1 + shared / total) for name, value in known.items()} if total else {}


PLAN_FILE = "plan.json"


@dataclass(frozen=True, kw_only=True)
class PlanNow:
    """The planner's answer before a run starts: a plan, or the reason why there is none."""

    plan: Plan | None = None
    problem: str = ""
    overflow: InfeasiblePlanError | None = None
    """Where the reason is that a stage needs more memory than there is."""


def plan_now(project: Project, root: Path) -> PlanNow:
    """Plan a project as it is now; never raises, since a run on this machine's processors does not depend on it."""
    try:
        from charter.plan.project_plan import plan_project

        return PlanNow(plan=plan_project(project, root))
    except Exception as error:
        # Only bytes that do not fit say that the run must fail. All other errors leave the run as it is: data that
        # cannot be read is reported by the run itself, a missing price or place says nothing about memory, and
        # where no layout was laid out at all (a number format, a division of the batch), the limit may be the
        # planner's own; the checks before the start know what the engines can do.
        overflow = error if isinstance(error, InfeasiblePlanError) and error.is_overflow else None
        return PlanNow(problem=f"{type(error).__name__}: {error}", overflow=overflow)


def keep_plan(plan: Plan, root: Path, stages: Iterable[PlannedStage] = ()) -> str:
    """Write the plan into the run, and its figures for a step beside each stage; returns what went wrong."""
    try:
        durable.write_json(run_dir(root) / PLAN_FILE, plan.to_json())
        write_planned_steps(plan, stages)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


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

"""The plan of every stage as one step on this machine, put where the stage's own process can read it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from charter.artifacts.planned_step import PlannedStep, write_planned_step
from charter.estimate.terms import Term
from charter.pipeline.graph import PlannedStage
from charter.plan.plan import Plan
from charter.plan.probe import full_steps
from charter.plan.stages.stage_plan import StagePlan
from charter.spec.stage import Stage

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

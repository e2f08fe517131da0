"""A probe's pure part: the project cut to a few steps, the layouts to try, and what the measured steps say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from charter.physics.fitted import Pace, joined
from charter.plan.plan import Plan
from charter.plan.stage_plan import StagePlan
from charter.spec.project import DataSpec, ModelSpec, Project
from charter.spec.stage import (
    STAGE_KINDS,
    AnyStage,
    DpoStage,
    EvalStage,
    JudgeStage,
    LabelStage,
    PreferenceModelStage,
    PretrainStage,
    SftStage,
    references,
)
from charter.spec.stage_base import Stage, StageResources

FEWEST_STEPS, MOST_STEPS, WORTH_SECONDS = 6, 24, 3.0
"""Steps of a probed stage: as many as three planned seconds hold, within these bounds. The first warms up, the median
of the other intervals counts. Judgement."""
FEWEST_ROUNDS = 4
"""Rounds of the steps that are under way together: the first ends with the first of them, half a round is uneven."""
FASTER = 0.9
"""Medians of a few steps differ by up to a tenth on a machine that does other things too; judgement."""
SUPERVISED = (PretrainStage, SftStage, JudgeStage, PreferenceModelStage, DpoStage)
"""Kinds whose layout on one machine is a micro-batch and an accumulation."""
LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class LayoutProbe:
    """One layout of one stage: what was planned, what was measured."""

    label: str
    micro_batch: int
    """0 where the stage has no micro-batch to choose."""
    planned_seconds: float
    """Of one step, with the shipped constants."""
    measured_seconds: float | None
    """Median of the steps after the first; None when it could not be measured."""
    steps: int = 0
    """Intervals that the median rests on."""
    why: str = ""
    """Why it could not be measured."""


@dataclass(frozen=True, kw_only=True)
class StageProbe:
    """One stage: its layouts, the planned one first; or why it was not probed."""

    name: str
    kind: str
    accelerator: str
    full_steps: int
    layouts: tuple[LayoutProbe, ...] = ()
    why: str = ""

    @property
    def measured(self) -> tuple[LayoutProbe, ...]:
        """The layouts with a measured step, fastest first."""
        layouts = [item for item in self.layouts if item.measured_seconds is not None]
        return tuple(sorted(layouts, key=lambda item: (item.measured_seconds or 0.0, item.label)))

    @property
    def faster(self) -> tuple[LayoutProbe, ...]:
        """The layouts that are faster than the planned one by more than a few steps can be off."""
        first = self.layouts[0].measured_seconds if self.layouts else None
        if first is None:
            return ()
        return tuple(item for item in self.measured if (item.measured_seconds or 0.0) < FASTER * first)

    def sequences(self, layout: LayoutProbe) -> int:
        """The micro-batch of a layout as `resources.micro_batch` counts it."""
        return layout.micro_batch * STAGE_KINDS[self.kind].SEQUENCES_PER_ROW

    @property
    def pace(self) -> Pace | None:
        """Measured over planned of the layout that was planned."""
        if not self.layouts or self.layouts[0].measured_seconds is None or self.layouts[0].planned_seconds <= 0:
            return None
        first = self.layouts[0]
        assert first.measured_seconds is not None
        return Pace(
            accelerator=self.accelerator,
            kind=self.kind,
            factor=first.measured_seconds / first.planned_seconds,
            steps=first.steps,
            source=f"probe of {self.name}",
        )


def probe_steps(planned_seconds: float) -> int:
    """Return the number of steps to take of a stage whose step is planned to take so long.

    >>> [probe_steps(seconds) for seconds in (0.01, 0.2, 60.0, 0.0)]
    [24, 15, 6, 6]
    """
    if planned_seconds <= 0:
        return FEWEST_STEPS
    return max(FEWEST_STEPS, min(MOST_STEPS, ceil(WORTH_SECONDS / planned_seconds)))


def short_project(project: Project, root: Path, *, steps: Mapping[str, int]) -> Project:
    """The project with every stage cut to a few steps, one stage at a time, and paths that hold from anywhere.

    Models, batch sizes and sequence lengths stay, so that a step of the copy is a step of the project. Answers come
    from models of a few steps: their length may differ where it is not fixed.
    """
    data = {name: replace(spec, path=str(root / spec.path)) for name, spec in project.data.items()}
    stages: dict[str, AnyStage] = {}
    for name, stage in project.pipeline.items():
        stages[name] = _short(stage, steps.get(name, FEWEST_STEPS), data)
    return replace(
        project,
        models={name: _found_from(spec, root) for name, spec in project.models.items()},
        data=data,
        constitution=None if project.constitution is None else str(root / project.constitution),
        pipeline=stages,
        budget=None,
        deadline=None,
    )


def with_micro_batch(project: Project, rows: Mapping[str, int]) -> Project:
    """The project with the micro-batches of some stages prescribed, as the planner counts them (sequences)."""

    def prescribed(name: str, stage: AnyStage) -> AnyStage:
        if name not in rows:
            return stage
        resources = stage.resources or StageResources()
        return replace(stage, resources=replace(resources, micro_batch=rows[name] * stage.SEQUENCES_PER_ROW))

    return replace(project, pipeline={name: prescribed(name, stage) for name, stage in project.pipeline.items()})


def micro_batches(stage: Stage, planned: StagePlan, count: int) -> tuple[int, ...]:
    """The micro-batches to try, in rows: the planned one, then its halves and doubles within the batch, nearest first.

    A row is what the stage reads: of pairs the planner counts the two sequences (`Stage.SEQUENCES_PER_ROW`).

    >>> _nearest(8, 16, 3), _nearest(16, 16, 2), _nearest(1, 6, 9)
    ((8, 16, 4), (16, 8), (1, 2, 4, 6))
    """
    if not isinstance(stage, SUPERVISED):
        return (0,)
    batch = stage.global_batch
    rows = int(planned.option.layout.micro_batch) // stage.SEQUENCES_PER_ROW
    return _nearest(max(1, min(batch, rows)), batch, count)


def full_steps(stage: Stage, planned: StagePlan) -> int:
    """Steps of the whole stage, in the unit in which its process reports; 0 where that is not known."""
    return stage.steps_of(max(planned.counters.records, planned.counters.pairs))


def not_probed(stage: Stage, planned: StagePlan, project: Project) -> str:
    """Return why a stage cannot be probed on this machine; empty when it can."""
    place = planned.option.place
    if place.infra != LOCAL:
        return f"planned on {place.label}, which is not this machine"
    if not stage.RUNS:
        return f"stages of kind {stage.kind} cannot be run by this version of Charter"
    if isinstance(stage, EvalStage):
        return "it goes by suites, not by steps"
    if isinstance(stage, LabelStage) and stage.candidates and stage.pairs:
        return "labels existing and sampled pairs, whose batches take different times"
    served = [role for role in _names_of(stage) if role in project.serving and project.serving[role].endpoint]
    return f"{served[0]} answers at an endpoint; no requests are sent by a probe" if served else ""


def paces_of(probes: Sequence[StageProbe], earlier: Sequence[Pace] = ()) -> tuple[Pace, ...]:
    """One pace per accelerator and kind from the probes; those known before stay where nothing new was measured."""
    paces = joined([probe.pace for probe in probes if probe.pace is not None])
    new = {(pace.accelerator, pace.kind) for pace in paces}
    return (*paces, *(pace for pace in earlier if (pace.accelerator, pace.kind) not in new))


def planned_step_seconds(stage: Stage, plan: Plan, name: str) -> float:
    """Seconds of one step as a plan has it; 0 where the number of steps is not known."""
    planned = plan.stage(name)
    assert planned is not None
    steps = full_steps(stage, planned)
    return planned.option.overhead.useful_seconds / steps if steps else 0.0


def _nearest(first: int, batch: int, count: int) -> tuple[int, ...]:
    powers = {2**exponent for exponent in range(batch.bit_length()) if 2**exponent <= batch}
    others = sorted({*powers, batch} - {first}, key=lambda micro: (max(micro / first, first / micro), -micro))
    return (first, *others)[:count]


def _short(stage: AnyStage, steps: int, data: dict[str, DataSpec]) -> AnyStage:
    probed = replace(stage, expected_fingerprint=None, timeout=None, checkpoint_every=10**9).shortened(steps)
    if isinstance(probed, LabelStage):
        rows = steps * probed.rollout_batch
        return replace(probed, candidates=tuple(_fewer(name, rows, data) for name in probed.candidates))
    return probed


def _fewer(name: str, rows: int, data: dict[str, DataSpec]) -> str:
    """A data set of its own with at most so many rows; what a stage makes stays as it is."""
    if name not in data:
        return name
    spec = data[name]
    data[f"{name}-probe"] = replace(spec, limit=rows if spec.limit is None else min(spec.limit, rows))
    return f"{name}-probe"


def _found_from(spec: ModelSpec, root: Path) -> ModelSpec:
    """A model's path from the root of the file system, where it is one; catalog names stay."""
    if spec.model is None or not (root / Path(spec.model).expanduser()).exists():
        return spec
    return replace(spec, model=str((root / Path(spec.model).expanduser()).resolve()))


def _names_of(stage: Stage) -> tuple[str, ...]:
    return tuple(name for names in references(stage).values() for name in names)

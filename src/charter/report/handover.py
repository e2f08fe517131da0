"""A stage as a directory that another engine can be started from, and the choice of the engine for `engine: auto`.

Chosen is the quickest that is there and keeps what the file demands. An engine can be chosen that `engines:` names,
since only the user knows what is installed where the run goes. It must train the kind of stage, express every field of
it, and resume as exactly as `exact` demands. The comparison is the plan's own, on the accelerators that it chose for
the native engine.
"""

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.durable import read_json
from charter.artifacts.group import FAILURE
from charter.artifacts.job import write_job
from charter.artifacts.whole_dir import check_target, publish_dir
from charter.engines import check_kind, handover_engine, render
from charter.engines.common.engine import TrainingEngine
from charter.engines.common.files import link_tree
from charter.engines.common.rendered import Guarantee, RenderedRun
from charter.engines.common.request import Handover
from charter.errors import CharterError, DataError, MissingExtraError, StageError, UsageError
from charter.launch.machine import frozen_values
from charter.plan.option import EngineLayout
from charter.plan.pipeline_names import Library, Models
from charter.plan.plan import Plan
from charter.plan.project_plan import plan_project, read_inputs
from charter.plan.stage_plan import StagePlan
from charter.plan.what_if import with_other_engines
from charter.report.handover_pages import (
    DATA_DIR,
    MAPPING,
    MODELS_DIR,
    PLAN,
    README,
    counts,
    data_roles,
    handover_of,
    mapping_page,
    model_inputs,
    plan_page,
    readme,
    start_files,
)
from charter.report.plan_notes import WORTH_SAYING
from charter.run.paths import run_dir
from charter.spec.load import ENGINES_FILE, chosen_engines
from charter.spec.project import Project
from charter.spec.rewards import ENVIRONMENT_SOURCES, REWARD_SOURCES
from charter.spec.stage import TRAINS, references
from charter.spec.stage_base import NATIVE, Engine, Stage
from charter.units import format_usd

MODULE = "charter.hosted.export_inputs"
EXPORTED, FACTS = "exported", "inputs.json"
_ERRORS: Mapping[int, type[CharterError]] = {
    kind.exit_code: kind for kind in (UsageError, MissingExtraError, DataError)
}


@dataclass(frozen=True, kw_only=True)
class ExportedInputs:
    """The files, and how much work they are."""

    directory: Path
    """Holds `data` and `inputs`."""
    target_steps: int
    rows: Mapping[str, int]
    """Role -> rows of its file."""
    notes: tuple[str, ...] = ()


def export_inputs(project: Project, root: Path, name: str, scratch: Path) -> ExportedInputs:
    """Write what a stage reads below an empty directory; stages that it reads from must be done."""
    # An export without rows plans and renders; the house of runs is read only where a stage is prepared.
    from charter.launch.job import stage_command
    from charter.run.graph import build_pipeline, job_of
    from charter.run.preflight import check_packages
    from charter.run.staleness import assess

    check_packages()
    pipeline = build_pipeline(project, root)
    stage = pipeline.stage(name)
    waiting = [item for item in stage.stage_inputs if not assess(pipeline.stage(item), pipeline.root).done]
    if waiting:
        raise UsageError(
            f"--data needs what {name} reads, and {', '.join(waiting)} is not finished\n"
            f"  run {', '.join(waiting)} first, or export without --data and put the files there later"
        )
    if problems := pipeline.inputs.problems_of(stage.outside_inputs):
        raise DataError("\n".join(str(problem) for problem in problems))
    frozen = {"threads": frozen_values(project, stage.spec)["threads"]}
    write_job(scratch, job_of(stage, pipeline.project, frozen))
    ended = subprocess.run(
        stage_command(MODULE, scratch), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise _error_of(scratch, ended)
    facts = read_json(scratch / FACTS)
    return ExportedInputs(
        directory=scratch / EXPORTED,
        target_steps=facts["target_steps"],
        rows=facts["rows"],
        notes=tuple(facts["notes"]),
    )


def _error_of(scratch: Path, ended: "subprocess.CompletedProcess[str]") -> CharterError:
    try:
        message = str(read_json(scratch / FAILURE)["message"])
    except (DataError, KeyError):
        message = f"writing the inputs ended with exit code {ended.returncode}\n{ended.stderr.strip()[-2000:]}"
    return _ERRORS.get(ended.returncode, StageError)(message)


SCHEMA = "charter.handover/1"


@dataclass(frozen=True, kw_only=True)
class HandoverExport:
    """One stage as files, with what they were made from."""

    engine: TrainingEngine
    handover: Handover
    rendered: RenderedRun
    planned: StagePlan
    files: Mapping[str, str]
    """All texts, by path below the directory of the export."""
    inputs: "ExportedInputs | None" = None
    """What the stage reads, where it was asked for."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Fields by what became of them."""
        return counts(self.rendered.mapping)

    def to_json(self) -> dict[str, Any]:
        """Everything but the texts."""
        return {
            "schema": SCHEMA,
            "stage": self.handover.name,
            "kind": self.handover.stage.kind,
            "engine": self.engine.name,
            "version": self.engine.version,
            "target_steps": self.handover.target_steps,
            "layout": self.planned.option.layout_label,
            "accelerators": self.planned.option.label,
            "files": sorted(self.files),
            "command": list(self.rendered.command),
            "environment": dict(self.rendered.environment),
            "mapping": [
                {"field": row.field, "how": row.how, "to": list(row.to), "note": row.note}
                for row in self.rendered.mapping
            ],
            "counts": dict(self.counts),
            "resume": {"guarantee": self.rendered.resume.guarantee, "reason": self.rendered.resume.reason},
            "notes": list(self.rendered.notes),
        }


def export_handover(
    project: Project,
    root: Path,
    name: str,
    engine: str,
    *,
    today: date | None = None,
    scratch: Path | None = None,
) -> HandoverExport:
    """Plan the project with this stage in that engine, and render the stage.

    Writes nothing, but with `scratch`, an empty directory: there what the stage reads, by which rows and steps are
    counted then. Raises `SpecError` with all fields that the engine cannot express.
    """
    stage = project.pipeline.get(name)
    if stage is None:
        raise UsageError(f"there is no stage {name}; the stages are {', '.join(project.pipeline)}")
    handover = handover_engine(engine)
    check_kind(name, engine, stage.kind)
    changed = with_engine(project, name, handover.name)
    plan = plan_project(changed, root, today=today)
    rendered = exported(changed, plan, root, name, rows=_rows(changed, root, name))
    if scratch is None:
        return rendered
    # What a stage reads is written by a process of its own, with the checks of a run: a plain export needs none of it.

    return with_inputs(changed, rendered, export_inputs(changed, root, name, scratch))


def exported(project: Project, plan: Plan, root: Path, name: str, *, rows: Mapping[str, int]) -> HandoverExport:
    """A stage of a project that is planned already, in the engine that the project gives it."""
    engine = handover_engine(project.pipeline[name].engine)
    planned = plan.stage(name)
    assert planned is not None
    sources = _sources(project.pipeline[name], root)
    handover = handover_of(project, plan, name, data_suffix=engine.data_suffix, rows=rows, sources=sources)
    return _rendered(project, handover, planned)


def with_inputs(project: Project, made: HandoverExport, inputs: "ExportedInputs") -> HandoverExport:
    """The same with what the stage reads, and the steps that these rows are."""
    handover = replace(made.handover, target_steps=inputs.target_steps, rows=inputs.rows)
    return _rendered(project, handover, made.planned, inputs)


def _rendered(
    project: Project, handover: Handover, planned: StagePlan, inputs: "ExportedInputs | None" = None
) -> HandoverExport:
    engine, name, rendered = handover_engine(handover.engine), handover.name, render(handover)
    files = {
        **rendered.files,
        **start_files(handover, rendered, planned, project.launch.slurm),
        MAPPING: mapping_page(handover, rendered),
        PLAN: plan_page(handover, planned),
        README: readme(
            handover, rendered, engine, model_inputs(project, name), planned, notes=inputs.notes if inputs else None
        ),
    }
    return HandoverExport(
        engine=engine, handover=handover, rendered=rendered, planned=planned, files=files, inputs=inputs
    )


def with_engine(project: Project, name: str, engine: Engine) -> Project:
    """The project with one stage in another engine."""
    stage = replace(project.pipeline[name], engine=engine)
    return replace(project, pipeline={**project.pipeline, name: stage})


def write_export(made: HandoverExport, target: Path) -> None:
    """Write all files to a directory that does not exist yet: whole, or not at all."""
    check_target(target)

    def write(path: Path) -> None:
        for name, text in made.files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text, encoding="utf-8")
        if made.inputs is not None:
            wanted = {item for item in made.handover.paths.models.values() if item.startswith(f"{MODELS_DIR}/")}
            for place in (DATA_DIR, *sorted(wanted)):
                link_tree(made.inputs.directory / place, path / place)

    publish_dir(target.resolve(), write)


def _sources(stage: Stage, root: Path) -> dict[str, str]:
    """Texts of the user's own reward functions and environments, of the files that are there."""
    named = [path for role in (REWARD_SOURCES, ENVIRONMENT_SOURCES) for path in stage.sources.get(role, ())]
    return {path: (root / path).read_text("utf-8") for path in named if (root / path).is_file()}


def _rows(project: Project, root: Path, name: str) -> dict[str, int]:
    """Rows of each role of data, as the planner counts them."""
    inputs = read_inputs(project, root)
    library = Library(project=project, facts=inputs.facts, assumptions=[])
    vocab_size = Models(project=project, architectures=inputs.architectures).any_vocabulary()
    stage = project.pipeline[name]
    named = references(stage)
    return {role: round(library.corpus(named[role], vocab_size).rows) for role in data_roles(stage)}


ENOUGH: Mapping[str, tuple[Guarantee, ...]] = {
    "bits": ("bit_exact",),
    "record": ("bit_exact", "same_data_order"),
    "none": ("bit_exact", "same_data_order", "best_effort"),
}
"""What an engine must promise for each demand of `exact`."""


@dataclass(frozen=True, kw_only=True)
class EngineChoice:
    """Engine of one stage, and why."""

    stage: str
    engine: Engine
    why: str


def choose_engines(project: Project, root: Path, *, again: bool = False) -> tuple[Project, tuple[EngineChoice, ...]]:
    """Return the project with its engines chosen, and the choices in words; nothing is written.

    A run keeps the choices with which it began; `again` makes those of stages anew.
    """
    begun = {} if again else chosen_engines(root)
    stages = [
        name
        for name, stage in project.pipeline.items()
        if stage.engine_by == "plan" and stage.kind in TRAINS and name not in begun
    ]
    if not stages or not project.engines:
        return project, ()
    plan = with_other_engines(plan_project(project, root))
    choices = tuple(_choice(project, root, plan, plan.stage(name)) for name in stages)
    for item in choices:
        project = with_engine(project, item.stage, item.engine)
    return project, choices


def keep_engines(project: Project, root: Path) -> None:
    """Write the engines of a run that begins, so that it is resumed with the same."""
    engines = {name: stage.engine for name, stage in project.pipeline.items() if stage.engine_by == "plan"}
    if any(engine != NATIVE for engine in engines.values()) and chosen_engines(root) != engines:
        durable.make_dir(run_dir(root))
        durable.write_json(run_dir(root) / ENGINES_FILE, engines)


def _choice(project: Project, root: Path, plan: Plan, stage: StagePlan | None) -> EngineChoice:
    assert stage is not None, "every stage is in the plan"
    refusals: dict[str, str] = {}
    for other in _candidates(project, stage):
        if other.engine in refusals:
            continue  # another placement of it
        if refused := _refusal(project, root, stage.name, other):
            refusals[other.engine] = f"{other.engine} {refused}"
            continue
        saved = "" if stage.usd is None else f", about {format_usd((1 - other.ratio) * stage.usd.p50 / 1e6)}"
        why = f"{1 - other.ratio:.0%} less work{saved}"
        return EngineChoice(
            stage=stage.name, engine=handover_engine(other.engine).name, why="; ".join([why, *refusals.values()])
        )
    why = "; ".join(refusals.values()) or "no engine under `engines:` is quicker"
    return EngineChoice(stage=stage.name, engine=NATIVE, why=why)


def _candidates(project: Project, stage: StagePlan) -> Iterator[EngineLayout]:
    """Yield the engines that are there and quicker by more than the estimates differ, the quickest first."""
    for other in stage.other_engines:
        if other.engine in project.engines and other.ratio <= WORTH_SAYING:
            yield other


def _refusal(project: Project, root: Path, name: str, other: EngineLayout) -> str:
    """Return the reason why an engine is not for this stage; empty where it is."""
    changed = with_engine(project, name, handover_engine(other.engine).name)
    try:
        handed = exported(changed, plan_project(changed, root), root, name, rows={})
    except CharterError as error:
        return f"refuses it ({str(error).splitlines()[0]})"
    if handed.rendered.resume.guarantee not in ENOUGH[project.exact]:
        return f"does not resume as `exact: {project.exact}` demands"
    return ""

"""`charter artifacts export STAGE --engine E`: a stage as a directory that another engine can be started from."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from charter.artifacts.durable import read_json
from charter.artifacts.group import FAILURE
from charter.artifacts.job import write_job
from charter.artifacts.whole_dir import publish_dir
from charter.engines import check_kind, handover_engine, render
from charter.engines.common.engine import TrainingEngine
from charter.engines.common.files import link_tree
from charter.engines.common.rendered import RenderedRun
from charter.engines.common.request import Handover
from charter.errors import CharterError, DataError, MissingExtraError, StageError, UsageError
from charter.launch.machine import frozen_values
from charter.plan.pipeline_names import Library, Models
from charter.plan.plan import Plan
from charter.plan.project_plan import plan_project, read_inputs
from charter.plan.stage_plan import StagePlan
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
from charter.spec.project import Project
from charter.spec.rewards import REWARD_SOURCES
from charter.spec.stage import references
from charter.spec.stage_base import Engine, Stage

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


def check_target(target: Path) -> None:
    """Refuse a directory that exists."""
    if target.exists():
        raise UsageError(f"{target} exists already; give a directory that does not")


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
    """Texts of the user's own reward functions, of the files that are there."""
    named = stage.sources.get(REWARD_SOURCES, ())
    return {path: (root / path).read_text("utf-8") for path in named if (root / path).is_file()}


def _rows(project: Project, root: Path, name: str) -> dict[str, int]:
    """Rows of each role of data, as the planner counts them."""
    inputs = read_inputs(project, root)
    library = Library(project=project, facts=inputs.facts, assumptions=[])
    vocab_size = Models(project=project, architectures=inputs.architectures).any_vocabulary()
    stage = project.pipeline[name]
    named = references(stage)
    return {role: round(library.corpus(named[role], vocab_size).rows) for role in data_roles(stage)}

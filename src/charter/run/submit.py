"""Shows what a run would send to an engine, and sends the supervisor itself."""

from collections.abc import Sequence
from pathlib import Path

from charter.errors import UsageError
from charter.launch.commands import module_of
from charter.launch.opening import RENDERED, RUNS, engine_name, open_scheduler
from charter.launch.preview import preview_job
from charter.launch.rendered import SERVICES, printed, texts_for
from charter.launch.sent_supervisor import send_supervisor
from charter.run.graph import build_pipeline
from charter.run.planned import plan_now
from charter.run.runner import RunOptions, find_work, refuse_overflow
from charter.spec.project import Project


def preview(project: Project, root: Path, asked: str | None, stages: Sequence[str]) -> str:
    """The texts of all stages, or of these; needs no engine and changes nothing."""
    name = _engine(project, asked)
    _check_stages(project, stages)
    if name == "skypilot":
        from charter.launch.skypilot.task import render_pipeline

        return render_pipeline(project, stages)
    if name in SERVICES:
        return printed(texts_for(project, name))
    scheduler = open_scheduler(project, name)
    try:
        pipeline = build_pipeline(project, root)
        texts = {}
        for stage in stages or pipeline.stages:
            planned = pipeline.stages[stage]
            module = module_of(planned.spec)
            texts[stage] = scheduler.render(preview_job(project, stage, planned.directory, engine=name, module=module))
        return printed(texts)
    finally:
        scheduler.close()


def submit_supervisor(
    project: Project,
    root: Path,
    asked: str | None,
    stages: Sequence[str],
    *,
    path: Path | None = None,
    overrides: Sequence[str] = (),
    anyway: bool = False,
) -> tuple[str, str]:
    """Send the supervisor to an engine, which runs the stages from there; its name and the number of its job.

    It reads the project from `path` (a directory, or another file than its charter.yaml), with the same `overrides`.
    Raises the plan's own error when a stage cannot fit, unless `anyway`.
    """
    name = _engine(project, asked)
    _check_stages(project, stages)
    if name not in RENDERED or name == "skypilot":
        overflow = plan_now(project, root).overflow
        if overflow is not None:
            options = RunOptions(only=tuple(stages), engine=asked, anyway=anyway)
            refuse_overflow(overflow, find_work(project, root, options), options)
    if name == "skypilot":
        from charter.launch.skypilot.task import submit

        return name, submit(project, root, stages)
    if name in RENDERED:
        raise UsageError(
            f"Charter does not submit to {RENDERED[name]} itself: `charter submit --on {name} --print` makes the texts"
        )
    scheduler = open_scheduler(project, name)
    try:
        return name, send_supervisor(
            project, path or root, root, scheduler, only=stages, overrides=overrides, anyway=anyway
        )
    finally:
        scheduler.close()


def _engine(project: Project, asked: str | None) -> str:
    name = engine_name(project, asked)
    if name not in (*RUNS, *RENDERED):
        raise UsageError(
            "nothing is submitted to this machine: say where with --on, or with resources.infra in charter.yaml\n"
            f"  engines: {', '.join((*RUNS, *RENDERED))}; `charter run` runs the project here"
        )
    return name


def _check_stages(project: Project, stages: Sequence[str]) -> None:
    for stage in stages:
        if stage not in project.pipeline:
            raise UsageError(f"no stage is called {stage!r}; the stages are {', '.join(project.pipeline)}")

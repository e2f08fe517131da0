"""Shows what a run would send to a scheduler, and sends the supervisor itself."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from charter.errors import UsageError
from charter.launch.job import StageJob, module_of
from charter.launch.launcher import RUNS, launcher_name, open_scheduler
from charter.launch.machine import asked_layout
from charter.launch.rendered import TARGETS, printed, texts_for
from charter.launch.rendered.skypilot_dry_run import run_optimizer, write_dry_run
from charter.launch.sent_supervisor import send_supervisor
from charter.launch.submission import SUPERVISOR, TOKEN, preview_job, run_words, supervisor_job
from charter.plan.project_plan import plan_project, price_book
from charter.run.graph import build_pipeline, with_project
from charter.run.planned import keep_plan, plan_of_run, resolved_project
from charter.run.preflight import check_nodes, check_together
from charter.run.runner import RunOptions, find_work, plan_work, refuse_overflow
from charter.run.served import stage_pools
from charter.spec.execution import CLIENT, TRAINER, Execution
from charter.spec.project import Project
from charter.spec.stage import TRAINS


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Jobs that would be sent to a scheduler, by the plan."""

    texts: str
    """Scripts and manifests as the scheduler gets them, without values of secrets."""
    jobs: tuple[Mapping[str, Any], ...]
    """One entry per stage and role, and one for the supervisor."""
    problem: str = ""
    """Why there is no plan, so that the file alone decides; empty where there is one."""
    refused: tuple[str, ...] = ()
    """Why `charter submit` and `charter run` would not send some of them as they are shown."""

    def to_json(self) -> dict[str, Any]:
        """The object that `charter submit --print --json` prints."""
        return {"jobs": list(self.jobs), "problem": self.problem, "refused": list(self.refused)}


def preview(
    project: Project,
    root: Path,
    wanted: str | None,
    stages: Sequence[str],
    *,
    path: Path | None = None,
    overrides: Sequence[str] = (),
    anyway: bool = False,
    replan: bool = False,
) -> Preview:
    """Return what would be sent for all stages, or for these; needs no scheduler and changes nothing.

    Variables that hold secrets are shown without their values, which only a job that is sent has.
    Raises the plan's own error when a stage cannot fit, unless `anyway`.
    """
    name = scheduler_of(project, wanted)
    project = replace(project, launch=project.launch.as_shown())
    check_stages(project, stages)
    pipeline = build_pipeline(project, root)
    planned = plan_of_run(pipeline, replan=replan)
    if planned.overflow is not None and not anyway and planned.overflow.stage in (stages or pipeline.stages):
        raise planned.overflow
    project, executions = resolved_project(pipeline, planned, name)
    pipeline = with_project(pipeline, project)
    jobs = {
        stage: preview_job(
            project,
            stage,
            pipeline.stages[stage].directory,
            scheduler=name,
            module=module_of(project.pipeline[stage]),
            pools=stage_pools(project, pipeline.stages[stage]),
        )
        for stage in stages or pipeline.stages
    }
    entries = [
        entry for stage, job in jobs.items() for entry in _entries(project, stage, job, executions.get(stage), name)
    ]
    words = run_words(overrides, anyway=anyway)
    own = supervisor_job(project, path or root, root=root, scheduler=name, only=stages, words=words, token=TOKEN)
    entries.append(_entry(own, None, SUPERVISOR, name, market="owned"))
    specs = [(stage, project.pipeline[stage]) for stage in jobs]
    refused = [str(one) for stage, spec in specs for one in check_nodes(project, stage, spec, launcher=name)]
    refused += [str(one) for stage, spec in specs for one in check_together(stage, spec, executions.get(stage))]
    texts = _texts(project, name, stages, jobs, words=words)
    return Preview(texts=texts, jobs=tuple(entries), problem=planned.problem, refused=tuple(refused))


def _texts(
    project: Project, name: str, stages: Sequence[str], jobs: Mapping[str, StageJob], *, words: tuple[str, ...]
) -> str:
    if target := TARGETS.get(name):
        texts = texts_for(project, name, stages, words=words)
        # What Charter sends itself is one file, and is shown as it is sent: it begins with the command that sends it.
        return "".join(texts.values()) if target.submit else printed(texts)
    scheduler = open_scheduler(project, name)
    try:
        return printed({stage: scheduler.render(job) for stage, job in jobs.items()})
    finally:
        scheduler.close()


def _entries(
    project: Project, stage: str, job: StageJob, execution: Execution | None, launcher: str
) -> Iterator[dict[str, Any]]:
    """One entry for each role of a stage; all roles of a stage are one job, whose command starts them."""
    if execution is None:
        role = TRAINER if job.kind in TRAINS else CLIENT
        layout = asked_layout(project, project.pipeline[stage], gpus=job.accelerators_per_node)
        market = "spot" if job.use_spot else "owned"
        yield {**_entry(job, stage, role, launcher, market=market), "layout": layout}
        return
    for name, part in execution.roles.items():
        entry = _entry(job, stage, name, launcher, market=execution.market)
        yield {
            **entry,
            "nodes": part.nodes,
            "accelerator": part.accelerator,
            "accelerators_per_node": part.accelerators_per_node,
            "ranks": part.layout.ranks,
            "layout": asdict(part.layout),
            "shares": part.shares or None,
        }


def _entry(job: StageJob, stage: str | None, role: str, launcher: str, *, market: str) -> dict[str, Any]:
    return {
        "stage": stage,
        "role": role,
        "job": job.name,
        "launcher": launcher,
        "nodes": job.nodes,
        "accelerator": job.accelerator,
        "accelerators_per_node": job.accelerators_per_node,
        "memory_bytes_per_node": job.memory_bytes_per_node,
        "market": market,
        "ranks": job.nodes * job.processes_per_node * job.shards,
        "layout": {},
        "command": list(job.command),
        "reuses": None,
        "shares": None,
    }


def submit_supervisor(
    project: Project,
    root: Path,
    wanted: str | None,
    stages: Sequence[str],
    *,
    path: Path | None = None,
    overrides: Sequence[str] = (),
    anyway: bool = False,
    replan: bool = False,
) -> tuple[str, str]:
    """Send the supervisor to a scheduler, which runs the stages from there; its name and the number of its job.

    It reads the project from `path` (a directory, or another file than its charter.yaml), with the same `overrides`.
    Raises the plan's own error when a stage cannot fit, unless `anyway`.
    """
    name = scheduler_of(project, wanted)
    check_stages(project, stages)
    target = TARGETS.get(name)
    if target and not target.submit:
        raise UsageError(
            f"Charter does not submit to {target.title} itself: `charter submit --on {name} --print` makes the texts"
        )
    options = RunOptions(only=tuple(stages), launcher=wanted, anyway=anyway, replan=replan)
    ready = plan_work(find_work(project, root, options, keep_hashes=True), options)
    if ready.planned.overflow is not None:
        refuse_overflow(ready.planned.overflow, ready.work, options)
    keep_plan(ready.planned, root.resolve())
    project = ready.work.pipeline.project
    words = run_words(overrides, anyway=anyway)
    if target and target.submit:
        return name, target.submit(project, root, texts_for(project, name, stages, words=words))
    scheduler = open_scheduler(project, name)
    try:
        return name, send_supervisor(project, path or root, root, scheduler, only=stages, words=words)
    finally:
        scheduler.close()


def skypilot_choice(
    project: Project, root: Path, wanted: str | None, stages: Sequence[str], *, python: Path
) -> dict[str, Any]:
    """Return what SkyPilot's own optimizer chooses on the plan's times and the prices here; no cloud is asked."""
    if (name := scheduler_of(project, wanted)) != "skypilot":
        raise UsageError(f"--optimizer is SkyPilot's: give --on skypilot, not {name}")
    check_stages(project, stages)
    with TemporaryDirectory(prefix="charter-skypilot-") as place:
        write_dry_run(project, plan_project(project, root), price_book(root, None), Path(place), stages)
        return run_optimizer(Path(place), python)


def scheduler_of(project: Project, wanted: str | None) -> str:
    """Return the scheduler that something is submitted to; a UsageError where that is this machine."""
    name = launcher_name(project, wanted)
    if name not in (*RUNS, *TARGETS):
        raise UsageError(
            "nothing is submitted to this machine: say where with --on, or with resources.infra in charter.yaml\n"
            f"  schedulers: {', '.join((*RUNS, *TARGETS))}; `charter run` runs the project here"
        )
    return name


def check_stages(project: Project, stages: Sequence[str]) -> None:
    """Raise where a stage is named that is not in the file."""
    for stage in stages:
        if stage not in project.pipeline:
            raise UsageError(f"no stage is called {stage!r}; the stages are {', '.join(project.pipeline)}")

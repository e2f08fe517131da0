"""Runs a project.

Skips what is done, starts what is ready, restarts what fell over, stops when asked or out of budget.
"""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from charter.artifacts.lease import Lease
from charter.errors import CharterError, UsageError
from charter.launch.commands import STAGE_MODULES, module_of, preloaded_modules
from charter.launch.engine import Engine
from charter.launch.job_engine import JobEngine
from charter.launch.local import local_engine, stage_environment
from charter.launch.machine import frozen_values
from charter.launch.opening import LOCAL, SUBPROCESS, engine_name
from charter.ledger import Ledger
from charter.ledger.store import ledger_place
from charter.pipeline import sent
from charter.pipeline.alerts import AlertListener
from charter.pipeline.call_costs import record_calls
from charter.pipeline.elsewhere import LeftJobs, books, open_engine
from charter.pipeline.events import Events, Listener
from charter.pipeline.followers import Followers
from charter.pipeline.graph import Pipeline, PlannedStage, build_pipeline
from charter.pipeline.left_attempts import end_finished
from charter.pipeline.paths import run_dir
from charter.pipeline.planned import PlanNow, keep_plan, plan_now
from charter.pipeline.planned_layout import planned_layouts
from charter.pipeline.preflight import LEDGER_PACKAGES, check_before_start, check_packages
from charter.pipeline.prepare import drift, drift_error
from charter.pipeline.replicas import Replicas
from charter.pipeline.served import loads_weights
from charter.pipeline.signals import NOTICE_FILE, StopSignals
from charter.pipeline.staleness import Verdict, assess
from charter.pipeline.storage_meter import StorageMeter
from charter.pipeline.supervisor import Supervisor
from charter.plan.hardware.place import may_run_here
from charter.plan.plan import InfeasiblePlanError
from charter.spec.project import Project


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is carried out; none of it changes what is computed."""

    only: tuple[str, ...] = ()
    """Run these stages and what they need; all when empty."""
    reshard: bool = False
    modules: Mapping[str, str] = field(default_factory=lambda: STAGE_MODULES)
    packages: tuple[str, ...] | None = None
    """Packages that must be installed; those of the run extra when None."""
    keep_plan: bool = True
    """Write the planner's view of now into `plan.json`."""
    stop_grace_seconds: float = 120.0
    """How long a stage may take to reach a safe point before it is killed."""
    anyway: bool = False
    """Start although a stage does not fit by the plan."""
    engine: str | None = None
    """Where stages run (`charter.launch.opening`); as the file says when None."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a run would do, and why."""

    pipeline: Pipeline
    verdicts: Mapping[str, Verdict]
    todo: tuple[PlannedStage, ...]


def find_work(project: Project, root: Path, options: RunOptions) -> Work:
    """What has to run, and why; nothing is started."""
    pipeline = build_pipeline(project, root)
    wanted = _wanted(pipeline, options.only)
    verdicts = {name: assess(stage, pipeline.root) for name, stage in pipeline.stages.items()}
    todo = tuple(stage for stage in pipeline.stages.values() if stage.name in wanted and not verdicts[stage.name].done)
    return Work(pipeline=pipeline, verdicts=verdicts, todo=todo)


def check_work(work: Work, options: RunOptions, engine: Engine | None = None) -> None:
    """Raise, with all problems at once, when what has to run cannot run on this machine, or on an engine's nodes."""
    facts = {stage.name: engine.facts_of(stage.name) if engine else None for stage in work.todo}
    check_before_start(work.pipeline, work.todo, modules=options.modules, facts_of=facts.get)
    if not work.todo:
        return
    if options.packages is not None:
        check_packages(options.packages)
    else:
        check_packages(LEDGER_PACKAGES) if engine else check_packages()
    if options.reshard:
        return
    for stage in work.todo:
        project = work.pipeline.project
        if changed := drift(stage, project, frozen_values(project, stage.spec, facts[stage.name])):
            raise drift_error(stage, changed)


def plan_work(work: Work, options: RunOptions) -> PlanNow:
    """Plan what is to be run; raises the plan's own error when a stage of it cannot fit, unless `anyway`."""
    if not work.todo or not options.keep_plan:
        return PlanNow()
    project = work.pipeline.project
    planned = plan_now(project, work.pipeline.root)
    if planned.overflow is not None:
        refuse_overflow(planned.overflow, work, options)
    return planned


def refuse_overflow(overflow: InfeasiblePlanError, work: Work, options: RunOptions) -> None:
    """Raise the plan's error when it is about a stage that would start, on the machines that it was planned for."""
    project = work.pipeline.project
    sent = engine_name(project, options.engine) not in (LOCAL, SUBPROCESS)
    # The plan knows the memory of the file's machines only, not of those that `--on` names in their place.
    is_elsewhere = may_run_here(project) if sent else engine_name(project, None) not in (LOCAL, SUBPROCESS)
    is_todo = any(stage.name == overflow.stage for stage in work.todo)
    # Steps in a checkpoint prove that the stage fits, whatever the estimate says: a run that was started (with
    # `--anyway`, or before its plan was asked) goes on without being told again. A stage that has begun and made
    # none is refused like a new one, since running out of memory is what happens before the first checkpoint.
    # A process that lives, on another machine, is followed and not started.
    verdict = work.verdicts[overflow.stage]
    has_begun = verdict.step > 0 or verdict.state == "running"
    if is_todo and not has_begun and not is_elsewhere and not options.anyway:
        raise overflow


def run_project(
    project: Project, root: Path, options: RunOptions | None = None, listeners: Sequence[Listener] = ()
) -> Work:
    """Run or resume a project; returns what was found to do when all of it is done, raises otherwise."""
    options = options or RunOptions()
    where = run_dir(root.resolve())
    with (
        StopSignals(where / NOTICE_FILE, is_started_again=sent.is_started_again) as signals,
        sent.take_run(where, stop_wanted=lambda: signals.wanted) as lease,
    ):
        signals.forget_notice()
        work = find_work(project, root, options)
        jobs = open_engine(
            project, engine_name(project, options.engine), where, environment={}, hurry=lambda: signals.wanted
        )
        with contextlib.closing(jobs) if jobs else contextlib.nullcontext():
            check_work(work, options, jobs)
            planned = plan_work(work, options)
            with Followers(
                project, root, work=bool(work.todo), metered_here=jobs is None, hurry=lambda: signals.wanted
            ) as followers:
                meter = StorageMeter(project, root)
                events = Events(where, (*listeners, followers.listen, AlertListener(project, where), meter.listen))
                followers.tell = events.emit
                _tell_start(work, events)
                if work.todo:
                    _run(work, options, planned, events, signals, lease, jobs, meter)
                events.emit("run_done", run=project.name)
    return work


def _run(
    work: Work,
    options: RunOptions,
    planned: PlanNow,
    events: Events,
    signals: StopSignals,
    lease: Lease,
    jobs: JobEngine | None,
    meter: StorageMeter,
) -> None:
    project, where = work.pipeline.project, run_dir(work.pipeline.root)

    def tick() -> None:
        replicas.tick()
        meter.look()

    every = tuple(work.pipeline.stages.values())
    with (
        Ledger.open(ledger_place(where, project.storage.ledger)) as ledger,
        Replicas(work.pipeline, events, tick=lease.touch, hurry=lambda: signals.wanted, meter=meter.copies) as replicas,
        meter.into(ledger),
    ):
        left = LeftJobs(project, ledger, events, jobs)
        kept = left.recover(work.todo)
        end_finished(ledger, every, run=project.name, keep_jobs=kept)
        for attempt in ledger.close_abandoned(now=time.time(), run=project.name, keep_jobs=kept):
            events.emit("attempt_abandoned", stage=attempt.stage, number=attempt.number, step=attempt.last_step)
        left.end_others(every)
        record_calls(ledger, project, work.pipeline.stages.values())
        with books(project, ledger, jobs, every) as records:
            engine = jobs or _local(work, options)
            supervisor = Supervisor(
                work.pipeline,
                ledger=ledger,
                engine=engine,
                events=events,
                modules=options.modules,
                reshard=options.reshard,
                slots=max(1, project.resources.max_parallel_stages),
                stop_grace_seconds=options.stop_grace_seconds,
                records=records,
            )
            try:
                if options.keep_plan:
                    supervisor.layouts = _planned_layouts(work, planned, events)
                supervisor.run(work.todo, done=_done(work), signals=signals, tick=tick)
            except CharterError as error:
                events.emit("run_stopped", run=project.name, label=error.label, message=str(error))
                raise
            finally:
                engine.end_all()
                supervisor.close()


def _local(work: Work, options: RunOptions) -> Engine:
    """This machine as an engine, with what its stages import imported once."""
    project, where = work.pipeline.project, run_dir(work.pipeline.root)
    threads = max(int(frozen_values(project, stage.spec)["threads"]) for stage in work.todo)
    modules = preloaded_modules(
        (module_of(stage.spec, options.modules) for stage in work.todo),
        with_models=any(loads_weights(project, stage) for stage in work.todo),
    )
    return local_engine(
        preload=modules, server_log=where / "stage_server.log", environment=stage_environment(threads=threads)
    )


def _planned_layouts(work: Work, planned: PlanNow, events: Events) -> Mapping[str, Mapping[str, str | int]]:
    problem = planned.problem or (keep_plan(planned.plan, work.pipeline.root, work.todo) if planned.plan else "")
    if planned.plan is None or problem:
        events.emit("plan_failed", message=problem)
        return {}
    return planned_layouts(planned.plan, work.pipeline.project)


def _tell_start(work: Work, events: Events) -> None:
    project = work.pipeline.project
    events.emit(
        "run_started",
        run=project.name,
        pid=os.getpid(),
        todo=[stage.name for stage in work.todo],
        price_usd_per_hour=project.resources.price,
    )
    todo = {stage.name for stage in work.todo}
    for name, verdict in work.verdicts.items():
        if verdict.done or name in todo:
            event = "stage_skipped" if verdict.done else "stage_pending"
            events.emit(event, stage=name, kind=work.pipeline.stages[name].spec.kind, why=verdict.why)


def _done(work: Work) -> set[str]:
    return {name for name, verdict in work.verdicts.items() if verdict.done}


def _wanted(pipeline: Pipeline, only: Sequence[str]) -> set[str]:
    """The stages that are asked for and everything they need."""
    if unknown := [name for name in only if name not in pipeline.stages]:
        raise UsageError(f"no stage is called {unknown[0]!r}; the stages are {', '.join(pipeline.stages)}")
    wanted = set(only or pipeline.stages)
    for name in reversed(tuple(pipeline.stages)):
        if name in wanted:
            wanted.update(pipeline.stages[name].stage_inputs)
    return wanted

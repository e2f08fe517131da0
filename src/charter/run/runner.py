"""Runs a project.

Skips what is done, starts what is ready, restarts what fell over, stops when asked or out of budget.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from charter.artifacts.job_files import JobFiles, Submission, numbers, read_submission
from charter.artifacts.lease import Lease
from charter.artifacts.stage_state import StageState
from charter.errors import CharterError, DataError, UsageError
from charter.launch.job import RESTART, SENT, STAGE_MODULES, module_of, preloaded_modules
from charter.launch.job_launcher import JobLauncher
from charter.launch.launcher import HERE, RUNS, Launcher, launcher_name, open_scheduler
from charter.launch.local import local_launcher, stage_environment
from charter.launch.machine import frozen_values
from charter.ledger import Ledger
from charter.ledger.attempt import Attempt
from charter.ledger.store import ledger_place
from charter.plan.offers import may_run_here
from charter.plan.plan import InfeasiblePlanError
from charter.run.accounts import SchedulerRecords, end_finished, rebuild_ledger, start_key
from charter.run.actions import accept_model
from charter.run.alerts import AlertListener
from charter.run.approval import lay_sample_prompts, who_is_here
from charter.run.attempt import drift, drift_error
from charter.run.call_costs import record_calls
from charter.run.copies import Replicas
from charter.run.events import Events, Listener
from charter.run.followers import Followers
from charter.run.graph import Pipeline, PlannedStage, build_pipeline, with_project
from charter.run.paths import hold_of, run_dir
from charter.run.planned import PlanNow, keep_plan, plan_of_run, resolved_project
from charter.run.preflight import LEDGER_PACKAGES, check_before_start, check_packages
from charter.run.served import loads_weights
from charter.run.staleness import assess
from charter.run.supervisor import HEARTBEAT_SECONDS, NOTICE_FILE, StopSignals, Supervisor
from charter.run.sweep import SweepPoint
from charter.run.watches import StorageMeter
from charter.spec.execution import Execution
from charter.spec.project import Project


def open_launcher(
    project: Project, name: str, run_dir: Path, *, environment: Mapping[str, str], hurry: Callable[[], bool]
) -> JobLauncher | None:
    """The launcher of a run; None for this machine."""
    if name not in RUNS:
        return None
    return JobLauncher(open_scheduler(project, name), project, run_dir, environment=environment, hurry=hurry)


class LeftJobs:
    """Jobs that earlier runs have left with engines: under way, or ended and not in the ledger yet."""

    def __init__(self, project: Project, ledger: Ledger, events: Events, launcher: JobLauncher | None) -> None:
        self._project, self._ledger, self._events, self._launcher = project, ledger, events, launcher

    def recover(self, todo: Sequence[PlannedStage]) -> set[str]:
        """Find the jobs that this run goes on with; returns what the ledger calls their present starts."""
        if self._launcher is None:
            return set()
        keys = set()
        for submission in self._launcher.recover([stage.directory for stage in todo]):
            live = next(job for job in self._launcher.table.all() if job.submission == submission)
            keys.add(start_key(live.job_id, restart=0 if submission.shards else live.restart))
            self._events.emit("job_found", engine=submission.scheduler, job=live.job_id, state=live.state.phase)
        return keys

    def end_others(self, stages: Sequence[PlannedStage]) -> None:
        """End the jobs of other engines that still run in these directories; settle what has ended."""
        ours = self._launcher.name if self._launcher else ""
        for name, jobs in _by_engine(stages).items():
            if name == ours or name not in RUNS:
                continue
            try:
                self._end(name, jobs)
            except CharterError as error:
                # Whatever still runs there is locked out by the next start's term, and publishes nothing.
                self._events.emit("job_left", engine=name, message=str(error))

    def _end(self, name: str, jobs: Sequence[tuple[PlannedStage, JobFiles, Submission]]) -> None:
        scheduler = open_scheduler(self._project, name)
        try:
            records = SchedulerRecords(self._ledger, self._project, scheduler)
            for stage, files, submission in jobs:
                job_id = submission.job_id or scheduler.find(submission.name)
                if job_id is not None and scheduler.poll([job_id])[job_id].phase in ("queued", "running"):
                    scheduler.cancel(job_id)
                    self._events.emit("job_cancelled", engine=name, job=job_id, stage=stage.name)
                records.add(stage, files.number)
            records.settle()
        finally:
            scheduler.close()


@contextmanager
def books(
    project: Project, ledger: Ledger, launcher: JobLauncher | None, stages: Sequence[PlannedStage]
) -> Iterator[SchedulerRecords | None]:
    """The scheduler's records beside the ledger while a run lasts; closed when its jobs have ended."""
    if launcher is None:
        yield None
        return
    records = SchedulerRecords(ledger, project, launcher.scheduler, is_live=launcher.has)
    records.find(stages, live=[live.files.directory for live in launcher.table.all()])
    records.settle()
    try:
        yield records
    finally:
        records.find(stages, live=[live.files.directory for live in launcher.table.all()])
        records.finish()


def _by_engine(stages: Sequence[PlannedStage]) -> dict[str, list[tuple[PlannedStage, JobFiles, Submission]]]:
    jobs: dict[str, list[tuple[PlannedStage, JobFiles, Submission]]] = {}
    for stage in stages:
        for number in numbers(stage.directory):
            files = JobFiles(stage.directory, number)
            submission = read_submission(files)
            if submission is not None and not submission.ended:
                jobs.setdefault(submission.scheduler, []).append((stage, files, submission))
    return jobs


LOOK_SECONDS = 1.0


def is_started_again(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if SIGTERM came from a scheduler that will start this supervisor again, so stages need not stop.

    Only Slurm keeps a job's number, and says so; on other engines stages stop at checkpoints, and the next start goes
    on from these.
    """
    if environ.get(SENT) != "slurm":
        return False
    from charter.launch.slurm.queue import is_put_back

    if not is_put_back(environ):
        return False
    print("Slurm takes this supervisor's place away and starts it again; its stages go on", file=sys.stderr)
    return True


def take_run(run_dir: Path, *, stop_wanted: Callable[[], bool], environ: Mapping[str, str] = os.environ) -> Lease:
    """The hold on a run. A supervisor that was started again waits for it: its last start may seem to live, or does.

    One that was lost is taken for dead half a minute later; one that is only cut off works until its machine ends it.
    """
    waits = SENT in environ and int(environ.get(RESTART) or 0) > 0
    said = False
    while True:
        try:
            return hold_of(run_dir)
        except UsageError as error:
            if not waits or stop_wanted():
                raise
            if not said:
                print(f"{error}; this supervisor was started again and waits for it", file=sys.stderr, flush=True)
                said = True
        time.sleep(LOOK_SECONDS)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of a run; none of them changes what is computed."""

    only: tuple[str, ...] = ()
    """Run these stages and what they need; all when empty."""
    reshard: bool = False
    modules: Mapping[str, str] = field(default_factory=lambda: STAGE_MODULES)
    stop_grace_seconds: float = 120.0
    """How long a stage may take to reach a safe point before it is killed."""
    anyway: bool = False
    """Start although a stage does not fit by the plan."""
    replan: bool = False
    """Plan anew, although nothing that the run's own plan follows from has changed."""
    accept_models: tuple[str, ...] = ()
    """Served models of which what answers now is taken as a new revision."""
    launcher: str | None = None
    """Where stages run (`charter.launch.launcher`); as the file says when None."""
    point: SweepPoint | None = None
    """Point of a sweep that the project is."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Work of a run, and its reasons."""

    pipeline: Pipeline
    verdicts: Mapping[str, StageState]
    todo: tuple[PlannedStage, ...]


def find_work(project: Project, root: Path, options: RunOptions, *, keep_hashes: bool = False) -> Work:
    """Return the stages that have to run, and why; nothing is started, and without `keep_hashes` nothing written."""
    pipeline = build_pipeline(project, root, keep_hashes=keep_hashes)
    wanted = _wanted(pipeline, options.only)
    verdicts = {name: assess(stage, pipeline.root) for name, stage in pipeline.stages.items()}
    if unreadable := next((verdict.why for verdict in verdicts.values() if verdict.is_unreadable), None):
        raise DataError(unreadable)
    todo = tuple(stage for stage in pipeline.stages.values() if stage.name in wanted and not verdicts[stage.name].done)
    return Work(pipeline=pipeline, verdicts=verdicts, todo=todo)


def check_work(ready: "PlannedWork", options: RunOptions, launcher: Launcher | None = None) -> None:
    """Raise, with all problems at once, when what has to run cannot run on this machine, or on a scheduler's nodes.

    What does not fit by its plan is refused as well, unless `anyway`.
    """
    work = ready.work
    _check_setting(ready, options, launcher)
    if ready.planned.overflow is not None:
        refuse_overflow(ready.planned.overflow, work, options)


def _check_setting(ready: "PlannedWork", options: RunOptions, launcher: Launcher | None) -> None:
    work = ready.work
    facts = {stage.name: launcher.facts_of(stage.name) if launcher else None for stage in work.todo}
    check_before_start(
        work.pipeline,
        work.todo,
        modules=options.modules,
        facts_of=facts.get,
        executions=ready.executions,
    )
    if not work.todo:
        return
    check_packages(LEDGER_PACKAGES) if launcher else check_packages()
    if options.reshard:
        return
    for stage in work.todo:
        project = work.pipeline.project
        if changed := drift(stage, project, frozen_values(project, stage.spec, facts[stage.name])):
            raise drift_error(stage, changed)


@dataclass(frozen=True, kw_only=True)
class PlannedWork:
    """Work of a run, as it was planned."""

    work: Work
    """Of the project with what will run in the resources of its stages."""
    planned: PlanNow = field(default_factory=PlanNow)
    executions: Mapping[str, Execution] = field(default_factory=dict)
    """What will run, of the stages for which the plan decides it."""


def plan_work(work: Work, options: RunOptions) -> PlannedWork:
    """Plan what is to be run, and let the plan say what runs."""
    if not work.todo:
        return PlannedWork(work=work)
    planned = plan_of_run(work.pipeline, replan=options.replan)
    launcher = launcher_name(work.pipeline.project, options.launcher)
    project, chosen = resolved_project(work.pipeline, planned, launcher, reshard=options.reshard)
    if chosen:
        pipeline = with_project(work.pipeline, project)
        work = replace(work, pipeline=pipeline, todo=tuple(pipeline.stages[stage.name] for stage in work.todo))
    return PlannedWork(work=work, planned=planned, executions=chosen)


def refuse_overflow(overflow: InfeasiblePlanError, work: Work, options: RunOptions) -> None:
    """Raise the plan's error when it is about a stage that would start, on the machines that it was planned for."""
    project = work.pipeline.project
    is_sent = launcher_name(project, options.launcher) not in HERE
    # The plan knows the memory of the file's machines only, not of those that `--on` names in their place.
    is_elsewhere = may_run_here(project) if is_sent else launcher_name(project, None) not in HERE
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
        StopSignals(where / NOTICE_FILE, is_started_again=is_started_again) as signals,
        take_run(where, stop_wanted=lambda: signals.wanted) as lease,
    ):
        signals.forget_notice()
        for name in options.accept_models:
            accept_model(project, root.resolve(), name)
        ready = plan_work(find_work(project, root, options, keep_hashes=True), options)
        work, project = ready.work, ready.work.pipeline.project
        jobs = open_launcher(
            project, launcher_name(project, options.launcher), where, environment={}, hurry=lambda: signals.wanted
        )
        with contextlib.closing(jobs) if jobs else contextlib.nullcontext():
            check_work(ready, options, jobs)
            with Followers(
                project,
                root,
                work=bool(work.todo),
                of_sweep=options.point is not None,
                metered_here=jobs is None,
                hurry=lambda: signals.wanted,
            ) as followers:
                meter = StorageMeter(project, root)
                events = Events(where, (*listeners, followers.listen, AlertListener(project, where), meter.listen))
                followers.tell = events.emit
                _tell_start(work, events, options.point)
                if rebuilt := rebuild_ledger(project, root, work.pipeline.stages.values()):
                    events.emit(
                        "ledger_rebuilt",
                        stages=list(rebuilt),
                        message=f"the ledger had lost {', '.join(rebuilt)}: their time and money are those that their "
                        "directories keep; single attempts and their counts are gone, as is what was never finished",
                    )
                if work.todo:
                    _run(ready, options, events, signals, lease, jobs, meter)
                events.emit("run_done", run=project.name)
    return work


def _run(
    ready: PlannedWork,
    options: RunOptions,
    events: Events,
    signals: StopSignals,
    lease: Lease,
    jobs: JobLauncher | None,
    meter: StorageMeter,
) -> None:
    work = ready.work
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
        job_keys = left.recover(work.todo)
        _refuse_namesake(ledger, project, keep_jobs=job_keys)
        end_finished(ledger, every, run=project.run_in_ledger, keep_jobs=job_keys)
        for attempt in ledger.close_abandoned(now=time.time(), run=project.run_in_ledger, keep_jobs=job_keys):
            events.emit("attempt_abandoned", stage=attempt.stage, number=attempt.number, step=attempt.last_step)
        left.end_others(every)
        record_calls(ledger, project, work.pipeline.stages.values())
        with books(project, ledger, jobs, every) as records:
            launcher = jobs or _local(work, options)
            supervisor = Supervisor(
                work.pipeline,
                ledger=ledger,
                launcher=launcher,
                events=events,
                modules=options.modules,
                reshard=options.reshard,
                slots=max(1, project.resources.max_parallel_stages),
                stop_grace_seconds=options.stop_grace_seconds,
                records=records,
            )
            try:
                _lay_sample_prompts(work, events)
                _keep_plan(ready, events)
                supervisor.executions = ready.executions
                supervisor.run(work.todo, done=_done(work), signals=signals, tick=tick)
            except CharterError as error:
                events.emit("run_stopped", run=project.name, label=error.label, message=str(error))
                raise
            finally:
                launcher.end_all()
                supervisor.close()


NAMESAKE_SECONDS = 3 * HEARTBEAT_SECONDS
"""How long one is listened for: a supervisor says with every heartbeat that its attempts live."""


def _refuse_namesake(ledger: Ledger, project: Project, *, keep_jobs: Collection[str]) -> None:
    """Raise where another directory runs a project of this name: its attempts would be ended here as left behind.

    Only a ledger on a server has several directories, and no row says from which it is: what is left behind stands
    still, and what runs is heard of.
    """
    if project.run_in_ledger is None:
        return

    def beats() -> dict[int, Attempt]:
        running = ledger.running(run=project.run_in_ledger)
        return {row.attempt_id: row for row in running if row.job_id not in keep_jobs}

    before, until = beats(), time.monotonic() + NAMESAKE_SECONDS
    while before and time.monotonic() < until:
        time.sleep(HEARTBEAT_SECONDS / 4)
        for number, row in beats().items():
            if number not in before or row.last_heartbeat != before[number].last_heartbeat:
                raise UsageError(
                    f"another run of '{project.name}' is under way: stage {row.stage}, attempt {row.number}, on "
                    f"{row.host}\n  {project.storage.ledger} tells projects apart by their names: give this one "
                    "another `name`"
                )


def _local(work: Work, options: RunOptions) -> Launcher:
    """This machine as a launcher, with what its stages import imported once."""
    project, where = work.pipeline.project, run_dir(work.pipeline.root)
    threads = max(int(frozen_values(project, stage.spec)["threads"]) for stage in work.todo)
    modules = preloaded_modules(
        (module_of(stage.spec, options.modules) for stage in work.todo),
        with_models=any(loads_weights(project, stage) for stage in work.todo),
    )
    return local_launcher(
        preload=modules, server_log=where / "stage_server.log", environment=stage_environment(threads=threads)
    )


def _lay_sample_prompts(work: Work, events: Events) -> None:
    """Put prompts beside the stages; what is for reading alone stops no run."""
    try:
        lay_sample_prompts(work.pipeline, work.todo)
    except (CharterError, OSError) as error:
        events.emit("samples_left_out", message=f"no samples are drawn: {str(error).splitlines()[0]}")


def _keep_plan(ready: PlannedWork, events: Events) -> None:
    if problem := keep_plan(ready.planned, ready.work.pipeline.root, ready.work.todo):
        events.emit("plan_failed", message=problem)


def _tell_start(work: Work, events: Events, point: SweepPoint | None) -> None:
    project = work.pipeline.project
    events.emit(
        "run_started",
        run=project.name,
        by=who_is_here(),
        pid=os.getpid(),
        todo=[stage.name for stage in work.todo],
        price_usd_per_hour=project.resources.price,
        **({"point": point.to_json()} if point else {}),
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

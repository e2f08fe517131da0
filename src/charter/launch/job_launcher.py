"""Stages as jobs of a scheduler: every attempt is one start of a job, which outlives the supervisor that sent it."""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.job_files import JobFiles, NodeRecord, Submission, numbers, read_submission, write_submission
from charter.artifacts.lease import open_term
from charter.artifacts.record import RECORD_FILE
from charter.artifacts.stage_process import INTERRUPTED_EXIT
from charter.errors import CharterError, DataError, StageError
from charter.launch.job import StageJob
from charter.launch.job_handle import FILES_SECONDS, LOOK_SECONDS, LOST, LOST_SECONDS, JobHandle, JobTable, LiveJob
from charter.launch.launcher import StageHandle, StageStart
from charter.launch.machine import NodeFacts, facts_here, stage_nodes
from charter.launch.node_checks import leave_out, read_bad_nodes
from charter.launch.scheduler import Scheduler
from charter.launch.submission import (
    SubmissionFacts,
    is_array,
    job_name,
    new_token,
    settings_of,
    stage_job,
    submission_of,
)
from charter.spec.project import Project

SECONDS_PER_TASK = 0.005
"""The files of an array are looked at so much less often for every task that it has."""


class ArrayHandle(JobHandle):
    """An array of tasks, each a process that makes its share of the records; the first failure is the array's."""

    @property
    def watched(self) -> Sequence[int]:
        """The processes of the tasks that run now."""
        return [record.first_rank for record in self._records.values() if record.first_pid and record.ended_at is None]

    @property
    def _first(self) -> NodeRecord | None:
        return next((record for record in self._records.values() if record.first_pid), None)

    def _look_seconds(self) -> float:
        return max(LOOK_SECONDS, SECONDS_PER_TASK * len(self._live.submission.shards))

    def _busy_seconds(self) -> float:
        now = time.time()
        return sum((record.ended_at or now) - record.started_at for record in self._records.values())

    def _read(self, now: float) -> None:
        for record in self._live.files.nodes_again(self._records):
            self._records[record.place] = record

    def _decide(self, now: float) -> None:
        state, records = self._live.state, [*self._records.values()]
        bad = next((record for record in records if record.exit_code), None)
        all_ended = len(records) == len(self._live.submission.shards) and all(it.ended_at is not None for it in records)
        if not (all_ended and bad is None) and state.phase != "ended":
            return
        self._ended_at = now if self._ended_at is None else self._ended_at
        if bad is None and all_ended and (self._live.stage_dir / RECORD_FILE).exists():
            self._end(0, "")
        elif now - self._ended_at > FILES_SECONDS:
            if bad is not None:
                self.failed_rank = bad.failed_rank
            self.note = "" if bad is not None else "its tasks have ended, and none of them has published"
            code = INTERRUPTED_EXIT if self._control.stop else LOST if bad is None else bad.exit_code or LOST
            self._end(code, "cancelled" if self._control.kill else state.cause if bad is not None else "node_lost")


FACTS = "node_facts"
NODE_LOOK_SECONDS = 0.25
FRESH_SECONDS = 3600.0
"""Nodes may get other libraries: what is older is asked again."""
AFTER_END_SECONDS = 10.0
"""A shared disk may show a file so long after the job that wrote it has ended."""


def main() -> None:
    """Write this node's facts."""
    durable.write_json(Path(sys.argv[1]), asdict(facts_here()))


def facts_path(run_dir: Path, job: StageJob, *, scheduler: str) -> Path:
    """Return the file with the facts of the kind of node that a job asks for."""
    kind = [scheduler, job.accelerator, job.command[0], sorted(job.environment.items())]
    digest = hashlib.sha256(json.dumps(kind).encode()).hexdigest()[:12]
    return run_dir / FACTS / f"{scheduler}-{digest}.json"


def facts_of(
    scheduler: Scheduler,
    job: StageJob,
    run_dir: Path,
    *,
    hurry: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
) -> NodeFacts:
    """The facts of a kind of node: those that are kept, else by a job of one node that looks."""
    path = facts_path(run_dir, job, scheduler=scheduler.name)
    durable.make_dir(path.parent)
    if path.exists() and time.time() - path.stat().st_mtime > FRESH_SECONDS:
        path.unlink()
    try:
        return NodeFacts(**durable.read_json(path))
    except (DataError, TypeError):
        return _ask(scheduler, job, path, hurry=hurry, sleep=sleep)


def _ask(
    scheduler: Scheduler, job: StageJob, path: Path, *, hurry: Callable[[], bool], sleep: Callable[[float], None]
) -> NodeFacts:
    job_id = scheduler.submit(job)
    ended_for = unknown_for = 0.0
    while not path.exists():
        if hurry():
            scheduler.cancel(job_id)
            raise StageError(f"asked to stop while job {job_id} looked what the nodes of {scheduler.name} are")
        state = scheduler.poll([job_id])[job_id]
        is_over = state.phase == "ended" and (state.exit_code or ended_for > AFTER_END_SECONDS)
        if is_over or unknown_for > LOST_SECONDS:
            reason = state.reason or state.cause or ("no reason given" if is_over else "its scheduler lost it")
            raise StageError(
                f"job {job_id}, which looks what the nodes of {scheduler.name} are, ended without an answer: {reason}\n"
                f"  its log: {_log(job)}\n"
                "  can the nodes see the project's directory under the same path, and run launch.python?"
            )
        ended_for += NODE_LOOK_SECONDS if state.phase == "ended" else 0.0
        unknown_for = unknown_for + NODE_LOOK_SECONDS if state.phase == "unknown" else 0.0
        sleep(NODE_LOOK_SECONDS)
    return NodeFacts(**durable.read_json(path))


def _log(job: StageJob) -> str:
    try:
        return job.log.read_text(encoding="utf-8", errors="replace")[-500:].strip() or "(empty)"
    except OSError:
        return f"there is no {job.log}"


if __name__ == "__main__":
    main()


def missing_shards(stage_dir: Path, *, of: int) -> tuple[int, ...]:
    """The shards that an array must make now; empty where one process does what is left, and publishes.

    One process also makes up for what was lost after it was done: it looks at every batch.
    """
    done = done_shards(stage_dir, of=of)
    left = tuple(shard for shard in range(of) if shard not in done)
    return left if len(left) > 1 else ()


def done_shards(stage_dir: Path, *, of: int) -> set[int]:
    """The shards that arrays of so many tasks have made."""
    done: set[int] = set()
    for number in numbers(stage_dir):
        files = JobFiles(stage_dir, number)
        try:
            shards, total = files.shards()
        except (DataError, KeyError):
            continue
        if total == of:
            done |= {shards[record.place] for record in files.nodes() if record.exit_code == 0}
    return done


class JobLauncher:
    """A launcher on top of any scheduler."""

    elsewhere = True

    def __init__(
        self,
        scheduler: Scheduler,
        project: Project,
        run_dir: Path,
        *,
        environment: Mapping[str, str] | None = None,
        hurry: Callable[[], bool] = lambda: False,
    ) -> None:
        self.scheduler = scheduler
        self.table = JobTable(scheduler)
        self._project, self._run_dir = project, run_dir
        self._environment = dict(environment or {})
        self._hurry = hurry
        self._facts: dict[Path, NodeFacts] = {}

    @property
    def name(self) -> str:
        """The scheduler's name."""
        return self.scheduler.name

    def facts_of(self, stage: str) -> NodeFacts:
        """Return the facts of the nodes that compute a stage, looked at by a tiny job on one of them."""
        job = self._facts_job(stage)
        path = facts_path(self._run_dir, job, scheduler=self.name)
        if path not in self._facts:
            self._facts[path] = facts_of(self.scheduler, job, self._run_dir, hurry=self._hurry)
        return self._facts[path]

    def has(self, job_id: str) -> bool:
        """Return True if a job has not ended, as far as is known."""
        return any(live.job_id == job_id for live in self.table.all())

    def recover(self, stage_dirs: Sequence[Path]) -> list[Submission]:
        """Find the jobs that a dead supervisor has left under way; they wait for `start`, or end with `close`."""
        submissions = []
        for stage_dir in stage_dirs:
            if (job := left_job(self.scheduler, stage_dir)) is not None:
                self.table.add(job)
                submissions.append(job.submission)
        return submissions

    def under_way(self, request: StageStart) -> bool:
        """Return True if the stage's job runs on by itself, as it would be submitted now; another one is ended."""
        live = self.table.get(request.stage_dir)
        if live is None or not live.goes_on:
            return False
        submission = live.submission
        now = self._asked(submission.number, submission.token, submission.shards)
        then = replace(now, exclude_nodes=submission.exclude_nodes)
        is_same = settings_of(self._job(replace(request, attempt=submission.attempt), then)) == submission.settings
        if is_same and not _may_meet(live, set(now.exclude_nodes).difference(then.exclude_nodes)):
            return True
        self.drop(live)
        return False

    def end_left(self, stage_dir: Path) -> None:
        """End the job that runs there by itself."""
        live = self.table.get(stage_dir)
        if live is not None and live.goes_on:
            self.drop(live)

    def start(self, request: StageStart) -> StageHandle:
        """Submit the stage's job, or go on with the one that is under way."""
        live = self.table.get(request.stage_dir)
        if live is not None and live.goes_on:
            live.goes_on = False
            self.scheduler.release(live.job_id)
        else:
            live = self._submit(request)
        kind = ArrayHandle if live.submission.shards else JobHandle
        return kind(live, self.table, self.scheduler, leave_out=partial(leave_out, self._run_dir))

    def drop(self, live: LiveJob) -> None:
        """End a job that nobody waits for."""
        live.files.ask(replace(live.files.asked(), kill=True))
        self.scheduler.cancel(live.job_id)
        self.table.remove(live)

    def renew(self) -> None:
        """Nothing stands between the supervisor and the scheduler."""

    def close(self) -> None:
        """End the jobs that still run, and the connection."""
        self.end_all()
        self.scheduler.close()

    def end_all(self) -> None:
        """End the jobs that still run."""
        for live in self.table.all():
            try:
                self.drop(live)
            except CharterError as error:
                print(f"job {live.job_id} of {self.name} may still run: {error}", file=sys.stderr)

    def _submit(self, request: StageStart) -> LiveJob:
        shards: tuple[int, ...] = ()
        if is_array(self._project, request):
            shards = missing_shards(request.stage_dir, of=request.processes)
        number = max(numbers(request.stage_dir), default=0) + 1
        order = self._asked(number, new_token(), shards)
        files, job = JobFiles(request.stage_dir, number), self._job(request, order)
        durable.make_dir(files.directory)
        if shards:
            files.write_shards(shards, of=request.processes)
        open_term(request.stage_dir, number, group=order.token)
        submission = submission_of(job, order, request, scheduler=self.name, at=time.time())
        write_submission(files, submission)
        job_id = self.scheduler.submit(job)
        submission = replace(submission, job_id=job_id)
        write_submission(files, submission)
        live = LiveJob(files=files, stage_dir=request.stage_dir, submission=submission, job_id=job_id)
        self.table.add(live)
        return live

    def _job(self, request: StageStart, order: SubmissionFacts) -> StageJob:
        request = replace(request, environment={**self._environment, **request.environment})
        return stage_job(self._project, request, order, scheduler=self.name)

    def _asked(self, number: int, token: str, shards: tuple[int, ...]) -> SubmissionFacts:
        return SubmissionFacts(
            number=number, token=token, shards=shards, exclude_nodes=tuple(sorted(read_bad_nodes(self._run_dir)))
        )

    def _facts_job(self, stage: str) -> StageJob:
        """The tiny job that looks at a node of the kind that a stage asks for."""
        nodes = stage_nodes(self._project, self._project.pipeline[stage])
        request = StageStart(stage=stage, module="-", stage_dir=self._run_dir / FACTS, attempt=1, processes=nodes)
        token = new_token()
        like = self._job(request, self._asked(1, token, ()))
        directory = self._run_dir / FACTS
        bare = replace(
            like,
            name=job_name(self._project.name, "facts", token),
            stage="facts",
            directory=directory,
            log=directory / f"log-{token}.txt",
            nodes=1,
            spare_nodes=0,
            processes_per_node=1,
            drives=False,
            accelerators_per_node=min(1, like.accelerators_per_node),
            cpus_per_node=1,
            memory_bytes_per_node=None,
            memory_limit_bytes_per_node=None,
            time_limit_seconds=None,
        )
        path = facts_path(self._run_dir, bare, scheduler=self.name)
        return replace(bare, command=(bare.command[0], "-m", "charter.launch.job_launcher", str(path)))


def _may_meet(live: LiveJob, nodes: set[str]) -> bool:
    """Return True if a job runs, or may be about to run, on one of these nodes."""
    return bool(nodes) and (live.state.phase != "running" or not nodes.isdisjoint(live.state.nodes))


def left_job(scheduler: Scheduler, stage_dir: Path) -> LiveJob | None:
    """The job of a stage that was submitted to this scheduler and has not ended; None where there is none."""
    submitted = numbers(stage_dir)
    if not submitted:
        return None
    files = JobFiles(stage_dir, submitted[-1])
    submission = read_submission(files)
    if submission is None or submission.ended or submission.scheduler != scheduler.name:
        return None
    job_id = submission.job_id or scheduler.find(submission.name)
    if job_id is None:
        return None
    state = scheduler.poll([job_id])[job_id]
    if state.phase not in ("queued", "running"):
        return None
    return LiveJob(
        files=files,
        stage_dir=stage_dir,
        submission=replace(submission, job_id=job_id),
        job_id=job_id,
        restart=state.restarts,
        state=state,
        goes_on=True,
    )

"""The ledger and an engine's own records of its jobs: every start of a job is one attempt, as long as the engine says.

Engines bill by their records, and know of starts that nobody here saw: a job that was preempted twice between two
looks, or that ran while no supervisor lived. So when a job has ended its starts are read from the engine (from the
agents, where it keeps none), and put in the place of what was measured here.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from charter.errors import CharterError
from charter.launch.job_files import JobFiles, NodeRecord, numbers
from charter.launch.scheduler import JobAttempt, Scheduler
from charter.launch.submission import Submission, read_submission, write_submission
from charter.ledger import Ledger, Outcome
from charter.ledger.attempt import Attempt
from charter.pipeline.attempt import price_micro_usd_per_hour
from charter.pipeline.graph import PlannedStage
from charter.pipeline.staleness import checkpoint_step
from charter.spec.project import Project

LATE_SECONDS = 30.0
"""An engine's records come later than the end of a job (`sacct`); for so long they are waited for while a run lasts."""
AGAIN_SECONDS = 5.0
"""Between two questions about the same job."""
AT_END_SECONDS = LATE_SECONDS + AGAIN_SECONDS
"""At the end of a run; what is still missing then is read by the next one."""


def start_key(job_id: str, *, shard: int | None = None, restart: int = 0) -> str:
    """What the ledger calls one start of a job.

    >>> start_key("12"), start_key("12", shard=3, restart=1)
    ('12', '12_3+1')
    """
    task = "" if shard is None else f"_{shard}"
    return f"{job_id}{task}{f'+{restart}' if restart else ''}"


class EngineRecords:
    """Settles the attempts of ended jobs with their engine."""

    def __init__(
        self,
        ledger: Ledger,
        project: Project,
        scheduler: Scheduler,
        *,
        is_live: Callable[[str], bool] = lambda job_id: False,
    ) -> None:
        self._ledger, self._project, self._scheduler = ledger, project, scheduler
        self._goes_on = is_live
        self._pending: dict[Path, tuple[PlannedStage, float]] = {}
        self._next_try: dict[Path, float] = {}

    def find(self, stages: Iterable[PlannedStage], *, live: Iterable[Path]) -> None:
        """Take up the jobs that an earlier run has left unsettled, but not those that still run."""
        skipped = set(live)
        for stage in stages:
            for number in numbers(stage.directory):
                files = JobFiles(stage.directory, number)
                if files.directory not in skipped:
                    self.add(stage, number)

    def add(self, stage: PlannedStage, number: int) -> None:
        """A job has ended."""
        files = JobFiles(stage.directory, number)
        submission = read_submission(files)
        if submission is not None and not submission.ended and submission.engine == self._scheduler.name:
            self._pending[files.directory] = (stage, time.monotonic())

    def ended(self, stage: PlannedStage) -> None:
        """The last job of a stage has ended, or was started again by its engine: then nothing is written yet."""
        self.add(stage, max(numbers(stage.directory), default=0))

    def settle(self, *, now_or_never: bool = False) -> None:
        """Settle what the engine has records of by now; each job is asked about now and then only."""
        now = time.monotonic()
        for directory, (stage, since) in [*self._pending.items()]:
            if not now_or_never and now < self._next_try.get(directory, 0.0):
                continue
            self._next_try[directory] = now + AGAIN_SECONDS
            files = JobFiles(stage.directory, int(directory.name))
            late = time.monotonic() - since > LATE_SECONDS
            if self._settle(stage, files, late=late):
                del self._pending[directory]

    def finish(self, seconds: float = AT_END_SECONDS) -> None:
        """Wait a little for records that are late."""
        deadline = time.monotonic() + seconds
        self.settle(now_or_never=True)
        while self._pending and time.monotonic() < deadline:
            time.sleep(1.0)
            self.settle(now_or_never=True)

    def _settle(self, stage: PlannedStage, files: JobFiles, *, late: bool) -> bool:
        """Settle one job; whether that is done."""
        submission = read_submission(files)
        if submission is None:
            return True
        try:
            job_id = submission.job_id or self._scheduler.find(submission.name)
            starts = self._scheduler.attempts(job_id) if job_id is not None else ()
        except CharterError:
            return False
        if job_id is None:
            job_id, starts = submission.name, ()
        if self._goes_on(job_id):  # its engine has started it again; its starts are read when it has ended
            return False
        if not late and (any(start.ended_at is None for start in starts) or _lacks_tasks(submission, starts)):
            return False
        starts = starts or tuple(starts_of_agents(files, submission, job_id))
        if not starts and not late:
            return False
        self._write(stage, submission, job_id, [start for start in starts if start.ended_at is not None])
        write_submission(files, replace(submission, job_id=job_id, ended=True))
        return True

    def _write(self, stage: PlannedStage, submission: Submission, job_id: str, starts: Sequence[JobAttempt]) -> None:
        rows = {row.job_id: row for row in self._rows(stage, job_id)}
        if any(row.outcome == "running" for row in rows.values()):
            return
        of_array = _told_as(rows[job_id], starts) if job_id in rows else None
        for start in starts:
            key = start_key(job_id, shard=start.shard, restart=start.restart)
            row = rows.get(job_id if start is of_array else key)
            attempt_id = row.attempt_id if row else self._insert(stage, submission, start, key)
            self._ledger.settle(
                attempt_id,
                started_at=start.started_at,
                duration_milliseconds=round((start.seconds or 0.0) * 1000),
                job_id=key,
                nodes=",".join(start.nodes) or None,
            )

    def _rows(self, stage: PlannedStage, job_id: str) -> Iterator[Attempt]:
        for row in self._ledger.attempts(run=self._project.name, stage=stage.name):
            if row.job_id is not None and (row.job_id == job_id or row.job_id.startswith((f"{job_id}_", f"{job_id}+"))):
                yield row

    def _insert(self, stage: PlannedStage, submission: Submission, start: JobAttempt, key: str) -> int:
        """A start that nobody here has seen, or a task of an array."""
        step = checkpoint_step(stage.directory)
        attempt_id = begin_job_attempt(
            self._ledger,
            self._project,
            stage,
            submission=submission,
            first_step=0 if start.shard is None else step,
            at=start.started_at,
            key=key,
            shard=shard_of(submission, start.shard),
            host=start.nodes[0] if start.nodes else "",
        )
        outcome: Outcome = "done" if _went_well(start) else "killed"
        note = "" if outcome == "done" else f"{submission.engine} says {start.state}"
        self._ledger.end(attempt_id, at=start.ended_at or start.started_at, outcome=outcome, note=note)
        return attempt_id


def _lacks_tasks(submission: Submission, starts: Sequence[JobAttempt]) -> bool:
    """Whether an engine that has records of some tasks of an array has none of others yet."""
    told = {start.shard for start in starts}
    return bool(starts) and not told.issuperset(range(len(submission.shards)))


def _went_well(start: JobAttempt) -> bool:
    return start.state.upper().startswith(("COMPLETED", "DONE", "SUCCEEDED"))


def _told_as(row: Attempt, starts: Sequence[JobAttempt]) -> JobAttempt | None:
    """Of an array, the start that its one line stands for while it runs: the first that ended as the line says."""
    tasks = [start for start in starts if start.shard is not None]
    return next((start for start in tasks if _went_well(start) == (row.outcome == "done")), next(iter(tasks), None))


def begin_job_attempt(
    ledger: Ledger,
    project: Project,
    stage: PlannedStage,
    *,
    submission: Submission,
    first_step: int,
    at: float,
    key: str,
    host: str,
    monotonic: float | None = None,
    shard: int | None = None,
    nodes: str | None = None,
    pid: int = 0,
) -> int:
    """Write the start of a job into the ledger; it is priced by the accelerator, or by the node where there is none."""
    price = price_micro_usd_per_hour(project, shared=False)
    return ledger.begin(
        run=project.name,
        stage=stage.name,
        kind=stage.spec.kind,
        fingerprint=stage.asked_fingerprint,
        at=at,
        monotonic=monotonic,
        accelerator=submission.accelerator or "cpu",
        count=submission.count,
        infra=submission.engine,
        market=submission.market,
        first_step=first_step,
        price_micro_usd_per_hour=price,
        price_source=None if price is None else "resources.price in charter.yaml",
        host=host,
        pid=pid,
        job_id=key,
        nodes=nodes,
        owner=project.owner,
        tags=project.tags,
        shard=shard,
    )


def shard_of(submission: Submission, task: int | None) -> int | None:
    """The shard that a task of an array makes."""
    return None if task is None or task >= len(submission.shards) else submission.shards[task]


def starts_of_agents(files: JobFiles, submission: Submission, job_id: str) -> Iterator[JobAttempt]:
    """Every start by the records that the agents have left, for engines that keep none."""
    starts: dict[tuple[int | None, int], list[NodeRecord]] = {}
    for record in files.nodes():
        shard = record.place if submission.shards else None
        starts.setdefault((shard, record.restart), []).append(record)
    for (shard, restart), records in starts.items():
        ended = [record.ended_at for record in records if record.ended_at is not None]
        good = all(record.exit_code == 0 for record in records)
        yield JobAttempt(
            job_id=job_id,
            shard=shard,
            restart=restart,
            state="COMPLETED" if good else "ENDED",
            started_at=min(record.started_at for record in records),
            ended_at=max(ended) if ended else None,
            nodes=tuple(dict.fromkeys(record.host for record in records)),
            accelerators=submission.count if submission.accelerator else 0,
            cpus=0,
        )

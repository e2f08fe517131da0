"""A run whose stages are jobs of an engine: opened before anything is checked, and its books closed at the end."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from charter.errors import CharterError
from charter.launch.job_engine import JobEngine
from charter.launch.job_files import JobFiles, numbers
from charter.launch.opening import RUNS, open_scheduler
from charter.launch.submission import Submission, read_submission
from charter.ledger import Ledger
from charter.pipeline.engine_records import EngineRecords, start_key
from charter.pipeline.events import Events
from charter.pipeline.graph import PlannedStage
from charter.spec.project import Project


def open_engine(
    project: Project, name: str, run_dir: Path, *, environment: Mapping[str, str], hurry: Callable[[], bool]
) -> JobEngine | None:
    """The engine of a run; None for this machine."""
    if name not in RUNS:
        return None
    return JobEngine(open_scheduler(project, name), project, run_dir, environment=environment, hurry=hurry)


class LeftJobs:
    """What earlier runs have left with engines: jobs under way, and ended ones that are not in the ledger yet."""

    def __init__(self, project: Project, ledger: Ledger, events: Events, engine: JobEngine | None) -> None:
        self._project, self._ledger, self._events, self._engine = project, ledger, events, engine

    def recover(self, todo: Sequence[PlannedStage]) -> set[str]:
        """Find the jobs that this run goes on with; returns what the ledger calls their present starts."""
        if self._engine is None:
            return set()
        keys = set()
        for submission in self._engine.recover([stage.directory for stage in todo]):
            live = next(job for job in self._engine.table.all() if job.submission == submission)
            keys.add(start_key(live.job_id, restart=0 if submission.shards else live.restart))
            self._events.emit("job_found", engine=submission.engine, job=live.job_id, state=live.state.phase)
        return keys

    def end_others(self, stages: Sequence[PlannedStage]) -> None:
        """End the jobs of other engines that still run in these directories; settle what has ended."""
        ours = self._engine.name if self._engine else ""
        for name, found in _by_engine(stages).items():
            if name == ours or name not in RUNS:
                continue
            try:
                self._end(name, found)
            except CharterError as error:
                # Whatever still runs there is locked out by the next start's term, and publishes nothing.
                self._events.emit("job_left", engine=name, message=str(error))

    def _end(self, name: str, found: Sequence[tuple[PlannedStage, JobFiles, Submission]]) -> None:
        scheduler = open_scheduler(self._project, name)
        try:
            records = EngineRecords(self._ledger, self._project, scheduler)
            for stage, files, submission in found:
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
    project: Project, ledger: Ledger, engine: JobEngine | None, stages: Sequence[PlannedStage]
) -> Iterator[EngineRecords | None]:
    """The engine's records beside the ledger while a run lasts; closed when its jobs have ended."""
    if engine is None:
        yield None
        return
    records = EngineRecords(ledger, project, engine.scheduler, is_live=engine.has)
    records.find(stages, live=[live.files.directory for live in engine.table.all()])
    records.settle()
    try:
        yield records
    finally:
        records.find(stages, live=[live.files.directory for live in engine.table.all()])
        records.finish()


def _by_engine(stages: Sequence[PlannedStage]) -> dict[str, list[tuple[PlannedStage, JobFiles, Submission]]]:
    found: dict[str, list[tuple[PlannedStage, JobFiles, Submission]]] = {}
    for stage in stages:
        for number in numbers(stage.directory):
            files = JobFiles(stage.directory, number)
            submission = read_submission(files)
            if submission is not None and not submission.ended:
                found.setdefault(submission.engine, []).append((stage, files, submission))
    return found

"""Attempts that the ledger still has as running, whose jobs ended without a supervisor that could say so."""

import time
from collections.abc import Collection, Iterable

from charter.launch.job_files import JobFiles, numbers
from charter.launch.submission import read_submission
from charter.ledger import Ledger
from charter.pipeline.endings import is_finished
from charter.pipeline.engine_records import start_key
from charter.pipeline.graph import PlannedStage
from charter.pipeline.staleness import checkpoint_step


def end_finished(ledger: Ledger, stages: Iterable[PlannedStage], *, run: str, keep_jobs: Collection[str]) -> None:
    """End, as done, the attempts that have finished their stages; not those of `keep_jobs`, which are gone on with."""
    running = [row for row in ledger.running(run=run) if row.job_id is not None and row.job_id not in keep_jobs]
    by_stage = {stage.name: stage for stage in stages} if running else {}
    for row in running:
        stage = by_stage.get(row.stage)
        found = None if stage is None else _good_end(stage)
        if stage is not None and found is not None and found[0] == row.job_id and is_finished(stage):
            step = checkpoint_step(stage.directory)
            ledger.end(row.attempt_id, at=found[1], outcome="done", kept_step=step)


def end_dropped(ledger: Ledger, stage: PlannedStage, *, run: str) -> None:
    """End what the ledger has as running of a stage that no job works on any more."""
    end_finished(ledger, [stage], run=run, keep_jobs=())
    for row in ledger.running(run=run):
        if row.stage == stage.name and row.job_id is not None:
            ledger.end(row.attempt_id, at=time.time(), outcome="killed", note="its job was ended for another one")


def _good_end(stage: PlannedStage) -> tuple[str, float] | None:
    """The ledger's name for the last start of the last job, and its end; None unless all its agents ended well.

    Tasks of an array are started again one by one: of each the last start counts.
    """
    known = numbers(stage.directory)
    files = JobFiles(stage.directory, known[-1]) if known else None
    submission = read_submission(files) if files else None
    if files is None or submission is None or submission.job_id is None:
        return None
    records = [*files.nodes()]
    latest = max((record.restart for record in records), default=0)
    if submission.shards:
        last = [*{record.place: record for record in sorted(records, key=lambda found: found.restart)}.values()]
    else:
        last = [record for record in records if record.restart == latest]
    ends = [record.ended_at for record in last if record.ended_at is not None and record.exit_code == 0]
    if not ends or len(ends) < len(last):
        return None
    return start_key(submission.job_id, restart=0 if submission.shards else latest), max(ends)

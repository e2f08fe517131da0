"""Starts an attempt at a stage: its directory made ready, its processes or its job started, its line in the ledger."""

import time
from collections.abc import Mapping

from charter.launch.engine import Engine, StageStart
from charter.launch.job_files import JobFiles, numbers
from charter.launch.machine import frozen_values
from charter.launch.submission import read_submission
from charter.ledger import Ledger
from charter.pipeline.attempt import RunningAttempt, begin_attempt
from charter.pipeline.call_costs import CallCosts
from charter.pipeline.endings import is_finished
from charter.pipeline.engine_records import begin_job_attempt, shard_of, start_key
from charter.pipeline.graph import PlannedStage
from charter.pipeline.hang_watch import LEAST_SECONDS, START_SECONDS, HangWatch
from charter.pipeline.idle import IdleClock
from charter.pipeline.left_attempts import end_dropped
from charter.pipeline.prepare import Prepared, prepare, prepared_before
from charter.spec.project import Project
from charter.spec.stage_kinds import TRAINS


def start_attempt(
    project: Project,
    stage: PlannedStage,
    *,
    engine: Engine,
    ledger: Ledger,
    module: str,
    number: int,
    reshard: bool,
    planned: Mapping[str, str | int] | None,
) -> tuple[RunningAttempt, tuple[str, ...]] | None:
    """Start one attempt, or go on with one that is under way; returns it, and what is worth telling.

    None where the stage is finished by now: a job that a dead supervisor had left may have ended after the stage was
    found unfinished. Its record is read last, when no job of the stage is under way any more.
    """
    here = frozen_values(project, stage.spec, engine.facts_of(stage.name))

    def request(prepared: Prepared) -> StageStart:
        return StageStart(
            stage=stage.name, module=module, stage_dir=stage.directory, attempt=number, processes=prepared.processes
        )

    prepared = prepared_before(stage, project, here, reshard=reshard) if engine.elsewhere else None
    if prepared is None or not engine.under_way(request(prepared)):
        engine.end_left(stage.directory)
        if engine.elsewhere:
            end_dropped(ledger, stage, run=project.name)
        if is_finished(stage):
            return None
        prepared = prepare(stage, project, here, reshard=reshard, planned=planned, elsewhere=engine.elsewhere)
    ledger_id = None
    if not engine.elsewhere:
        ledger_id = begin_attempt(ledger, project, stage, first_step=prepared.first_step, frozen=prepared.frozen)
    handle = engine.start(request(prepared))
    # An answer of a judge may be long in coming, and a stage that asks for one has no steps to go by.
    least = LEAST_SECONDS if stage.spec.kind in TRAINS else START_SECONDS
    attempt = RunningAttempt(
        stage=stage,
        handle=handle,
        number=number,
        ledger_id=ledger_id,
        first_step=prepared.first_step,
        calls=CallCosts(project=project, stage=stage),
        idle=IdleClock(policy=project.idle, stage_dir=stage.directory, started_at=time.time()),
        watch=HangWatch(limit_seconds=stage.spec.hang_timeout, least_seconds=least),
    )
    return attempt, prepared.notes


def begin_job(attempt: RunningAttempt, ledger: Ledger, project: Project) -> bool:
    """Write into the ledger that a job runs, once it does; one that a dead supervisor has begun is gone on with."""
    job, stage = attempt.handle.job, attempt.stage
    number = max(numbers(stage.directory), default=0)
    submission = read_submission(JobFiles(stage.directory, number)) if job is not None else None
    if job is None or submission is None:
        return False
    attempt.started, attempt.started_at = time.monotonic(), time.time()
    attempt.idle.started_at = attempt.started_at
    key = start_key(job.job_id, restart=job.restart)
    known = [row for row in ledger.running(run=project.name) if row.stage == stage.name and row.job_id == key]
    if known:
        attempt.ledger_id, attempt.is_own_clock = known[0].attempt_id, False
        return True
    # The job has run for a moment when it is seen to: the clock of here counts on from there.
    before = max(0.0, time.time() - job.started_at) if job.busy_seconds is None else 0.0
    attempt.started -= before
    attempt.ledger_id = begin_job_attempt(
        ledger,
        project,
        stage,
        submission=submission,
        first_step=attempt.first_step,
        at=job.started_at,
        monotonic=attempt.started,
        key=key,
        shard=shard_of(submission, 0) if submission.shards else None,
        host=job.nodes[0] if job.nodes else "",
        nodes=",".join(job.nodes) or None,
        pid=attempt.handle.pid or 0,
    )
    return True

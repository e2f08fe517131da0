"""The ledger beside an engine's own records: every start once, as long as the engine says."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from charter.artifacts.job_files import JobFiles, NodeRecord, Submission, read_submission, write_submission
from charter.launch.scheduler import JobAttempt, JobState
from charter.ledger import Ledger
from charter.run.accounts import SchedulerRecords, begin_job_attempt
from charter.spec.project import ModelSpec, Project, Resources
from charter.spec.stage import SftStage

PROJECT = Project(
    name="run",
    models={"base": ModelSpec(model="m")},
    pipeline={"sft": SftStage(init="base", data=("chat",))},
    resources=Resources(price=3.6),
)
SUBMISSION = Submission(
    scheduler="slurm",
    name="charter-run-sft-t",
    token="t",
    number=1,
    settings="",
    attempt=1,
    nodes=1,
    spares=0,
    processes=1,
    accelerator="H100",
    count=8,
    market="owned",
    job_id="7",
)


@dataclass
class Stage:
    name: str
    spec: SftStage
    directory: Path
    asked_fingerprint: str = "f" * 64


class Engine:
    name = "slurm"

    def __init__(self):
        self.starts = ()

    def attempts(self, job_id):
        return self.starts

    def find(self, name):
        return "7"

    def poll(self, job_ids):
        return {job_id: JobState(phase="ended") for job_id in job_ids}


@pytest.fixture
def stage(tmp_path):
    found = Stage(name="sft", spec=PROJECT.pipeline["sft"], directory=tmp_path / "sft-ffffffff")
    write_submission(JobFiles(found.directory, 1), SUBMISSION)
    return found


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger.sqlite") as opened:
        yield opened


def start(restart=0, begin=100.0, end=160.0, state="COMPLETED", shard=None):
    return JobAttempt(
        job_id="7",
        shard=shard,
        restart=restart,
        state=state,
        started_at=begin,
        ended_at=end,
        nodes=("n1",),
        accelerators=8,
        cpus=8,
    )


def seen(ledger, stage, *, key="7", outcome="done", submission=SUBMISSION, shard=None):
    """An attempt as a supervisor measured it: a little late at both ends."""
    attempt_id = begin_job_attempt(
        ledger, PROJECT, stage, submission=submission, first_step=0, at=101.0, key=key, host="n1", shard=shard
    )
    ledger.end(attempt_id, at=163.0, outcome=outcome)
    return attempt_id


def settled(ledger, stage, engine):
    records = SchedulerRecords(ledger, PROJECT, engine)
    records.find([stage], live=())
    records.settle()
    return ledger.attempts(run="run")


def test_the_engines_seconds_take_the_place_of_ours(ledger, stage):
    engine = Engine()
    engine.starts = (start(),)
    seen(ledger, stage)
    (row,) = settled(ledger, stage, engine)
    assert (row.started_at, row.duration_milliseconds, row.clock, row.nodes) == (100.0, 60_000, "engine", "n1")
    assert (row.infra, row.accelerator, row.count) == ("slurm", "H100", 8)
    assert ledger.total(run="run").most_micro_usd == 8 * 60 * 1000, "8 H100 at $3.60 an hour for a minute"
    assert read_submission(JobFiles(stage.directory, 1)).ended


def test_starts_that_nobody_saw_are_there_and_settling_twice_changes_nothing(ledger, stage):
    engine = Engine()
    engine.starts = (start(state="PREEMPTED"), start(1, 200.0, 230.0, "NODE_FAIL"), start(2, 300.0, 400.0))
    seen(ledger, stage, key="7+2")
    first = settled(ledger, stage, engine)
    found = sorted((row.job_id, row.outcome, row.duration_milliseconds) for row in first)
    assert found == [("7", "killed", 60_000), ("7+1", "killed", 30_000), ("7+2", "done", 100_000)]
    files = JobFiles(stage.directory, 1)
    write_submission(files, replace(read_submission(files), ended=False))
    assert settled(ledger, stage, engine) == first


LATER = replace(SUBMISSION, number=2, submitted_at=10_000.0)


@pytest.mark.parametrize("earlier", [SUBMISSION, replace(SUBMISSION, scheduler="ray")], ids=["anew", "elsewhere"])
def test_a_number_that_comes_back_is_another_job(ledger, stage, earlier):
    """Its scheduler was set up anew, or another one has given the same number: what was billed before stays."""
    seen(ledger, stage, submission=earlier)
    write_submission(JobFiles(stage.directory, 1), replace(earlier, ended=True))
    write_submission(JobFiles(stage.directory, 2), LATER)
    engine = Engine()
    engine.starts = (start(), start(restart=1, begin=10_100.0, end=10_200.0))
    first, second = settled(ledger, stage, engine)
    assert (first.job_id, second.job_id) == ("7", "7"), "it is the first start of the new job"
    assert (first.started_at, first.duration_milliseconds, first.clock) == (101.0, 62_000, "wall")
    assert (second.started_at, second.duration_milliseconds, second.clock) == (10_100.0, 100_000, "engine")


def test_records_that_are_late_are_waited_for(ledger, stage):
    engine = Engine()
    engine.starts = (replace(start(), ended_at=None),)
    seen(ledger, stage)
    (row,) = settled(ledger, stage, engine)
    assert row.clock != "engine"
    assert not read_submission(JobFiles(stage.directory, 1)).ended
    engine.starts = (start(),)
    assert settled(ledger, stage, engine)[0].clock == "engine"


def test_an_engine_without_records_leaves_it_to_the_agents(ledger, stage):
    record = NodeRecord(place=0, restart=0, host="n3", host_id="h", started_at=500.0, ended_at=512.5, exit_code=0)
    JobFiles(stage.directory, 1).tell(record)
    (row,) = settled(ledger, stage, Engine())
    assert (row.job_id, row.duration_milliseconds, row.nodes, row.outcome) == ("7", 12_500, "n3", "done")


def test_every_task_of_an_array_is_an_attempt_of_its_own(ledger, stage):
    array = replace(SUBMISSION, shards=(0, 3, 9), count=1)
    write_submission(JobFiles(stage.directory, 1), array)
    engine = Engine()
    engine.starts = (
        start(shard=0),
        start(shard=1, state="FAILED"),
        start(shard=1, restart=1),
        start(shard=2, begin=150, end=151),
    )
    seen(ledger, stage, outcome="killed", submission=array, shard=0)
    rows = settled(ledger, stage, engine)
    assert sorted((row.job_id, row.outcome) for row in rows) == [
        ("7_0", "done"),
        ("7_1", "killed"),
        ("7_1+1", "done"),
        ("7_2", "done"),
    ]
    assert sum(row.duration_milliseconds for row in rows) == 181_000


def test_tasks_that_the_engine_has_no_record_of_yet_are_waited_for(ledger, stage):
    array = replace(SUBMISSION, shards=(0, 3, 9), count=1)
    write_submission(JobFiles(stage.directory, 1), array)
    engine = Engine()
    engine.starts = (start(shard=0), start(shard=2))
    seen(ledger, stage, submission=array, shard=0)
    assert [row.clock for row in settled(ledger, stage, engine)] != ["engine"]
    assert not read_submission(JobFiles(stage.directory, 1)).ended
    engine.starts = (*engine.starts, start(shard=1))
    assert len(settled(ledger, stage, engine)) == 3


def test_a_task_that_the_engine_never_tells_of_does_not_keep_the_others(ledger, stage, monkeypatch):
    array = replace(SUBMISSION, shards=(0, 3, 9), count=1)
    write_submission(JobFiles(stage.directory, 1), array)
    engine = Engine()
    engine.starts = (start(shard=0), start(shard=2))
    seen(ledger, stage, submission=array, shard=0)
    monkeypatch.setattr("charter.run.accounts.LATE_SECONDS", -1.0)
    assert len(settled(ledger, stage, engine)) == 2


def test_a_job_of_another_engine_is_not_asked_about(ledger, stage):
    write_submission(JobFiles(stage.directory, 1), replace(SUBMISSION, scheduler="ray"))
    engine = Engine()
    engine.starts = (start(),)
    assert settled(ledger, stage, engine) == ()

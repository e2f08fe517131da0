"""What the ledger says of attempts whose jobs ended while nobody looked."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from charter.artifacts.job_files import JobFiles, NodeRecord, Submission, write_submission
from charter.ledger import Ledger
from charter.run import accounts
from charter.run.supervisor import begin_job


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger.sqlite") as opened:
        yield opened


@pytest.fixture
def stage(tmp_path, monkeypatch):
    monkeypatch.setattr(accounts, "is_finished", lambda stage: stage.finished)
    return SimpleNamespace(name="a", directory=tmp_path / "a", finished=True)


def begin(ledger, job_id, stage="a"):
    return ledger.begin(
        run="r", stage=stage, kind="sft", fingerprint="f" * 64, at=100.0, monotonic=None, accelerator="cpu", count=1,
        first_step=0, price_micro_usd_per_hour=None, price_source=None, host="h", pid=1, job_id=job_id,
    )  # fmt: skip


def leave(stage, *exit_codes, shards=()):
    """The files of job 7: one start after another, or those of every task."""
    files = JobFiles(stage.directory, 1)
    submission = Submission(
        scheduler="slurm", name="n", token="t", number=1, settings="s", attempt=1, nodes=1, spares=0, processes=1,
        accelerator="", count=1, market="owned", job_id="7", shards=shards,
    )  # fmt: skip
    write_submission(files, submission)
    starts = [(restart, 0, code) for restart, code in enumerate(exit_codes)]
    if shards:
        starts = [(restart, place, code) for place, task in enumerate(exit_codes) for restart, code in enumerate(task)]
    for restart, place, code in starts:
        record = NodeRecord(
            place=place, restart=restart, host="h", host_id="h/1", started_at=100.0, exit_code=code,
            ended_at=None if code is None else 160.0,
        )  # fmt: skip
        files.node(restart, place).write_text(json.dumps(asdict(record)))


def outcomes(ledger):
    return {row.job_id: row.outcome for row in ledger.attempts(run="r")}


@pytest.mark.parametrize(
    ("exit_codes", "shards", "ended"),
    [
        ((0,), (), "7"),
        ((1, 0), (), "7+1"),
        (((0,), (0,)), (0, 1), "7"),
        (((0,), (1, 0)), (0, 1), "7"),
        (((0,), (0, 1)), (0, 1), ""),
        ((1,), (), ""),
        (((0,), (1,)), (0, 1), ""),
        ((None,), (), ""),
    ],
)
def test_only_the_start_that_ended_well_is_done(ledger, stage, exit_codes, shards, ended):
    leave(stage, *exit_codes, shards=shards)
    for key in ("7", "7+1", None):
        begin(ledger, key)
    begin(ledger, "8", stage="other")
    accounts.end_finished(ledger, [stage], run="r", keep_jobs=())
    assert {key for key, outcome in outcomes(ledger).items() if outcome == "done"} == ({ended} if ended else set())
    for row in ledger.attempts(run="r"):
        assert row.outcome == "running" or row.duration_milliseconds == 60_000


def test_a_job_that_is_gone_on_with_or_an_unfinished_stage_is_left_alone(ledger, stage):
    leave(stage, 0)
    begin(ledger, "7")
    accounts.end_finished(ledger, [stage], run="r", keep_jobs={"7"})
    stage.finished = False
    accounts.end_finished(ledger, [stage], run="r", keep_jobs=())
    assert outcomes(ledger) == {"7": "running"}


def test_a_dropped_job_is_killed_unless_it_ended_well(ledger, stage):
    leave(stage, 0)
    for key in ("7", "6", None):
        begin(ledger, key)
    begin(ledger, "8", stage="other")
    accounts.end_dropped(ledger, stage, run="r")
    assert outcomes(ledger) == {"7": "done", "6": "killed", None: "running", "8": "running"}


def test_a_job_under_a_new_supervisor_is_as_old_as_it_is(ledger, stage, monkeypatch):
    """What its stage's `timeout` counts: it had begun anew with every supervisor."""
    leave(stage, None)
    number = begin(ledger, "7")
    monkeypatch.setattr("charter.run.supervisor.time", SimpleNamespace(time=lambda: 7300.0, monotonic=lambda: 50.0))
    job = SimpleNamespace(job_id="7", restart=0, started_at=100.0, busy_seconds=None, nodes=("h",))
    attempt = SimpleNamespace(
        handle=SimpleNamespace(job=job, pid=1), stage=stage, idle=SimpleNamespace(), ledger_id=None, first_step=0
    )
    assert begin_job(attempt, ledger, SimpleNamespace(run_in_ledger="r"))
    assert (attempt.ledger_id, attempt.is_own_clock, attempt.started) == (number, False, 50.0 - 7200.0)

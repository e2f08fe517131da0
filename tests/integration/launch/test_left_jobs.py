"""Jobs without a supervisor: seen, stopped, and gone on with; and a supervisor that is a job itself."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import forks
import pytest
from engine_workplace import PYTHONPATH, EngineWorkplace
from scheduler_contract import alive

from charter.launch.scheduler import KEEPER, STATE_VARIABLE, SubprocessScheduler


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineWorkplace]:
    state = tmp_path / "state"
    monkeypatch.setenv(STATE_VARIABLE, str(state))
    place = EngineWorkplace(tmp_path / "project", on="subprocess")
    yield place
    place.close()
    scheduler = SubprocessScheduler(state)
    for path in state.glob(f"*/{KEEPER}"):
        scheduler.cancel(path.parent.name)


def charter(work: EngineWorkplace, *words: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "charter.cli.main", *words, "-C", str(work.root)]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = forks.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def state_of(work: EngineWorkplace, stage: str) -> dict:
    return next(found for found in json.loads(charter(work, "status", "--json"))["stages"] if found["name"] == stage)


def test_a_job_without_a_supervisor_is_seen_and_stops_at_a_checkpoint(work):
    work.write(held="a:2")
    process = work.start()
    record = work.wait_at_gate("a")
    work.wait_for(lambda: work.job_id("a"), "the number of its job")
    work.kill_supervisor(process)
    found = state_of(work, "a")
    assert found["state"] == "running"
    assert (work.stage_dir("a") / "log.txt").exists()
    charter(work, "logs", "a")
    said = charter(work, "stop")
    assert f"subprocess job {work.job_id('a')}" in said
    assert not alive(record.first_pid)
    (ended,) = work.node_records("a")
    assert (ended.exit_code, ended.stopped_by) == (6, "supervisor")
    assert state_of(work, "a")["state"] == "interrupted"
    assert "no run is active" in charter(work, "stop")
    work.write()
    work.run()
    first, second = work.ledger("a")
    assert second["first_step"] >= 1, "it goes on from the checkpoint of the stop"
    assert (first["outcome"], second["outcome"]) == ("killed", "done")


def test_a_run_on_this_machine_ends_the_jobs_that_another_engine_still_has(work):
    work.write(held="a:2")
    process = work.start()
    record = work.wait_at_gate("a")
    work.wait_for(lambda: work.job_id("a"), "the number of its job")
    work.kill_supervisor(process)
    work.write()
    here = EngineWorkplace(work.root, on="local")
    here.run()
    assert not alive(record.first_pid)
    assert [event["job"] for event in here.named("job_cancelled")] == [work.job_id("a")]
    assert [row["infra"] for row in work.ledger("a")] == ["subprocess", "local"]


def test_every_text_is_shown_before_anything_is_sent(work):
    work.write()
    shown = charter(work, "submit", "--on", "subprocess", "--print")
    assert "# a\n" in shown
    assert "# b\n" in shown
    assert "charter.launch.agent" in shown
    assert not (work.root / "run" / "stages").exists()

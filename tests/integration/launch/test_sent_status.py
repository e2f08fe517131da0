"""What `charter status` says of a supervisor that was sent: its engine's word, or the last that files have."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from engine_workplace import EngineWorkplace
from typer.testing import CliRunner

from charter.artifacts.job_files import JobFiles, numbers, read_submission, write_submission
from charter.artifacts.lease import LEASE, Lease, this_process
from charter.cli.main import app
from charter.engines.project import load_project
from charter.launch import sent_supervisor
from charter.launch.scheduler import KEEPER, STATE_VARIABLE, SubprocessScheduler
from charter.launch.slurm.commands import SlurmCommands
from charter.launch.slurm.queue import GLANCE_SECONDS
from charter.run.events import Events
from charter.run.submit import submit_supervisor

SQUEUE = """#!{python}
import os, sys, time
open({asked!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
said = open({says!r}).read()
if said == "hangs":
    time.sleep(600)
if said.startswith("error:"):
    sys.exit("slurm_load_jobs " + said)
print(said)
"""
"""Stands for a squeue that says what stands in a file."""
TAIL = "0|0||{reason}|N/A|N/A|N/A|N/A|"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SubprocessScheduler]:
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    scheduler = SubprocessScheduler(tmp_path / "state")
    yield scheduler
    for path in (tmp_path / "state").glob(f"*/{KEEPER}"):
        scheduler.cancel(path.parent.name)


@pytest.fixture
def work(tmp_path: Path, engine: SubprocessScheduler) -> EngineWorkplace:
    """A project whose supervisor does nothing."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    place = EngineWorkplace(tmp_path / "project", on="subprocess", launch={"python": str(python)})
    place.write()
    return place


@pytest.fixture
def sent(work: EngineWorkplace) -> JobFiles:
    """A supervisor that was sent; what is remembered of it."""
    submit_supervisor(load_project(work.root), work.root, "subprocess", [])
    directory = sent_supervisor.supervisor_dir(work.root)
    return JobFiles(directory, numbers(directory)[-1])


@pytest.fixture
def squeue(tmp_path: Path, sent: JobFiles, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes the supervisor a job of Slurm, which says of it what is given; the file of what it was asked."""
    there, says, asked = tmp_path / "bin", tmp_path / "says", tmp_path / "asked"
    there.mkdir()
    words = {"python": sys.executable, "says": str(says), "asked": str(asked)}
    (there / "squeue").write_text(SQUEUE.format(**words))
    (there / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{there}:{os.environ['PATH']}")
    on(sent, "slurm", job_id="7")

    def say(text: str) -> Path:
        says.write_text(text)
        return asked

    return say


def on(sent: JobFiles, engine: str, **more: Any) -> None:
    """Have it sent to another engine."""
    write_submission(sent, replace(read_submission(sent), scheduler=engine, **more))


def told(work: EngineWorkplace) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["status", "-C", str(work.root), "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)["supervisor"]
    return found


def line(work: EngineWorkplace) -> str:
    """What people are told of it."""
    done = CliRunner().invoke(app, ["status", "-C", str(work.root)])
    return next((text.strip() for text in done.output.splitlines() if "supervisor" in text), "")


def test_nothing_is_said_where_none_was_sent(work):
    assert told(work) is None
    assert line(work) == ""


def test_a_job_of_this_machine_is_asked(work, sent, engine):
    found = told(work)
    assert (found["engine"], found["job"], found["asked"]) == ("subprocess", "1", True)
    assert found["sent_at"] == read_submission(sent).submitted_at
    work.wait_for(lambda: told(work)["state"] == "running", "it to run")
    engine.cancel("1")
    assert told(work)["state"] == "ended"
    assert line(work).startswith("supervisor: sent to subprocess as job 1 at 20")
    assert line(work).endswith("; `charter submit` sends another")


@pytest.mark.parametrize(
    ("row", "state", "reason"),
    [
        (f"7|N/A|PENDING|{TAIL.format(reason='Resources')}", "queued", "Resources"),
        (f"7|N/A|RUNNING|{TAIL.format(reason='None')}", "running", ""),
        (f"7|N/A|NODE_FAIL|{TAIL.format(reason='None')}", "ended", "NODE_FAIL"),
    ],
)
def test_slurm_is_asked_for_its_word(work, squeue, row, state, reason):
    asked = squeue(row)
    found = told(work)
    assert (found["state"], found["reason"], found["asked"]) == (state, reason, True)
    assert len(asked.read_text().splitlines()) == 1
    assert (f", {state} ({reason})" if reason else f", {state}") in line(work)


def test_a_controller_that_does_not_answer_is_not_waited_for(work, sent, squeue, monkeypatch):
    ask, patience = SlurmCommands.run, []

    def hurried(self: SlurmCommands, *command: str) -> str:
        patience.append(self.patience_seconds)
        self.patience_seconds = 0.5
        return ask(self, *command)

    monkeypatch.setattr(SlurmCommands, "run", hurried)
    asked = squeue("hangs")
    found = told(work)
    assert (found["state"], found["asked"], found["known_at"]) == ("queued", False, found["sent_at"])
    assert asked.exists(), "it was asked"
    assert patience == [GLANCE_SECONDS]
    squeue("error: Unable to contact slurm controller (connect failure)")
    assert told(work)["asked"] is False
    assert ", last known at 20" in line(work)


def test_a_job_that_slurm_has_forgotten_has_ended(work, squeue):
    squeue("error: Invalid job id specified")
    found = told(work)
    assert (found["state"], found["reason"]) == ("ended", "slurm does not know the job any more")
    Events(work.root / "run", ()).emit("run_stopped", run="count", label="budget", message="no money")
    found = told(work)
    assert (found["state"], found["reason"]) == ("ended", "budget")


def test_files_tell_of_a_job_that_nobody_can_be_asked_about(work, sent):
    on(sent, "ray")
    assert (told(work)["state"], told(work)["asked"]) == ("queued", False)
    run = work.root / "run"
    with Lease(run, lock_name="run.lock", what="the project"):
        assert told(work)["state"] == "running"
        assert f"pid {os.getpid()} on" in line(work)
    events = Events(run, ())
    events.emit("run_started", run="count")
    assert told(work)["state"] == "lost"
    assert line(work).endswith("; `charter submit` sends another")
    events.emit("run_done", run="count")
    for number in range(2000):
        events.emit("stage_note", stage="a", message=f"what follows it {number}" if number % 2 else "run_started")
    (run / "events.jsonl").write_text((run / "events.jsonl").read_text()[:60_000])
    assert (told(work)["state"], told(work)["reason"]) == ("ended", "all is done")


def test_what_an_earlier_run_said_is_not_taken_for_its_word(work, sent):
    on(sent, "ray", submitted_at=time.time() + 3600)
    Events(work.root / "run", ()).emit("run_done", run="count")
    with Lease(work.root / "run", lock_name="run.lock", what="the project"):
        assert told(work)["state"] == "queued"


def test_one_on_another_machine_that_has_fallen_silent_is_lost(work, sent):
    on(sent, "ray")
    lease = work.root / "run" / LEASE
    lease.write_text(json.dumps({**asdict(this_process()), "host": "elsewhere/1"}))
    assert told(work)["state"] == "running"
    os.utime(lease, (time.time() - 31,) * 2)
    found = told(work)
    assert (found["state"], found["known_at"]) == ("lost", lease.stat().st_mtime)


def test_one_whose_number_was_never_told_is_said_so(work, sent):
    on(sent, "slurm", job_id=None)
    assert "which number it got was never told" in line(work)


def test_damaged_files_are_no_answer(work, sent):
    (work.root / "run" / "events.jsonl").write_bytes(b'{"event": "run_done"\n\xff{"run_started"\n[1, "run_done"]\n')
    on(sent, "ray")
    assert told(work)["state"] == "queued"
    sent.submission.write_text("{}")
    assert told(work) is None

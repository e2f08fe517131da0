"""A supervisor that is a job itself: which requests to stop are meant for it, and how long it waits for its run."""

import json
import os
import signal
import threading
from dataclasses import asdict
from pathlib import Path

import pytest

from charter.artifacts.lease import LEASE, this_process
from charter.errors import UsageError
from charter.launch.slurm import queue
from charter.launch.slurm.commands import SlurmCommands, SlurmUnreachableError
from charter.run import actions, runner
from charter.run.supervisor import NOTICE_FILE, StopSignals

AGAIN = {"CHARTER_SENT": "slurm", "CHARTER_RESTART": "1"}


class Squeue(SlurmCommands):
    """Says what it is given, as a real Slurm 22.05.8 has."""

    def __init__(self, says: str) -> None:
        super().__init__(environment={})
        self.says = says

    def run(self, *command: str, **more: object) -> str:
        if self.says == "silent":
            raise SlurmUnreachableError("no answer")
        return self.says


@pytest.mark.parametrize(
    ("says", "own_restarts", "expected"),
    [
        ("0|N/A|1795397110|\n", "", False),
        ("0|1795397120|1795397110|\n", "", True),
        ("1|N/A|1795397259|\n", "", True),
        ("1|N/A|1795397259|\n", "1", False),
        ("1|1795397120|1795397259|\n", "1", False),
        ("2|1795397300|1795397259|\n", "1", True),
        ("1|1795397300|1795397259|\n", "1", True),
        ("0|N/A|N/A|\n", "0", False),
        ("\n", "", False),
        ("silent", "", False),
    ],
)
def test_slurm_puts_a_job_back_that_it_preempts_or_has_in_its_queue_again(says, own_restarts, expected):
    own = {"SLURM_JOB_ID": "5", "SLURM_RESTART_COUNT": own_restarts}
    assert queue.is_put_back(own, Squeue(says)) is expected


def test_slurm_is_asked_by_a_supervisor_that_was_sent_there_and_by_no_other(monkeypatch):
    monkeypatch.setattr(queue, "is_put_back", lambda environ: True)
    assert runner.is_started_again({"CHARTER_SENT": "slurm"})
    assert not runner.is_started_again({"CHARTER_SENT": "ray"})
    assert not runner.is_started_again({"SLURM_JOB_ID": "7"})


def test_sigterm_of_an_engine_that_starts_the_supervisor_again_is_not_meant_and_asked_about_once():
    answers = [True, False]
    with StopSignals(is_started_again=lambda: answers.pop(0)) as signals:
        assert (signals.wanted, answers) == (False, [True, False])
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            assert not signals.wanted
        assert answers == [False]
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.wanted


def test_sigterm_that_is_meant_stays_so():
    answers = [False, True]
    with StopSignals(is_started_again=lambda: answers.pop(0)) as signals:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.wanted


def test_a_notice_stops_even_one_that_is_started_again(tmp_path):
    with StopSignals(tmp_path / NOTICE_FILE, is_started_again=lambda: True) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert not signals.wanted
        (tmp_path / NOTICE_FILE).touch()
        assert signals.wanted


def elsewhere(run: Path) -> None:
    """A holder on another machine that has just given a sign of life."""
    (run / LEASE).write_text(json.dumps({**asdict(this_process()), "host": "elsewhere/1"}))


def test_one_that_was_started_again_waits_for_what_its_last_start_still_holds(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "LOOK_SECONDS", 0.01)
    looks = []

    def look() -> bool:
        looks.append(1)
        if len(looks) == 3:
            os.utime(tmp_path / LEASE, (0, 0))
        return False

    elsewhere(tmp_path)
    with runner.take_run(tmp_path, stop_wanted=look, environ=AGAIN):
        assert len(looks) == 3
    assert capsys.readouterr().err.count("waits for it") == 1


def test_one_that_waits_ends_when_it_is_asked_to(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "LOOK_SECONDS", 0.01)
    wanted = iter([False, False, True])
    elsewhere(tmp_path)
    with pytest.raises(UsageError, match="is in use"):
        runner.take_run(tmp_path, stop_wanted=lambda: next(wanted), environ=AGAIN)
    assert next(wanted, None) is None


@pytest.mark.parametrize("environ", [{}, {**AGAIN, "CHARTER_RESTART": "0"}, {"CHARTER_RESTART": "1"}])
def test_no_other_run_waits(tmp_path, environ):
    elsewhere(tmp_path)
    with pytest.raises(UsageError, match="is in use"):
        runner.take_run(tmp_path, stop_wanted=lambda: False, environ=environ)


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """A run whose supervisor is on another machine."""
    monkeypatch.setattr(actions, "LOOK_SECONDS", 0.01)
    run = tmp_path / "run"
    run.mkdir()
    elsewhere(run)
    return tmp_path


def test_stop_does_not_wait_for_a_supervisor_that_dies_meanwhile(remote):
    def die() -> None:
        while not (remote / "run" / NOTICE_FILE).exists():
            pass
        os.utime(remote / "run" / LEASE, (0, 0))

    dying = threading.Thread(target=die)
    dying.start()
    assert actions.stop_run(remote, wait_seconds=600) is None
    dying.join()


def test_stop_tells_the_next_start_of_a_supervisor_too(remote, monkeypatch):
    notice = remote / "run" / NOTICE_FILE
    looks = []

    def look(_: float) -> None:
        looks.append(notice.exists())
        if len(looks) == 1:
            notice.unlink()
            other = {**asdict(this_process()), "host": "another/1"}
            (remote / "run" / LEASE).write_text(json.dumps(other))
        elif len(looks) == 3:
            (remote / "run" / LEASE).unlink()

    monkeypatch.setattr(actions.time, "sleep", look)
    assert actions.stop_run(remote, wait_seconds=600).host == "another/1"
    assert looks == [True, True, True]


def test_a_run_that_has_given_its_directory_back_was_stopped(remote):
    holder = actions.read_holder(remote / "run" / LEASE)
    (remote / "run" / LEASE).unlink()
    assert actions._stop_elsewhere(remote, holder, 600) == holder

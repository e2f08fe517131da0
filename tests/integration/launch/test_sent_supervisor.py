"""`charter submit`: one supervisor at a time, whoever sends it and however the sender ends."""

import json
import os
import threading
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
from charter.errors import StageError, UsageError
from charter.launch import sent_supervisor
from charter.launch.scheduler import KEEPER, STATE_VARIABLE, JobState, SubprocessScheduler
from charter.run.submit import submit_supervisor

STANDS_FOR_PYTHON = '#!/bin/sh\nprintf "%s\\n" "$@" > "$PWD/words.part"\nmv words.part words\nexec sleep 600\n'


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SubprocessScheduler]:
    state = tmp_path / "state"
    monkeypatch.setenv(STATE_VARIABLE, str(state))
    scheduler = SubprocessScheduler(state)
    yield scheduler
    for path in state.glob(f"*/{KEEPER}"):
        scheduler.cancel(path.parent.name)


@pytest.fixture
def work(tmp_path: Path, engine: SubprocessScheduler) -> EngineWorkplace:
    """A project whose supervisor says how it was called, and then does nothing."""
    python = tmp_path / "python"
    python.write_text(STANDS_FOR_PYTHON)
    python.chmod(0o755)
    place = EngineWorkplace(tmp_path / "project", on="subprocess", launch={"python": str(python)})
    place.write()
    return place


@pytest.fixture
def send(work: EngineWorkplace) -> Callable[[], str]:
    return lambda: submit_supervisor(load_project(work.root), work.root, "subprocess", [])[1]


def command(*words: str) -> Any:
    """What a command of the product says, and how it ends."""
    return CliRunner().invoke(app, [*words])


def remembered(work: EngineWorkplace) -> JobFiles:
    directory = sent_supervisor.supervisor_dir(work.root)
    return JobFiles(directory, numbers(directory)[-1])


def test_a_second_is_refused_while_the_first_works_or_waits_and_sent_when_it_has_ended(work, engine, send, monkeypatch):
    first = send()
    with pytest.raises(UsageError, match=rf"subprocess job {first} has this project already: it is .*\n.*nothing"):
        send()
    for phase, told in (("queued", "it is queued, Resources\n"), ("running", "it is running\n")):
        with monkeypatch.context() as full:
            state = JobState(phase=phase, reason="Resources")
            full.setattr(SubprocessScheduler, "poll", lambda _, jobs, state=state: dict.fromkeys(jobs, state))
            with pytest.raises(UsageError, match=told):
                send()
    engine.cancel(first)
    second = send()
    assert (first, second) == ("1", "2")
    assert [number for number in numbers(sent_supervisor.supervisor_dir(work.root))] == [1, 2]


def test_of_many_senders_at_once_one_sends(work, engine, send):
    said: list[str] = []

    def try_to() -> None:
        try:
            said.append(send())
        except UsageError as error:
            said.append(str(error))

    senders = [threading.Thread(target=try_to) for _ in range(4)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    assert sum("has this project already" in text for text in said) == 3
    assert engine.poll(["1", "2"])["2"].phase == "unknown"


def test_one_whose_sender_died_before_it_was_told_the_number_is_found_by_its_name(work, send):
    number = send()
    files = remembered(work)
    write_submission(files, replace(read_submission(files), job_id=None))
    with pytest.raises(UsageError, match=f"subprocess job {number} "):
        send()


def test_one_that_its_engine_refused_is_no_obstacle(work, engine, send, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(SubprocessScheduler, "submit", lambda *_: (_ for _ in ()).throw(StageError("no")))
        with pytest.raises(StageError):
            send()
    assert read_submission(remembered(work)).job_id is None
    assert send() == "1"


def test_another_engine_is_asked_too_and_no_obstacle_where_it_is_gone(work, engine, send, monkeypatch):
    number = send()
    files = remembered(work)
    write_submission(files, replace(read_submission(files), scheduler="ray"))
    asked: list[str] = []

    def elsewhere(project: Any, name: str) -> SubprocessScheduler:
        asked.append(name)
        opened = SubprocessScheduler(engine._state_dir)
        opened.name = "ray"
        return opened

    monkeypatch.setattr(sent_supervisor, "open_scheduler", elsewhere)
    with pytest.raises(UsageError, match=f"ray job {number} "):
        send()
    monkeypatch.setattr(SubprocessScheduler, "poll", lambda *_: (_ for _ in ()).throw(StageError("no answer")))
    with pytest.raises(StageError, match="no answer"):
        sent_supervisor.end_sent_supervisor(load_project(work.root), work.root)
    assert send() == "2"
    assert asked == ["ray"] * 3


def test_a_run_that_works_here_or_has_just_worked_elsewhere_is_in_the_way_but_no_dead_one(work, engine, send):
    run = work.root / "run"
    with Lease(run, lock_name="run.lock", what="the project"), pytest.raises(UsageError, match=f"pid {os.getpid()} on"):
        send()
    (run / LEASE).write_text(json.dumps({**asdict(this_process()), "host": "elsewhere/1"}))
    with pytest.raises(UsageError, match="on elsewhere since"):
        send()
    assert not (engine._state_dir / "1").exists()
    os.utime(run / LEASE, (time.time() - 31,) * 2)
    assert send() == "1"
    engine.cancel("1")
    (run / LEASE).write_text(json.dumps({**asdict(this_process()), "start_ticks": 1}))
    assert send() == "2"


def test_the_command_passes_on_what_it_was_asked_and_stop_ends_what_has_not_begun(work):
    other = work.root / "other.yaml"
    (work.root / "charter.yaml").rename(other)
    done = command("submit", "a", "-C", str(other), "--on", "subprocess", "--set", "owner=me")
    assert done.exit_code == 0, done.output
    assert "submitted to subprocess: 1\n" in done.output
    assert str(sent_supervisor.supervisor_dir(work.root)) in done.output.replace("\n", "")
    words = work.wait_for(lambda: (work.root / "words").exists() and (work.root / "words").read_text().split(), "it")
    assert words == [
        *("-m", "charter.cli.main", "run", "-C", str(other), "--on", "subprocess", "--yes"),
        *("--only", "a", "--set", "owner=me"),
    ]
    again = command("submit", "-C", str(other), "--on", "subprocess")
    assert isinstance(again.exception, UsageError)
    other.rename(work.root / "charter.yaml")
    stopped = command("stop", "-C", str(work.root))
    assert "stopped subprocess job 1, the supervisor" in stopped.output
    assert "no run is active" not in stopped.output
    assert "no run is active" in command("stop", "-C", str(work.root)).output

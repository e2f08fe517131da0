"""No process of an engine outlives the process that started it, however that one ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from charter.hosted.engine_process import MARK, EngineProcess, end_left, engine_environment

ENGINE = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session={apart})
open("pids", "w").write(f"{{os.getpid()}} {{child.pid}}")
os.rename("pids", "started")
{then}
"""
OWNER = """
import sys, time
from pathlib import Path
from charter.hosted.engine_process import EngineProcess, engine_environment
place = Path(sys.argv[1])
command = [sys.executable, str(place / "engine.py")]
engine = EngineProcess(command, directory=place, log=place / "log", stage_dir=place,
                       environment=engine_environment({}, python=sys.executable))
time.sleep(60)
"""


def lives(pid):
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_for(what, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def engine(place, then="time.sleep(60)", apart=True):
    (place / "engine.py").write_text(ENGINE.format(then=then, apart=apart))
    command = [sys.executable, str(place / "engine.py")]
    variables = engine_environment({}, python=sys.executable)
    return EngineProcess(command, directory=place, log=place / "log", environment=variables, stage_dir=place)


def pids(place):
    wait_for((place / "started").exists)
    return [int(word) for word in (place / "started").read_text().split()]


@pytest.mark.parametrize("apart", [True, False])
def test_ending_it_ends_all_of_it(tmp_path, apart):
    running = engine(tmp_path, apart=apart)
    found = pids(tmp_path)
    assert running.poll() is None
    running.end()
    assert not any(map(lives, found))
    assert running.poll() == 128 + signal.SIGKILL


def test_what_the_first_process_leaves_behind_is_ended_with_it(tmp_path):
    running = engine(tmp_path, then="sys.exit(3)")
    found = pids(tmp_path)
    wait_for(lambda: running.poll() is not None)
    assert running.poll() == 3
    assert not any(map(lives, found))


def test_a_signal_is_told_as_a_shell_tells_it(tmp_path):
    running = engine(tmp_path, then="os.kill(os.getpid(), 11)")
    wait_for(lambda: running.poll() is not None)
    assert running.poll() == 128 + signal.SIGSEGV


def test_sigterm_reaches_the_engine_and_its_group_and_all_is_waited_for(tmp_path):
    then = "import signal\nsignal.signal(15, lambda *_: (open('told', 'w').close(), sys.exit(0)))\ntime.sleep(60)"
    running = engine(tmp_path, then=then, apart=False)
    found = pids(tmp_path)
    time.sleep(0.2)
    running.ask_to_stop()
    wait_for(lambda: running.poll() is not None)
    assert (tmp_path / "told").exists()
    assert not any(map(lives, found))


def test_after_sigterm_a_process_that_still_saves_is_waited_for(tmp_path):
    """`accelerate launch` ends at once on SIGTERM, while the trainer below it writes a checkpoint."""
    saving = "import signal, time; signal.signal(15, lambda *_: None); time.sleep(1); open('saved', 'w')"
    then = f'subprocess.Popen([sys.executable, "-c", {saving!r}])\nchild.kill()\nopen("both", "w")\ntime.sleep(60)'
    running = engine(tmp_path, then=then)
    wait_for((tmp_path / "both").exists)
    time.sleep(0.3)
    running.ask_to_stop()
    wait_for(lambda: running.poll() is not None)
    assert (tmp_path / "saved").exists()


def owner(place):
    (place / "engine.py").write_text(ENGINE.format(then="time.sleep(60)", apart=True))
    (place / "owner.py").write_text(OWNER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, str(place / "owner.py"), str(place)], env=environment)


def test_killing_the_owner_ends_all_of_it(tmp_path):
    held = owner(tmp_path)
    found = pids(tmp_path)
    held.kill()
    held.wait()
    wait_for(lambda: not any(map(lives, found)), seconds=5.0)


def test_what_is_left_when_the_guard_was_killed_too_is_found_and_ended(tmp_path):
    held = owner(tmp_path)
    found = pids(tmp_path)
    guards = [int(name) for name in os.listdir("/proc") if name.isdecimal() and _is_guard(name, tmp_path)]
    assert len(guards) == 1
    os.kill(guards[0], signal.SIGSTOP)  # so that it sees nothing of its owner's end
    for pid in (held.pid, *guards):
        os.kill(pid, signal.SIGKILL)
    held.wait()
    wait_for(lambda: not any(map(lives, (found[0], *guards))), seconds=5.0)
    assert lives(found[1]), "the process below was in a session of its own, so it is left"
    assert end_left(tmp_path) == 1
    assert not lives(found[1])
    assert end_left(tmp_path) == 0


def _is_guard(pid, place):
    with contextlib.suppress(OSError):
        words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
        return any(word.endswith(b"guard.py") for word in words) and f"{place}/engine.py".encode() in words
    return False


def test_an_engine_does_not_see_whose_process_started_it(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "PYTHONPATH", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("KEPT", "yes")
    found = engine_environment({"KEPT_TOO": "yes", "HF_HUB_OFFLINE": "0"}, python="/env/bin/python")
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT", "PYTHONPATH", "VIRTUAL_ENV"} & set(found)
    assert (found["KEPT"], found["KEPT_TOO"], found["HF_HUB_OFFLINE"]) == ("yes", "yes", "0")
    assert found["PATH"].split(os.pathsep)[0] == "/env/bin"
    assert MARK not in found

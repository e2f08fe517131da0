"""No process of an engine outlives the process that started it, however that one ends."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import eventually

from charter.hosted.engine_process import MARK, EngineProcess, end_left, engine_environment

ENGINE = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session={apart})
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
time.sleep(600)
"""
SLEEP = "time.sleep(600)"
GUARD = """
import os, signal, sys, threading, time
from pathlib import Path
from charter.hosted import guard
place = Path(sys.argv[1])
end, held = os.pipe()
def wait_for_engine():
    while not (place / "started").exists():
        time.sleep(0.01)
{injected}
sys.argv[1:] = [str(end), sys.executable, str(place / "engine.py")]
guard.main()
"""


def lives(pid):
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def with_this_path():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def engine(place, then=SLEEP, apart=True):
    (place / "engine.py").write_text(ENGINE.format(then=then, apart=apart))
    command = [sys.executable, str(place / "engine.py")]
    variables = engine_environment({}, python=sys.executable)
    return EngineProcess(command, directory=place, log=place / "log", environment=variables, stage_dir=place)


def pids(place):
    eventually((place / "started").exists)
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
    eventually(lambda: running.poll() is not None)
    assert running.poll() == 3
    assert not any(map(lives, found))


def test_a_signal_is_told_as_a_shell_tells_it(tmp_path):
    running = engine(tmp_path, then="os.kill(os.getpid(), 11)")
    eventually(lambda: running.poll() is not None)
    assert running.poll() == 128 + signal.SIGSEGV


def test_sigterm_reaches_the_engine_and_its_group_and_all_is_waited_for(tmp_path):
    heeds = "signal.signal(15, lambda *_: (open('told', 'w').close(), sys.exit(0)))"
    running = engine(tmp_path, then=f"import signal\n{heeds}\nopen('heeds', 'w').close()\n{SLEEP}", apart=False)
    found = pids(tmp_path)
    eventually((tmp_path / "heeds").exists)
    running.ask_to_stop()
    eventually(lambda: running.poll() is not None)
    assert (tmp_path / "told").exists()
    assert not any(map(lives, found))


SAVES = """
import os, signal, time
launcher = os.getppid()
signal.signal(15, lambda *_: None)
open("both", "w").close()
while os.getppid() == launcher:
    time.sleep(0.01)
time.sleep(0.5)
open("saved", "w").close()
"""


def test_after_sigterm_a_process_that_still_saves_is_waited_for(tmp_path):
    """`accelerate launch` ends at once on SIGTERM, while the trainer below it writes a checkpoint."""
    then = f'child.kill()\nchild.wait()\nsubprocess.Popen([sys.executable, "-c", {SAVES!r}])\n{SLEEP}'
    running = engine(tmp_path, then=then)
    eventually((tmp_path / "both").exists)
    running.ask_to_stop()
    eventually(lambda: running.poll() is not None)
    assert (tmp_path / "saved").exists()


def guarded(place, injected, *, apart=True):
    """The exit code of a guard in which something is injected, and the processes of its engine."""
    (place / "engine.py").write_text(ENGINE.format(then=SLEEP, apart=apart))
    code = GUARD.format(injected=injected)
    ended = subprocess.run(
        [sys.executable, "-c", code, str(place)], env=with_this_path(), cwd=place, timeout=120, check=False
    )
    return ended.returncode, pids(place)


STOPPED_WHILE_IT_STARTS = """
start = guard.subprocess.Popen
def start_late(*arguments, **options):
    started = start(*arguments, **options)
    wait_for_engine()
    os.kill(os.getpid(), signal.SIGTERM)
    return started
guard.subprocess.Popen = start_late
"""


def test_a_stop_while_the_guard_starts_the_engine_leaves_nothing_behind(tmp_path):
    """The guard stands still between the two, and the engine has started processes of its own by then."""
    code, found = guarded(tmp_path, STOPPED_WHILE_IT_STARTS, apart=False)
    assert code == 128 + signal.SIGTERM
    assert not any(map(lives, found))


LOOK_THAT_MISSES = """
look, looks = guard.descendants, []
def misses(pid):
    looks.append(pid)
    return set() if len(looks) % 2 else look(pid)
guard.descendants = misses
threading.Thread(target=lambda: (wait_for_engine(), os.close(held))).start()
"""


def test_a_process_that_a_look_misses_is_ended_too(tmp_path):
    """One that lost its parent while /proc was listed."""
    code, found = guarded(tmp_path, LOOK_THAT_MISSES)
    assert code == 128 + signal.SIGKILL
    assert not any(map(lives, found))


def test_an_engine_whose_guard_ended_while_it_was_started_ends_itself():
    code = "from charter.hosted import guard; guard._die_with(1 << 30); print('lives')"
    ended = subprocess.run([sys.executable, "-c", code], env=with_this_path(), capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, b"")


def owner(place):
    (place / "engine.py").write_text(ENGINE.format(then=SLEEP, apart=True))
    (place / "owner.py").write_text(OWNER)
    return subprocess.Popen([sys.executable, str(place / "owner.py"), str(place)], env=with_this_path())


def test_killing_the_owner_ends_all_of_it(tmp_path):
    held = owner(tmp_path)
    found = pids(tmp_path)
    held.kill()
    held.wait()
    eventually(lambda: not any(map(lives, found)))


def test_what_is_left_when_the_guard_was_killed_too_is_found_and_ended(tmp_path):
    held = owner(tmp_path)
    found = pids(tmp_path)
    guards = [int(name) for name in os.listdir("/proc") if name.isdecimal() and _is_guard(name, tmp_path)]
    assert len(guards) == 1
    for pid in (*guards, held.pid):  # the guard first: it sees nothing of its owner's end
        os.kill(pid, signal.SIGKILL)
    held.wait()
    eventually(lambda: not any(map(lives, (found[0], *guards))))
    assert lives(found[1]), "the process below was in a session of its own, so it is left"
    assert end_left(tmp_path) == 1
    assert not lives(found[1])
    assert end_left(tmp_path) == 0


def test_a_process_that_becomes_another_program_is_waited_for(tmp_path, monkeypatch):
    child = subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: str(tmp_path)}, start_new_session=True)
    looks, read = [], Path.read_bytes

    def early(path):
        """Two looks before the kernel has set out the variables."""
        if path.parent == Path(f"/proc/{child.pid}") and len(looks) < 4:
            looks.append(path.name)
            return b""
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", early)
    threading.Thread(target=child.wait, daemon=True).start()
    assert end_left(tmp_path) == 1
    assert looks == ["environ", "cmdline"] * 2


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

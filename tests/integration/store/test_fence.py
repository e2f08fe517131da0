"""Two real processes that both believe to hold a stage directory: the one taken for dead never publishes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sft_job import write_sft_job

HERE = Path(__file__).parent
ELSEWHERE = """\
import os, socket, sys
socket.sethostname("elsewhere")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""Another host, as far as a lease can tell: a name of its own in a namespace of its own."""


@pytest.fixture
def stage_dir(tmp_path):
    return write_sft_job(tmp_path)


@pytest.fixture
def start(stage_dir):
    """Start a process that wants the directory, here or on another host."""
    processes = []

    def begin(name, *, elsewhere=False):
        command = [str(HERE / "zombie.py"), str(stage_dir), name]
        prefix = ["unshare", "--uts", sys.executable, "-c", ELSEWHERE] if elsewhere else [sys.executable]
        process = subprocess.Popen([*prefix, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def ask(process, words):
    process.stdin.write(f"{words}\n")
    process.stdin.flush()
    return process.stdout.readline()


def taken_for_dead(stage_dir):
    """What a shared disk's server does with a silent client: its lock is gone, and its sign of life is old."""
    (stage_dir / "lease.lock").unlink()
    os.utime(stage_dir / "lease.json", (0, 0))


needs_namespaces = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode != 0,
    reason="needs the right to make a namespace",
)


@needs_namespaces
@pytest.mark.parametrize("late", ["save 3", "save 6", "publish 5", "report 5"])
def test_a_frozen_holder_that_wakes_after_a_takeover_publishes_nothing(stage_dir, start, late):
    first = start("first")
    assert first.stdout.readline() == "held\n"
    assert ask(first, "save 2") == "did save\n"
    os.kill(first.pid, signal.SIGSTOP)
    taken_for_dead(stage_dir)
    second = start("second", elsewhere=True)
    assert second.stdout.readline() == "held\n"
    assert ask(second, "save 4") == "did save\n"
    before = {path: path.read_bytes() for path in stage_dir.rglob("*") if path.is_file()}
    os.kill(first.pid, signal.SIGCONT)
    told = ask(first, late)
    assert told.startswith("error 6: ")
    assert f"was taken over by pid {second.pid} on elsewhere" in told
    assert first.wait() == 6
    beats = ("heartbeat",)
    after = {path: path.read_bytes() for path in stage_dir.rglob("*") if path.is_file()}
    assert {p: c for p, c in after.items() if not p.name.startswith(beats)} == {
        p: c for p, c in before.items() if not p.name.startswith(beats)
    }
    assert ask(second, "publish 5") == "did publish\n"
    assert (stage_dir / "outputs" / "who").read_text() == "second"
    tokens = [json.loads(path.read_text())["fence"] for path in sorted(stage_dir.glob("state/*/manifest.json"))]
    assert tokens == [1, 2]


@needs_namespaces
def test_a_live_holder_elsewhere_is_respected_and_a_silent_one_succeeded(stage_dir, start):
    first = start("first", elsewhere=True)
    assert first.stdout.readline() == "held\n"
    (stage_dir / "lease.lock").unlink()
    os.utime(stage_dir / "lease.json", (time.time() + 3600,) * 2)  # a sign of life, however late the second begins
    second = start("second")
    assert "pid" in second.stdout.readline()
    assert second.wait() == 2
    os.utime(stage_dir / "lease.json", (0, 0))
    third = start("third")
    assert third.stdout.readline() == "held\n"
    assert ask(first, "save 2").startswith("error 6")
    assert ask(third, "save 2") == "did save\n"

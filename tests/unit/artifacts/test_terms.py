"""Two starts of one stage: the later one takes the directory, the earlier one never writes again nor takes it back."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from filelock import FileLock, Timeout
from processes import state_of

from charter.artifacts import durable, fence
from charter.artifacts.fence import NO_TERM, TERM, LeaseTerm, read_term
from charter.artifacts.group import GROUP
from charter.artifacts.lease import Lease, ShareLease, open_term, read_holder
from charter.errors import InterruptedRunError, UsageError

WRITES = """
import sys, time
from pathlib import Path
from charter.artifacts import durable
from charter.artifacts.lease import Lease
from charter.errors import InterruptedRunError
place = Path(sys.argv[1])
lease = Lease(place, lock_name="lease.lock", what="the stage directory")
print("held", flush=True)
try:
    for number in range(10_000):
        durable.write_file(place / "result", f"old {number}")
        time.sleep(0.01)
except InterruptedRunError as error:
    print(f"ended: {error}", flush=True)
"""


def take(directory):
    return Lease(directory, lock_name="lease.lock", what="the stage directory")


@pytest.fixture
def earlier(tmp_path):
    """Another process that holds the directory as start 3.0, and writes into it all the time."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITES, str(tmp_path)],
        env={**os.environ, TERM: "3.0"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def freeze_between_writes(process, directory):
    """Stop a process where it does not hold the fence's own lock, which would keep everybody out."""
    while True:
        while state_of(process.pid) != "T":  # until it stands it may still take the lock
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(0.001)
        try:
            with FileLock(directory / fence.FENCE_LOCK, timeout=0.2):
                return
        except Timeout:
            os.kill(process.pid, signal.SIGCONT)
            time.sleep(0.003)


@pytest.mark.parametrize("term", ["3.1", "4.0"])
def test_a_later_start_takes_the_directory_from_one_that_lives(tmp_path, earlier, monkeypatch, term):
    monkeypatch.setenv(TERM, term)
    with take(tmp_path):
        assert read_holder(tmp_path / "lease.json").pid == os.getpid()
        durable.write_file(tmp_path / "result", "new")
        assert "taken over by pid" in earlier.stdout.readline()
        assert (tmp_path / "result").read_text() == "new"
    assert fence.read_fence(tmp_path)["term"] == term


def test_a_frozen_start_that_wakes_writes_nothing(tmp_path, earlier, monkeypatch):
    freeze_between_writes(earlier, tmp_path)
    monkeypatch.setenv(TERM, "3.1")
    with take(tmp_path):
        durable.write_file(tmp_path / "result", "new")
        os.kill(earlier.pid, signal.SIGCONT)
        assert "taken over by pid" in earlier.stdout.readline()
        assert (tmp_path / "result").read_text() == "new"


def test_an_earlier_start_never_takes_it_back(tmp_path, monkeypatch):
    monkeypatch.setenv(TERM, "4.0")
    take(tmp_path).release()
    for term in ("3.0", "3.9", "4.-1"):
        monkeypatch.setenv(TERM, term)
        with pytest.raises(InterruptedRunError, match=r"belongs to start 4\.0 .* by now"):
            take(tmp_path)
    assert fence.read_fence(tmp_path)["term"] == "4.0"


def test_a_submission_locks_earlier_starts_out_before_any_of_its_own(tmp_path, earlier):
    open_term(tmp_path, 4, group="token")
    assert "taken over by pid" in earlier.stdout.readline()


def test_process_without_engine_waits_for_living_holders_only(tmp_path, earlier):
    with pytest.raises(UsageError, match="in use"):
        take(tmp_path)
    earlier.kill()
    earlier.wait()
    with take(tmp_path):
        assert fence.read_fence(tmp_path)["term"] == "4.0", "later than everything that the engine may still start"


def test_no_term_is_written_where_no_engine_ever_worked(tmp_path):
    with take(tmp_path):
        assert "term" not in fence.read_fence(tmp_path)


def test_a_task_of_an_array_publishes_while_its_submission_counts(tmp_path, monkeypatch):
    open_term(tmp_path, 1, group="first")
    monkeypatch.setenv(GROUP, "first")
    monkeypatch.setenv(TERM, "1.0")
    with ShareLease(tmp_path):
        durable.write_file(tmp_path / "batch", "1")
        (tmp_path / fence.FENCE).write_text(json.dumps({"token": 2, "term": "2.-1", "group": "second"}))
        with pytest.raises(InterruptedRunError):
            durable.write_file(tmp_path / "batch", "2")
    assert (tmp_path / "batch").read_text() == "1"


def test_a_term_is_read_or_is_none():
    assert read_term(str(LeaseTerm(7, -1))) == LeaseTerm(7, -1) < LeaseTerm(7, 0) < LeaseTerm(7, 1) < LeaseTerm(8, -1)
    for text in (None, "", "x", "1.", ".1", "1"):
        assert read_term(text) == NO_TERM

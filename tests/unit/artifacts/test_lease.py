import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict

import pytest

from charter.artifacts import durable, lease
from charter.artifacts.group import member_path, sweep_start
from charter.artifacts.lease import (
    Holder,
    Lease,
    Membership,
    host_id,
    read_holder,
    start_ticks,
    stop_orphan,
    this_process,
)
from charter.errors import UsageError

HOLD = """
import sys, time
from pathlib import Path
from charter.artifacts.lease import Lease
lease = Lease(Path(sys.argv[1]), lock_name="run.lock", what="the project")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def take(directory):
    return Lease(directory, lock_name="run.lock", what="the project")


def test_a_second_live_holder_is_refused_with_pid_host_and_time(tmp_path, holder):
    with pytest.raises(
        UsageError, match=rf"the project is in use(.|\n)*pid {holder.pid} on \S+ since 20\d\d-"
    ) as caught:
        take(tmp_path)
    assert caught.value.exit_code == 2


def test_a_holder_that_was_killed_is_succeeded_at_once(tmp_path, holder):
    holder.kill()
    holder.wait()
    with take(tmp_path):
        assert read_holder(tmp_path / "lease.json").pid == os.getpid()


def test_a_released_lease_leaves_no_holder(tmp_path):
    take(tmp_path).release()
    assert read_holder(tmp_path / "lease.json") is None
    take(tmp_path).release()


def test_a_reused_pid_is_not_the_holder():
    me = this_process()
    assert me.is_alive
    assert not Holder(**{**asdict(me), "start_ticks": me.start_ticks - 1}).is_alive
    assert not Holder(**{**asdict(me), "host": "elsewhere/boot"}).is_alive


def test_a_zombie_counts_as_ended():
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    with pytest.raises(ProcessLookupError):
        start_ticks(process.pid)
    process.wait()


def test_an_orphan_is_ended_before_its_directory_is_taken(tmp_path, holder):
    stopped = stop_orphan(tmp_path)
    assert stopped.pid == holder.pid
    assert holder.wait() == -signal.SIGKILL
    assert stop_orphan(tmp_path) is None


def test_a_process_that_only_has_the_orphans_pid_is_left_alone(tmp_path, holder):
    named = read_holder(tmp_path / "lease.json")
    durable.write_json(tmp_path / "lease.json", {**asdict(named), "start_ticks": 1})
    assert stop_orphan(tmp_path) is None
    assert holder.poll() is None


def test_a_live_holder_on_another_host_is_respected_until_it_is_silent(tmp_path, monkeypatch):
    other = Holder(pid=1, start_ticks=1, host="other/boot", since=0.0)
    durable.write_json(tmp_path / "lease.json", asdict(other))
    with pytest.raises(UsageError, match="pid 1 on other") as refused:
        take(tmp_path)
    os.utime(tmp_path / "lease.json", (0, 0))
    with take(tmp_path):
        assert read_holder(tmp_path / "lease.json").host == host_id()
    assert refused.tb, "what the refusal still refers to holds no lock"
    assert lease.STALE_AFTER_SECONDS > 2


def test_a_holder_elsewhere_that_leaves_meanwhile_is_succeeded(tmp_path, monkeypatch):
    """It gives the directory back between the look at its name and the look at its age."""
    durable.write_json(tmp_path / "lease.json", asdict(Holder(pid=1, start_ticks=1, host="other/boot", since=0.0)))
    look = lease.read_holder

    def leaves(path):
        named = look(path)
        path.unlink(missing_ok=True)
        return named

    monkeypatch.setattr(lease, "read_holder", leaves)
    with take(tmp_path):
        assert look(tmp_path / "lease.json").host == host_id()


def test_a_sign_of_life_renews_the_lease(tmp_path):
    with take(tmp_path) as held:
        os.utime(tmp_path / "lease.json", (0, 0))
        held.touch()
        assert (tmp_path / "lease.json").stat().st_mtime > 0


def test_a_process_does_not_end_itself_as_an_orphan(tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr(os, "kill", lambda *told: ended.append(told))
    with take(tmp_path):
        assert stop_orphan(tmp_path, wait_seconds=10) is None
    assert ended == []


def test_an_orphan_is_ended_with_all_its_processes(tmp_path, holder):
    others = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(3)]
    for rank, process in enumerate(others[:2], start=1):
        told = Holder(pid=process.pid, start_ticks=start_ticks(process.pid), host=host_id(), since=0.0)
        durable.write_json(member_path(tmp_path, rank), asdict(told))
    reused = Holder(pid=others[2].pid, start_ticks=1, host=host_id(), since=0.0)
    durable.write_json(member_path(tmp_path, 3), asdict(reused))
    assert stop_orphan(tmp_path).pid == holder.pid
    assert [process.wait() for process in (holder, *others[:2])] == [-signal.SIGKILL] * 3
    assert others[2].poll() is None, "another process that got the number of one of them"
    others[2].kill()
    others[2].wait()
    (tmp_path / "heartbeat-1").touch()
    sweep_start(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"lease.json", "run.lock", ".fence", ".fence.lock"}


def test_peer_of_rank_0_ends_when_it_dies_not_when_it_leaves(tmp_path, holder, monkeypatch):
    monkeypatch.setattr("charter.artifacts.lease.LOOK_EVERY_SECONDS", 0.01)
    died = threading.Event()
    with Membership(tmp_path, 1, die=died.set) as member:
        assert read_holder(member_path(tmp_path, 1)).pid == os.getpid()
        assert not member.first_is_gone()
        holder.kill()
        holder.wait()
        assert member.first_is_gone()
        assert died.wait(60)
    (tmp_path / "lease.json").unlink()
    with Membership(tmp_path, 1, die=died.set) as member:
        assert not member.first_is_gone()
    assert not member_path(tmp_path, 1).exists()

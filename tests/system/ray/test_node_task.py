"""The task on a node without a cluster: an interrupt, by which Ray cancels it, at the worst moments."""

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from scheduler_contract import alive

from charter.launch.ray import node_task, task_outcome
from charter.launch.ray.job_records import UnitStart


class Asked:
    """A method of an actor: every call has its answer at once, or never."""

    def __init__(self, answer=None):
        self.answer = answer

    def remote(self, **_):
        future = Future()
        if self.answer is not None:
            future.set_result(self.answer)
        return future


@pytest.fixture
def order(tmp_path, monkeypatch):
    """A task whose command sleeps, on a node that is this machine."""
    context = SimpleNamespace(get_node_id=lambda: "n" * 56, gcs_address="127.0.0.1:1")
    told = SimpleNamespace(
        get=lambda future: future.result(),
        wait=lambda futures, timeout: ([future for future in futures if future.done()], []),
        get_runtime_context=lambda: context,
    )
    monkeypatch.setattr(node_task, "ray", told)
    return {
        "name": "charter-x",
        "unit": 0,
        "restart": 0,
        "rank": 0,
        "command": [sys.executable, "-c", "import time; time.sleep(3600)"],
        "directory": str(tmp_path),
        "log": str(tmp_path / "log.txt"),
        "gpus": 0,
        "environment": {},
        "time_limit_seconds": None,
        "stop_before_seconds": None,
    }


@pytest.fixture
def commands(monkeypatch):
    """The commands that were started."""
    started = []

    class Noted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    yield started
    for process in started:
        process.kill()
        process.wait()


def interrupted(order, keeper):
    try:
        return node_task.run_agent(order, {}, keeper)
    except KeyboardInterrupt:
        return None


def test_an_interrupt_while_the_command_is_started_leaves_nothing_running(order, commands, monkeypatch):
    started = subprocess.Popen.__init__

    def init(self, *arguments, **options):
        started(self, *arguments, **options)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess.Popen, "__init__", init)
    keeper = SimpleNamespace(started=Asked(True), orders=Asked())
    before = signal.getsignal(signal.SIGINT)
    assert interrupted(order, keeper) == {"exit_code": None, "cause": "cancelled"}
    assert [alive(process.pid) for process in commands] == [False]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_while_the_command_is_ended_leaves_nothing_running(order, commands, monkeypatch):
    """Ray interrupts a task that is cancelled just when the keeper tells it to end."""
    killpg = os.killpg

    def late(pid, number):
        signal.raise_signal(signal.SIGINT)
        killpg(pid, number)

    monkeypatch.setattr(os, "killpg", late)
    keeper = SimpleNamespace(started=Asked(True), orders=Asked("end"))
    assert interrupted(order, keeper) == {"exit_code": None, "cause": "cancelled"}
    assert [alive(process.pid) for process in commands] == [False]


def test_a_killed_node_is_told_from_a_killed_worker_however_late_ray_says_so(monkeypatch):
    """Its raylet takes no connections: the verdict is waited for."""
    node = {"NodeID": "a", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": 1, "Alive": True}
    looks = []

    def nodes():
        looks.append(1)
        return [{**node, "Alive": len(looks) < 20, "DeathReason": 2}]

    monkeypatch.setattr(task_outcome, "ray", SimpleNamespace(nodes=nodes))
    monkeypatch.setattr(task_outcome, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(task_outcome, "SAME_MOMENT_SECONDS", 0.0)
    start = UnitStart(restart=0, node_ids={"a"})
    assert asyncio.run(task_outcome._death(start, sure=False)) == ("node_lost", "NODE_DIED")

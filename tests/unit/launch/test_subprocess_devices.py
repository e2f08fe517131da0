import signal
import subprocess
import sys
import time

import pytest

from charter.launch import subprocess_keeper
from charter.launch.job import StageJob
from charter.launch.machine import visible_gpus
from charter.launch.subprocess_keeper import DeviceLocks, Running, SubprocessKeeper, take_devices


@pytest.fixture
def four(monkeypatch, tmp_path):
    devices = tmp_path / "dev"
    devices.mkdir()
    for number in range(4):
        (devices / f"nvidia{number}").touch()
    monkeypatch.setattr(subprocess_keeper, "visible_gpus", lambda: visible_gpus(devices))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_no_accelerator_is_given_twice(four, tmp_path):
    first, second = take_devices(3, tmp_path), take_devices(1, tmp_path)
    assert (first.names, first.visible, second.names) == (("0", "1", "2"), "0,1,2", ("3",))
    assert take_devices(1, tmp_path) is None
    first.give_back()
    again = take_devices(2, tmp_path)
    assert again.names == ("0", "1")
    assert take_devices(2, tmp_path) is None, "one is free, which is not enough, and stays free"
    assert take_devices(1, tmp_path).names == ("2",)


def test_only_those_of_this_user_are_given(four, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert take_devices(2, tmp_path).names == ("2", "3")


@pytest.mark.parametrize("names", [("GPU-8932f937", "GPU-7ab1"), ("MIG-GPU-8932f937/1/0", "MIG-GPU-8932f937/2/0")])
def test_those_that_are_named_by_uuid_are_given_too(four, names, tmp_path, monkeypatch):
    """A job that waits for a number waits for ever where the environment has none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(names))
    first, second = take_devices(1, tmp_path), take_devices(1, tmp_path)
    assert (first.visible, second.visible) == names
    assert take_devices(1, tmp_path) is None


def test_what_the_machine_does_not_have_is_not_waited_for(monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess_keeper, "visible_gpus", tuple)
    assert take_devices(8, tmp_path).names == ()


@pytest.fixture
def running():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield Running(place=0, restart=0, process=process, devices=DeviceLocks((), ()))
    process.kill()
    process.communicate()


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_is_set_ends_no_job_and_lengthens_none(hours, running, tmp_path, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    limited = StageJob(**JOB, directory=tmp_path, log=tmp_path / "log.txt", time_limit_seconds=3600.0)
    keeper = SubprocessKeeper(tmp_path, limited)
    keeper._running[0] = running
    now, began = time.time(), time.monotonic()
    monkeypatch.setattr(time, "time", lambda: now + hours * 3600)
    keeper._look()
    assert running.why == ""
    monkeypatch.setattr(time, "monotonic", lambda: began + 3700)
    keeper._look()
    assert running.why == "time_limit"


JOB = {"name": "job", "run": "r", "stage": "sft", "kind": "sft", "attempt": 1, "command": (sys.executable,)}

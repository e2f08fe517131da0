"""Accelerators of this machine, shared out to the stages that run at one time."""

from pathlib import Path

import pytest

from charter.launch.children import DeviceShares
from charter.launch.launcher import StageStart
from charter.launch.machine import devices_of, gpus_here, visible_gpus


def start(devices, **more):
    return StageStart(stage="a", module="m", stage_dir=Path(), attempt=1, devices=devices, **more)


def visible(request):
    return request.environment.get("CUDA_VISIBLE_DEVICES")


def test_stages_that_run_together_have_devices_of_their_own():
    shares = DeviceShares(["0", "1", "2", "3"])
    (first, free_first), (second, _), (third, _) = (shares.taken(start(count)) for count in (2, 1, 1))
    assert [visible(item) for item in (first, second, third)] == ["0,1", "2", "3"]
    free_first()
    fourth, _ = shares.taken(start(2))
    assert visible(fourth) == "0,1"


def test_where_there_are_too_few_the_least_used_are_shared():
    shares = DeviceShares(["0", "1"])
    taken = [visible(shares.taken(start(count))[0]) for count in (1, 2, 1, 3)]
    assert taken == ["0", "0,1", "1", "0,1"]


def test_names_are_those_that_the_machine_uses():
    shares = DeviceShares(["GPU-b", "GPU-a"])
    assert visible(shares.taken(start(2))[0]) == "GPU-b,GPU-a"


@pytest.mark.parametrize("devices", [0, 1])
def test_a_stage_without_devices_and_a_machine_without_any(devices):
    names = ["0"] if devices == 0 else []
    request = start(devices)
    assert DeviceShares(names).taken(request)[0] is request


def test_the_rest_of_the_environment_stays():
    taken, _ = DeviceShares(["0"]).taken(start(1, environment={"X": "1"}))
    assert taken.environment == {"X": "1", "CUDA_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize(
    ("frozen", "count"),
    [({"device": "cpu", "world_size": 4}, 0), ({"device": "cuda"}, 1), ({"device": "cuda", "world_size": 4}, 4)],
)
def test_every_process_on_accelerators_has_one(frozen, count):
    assert devices_of(frozen) == count


@pytest.mark.parametrize(
    ("said", "names"),
    [(None, ("0", "1")), ("1", ("1",)), ("GPU-x, GPU-y,GPU-z", ("GPU-x", "GPU-y")), ("", ()), ("-1", ())],
)
def test_visible_devices_are_those_of_the_machine(said, names, tmp_path, monkeypatch):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if said is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert visible_gpus(tmp_path) == names
    assert gpus_here(tmp_path) == len(names)

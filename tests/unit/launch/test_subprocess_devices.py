import pytest

from charter.launch import subprocess_keeper
from charter.launch.subprocess_keeper import take_devices


@pytest.fixture
def four(monkeypatch):
    monkeypatch.setattr(subprocess_keeper, "gpus_here", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_no_accelerator_is_given_twice(four, tmp_path):
    first, second = take_devices(3, tmp_path), take_devices(1, tmp_path)
    assert (first.numbers, first.visible, second.numbers) == ((0, 1, 2), "0,1,2", (3,))
    assert take_devices(1, tmp_path) is None
    first.give_back()
    again = take_devices(2, tmp_path)
    assert again.numbers == (0, 1)
    assert take_devices(2, tmp_path) is None, "one is free, which is not enough, and stays free"
    assert take_devices(1, tmp_path).numbers == (2,)


def test_only_those_of_this_user_are_given(four, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert take_devices(2, tmp_path).numbers == (2, 3)


def test_what_the_machine_does_not_have_is_not_waited_for(monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess_keeper, "gpus_here", lambda: 0)
    assert take_devices(8, tmp_path).numbers == ()

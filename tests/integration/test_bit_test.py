"""The bit test of `charter check environment --bits`: real training, twice."""

import pytest

pytest.importorskip("torch")

from charter.run import doctor
from charter.run.doctor import bit_test

pytestmark = pytest.mark.torch


def test_another_seed_in_the_second_run_is_seen(monkeypatch):
    train = doctor._train

    def trains(root):
        if root.name == "second":
            monkeypatch.setattr(doctor, "BITS_CHANGES", (*doctor.BITS_CHANGES, "seed=1234"))
        return train(root)

    monkeypatch.setattr(doctor, "_train", trains)
    check = bit_test()
    assert not check.ok
    assert "model.safetensors" in check.found


@pytest.mark.thorough
def test_this_machine_computes_the_same_bits_twice():
    check = bit_test()
    assert check.ok, check.found


def test_a_run_that_ends_is_told_in_its_last_words(monkeypatch):
    monkeypatch.setattr(doctor, "BITS_CHANGES", ("pipeline.pretrain.learning_rate=none",))
    check = bit_test()
    assert not check.ok
    assert "the first run ended: " in check.found
    assert "learning_rate" in check.found

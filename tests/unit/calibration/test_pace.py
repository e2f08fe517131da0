"""Paces: a median over steps that restarts do not move, joined by accelerator and kind."""

import json

import pytest

from charter.physics.fitted import Bundle, Pace, joined, load, save, seconds_per_step


def pace(**changes: object) -> Pace:
    known = {"accelerator": "cpu", "kind": "sft", "factor": 2.0, "steps": 10, "source": "steps of a"}
    return Pace(**{**known, **changes})  # type: ignore[arg-type]


def test_a_restart_in_the_middle_does_not_change_the_pace():
    steady = [(step, 2.0 * step) for step in range(10)]
    interrupted = steady[:5] + [(step, clock + 3600.0) for step, clock in steady[5:]]
    assert seconds_per_step(interrupted) == (2.0, 9)


def test_one_point_is_no_pace():
    assert seconds_per_step([(1, 5.0)]) is None
    assert seconds_per_step([]) is None


def test_paces_of_one_kind_are_joined_by_their_steps():
    (found,) = joined([pace(factor=2.0, steps=30), pace(factor=0.5, steps=30, source="steps of b")])
    assert found.factor == pytest.approx(1.0)
    assert (found.steps, found.source) == (60, "steps of a; steps of b")
    assert len(joined([pace(), pace(kind="ppo"), pace(accelerator="H100-SXM-80GB")])) == 3


def test_a_calibration_of_paces_alone_is_kept_as_json(tmp_path):
    bundle = Bundle(quantities={}, source="steps of a", as_of="2026-11-20", sha256="", paces=(pace(),))
    save(bundle, tmp_path / "calibration.json")
    assert load(tmp_path / "calibration.json") == bundle
    assert json.loads((tmp_path / "calibration.json").read_text())["paces"][0]["factor"] == 2.0

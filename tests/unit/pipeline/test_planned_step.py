"""What a plan says of one step, as the stage's own process reads it."""

import planner_case as lab
import pytest

from charter.artifacts.job import PLANNED_FILE, PlannedStep, read_planned_step, write_planned_step
from charter.run.planned import planned_step
from charter.run.status import actual_over_planned
from charter.spec.architecture import Architecture
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import Resources
from charter.spec.stage import PreferenceModelStage, SftStage

STEP = PlannedStep(seconds_per_step=2.0, seconds_by_phase={"update": 2.0}, peak_bytes=3.0, flops_per_step=4.0)
HERE = Resources(infra="local", accelerators=("cpu",))
SMALL = Architecture(hidden_size=64, num_layers=2, num_heads=4, intermediate_size=176, vocab_size=512)


def test_a_planned_step_comes_back_and_is_never_replaced(tmp_path):
    assert read_planned_step(tmp_path) is None
    write_planned_step(tmp_path / "new", STEP)
    assert read_planned_step(tmp_path / "new") == STEP
    write_planned_step(tmp_path / "new", PlannedStep(seconds_per_step=9.0, peak_bytes=9.0, flops_per_step=9.0))
    assert read_planned_step(tmp_path / "new") == STEP


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": "other"}', '{"schema": "charter.planned_step/1"}'])
def test_what_cannot_be_read_is_nothing(tmp_path, content):
    (tmp_path / PLANNED_FILE).write_text(content)
    assert read_planned_step(tmp_path) is None


def test_parts_and_phases_sum_to_the_step():
    stage = PpoStage(policy="base", reward="pm", prompts=("prompts",), episodes=64, rollout_batch=16, minibatch=8)
    pipeline = {"pm": PreferenceModelStage(init="base", data=("pairs",)), "ppo": stage}
    made = lab.planned(lab.project(HERE, architecture=SMALL, pipeline=pipeline)).stage("ppo")
    found = planned_step(stage, made)
    assert set(found.seconds_by_phase) == {"generate", "score", "update"}
    assert sum(found.seconds_by_phase.values()) == pytest.approx(found.seconds_per_step)
    assert found.seconds_per_step == pytest.approx(made.option.overhead.useful_seconds / 4)
    assert sum(found.bytes_by_part.values()) == pytest.approx(found.peak_bytes)
    assert "overhead" not in found.bytes_by_part
    assert found.peak_bytes < made.option.peak.total_bytes


def test_weights_and_moments_are_those_of_all_models():
    stage = SftStage(init="base", data=("chat",), steps=10, global_batch=1, seq_len=8)
    found = planned_step(stage, lab.one(stage, HERE, architecture=SMALL).stage("stage"))
    parameters = 2 * 512 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 176 + 2 * 64) + 64
    assert found.bytes_by_part["parameters"] == 4 * parameters
    assert found.bytes_by_part["optimizer"] == 8 * parameters
    assert found.bytes_by_part["gradients"] == 4 * parameters


def test_status_tells_what_was_measured():
    assert actual_over_planned({}) == {}
    assert actual_over_planned({"metrics": {"actual_over_planned_bytes": 1.5}}) == {"bytes": 1.5}

"""What a plan says of one step, as the stage's own process reads it."""

import planner_case as lab
import pytest

from charter.artifacts.planned_step import PLANNED_FILE, PlannedStep, read_planned_step, write_planned_step
from charter.pipeline.planned_step import planned_step

STEP = PlannedStep(seconds_per_step=2.0, seconds_by_phase={"update": 2.0}, peak_bytes=3.0, flops_per_step=4.0)


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


def planned_on_this_machine(stage, **changes):
    plan = lab.one(stage, lab.CPU, **changes)
    return plan.stage("stage") or next(iter(plan.stages))

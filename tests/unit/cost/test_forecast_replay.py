"""Recorded runs, replayed: a forecast is given what a run's files say, and is nearer the end the more is spent."""

import json
import random
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))
import forecast_replay as replay


@pytest.fixture(scope="module")
def runs():
    with replay.RECORDED.open() as file:
        return [replay.histories(json.loads(line)) for line in islice(file, 4)]


def test_the_end_of_a_replayed_run_is_what_was_paid(runs):
    for run in runs:
        for stage in run:
            end = stage.so_far(stage.seconds)
            assert end.done
            assert end.kept_usd == pytest.approx(stage.usd)
            assert not stage.so_far(0.0).done


def test_a_preempted_stage_keeps_less_than_it_costs(runs):
    stage = replay.preempted(runs[0][-1], 0.9)
    assert len(stage.attempts) == 2
    end = stage.so_far(stage.seconds)
    assert end.done
    assert end.kept_usd < stage.usd
    assert stage.usd > runs[0][-1].usd


def test_errors_shrink_with_what_is_spent(runs):
    draws = random.Random(1)
    scores = [score for run in runs for _ in range(5) for score in replay.scores(replay.injected(run, draws))]
    errors = [median(score.error for score in scores if score.share == share) for share in replay.SHARES]
    assert errors[-1] < 0.9 * errors[0]


def test_a_run_whose_plan_is_right_ends_near_its_forecast(runs):
    undisturbed = replay.InjectedRun(stages=runs[0], recorded=runs[0], starts_slowly=False)
    scores = list(replay.scores(undisturbed))
    assert max(score.exact_plan_error for score in scores) < 0.1
    plans = [replay.planned_exactly(stage.plan, stage) for stage in runs[0]]
    right = tuple(replace(stage, plan=plan) for stage, plan in zip(runs[0], plans, strict=True))
    scores = list(replay.scores(replace(undisturbed, stages=right)))
    assert [score.error for score in scores] == pytest.approx([score.exact_plan_error for score in scores])
    assert all(score.is_held for score in scores)


def test_an_exact_plan_has_the_first_step_in_the_steps(runs):
    stage = next(stage for stage in runs[0] if stage.plan.name == "critique")
    (only,) = stage.attempts
    assert [step for _, step in only.steps] == [1, 2]
    exact = replay.planned_exactly(stage.plan, stage)
    assert only.steps[0][0] - exact.planned_start_seconds == pytest.approx(only.steps[1][0] - only.steps[0][0])


def test_what_a_run_has_in_common_is_taken_out_of_its_plans(runs):
    def slower(stage):
        return replace(stage, plan=replace(stage.plan, planned_seconds=stage.plan.planned_seconds.scaled(0.5),
                                           planned_start_seconds=0.5 * stage.plan.planned_start_seconds))  # fmt: skip

    before, after = replay.beside_run(runs), replay.beside_run([[slower(stage) for stage in run] for run in runs])
    for name, (steps, start, alone) in before.items():
        assert after[name] == pytest.approx((2 * steps, 2 * start, alone))

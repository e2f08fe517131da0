"""What is left of a run: the plan where nothing is measured, the measured pace where it is, in between between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.cost.forecast import PLAN_WORTH_STEPS, StageSoFar, forecast
from charter.estimate.terms import Interval

PLAN = Interval(p10=80.0, p50=100.0, p90=150.0)


def stage(name="sft", **changes):
    values = dict(name=name, kind="sft", planned_seconds=PLAN, planned_usd=Interval(p10=8, p50=10, p90=15))
    return StageSoFar(**(values | changes))


def left(*stages):
    return forecast(stages).stages


def test_before_anything_is_measured_the_plan_is_left():
    found = left(stage())["sft"]
    assert (found.seconds, found.usd, found.basis) == (PLAN, Interval(p10=8, p50=10, p90=15), "planned")


def test_nothing_is_left_of_what_is_done():
    assert left(stage(done=True, kept_usd=3.0))["sft"].usd == Interval(p10=0.0, p50=0.0, p90=0.0)
    assert forecast([stage(done=True)]).seconds.p90 == 0


def test_after_many_steps_the_measured_pace_counts():
    half = left(stage(step=5000, target_step=10_000, kept_seconds=100.0, kept_usd=40.0))["sft"]
    assert half.basis == "measured"
    assert half.seconds.p50 == pytest.approx(100.0, rel=0.01)
    assert half.usd.p50 == pytest.approx(40.0, rel=0.01)


def test_after_few_steps_it_counts_as_far_as_it_goes():
    few = left(stage(step=5, target_step=1000, kept_seconds=1.0))["sft"]
    per_step = (5 * 0.2 + PLAN_WORTH_STEPS * 0.1) / (5 + PLAN_WORTH_STEPS)
    assert few.seconds.p50 == pytest.approx(995 * per_step)
    assert few.seconds.p50 == pytest.approx(995 * 0.15), "five steps weigh as much as the plan"


def test_steps_whose_time_is_not_known_leave_their_part_of_the_plan():
    found = left(stage(step=500, target_step=1000))["sft"]
    assert (found.seconds.p50, found.usd.p50, found.basis) == (50.0, 5.0, "planned")


def test_few_steps_of_another_stage_change_the_pace_only_as_far_as_they_go():
    begun = stage("a", step=5, target_step=1000, kept_seconds=1.0)
    assert left(begun, stage("b"))["b"].seconds.p50 == pytest.approx(100 * (0.5 * 1.0 + 0.5 * 0.5) / 0.5)


def test_a_stage_that_has_not_begun_takes_the_pace_of_its_kind_before_that_of_all():
    slow = stage("a", done=True, kept_seconds=200.0)
    quick = stage("b", kind="ppo", done=True, kept_seconds=50.0)
    found = left(slow, quick, stage("c"), stage("d", kind="ppo"), stage("e", kind="eval"))
    assert [found[name].seconds.p50 for name in "cde"] == pytest.approx([200.0, 50.0, 125.0])
    assert found["c"].basis == "scaled"


def test_a_stage_without_a_plan_is_measured_or_not_counted():
    bare = dict(planned_seconds=None, planned_usd=None)
    assert left(stage(**bare))["sft"].basis == "unplanned"
    found = left(stage(**bare, step=10, target_step=20, kept_seconds=30.0))["sft"]
    assert (found.seconds, found.usd) == (Interval(p10=30.0, p50=30.0, p90=30.0), None)


@given(
    st.integers(1, 1000), st.integers(1, 1000), st.floats(0.01, 1e6), st.floats(0, 1), st.floats(1, 5)
)  # fmt: skip
def test_it_stays_in_order_and_shrinks_as_steps_are_done(step, more, seconds, low, high):
    planned = Interval(p10=100 * low, p50=100.0, p90=100 * high)
    target = step + more
    early = left(stage(planned_seconds=planned, step=step, target_step=target, kept_seconds=seconds))["sft"].seconds
    assert 0 <= early.p10 <= early.p50 <= early.p90
    pace = seconds / step
    later = stage(planned_seconds=planned, step=target - 1, target_step=target, kept_seconds=pace * (target - 1))
    late = left(later)["sft"].seconds
    if more > 1 and early.p50:
        assert late.p90 / late.p50 <= early.p90 / early.p50 + 1e-9


def test_parts_add_up_to_the_total():
    made = forecast([stage("a", step=3, target_step=9, kept_seconds=7.0), stage("b"), stage("c", done=True)])
    assert made.seconds.p90 == pytest.approx(sum(part.seconds.p90 for part in made.stages.values()))
    assert made.usd.p50 == pytest.approx(sum(part.usd.p50 for part in made.stages.values() if part.usd))
    assert made.usd_of(["b"]).p50 == pytest.approx(made.stages["b"].usd.p50)

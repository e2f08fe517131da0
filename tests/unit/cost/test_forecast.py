"""What is left of a run: the plan where nothing is measured, the measured pace where it is, in between between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.cost.forecast import DRIFT_RATIO, PLAN_WORTH_STEPS, StageSoFar, forecast
from charter.physics.terms import Interval

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
    half = left(
        stage(step=5000, target_step=10_000, kept_seconds=700.0, kept_usd=280.0, paced_steps=5000, paced_seconds=100.0)
    )["sft"]
    assert half.basis == "measured"
    assert half.seconds.p50 == pytest.approx(100.0, rel=0.01)
    assert half.usd.p50 == pytest.approx(40.0, rel=0.01)


def test_after_few_steps_it_counts_as_far_as_it_goes():
    few = left(stage(step=5, target_step=1000, kept_seconds=9.0, paced_steps=5, paced_seconds=1.0))["sft"]
    per_step = (5 * 0.2 + PLAN_WORTH_STEPS * 0.1) / (5 + PLAN_WORTH_STEPS)
    assert few.seconds.p50 == pytest.approx(995 * per_step)
    assert few.seconds.p50 == pytest.approx(995 * 0.15), "five steps weigh as much as the plan"


def test_steps_whose_time_is_not_known_leave_their_part_of_the_plan():
    found = left(stage(step=500, target_step=1000))["sft"]
    assert (found.seconds.p50, found.usd.p50, found.basis) == (50.0, 5.0, "planned")


def test_few_steps_of_another_stage_change_the_pace_only_as_far_as_they_go():
    begun = stage("a", step=5, target_step=1000, kept_seconds=9.0, paced_steps=5, paced_seconds=1.0)
    assert left(begun, stage("b"))["b"].seconds.p50 == pytest.approx(100 * 1.5**0.85), "half of 2, half of the plan"


def test_unstarted_stage_takes_pace_of_its_kind_then_that_of_all():
    slow = stage("a", done=True, kept_seconds=200.0)
    quick = stage("b", kind="ppo", done=True, kept_seconds=50.0)
    found = left(slow, quick, stage("c"), stage("d", kind="ppo"), stage("e", kind="eval"))
    slowed, quickened, others = (found[name].seconds.p50 for name in "cde")
    assert 50 < quickened < 100 * 0.75 < others < 100 * 1.25 < slowed < 200, "its own kind counts most"
    alone = left(slow, stage("c"), stage("e", kind="eval"))
    assert [alone[name].seconds.p50 for name in "ce"] == pytest.approx([100 * 2**0.85, 100 * 2**0.7])
    assert found["c"].basis == "scaled"


def started(name, start, *, kind="sft", pace=1.0, **changes):
    """A stage planned at 40 s of start and 60 steps of 1 s that took so much."""
    return stage(name, kind=kind, planned_start_seconds=40.0, step=60, target_step=60, done=True,
                 kept_seconds=start + 60 * pace, **paced_by(30, 30 * pace), **changes)  # fmt: skip


def test_starts_and_steps_of_others_are_learned_apart():
    slow_starts = [started(name, 200.0) for name in "abc"]
    slow_steps = [started(name, 40.0, pace=200 / 60 - 40 / 60 + 40 / 60) for name in "abc"]
    long = stage("z", planned_start_seconds=40.0, planned_seconds=Interval(p10=32e3, p50=40_040.0, p90=60e3))
    assert left(*slow_starts, long)["z"].seconds.p50 == pytest.approx(40_000 + 40 * 5 ** (3 / 4), rel=0.01)
    assert left(*slow_steps, long)["z"].seconds.p50 > 2.5 * 40_000


def test_starts_that_grow_with_their_stages_go_on_so():
    done = [
        stage(str(steps), planned_start_seconds=5.0, step=steps, target_step=steps, done=True,
              kept_seconds=5.0 + 1.5 * steps, **paced_by(steps, steps), planned_seconds=spread(5.0 + steps))
        for steps in (20, 60, 200)
    ]  # fmt: skip
    long = stage("z", planned_start_seconds=5.0, planned_seconds=spread(2005.0))
    assert 2500.0 < left(*done, long)["z"].seconds.p50 < 3300.0
    assert left(done[0], long)["z"].seconds.p50 < 2100.0, "one start is believed to be as the plan has it"


def spread(value):
    return Interval(p10=value / 1.4, p50=value, p90=value * 1.4)


def test_time_in_a_start_is_not_planned_again():
    waiting = [left(stage(planned_start_seconds=40.0, kept_seconds=passed))["sft"].seconds for passed in (0.0, 30, 300)]
    assert waiting[0] == PLAN
    assert 60.0 < waiting[1].p50 < 95.0
    assert waiting[2].p50 - 60.0 > 40.0, "what takes so long may take longer"


def test_stages_that_agree_on_a_pace_are_believed():
    def rest(count):
        seen = [stage(f"s{index}", kind="ppo", done=True, kept_seconds=300.0) for index in range(count)]
        return left(*seen, stage("c"))["c"].seconds

    assert rest(1).p50 < rest(2).p50 < rest(5).p50 < 300.0
    assert rest(5).p50 > 270.0
    assert rest(5).p90 / rest(5).p50 < rest(1).p90 / rest(1).p50


def test_a_common_error_does_not_widen_what_is_a_stages_own():
    seen = [stage(f"s{index}", kind="ppo", done=True, kept_seconds=300.0) for index in range(6)]
    rest = left(*seen, stage("c"))["c"]
    assert rest.seconds.p90 / rest.seconds.p50 < PLAN.p90 / PLAN.p50
    assert rest.shared < left(seen[0], stage("c"))["c"].shared


@pytest.mark.parametrize("times", [0.2, 1.0, 6.0])
def test_a_plan_that_was_wrong_widens_the_rest_of_it(times):
    done = stage("a", kind="ppo", done=True, kept_seconds=100.0 * times)
    rest = left(done, stage("b"))["b"].seconds
    assert rest.p10 <= 100 * times <= rest.p90
    assert rest.p90 / rest.p50 < 1.5 or times != 1.0


def test_a_pace_is_never_certain_of_what_is_to_come():
    found = left(begun(2900))["sft"].seconds
    assert (found.p10, found.p90) == pytest.approx((found.p50 / DRIFT_RATIO, found.p50 * DRIFT_RATIO))


def test_a_stage_without_a_plan_is_measured_or_not_counted():
    bare = dict(planned_seconds=None, planned_usd=None)
    assert left(stage(**bare))["sft"].basis == "unplanned"
    found = left(stage(**bare, step=10, target_step=20, kept_seconds=30.0))["sft"]
    assert (found.seconds.p50, found.usd) == (30.0, None)
    assert found.seconds.p10 < 30.0 < found.seconds.p90


def paced_by(steps, seconds):
    return {"paced_steps": steps, "paced_seconds": seconds}


TO_COME = stage("ppo", kind="ppo", planned_usd=Interval(p10=1280.0, p50=1600.0, p90=2000.0))


def begun(step, *, pace=1.0, timed=True):
    """A stage of 3,000 steps, planned at 1 s each, that took 600 s before its first."""
    kept = 600.0 + step * pace
    return stage(
        planned_seconds=Interval(p10=2400.0, p50=3000.0, p90=3750.0), planned_usd=Interval(p10=24, p50=30, p90=37.5),
        step=step, target_step=3000, kept_seconds=kept, kept_usd=kept / 100,
        **(paced_by(step, step * pace) if timed else {}),
    )  # fmt: skip


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("step", [5, 60, 300, 1500])
def test_a_slow_start_is_not_charged_to_what_is_left(step, timed):
    found = left(begun(step, timed=timed), TO_COME)
    assert found["ppo"].usd.p50 <= 1900
    assert found["ppo"].usd.p10 <= 1600 <= found["ppo"].usd.p90
    assert found["sft"].seconds.p10 <= 3000 - step <= found["sft"].seconds.p90
    assert found["sft"].usd.p10 <= (3000 - step) / 100 <= found["sft"].usd.p90


@pytest.mark.parametrize(("step", "most"), [(5, 3.0), (60, 1.7), (300, 1.3)])
def test_a_slow_pace_is_in_the_range_which_narrows(step, most):
    found = left(begun(step, pace=2.0))["sft"].seconds
    assert found.p10 <= 2 * (3000 - step) <= found.p90
    assert found.p90 / found.p50 < most


def test_a_pace_that_was_not_timed_is_slow_beyond_a_long_start():
    found = left(begun(2000, pace=3.0, timed=False))["sft"].seconds
    assert found.p50 == pytest.approx(1000 * (6600 - 1800) / 2000, rel=0.01)
    assert found.p90 >= 3000


def test_one_line_says_what_the_forecast_rests_on():
    slow = begun(300, pace=1.3)
    waiting = [stage(f"s{number}", kind="ppo") for number in range(3)]
    words = forecast([slow, TO_COME, stage("d", done=True, paced_steps=1, paced_seconds=1.0), *waiting]).words
    both = ["sft at 1.30 x its plan after 300 steps", "ppo at 1.20 x its plan, as others went"]
    assert words(["sft", "ppo"]) == ", ".join(both)
    assert words([]) == words(["d"]) == ""
    assert words(["sft", "s0", "s1", "s2"]).endswith(", 2 more")


def test_money_of_calls_follows_the_steps():
    calls = left(begun(300), stage("label", step=10, target_step=20, kept_seconds=1e4, kept_usd=4.0, calls_usd=4.0,
                                   planned_usd=None, **paced_by(9, 9.0)))["label"]  # fmt: skip
    assert calls.usd.p50 == pytest.approx(4.0)


@given(
    st.integers(1, 1000), st.integers(1, 1000), st.floats(0.01, 1e6), st.floats(0, 1), st.floats(1, 5)
)  # fmt: skip
def test_it_stays_in_order_and_shrinks_as_steps_are_done(step, more, seconds, low, high):
    planned = Interval(p10=100 * low, p50=100.0, p90=100 * high)
    target = step + more
    early = left(
        stage(planned_seconds=planned, step=step, target_step=target, kept_seconds=seconds, **paced_by(step, seconds))
    )["sft"].seconds
    assert 0 <= early.p10 <= early.p50 <= early.p90
    pace = seconds / step
    later = stage(
        planned_seconds=planned,
        step=target - 1,
        target_step=target,
        kept_seconds=pace * (target - 1),
        **paced_by(target - 1, pace * (target - 1)),
    )
    late = left(later)["sft"].seconds
    if more > 1 and early.p50:
        assert late.p90 / late.p50 <= early.p90 / early.p50 + 1e-9


@pytest.mark.parametrize(("step", "low"), [(0, 1.0), (3, 0.6)])
def test_medians_add_up_and_ends_as_far_as_stages_err_together(step, low):
    made = forecast([stage("a", step=step, target_step=9, kept_seconds=7.0 * step), stage("b"), stage("c", done=True)])
    apart = sum(part.seconds.p90 - part.seconds.p50 for part in made.stages.values())
    assert low * apart <= made.seconds.p90 - made.seconds.p50 <= apart * (1.0 if step == 0 else 0.99) + 1e-9
    assert made.seconds.p50 == pytest.approx(sum(part.seconds.p50 for part in made.stages.values()))
    assert made.usd.p50 == pytest.approx(sum(part.usd.p50 for part in made.stages.values() if part.usd))
    assert made.usd_of(["b"]).p50 == pytest.approx(made.stages["b"].usd.p50)

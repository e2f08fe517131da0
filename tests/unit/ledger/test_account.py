"""Costs, losses and totals: by hand, limiting cases, and exactness for any sequence of attempts."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from charter.ledger.account import account, cost_micro_usd, divide_half_even, stage_totals, totals_of
from charter.ledger.attempt import Attempt, elapsed


def attempt(**changes: object) -> Attempt:
    values: dict[str, object] = dict(
        attempt_id=1,
        run="r",
        stage="sft",
        kind="sft",
        number=1,
        fingerprint="f",
        accelerator="H100-SXM-80GB",
        count=8,
        infra="aws",
        market="on_demand",
        started_at=1000.0,
        duration_milliseconds=3_600_000,
        clock="monotonic",
        last_heartbeat=4600.0,
        first_step=0,
        last_step=100,
        outcome="done",
        price_micro_usd_per_hour=2_500_000,
    )
    return Attempt(**(values | changes))  # type: ignore[arg-type]


def test_eight_units_for_an_hour_at_2_50_usd_cost_20_usd():
    (item,) = account([attempt()])
    assert item.cost_micro_usd == 20_000_000
    assert item.lost_micro_usd == 0


def test_half_a_micro_usd_is_rounded_to_even():
    # 1 micro-USD per hour for half an hour, and for one and a half hours
    assert cost_micro_usd(milliseconds=1_800_000, count=1, price_micro_usd_per_hour=1) == 0
    assert cost_micro_usd(milliseconds=5_400_000, count=1, price_micro_usd_per_hour=1) == 2


@settings(deadline=None)
@given(st.integers(0, 10**30), st.integers(1, 10**12))
def test_division_is_to_nearest_for_any_size(numerator, denominator):
    quotient = divide_half_even(numerator, denominator)
    assert 2 * abs(numerator - quotient * denominator) <= denominator


def test_a_killed_attempt_lost_what_the_next_one_did_again():
    killed = attempt(outcome="killed", last_step=100)
    resumed = attempt(attempt_id=2, number=2, first_step=75, last_step=200)
    first, second = account([killed, resumed])
    assert first.lost_milliseconds == 900_000
    assert first.lost_micro_usd == 5_000_000
    assert second.lost_milliseconds == 0


def test_killed_last_attempt_counts_up_to_its_last_checkpoint():
    assert account([attempt(outcome="killed", kept_step=50)])[0].lost_milliseconds == 1_800_000
    assert account([attempt(outcome="killed")])[0].lost_milliseconds == 3_600_000


def test_an_attempt_killed_before_its_first_step_is_lost_whole():
    first, _ = account([attempt(outcome="killed", last_step=0), attempt(attempt_id=2, number=2)])
    assert first.useful_milliseconds == 0


def test_an_interrupted_attempt_stopped_at_a_checkpoint_and_lost_nothing():
    first, _ = account([attempt(outcome="interrupted"), attempt(attempt_id=2, number=2, first_step=100)])
    assert first.lost_milliseconds == 0


def test_abandoned_fingerprint_loses_only_unfinished_work():
    old = attempt(outcome="interrupted", fingerprint="old")
    finished = attempt(attempt_id=2, number=2, fingerprint="older", outcome="done")
    new = attempt(attempt_id=3, number=3, fingerprint="new")
    lost = [item.lost_milliseconds for item in account([old, finished, new])]
    assert lost == [3_600_000, 0, 0]


def test_failures_and_kills_are_told_apart():
    totals = totals_of(account([attempt(outcome="failed"), attempt(attempt_id=2, number=2, outcome="killed")]))
    assert (totals.lost_to_failures_milliseconds, totals.lost_to_kills_milliseconds) == (3_600_000, 3_600_000)


def test_counts_of_redone_work_are_not_useful():
    killed = attempt(outcome="killed", tokens=1000)
    totals = totals_of(account([killed, attempt(attempt_id=2, number=2, first_step=60, tokens=400)]))
    assert (totals.tokens, totals.useful_tokens) == (1400, 1000)


def test_idle_time_is_of_what_was_kept_so_that_nothing_is_lost_twice():
    killed = attempt(outcome="killed", kept_step=25, idle_milliseconds=3_000_000)
    totals = totals_of(account([killed]))
    assert (totals.lost_to_kills_milliseconds, totals.idle_milliseconds) == (2_700_000, 900_000)
    assert (totals.lost_to_kills_micro_usd, totals.idle_micro_usd) == (15_000_000, 5_000_000)
    assert totals.watched_milliseconds == 3_600_000
    nobody_looked = totals_of(account([attempt()]))
    assert (nobody_looked.idle_milliseconds, nobody_looked.watched_milliseconds) == (0, 0)


def test_an_attempt_without_a_price_has_no_cost_rather_than_none_at_all():
    totals = totals_of(account([attempt(price_micro_usd_per_hour=None), attempt(attempt_id=2, number=2)]))
    assert not totals.fully_priced
    assert totals.priced_milliseconds == 3_600_000
    assert totals.milliseconds == 7_200_000


@st.composite
def histories(draw):
    """Any sequence of attempts of a few stages, in the order a supervisor could have begun them."""
    numbers: dict[str, int] = {}
    found = []
    for index in range(draw(st.integers(0, 12))):
        stage = draw(st.sampled_from(["sft", "label", "ppo"]))
        numbers[stage] = numbers.get(stage, 0) + 1
        first = draw(st.integers(0, 500))
        found.append(
            attempt(
                attempt_id=index + 1,
                stage=stage,
                number=numbers[stage],
                fingerprint=draw(st.sampled_from("ab")),
                count=draw(st.integers(1, 64)),
                duration_milliseconds=draw(st.integers(0, 10**9)),
                first_step=first,
                last_step=first + draw(st.integers(0, 500)),
                kept_step=draw(st.none() | st.integers(0, 1000)),
                outcome=draw(st.sampled_from(["done", "failed", "interrupted", "killed", "running"])),
                tokens=draw(st.integers(0, 10**9)),
                price_micro_usd_per_hour=draw(st.none() | st.integers(0, 10**9)),
            )
        )
    return found


@settings(deadline=None)
@given(histories())
def test_stage_totals_add_up_to_the_run_total_exactly(history):
    accounted = account(history)
    total = totals_of(accounted)
    by_stage = list(stage_totals(accounted).values())
    for field in dataclasses.fields(total):
        assert sum(getattr(part, field.name) for part in by_stage) == getattr(total, field.name), field.name


@settings(deadline=None)
@given(histories())
def test_useful_and_lost_add_up_to_every_attempt_exactly(history):
    for item in account(history):
        assert 0 <= item.lost_milliseconds <= item.attempt.duration_milliseconds
        if item.cost_micro_usd is not None:
            assert item.lost_micro_usd is not None
            assert 0 <= item.lost_micro_usd <= item.cost_micro_usd
    total = totals_of(account(history))
    lost = total.lost_to_kills_milliseconds + total.lost_to_failures_milliseconds
    assert total.useful_milliseconds + lost == total.milliseconds


@settings(deadline=None)
@given(st.floats(-1e6, 1e10), st.floats(-1e6, 1e10), st.none() | st.floats(0, 1e9), st.none() | st.floats(0, 1e9))
def test_a_duration_is_never_negative_and_never_shrinks(started_at, at, started_monotonic, monotonic):
    milliseconds, _ = elapsed(
        started_at=started_at,
        at=at,
        started_monotonic=started_monotonic,
        monotonic=monotonic,
        so_far_milliseconds=1234,
    )
    assert milliseconds >= 1234


def test_the_monotonic_clock_wins_over_a_wall_clock_that_jumped_forward():
    assert elapsed(started_at=0, at=90_000, started_monotonic=10, monotonic=12, so_far_milliseconds=0) == (
        2000,
        "monotonic",
    )


def test_the_wall_clock_is_taken_where_there_is_no_other():
    assert elapsed(started_at=100, at=103.5, started_monotonic=None, monotonic=7, so_far_milliseconds=0) == (
        3500,
        "wall",
    )

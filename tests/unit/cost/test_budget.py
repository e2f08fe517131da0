import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.cost.advice import BudgetState, budget_verdict
from charter.errors import UsageError

ORDER = list(BudgetState)
USD = st.floats(0, 1000)


def state(**given_):
    base = {"limit_usd": 100.0, "spent_usd": 0.0, "remaining_p50_usd": 0.0, "remaining_p90_usd": 0.0}
    return budget_verdict(**{**base, **given_})


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"spent_usd": 10, "remaining_p50_usd": 80, "remaining_p90_usd": 120}, BudgetState.OK),
        ({"spent_usd": 10, "remaining_p50_usd": 91}, BudgetState.WARN),
        ({"spent_usd": 50}, BudgetState.WARN),
        ({"spent_usd": 60, "remaining_p50_usd": 60, "running_p10_usd": 39}, BudgetState.WARN),
        ({"spent_usd": 60, "remaining_p50_usd": 60, "running_p10_usd": 40}, BudgetState.HOLD),
        ({"spent_usd": 100}, BudgetState.STOP),
        ({"spent_usd": 120}, BudgetState.STOP),
    ],
)
def test_states_follow_what_is_spent_and_what_is_to_come(given_, expected):
    assert state(**given_).state is expected


@pytest.mark.parametrize("asked", [BudgetState.STOP, BudgetState.HOLD])
def test_calls_that_may_be_free_are_in_the_p90_alone(asked):
    verdict = state(
        spent_usd=60,
        unsettled_usd=50,
        remaining_p10_usd=85,
        remaining_p50_usd=88,
        remaining_p90_usd=95,
        on_forecast=asked,
    )
    assert (verdict.forecast_p10_usd, verdict.forecast_p50_usd, verdict.forecast_p90_usd) == (95, 98, 155)
    assert verdict.state is BudgetState.WARN
    assert verdict.reason == "50% of the budget is spent"


@pytest.mark.parametrize("asked", [BudgetState.STOP, BudgetState.HOLD])
def test_a_forecast_acts_only_when_its_p10_is_over(asked):
    median_over = {"spent_usd": 10, "remaining_p50_usd": 500, "remaining_p90_usd": 900, "on_forecast": asked}
    assert state(**median_over, remaining_p10_usd=90).state is BudgetState.WARN
    assert state(**median_over, remaining_p10_usd=91).state is asked


@pytest.mark.parametrize("asked", [BudgetState.STOP, BudgetState.HOLD])
def test_a_forecast_does_not_act_before_the_warm_up(asked):
    over = {"spent_usd": 10, "remaining_p10_usd": 500, "remaining_p50_usd": 600, "on_forecast": asked}
    assert state(**over, warmed_up=False).state is BudgetState.WARN
    assert state(**over | {"spent_usd": 100}, warmed_up=False).state is BudgetState.STOP


@pytest.mark.parametrize(("spent", "share"), [(49.9, None), (50, 0.5), (79, 0.5), (80, 0.8), (95, 0.9)])
def test_three_shares_are_told(spent, share):
    assert state(spent_usd=spent).passed_share == share


@given(spent=USD, more=USD, remaining=USD, running=st.floats(0, 1))
def test_spending_more_never_calms_the_budget(spent, more, remaining, running):
    given_ = {"remaining_p50_usd": remaining, "remaining_p90_usd": remaining, "running_p10_usd": remaining * running}
    before, after = (state(spent_usd=usd, **given_).state for usd in (spent, spent + more))
    assert ORDER.index(after) >= ORDER.index(before)


def test_the_forecast_adds_what_remains_to_what_is_spent():
    found = state(spent_usd=45, remaining_p50_usd=20, remaining_p90_usd=30)
    assert (found.spent_usd, found.forecast_p50_usd, found.forecast_p90_usd) == (45, 65, 75)


def test_refuses_a_budget_of_nothing():
    with pytest.raises(UsageError, match="limit above zero"):
        state(limit_usd=0)

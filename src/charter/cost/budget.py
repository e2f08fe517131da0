"""Action that a budget requires at a given moment: go on, warn, start nothing new, or checkpoint and stop."""

from dataclasses import dataclass
from enum import StrEnum

from charter.errors import UsageError

WARN_SHARES = (0.5, 0.8, 0.9)
"""Shares of the budget at which to tell; the usual alerts of cloud budgets."""


class BudgetState(StrEnum):
    """From harmless to final."""

    OK = "ok"
    WARN = "warn"
    HOLD = "hold"
    STOP = "checkpoint and stop"


@dataclass(frozen=True, kw_only=True)
class BudgetVerdict:
    """A state, why, and the figures it rests on."""

    state: BudgetState
    reason: str
    spent_usd: float
    """Stop costs included."""
    forecast_p10_usd: float
    forecast_p50_usd: float
    forecast_p90_usd: float
    limit_usd: float
    passed_share: float | None = None
    """The largest share of `WARN_SHARES` that is spent."""


def budget_verdict(
    *,
    limit_usd: float,
    spent_usd: float,
    remaining_p50_usd: float,
    remaining_p90_usd: float,
    remaining_p10_usd: float = 0.0,
    running_p10_usd: float = 0.0,
    stop_usd: float = 0.0,
    checkpoint_done: bool = True,
    on_forecast: BudgetState = BudgetState.WARN,
    warmed_up: bool = True,
    unsettled_usd: float = 0.0,
) -> BudgetVerdict:
    """The state of a budget: `ok`, then `warn`, `hold` and `checkpoint and stop`.

    `spent` counts what stopping would still cost (disks, idle commitments). Stop at 100 % of the limit, and only once
    a checkpoint is complete; hold (start nothing new) when what runs uses up the rest even at its p10; warn at 50, 80
    and 90 % and when the forecast, spent + p50 of the remaining plan, is above the limit.

    `remaining` is the plan that is left, `running` the part of it that has started. `on_forecast` is what a forecast
    whose p10 is above the limit asks for: to warn, to hold, or to stop. A median above it only warns: half of all runs
    that are on plan would be stopped by it. Before what runs has `warmed_up`, it warns too: a run that is started
    again would otherwise end before it could show another pace. `unsettled` is the part of `spent` that calls may have
    cost and need not: it counts against the limit, and is not told as spent.

    >>> budget_verdict(limit_usd=100, spent_usd=40, remaining_p50_usd=50, remaining_p90_usd=80).state.value
    'ok'
    >>> budget_verdict(limit_usd=100, spent_usd=40, remaining_p50_usd=70, remaining_p90_usd=90).state.value
    'warn'
    """
    if (
        limit_usd <= 0
        or min(spent_usd, remaining_p50_usd, remaining_p90_usd, remaining_p10_usd, running_p10_usd, stop_usd) < 0
    ):
        raise UsageError("a budget needs a limit above zero and amounts that are not negative")
    spent = spent_usd + stop_usd
    passed = max((share for share in WARN_SHARES if spent >= share * limit_usd), default=None)
    state, reason = _state(
        limit_usd,
        spent,
        (remaining_p10_usd, remaining_p50_usd),
        running_p10_usd,
        passed,
        checkpoint_done,
        on_forecast,
        warmed_up,
        unsettled_usd,
    )
    return BudgetVerdict(
        state=state,
        reason=reason,
        spent_usd=spent,
        forecast_p10_usd=spent + remaining_p10_usd,
        forecast_p50_usd=spent + remaining_p50_usd,
        forecast_p90_usd=spent + remaining_p90_usd,
        limit_usd=limit_usd,
        passed_share=passed,
    )


def _state(
    limit: float,
    spent: float,
    remaining: tuple[float, float],
    running: float,
    passed: float | None,
    checkpoint_done: bool,
    on_forecast: BudgetState,
    warmed_up: bool,
    unsettled: float,
) -> tuple[BudgetState, str]:
    if spent >= limit:
        why = "the budget is spent" if spent - unsettled >= limit else "the budget may be spent: calls are not settled"
        if checkpoint_done:
            return BudgetState.STOP, why
        return BudgetState.HOLD, f"{why}; the running stage stops after its next checkpoint"
    at_least, median = remaining
    surely_over = spent + at_least > limit
    if surely_over and on_forecast is not BudgetState.WARN and not warmed_up:
        return BudgetState.WARN, "the forecast (p10) is above the budget, and too few steps are made to act on it"
    if surely_over and on_forecast is BudgetState.STOP:
        return BudgetState.STOP, "the forecast (p10) is above the budget, which was asked to stop it"
    if surely_over and on_forecast is BudgetState.HOLD:
        return BudgetState.HOLD, "the forecast (p10) is above the budget: nothing new starts"
    if running and spent + running >= limit:
        return BudgetState.HOLD, "what is running is expected to use up the budget: nothing new starts"
    if spent + median > limit:
        return BudgetState.WARN, "the forecast (p50) is above the budget"
    if passed is not None:
        return BudgetState.WARN, f"{passed:.0%} of the budget is spent"
    return BudgetState.OK, "spent and forecast are within the budget"

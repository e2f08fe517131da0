"""Verdicts on a budget and on idle machines; advice on a cheaper run, from what its machines did. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from charter.errors import UsageError

SPARE_ACTIVITY = 0.5
"""Accelerators that work less than this share of the time could do their work in half their number (judgement: twice
the work per accelerator still leaves room)."""
SPARE_MEMORY = 0.4
"""Share of an accelerator's memory below which a smaller one would do, with room for peaks (judgement)."""
LEAST_SECONDS = 600.0
"""A shorter look says little: start-up, first steps, evaluation."""
SPOT_SHARE = 0.5
"""Spot over on-demand price where the price book has none for the accelerator; 0.3 to 0.7 is usual."""
Kind = Literal["idle", "fewer_accelerators", "smaller_accelerator", "spot", "lost"]


@dataclass(frozen=True, kw_only=True)
class Use:
    """Resources that one stage has held, and the work that it did with them."""

    stage: str
    accelerator: str
    count: int
    market: str
    seconds: float
    """That samples cover."""
    usd: float | None
    """What the stage has cost."""
    activity: float | None
    """Mean share of its accelerators that worked; None where that is not metered."""
    memory_peak_share: float | None
    """The most that was taken of one accelerator's memory, as a share of it."""
    idle_usd: float | None
    lost_usd: float | None
    checkpoints: bool
    """Whether the stage can go on after a kill."""
    remaining_usd: float
    """What it is still expected to cost."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One thing to change, with what it would save."""

    stage: str
    kind: Kind
    text: str
    saving_usd: float | None
    """Of what is still to come where something is, else of what was spent: what the same again would save."""
    of: Literal["remaining", "spent"]


def advice(use: Use) -> tuple[Advice, ...]:
    """Return the changes that would have made a stage cheaper, the largest saving first; empty without measurements.

    - idle: `idle usd`, as measured;
    - fewer accelerators: half of them, when they work less than half of the time: half of the cost;
    - a smaller one, when less than 40 % of its memory is taken (no saving is named: it depends on what there is);
    - spot: `usd x (1 - spot share)`, less what kills may lose, for a stage that can go on from a checkpoint.

    Savings do not add up: half of the accelerators on spot saves less than both.

    >>> use = Use(stage="label", accelerator="H100", count=8, market="on_demand", seconds=7200, usd=40.0, activity=0.2,
    ...           memory_peak_share=0.9, idle_usd=0.0, lost_usd=0.0, checkpoints=False, remaining_usd=0.0)
    >>> [(item.kind, item.saving_usd) for item in advice(use)]
    [('fewer_accelerators', 20.0)]
    """
    suggestions = [*_idle(use), *_fewer(use), *_smaller(use), *_spot(use)]
    return tuple(sorted(suggestions, key=lambda item: -(item.saving_usd or 0.0)))


def _base(use: Use) -> tuple[float | None, Literal["remaining", "spent"]]:
    return (use.remaining_usd, "remaining") if use.remaining_usd > 0 else (use.usd, "spent")


def _idle(use: Use) -> Iterator[Advice]:
    if use.idle_usd:
        text = "its machines were held and did nothing; set idle.action: release, or a shorter idle.window"
        yield Advice(stage=use.stage, kind="idle", text=text, saving_usd=use.idle_usd, of="spent")


def _fewer(use: Use) -> Iterator[Advice]:
    if use.activity is None or use.seconds < LEAST_SECONDS or use.count < 2 or use.activity >= SPARE_ACTIVITY:
        return
    usd, of = _base(use)
    fewer = use.count // 2
    text = (
        f"its {use.count} x {use.accelerator} work {100 * use.activity:.0f} % of the time; "
        f"{fewer} would do, and take about as long"
    )
    saving = None if usd is None else usd * (1 - fewer / use.count)
    yield Advice(stage=use.stage, kind="fewer_accelerators", text=text, saving_usd=saving, of=of)


def _smaller(use: Use) -> Iterator[Advice]:
    if use.memory_peak_share is None or use.seconds < LEAST_SECONDS or use.memory_peak_share >= SPARE_MEMORY:
        return
    text = (
        f"at most {100 * use.memory_peak_share:.0f} % of the memory of {use.accelerator} is taken; "
        "one with less would do (`charter plan mem` says which): or a larger batch on this one"
    )
    yield Advice(stage=use.stage, kind="smaller_accelerator", text=text, saving_usd=None, of=_base(use)[1])


def _spot(use: Use) -> Iterator[Advice]:
    if use.market != "on_demand" or not use.checkpoints:
        return
    usd, of = _base(use)
    if usd is None or usd <= 0:
        return
    text = (
        "it goes on from checkpoints, so spot would do (at half the price, which is usual); `charter plan simulate` "
        "says what kills cost"
    )
    yield Advice(stage=use.stage, kind="spot", text=text, saving_usd=usd * (1 - SPOT_SHARE), of=of)


DEFAULT_BUSY_SHARE = 0.05
"""Of the time: accelerators that do less than this over a window do nothing (judgement; skypilot-org/skypilot#10628
asks for a threshold like it)."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Observations of an allocation over a window."""

    seconds_without_progress: float
    """Since its step or one of its counters last grew, or since it began."""
    gpu_activity: float | None
    """Mean share of its accelerators that worked over the window; None where that is not metered."""
    no_process: bool | None
    """Whether none of its processes lived in the window; None where nobody looked."""


@dataclass(frozen=True, kw_only=True)
class IdleVerdict:
    """Verdict on an allocation, idle or not, with its reason."""

    idle: bool
    reason: str


def idle_verdict(evidence: Evidence, *, window_seconds: float, busy_share: float = DEFAULT_BUSY_SHARE) -> IdleVerdict:
    """Idle: no progress for the window, and accelerators below `busy_share`, or no process at all.

    What is unknown counts as active. Processors never decide: a stage that waits for a slow disk or a server uses
    none, and one that hangs in a loop uses all.

    >>> stuck = Evidence(seconds_without_progress=3600, gpu_activity=0.01, no_process=False)
    >>> idle_verdict(stuck, window_seconds=1800).reason
    'no progress for 60.0 min, and its accelerators work 1 % of the time'
    >>> idle_verdict(Evidence(seconds_without_progress=3600, gpu_activity=None, no_process=None),
    ...              window_seconds=1800).idle
    False
    """
    since = evidence.seconds_without_progress
    if since < window_seconds:
        return IdleVerdict(idle=False, reason="it makes progress")
    silence = f"no progress for {since / 60:.1f} min"
    if evidence.no_process:
        return IdleVerdict(idle=True, reason=f"{silence}, and no process of it lives")
    if evidence.gpu_activity is None:
        return IdleVerdict(
            idle=False, reason=f"{silence}; what its accelerators do is not known, so it counts as active"
        )
    share = f"its accelerators work {100 * evidence.gpu_activity:.0f} % of the time"
    if evidence.gpu_activity < busy_share:
        return IdleVerdict(idle=True, reason=f"{silence}, and {share}")
    return IdleVerdict(idle=False, reason=f"{silence}, but {share}")


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
    on_forecast: BudgetState = BudgetState.WARN,
    warmed_up: bool = True,
    unsettled_usd: float = 0.0,
) -> BudgetVerdict:
    """The state of a budget: `ok`, then `warn`, `hold` and `checkpoint and stop`.

    Stop at 100 % of the limit; hold (start nothing new) when what runs uses up the rest even at its p10; warn at 50, 80
    and 90 % and when the forecast, settled + p50 of the remaining plan, is above the limit.

    `remaining` is the plan that is left, `running` the part of it that has started. `on_forecast` is what a forecast
    whose p10 is above the limit asks for: to warn, to hold, or to stop. A median above it only warns: half of all runs
    that are on plan would be stopped by it. Before what runs has `warmed_up`, it warns too: a run that is started
    again would otherwise end before it could show another pace. `unsettled` is the part of `spent` that calls may have
    cost and need not: it counts against the limit, is not told as spent, and of a forecast it is in the p90 alone.

    >>> budget_verdict(limit_usd=100, spent_usd=40, remaining_p50_usd=50, remaining_p90_usd=80).state.value
    'ok'
    >>> budget_verdict(limit_usd=100, spent_usd=40, remaining_p50_usd=70, remaining_p90_usd=90).state.value
    'warn'
    """
    if limit_usd <= 0 or min(spent_usd, remaining_p50_usd, remaining_p90_usd, remaining_p10_usd, running_p10_usd) < 0:
        raise UsageError("a budget needs a limit above zero and amounts that are not negative")
    passed = max((share for share in WARN_SHARES if spent_usd >= share * limit_usd), default=None)
    state, reason = _state(
        limit_usd,
        spent_usd,
        (remaining_p10_usd, remaining_p50_usd),
        running_p10_usd,
        passed,
        on_forecast,
        warmed_up,
        unsettled_usd,
    )
    return BudgetVerdict(
        state=state,
        reason=reason,
        spent_usd=spent_usd,
        forecast_p10_usd=spent_usd - unsettled_usd + remaining_p10_usd,
        forecast_p50_usd=spent_usd - unsettled_usd + remaining_p50_usd,
        forecast_p90_usd=spent_usd + remaining_p90_usd,
        limit_usd=limit_usd,
        passed_share=passed,
    )


def _state(
    limit: float,
    spent: float,
    remaining: tuple[float, float],
    running: float,
    passed: float | None,
    on_forecast: BudgetState,
    warmed_up: bool,
    unsettled: float,
) -> tuple[BudgetState, str]:
    if spent >= limit:
        why = "the budget is spent" if spent - unsettled >= limit else "the budget may be spent: calls are not settled"
        return BudgetState.STOP, why
    at_least, median = remaining
    settled = spent - unsettled
    surely_over = settled + at_least > limit
    if surely_over and on_forecast is not BudgetState.WARN and not warmed_up:
        return BudgetState.WARN, "the forecast (p10) is above the budget, and too few steps are made to act on it"
    if surely_over and on_forecast is BudgetState.STOP:
        return BudgetState.STOP, "the forecast (p10) is above the budget, which was asked to stop it"
    if surely_over and on_forecast is BudgetState.HOLD:
        return BudgetState.HOLD, "the forecast (p10) is above the budget: nothing new starts"
    if running and settled + running >= limit:
        return BudgetState.HOLD, "what is running is expected to use up the budget: nothing new starts"
    if settled + median > limit:
        return BudgetState.WARN, "the forecast (p50) is above the budget"
    if passed is not None:
        return BudgetState.WARN, f"{passed:.0%} of the budget is spent"
    return BudgetState.OK, "spent and forecast are within the budget"

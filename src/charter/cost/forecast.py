"""Forecast of a run's final cost from the amount spent and the measured pace; what a budget requires now. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import exp, fsum, log, sqrt
from statistics import NormalDist
from typing import Any, Literal

from charter.cost.monte_carlo import add
from charter.errors import UsageError
from charter.physics.terms import Z90, Interval

PLAN_WORTH_STEPS = 5.0
"""Measured steps that count as much as the plan (judgement): the first steps of a stage are slow, and few."""
COMMON_TO_KIND, COMMON_TO_ALL = 0.85, 0.7
"""Of the variance of a plan's logarithm, what stages of one kind, and all stages, have in common.

Variance components of measured over planned paces: runs have 79, 63 and 61 % of it in three series of 20, 14 and 8 runs
of 12 stages on a shared machine. That of one kind is judgement, between it and 1; on machines that a job has to itself
nobody has measured either.
"""
START_SIGMA, COMMON_TO_STARTS = log(3.0) / Z90, 0.5
"""Of the logarithm of a start over its plan: one in ten takes three times as long; half is in common (judgement)."""
LEAST_START = 0.05
"""Measured over planned start that counts as no start at all."""
LEAST_SIGMA = 0.01
"""Of the logarithm of a plan: one of no width would be infinitely wrong."""
DRIFT_RATIO = 1.15
"""p90 over p50 of a pace however many steps were seen: what is to come may differ from what was (judgement)."""
LONGEST_START_SECONDS = 1800.0
"""A start that is not measured may have taken this long (judgement): loading of large weights, compilation."""
UNPLANNED_RATIO = 2.0
"""p90 over p50 of a pace that no plan foresaw, before the first step (judgement)."""
NAMED = 3
"""Stages that one line names."""
Amount = Literal["seconds", "usd"]
Basis = Literal["done", "measured", "scaled", "planned", "unplanned"]
NONE = Interval(p10=0.0, p50=0.0, p90=0.0)


@dataclass(frozen=True, kw_only=True)
class StageSoFar:
    """One stage: what the plan says of it, and what it has done."""

    name: str
    kind: str
    planned_seconds: Interval | None
    planned_usd: Interval | None
    planned_start_seconds: float = 0.0
    """Of the planned time, what passes before the first step; 0 where the plan does not say."""
    done: bool = False
    step: int = 0
    target_step: int | None = None
    kept_seconds: float = 0.0
    """Time of the attempts that made the `step` steps, without what was lost."""
    kept_usd: float | None = None
    """Money of the same, calls included; None where nothing has a price."""
    calls_usd: float = 0.0
    """Of that, money of calls: it follows the steps, and not the time."""
    paced_steps: int = 0
    """Steps that were timed from one to the next; 0 where nobody did."""
    paced_seconds: float = 0.0
    """Time of these steps, without any start."""

    @property
    def share(self) -> float:
        """Share of its steps that is done."""
        return 1.0 if self.done else min(1.0, self.step / self.target_step) if self.target_step else 0.0


@dataclass(frozen=True, kw_only=True)
class StageForecast:
    """Remaining time and cost of one stage."""

    name: str
    seconds: Interval
    usd: Interval | None
    """None where no price is known."""
    basis: Basis
    """`measured`: its own pace; `scaled`: the plan at the pace of other stages; `planned`: the plan as it is;
    `unplanned`: no plan and no step yet, so nothing is counted."""
    pace: float | None = None
    """What is forecast for a step over what is planned for it, in money or else in time; None where not known."""
    steps: int = 0
    """Steps that were measured."""

    @property
    def words(self) -> str:
        """Return the basis of the forecast, in words.

        >>> StageForecast(name="sft", seconds=NONE, usd=None, basis="measured", pace=1.2, steps=60).words
        'sft at 1.20 x its plan after 60 steps'
        """
        match self.basis:
            case "measured" if self.pace is None:
                return f"{self.name} at the pace of {_steps(self.steps)}"
            case "measured":
                return f"{self.name} at {self.pace:.2f} x its plan after {_steps(self.steps)}"
            case "scaled":
                return f"{self.name} at {self.pace or 1.0:.2f} x its plan, as others went"
            case "planned":
                return f"{self.name} as planned"
            case "unplanned":
                return f"{self.name} not counted, for it has no plan"
        return ""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Remaining time and cost of a run: medians add up, and ends of ranges as far as stages err together."""

    stages: Mapping[str, StageForecast] = field(default_factory=dict)

    @property
    def seconds(self) -> Interval:
        """Machine time that is left, stages one after the other."""
        return self._sum([stage.seconds for stage in self.stages.values()])

    @property
    def usd(self) -> Interval | None:
        """Money that is left; None when no stage that is not done has a price."""
        priced = [stage.usd for stage in self.stages.values() if stage.usd is not None]
        return self._sum(priced) if priced else None

    def words(self, names: Collection[str]) -> str:
        """Return the basis of some stages' forecast, in a line; where many wait, they are counted, not named."""
        left = [stage for stage in self.stages.values() if stage.name in names and stage.words]
        shown = left if len(left) <= NAMED else left[: NAMED - 1]
        rest = [f"{len(left) - len(shown)} more"] if len(left) > len(shown) else []
        return ", ".join([*(stage.words for stage in shown), *rest])

    def usd_of(self, names: Sequence[str]) -> Interval:
        """Money that is left for some stages; those without a price count nothing."""
        return self._sum([part.usd for part in self.stages.values() if part.name in names and part.usd is not None])

    def _sum(self, parts: Sequence[Interval]) -> Interval:
        """Before anything is measured it is the plan, which adds quantiles."""
        is_learned = any(stage.basis in ("measured", "scaled") for stage in self.stages.values())
        return together(parts) if is_learned else add(parts)


def together(parts: Sequence[Interval]) -> Interval:
    """Return the sum of what stages still take: `COMMON_TO_ALL` of their variance is in common, the rest their own.

    Medians add. The distance `d` of an end to the median is `sqrt(c (sum d)^2 + (1 - c) sum d^2)`.

    >>> together([Interval(p10=6.0, p50=10.0, p90=14.0)] * 2).p90 < 28
    True
    """
    ends = {}
    for name in ("p10", "p90"):
        apart = [abs(getattr(part, name) - part.p50) for part in parts]
        ends[name] = sqrt(COMMON_TO_ALL * fsum(apart) ** 2 + (1.0 - COMMON_TO_ALL) * fsum(one**2 for one in apart))
    median = fsum(part.p50 for part in parts)
    return Interval(p10=median - ends["p10"], p50=median, p90=median + ends["p90"])


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


LEAST = 1e-15
"""Of a measured step count or rate, and one over it the most: what else a progress file says measures nothing."""


def paced(progress: Mapping[str, Any]) -> tuple[int, float]:
    """Steps whose pace a stage's `progress.json` has measured, without any start, and the time that they took.

    >>> paced({"rate_steps": 20, "rate_per_second": 0.5}), paced({"rate_per_second": None, "rate_steps": "x"})
    ((20, 40.0), (0, 0.0))
    """
    steps, rate = progress.get("rate_steps"), progress.get("rate_per_second")
    if not isinstance(steps, int | float) or not isinstance(rate, int | float):
        return 0, 0.0
    if not LEAST <= min(steps, rate) <= max(steps, rate) <= 1 / LEAST:
        return 0, 0.0
    return int(steps), steps / rate


def planned_start_seconds(stage: Mapping[str, Any]) -> float:
    """Return what a stage of a plan's JSON takes before its first step; 0 where the plan does not say.

    >>> planned_start_seconds({"breakdown": {"seconds": {"update": 60.0, "start": 1.5}}}), planned_start_seconds({})
    (1.5, 0.0)
    """
    return float(((stage.get("breakdown") or {}).get("seconds") or {}).get("start") or 0.0)


def forecast(stages: Sequence[StageSoFar]) -> Forecast:
    """Forecast the rest of every stage from its plan and from what was measured.

    A stage is a start and steps. Where it runs, `left = (target - step) x time per step`: the pace is that between two
    steps, so that a slow start is not charged to what follows, and the plan's, weighted by the steps seen and 5. Its
    quantiles keep the plan's ratios to its median, or the ratio of the two paces where they differ more, and shrink
    with the steps seen: `ratio ^ sqrt(5 / (5 + steps))`, to 1.15 at the least. Where the time between steps is not
    known (trainers of other projects), what is above the plan counts as start, up to half an hour, and p90 as if it
    were pace. A stage that has made no step takes its planned steps times the pace of others over their plans, as far
    as stages are wrong in common (`_Paces.of_steps`), and its planned start as others' starts went, less what of it has
    passed. What a stage that runs takes as its plan is corrected by the others, too.
    Money follows the time, that of calls the steps.
    Not true where what is left differs from what was done: a last stage of longer answers, another price.

    >>> half = StageSoFar(name="sft", kind="sft", planned_seconds=Interval(p10=80, p50=100, p90=150),
    ...                   planned_usd=None, step=500, target_step=1000, kept_seconds=700.0,
    ...                   paced_steps=499, paced_seconds=99.8)
    >>> left = forecast([half]).stages["sft"]
    >>> round(left.seconds.p50), left.seconds.p90 > left.seconds.p50, left.basis
    (100, True, 'measured')
    """
    seconds_paces = _paces(stages, "seconds")
    usd_paces = _paces(stages, "usd")
    return Forecast(stages={stage.name: _one(stage, seconds_paces, usd_paces) for stage in stages})


@dataclass(frozen=True, kw_only=True)
class _Evidence:
    """One part of a stage, its start or its steps, over what was planned for it."""

    stage: str
    kind: str
    ratio: float
    weight: float
    """Planned amount of what was done."""
    sigma: float
    """Of the plan's logarithm."""


@dataclass(frozen=True, kw_only=True)
class _Error:
    """Logarithm of what a part takes over its plan: median, and variance in units of the plan's own."""

    median: float = 0.0
    variance: float = 1.0
    is_learned: bool = False

    def given(self, seen: Sequence[_Evidence], own: float, *, sums: bool) -> "_Error":
        """Return it after `m` parts were seen that share it, each with an error of its own of variance `own`.

        `m` parts of mean logarithm `L` move it by `w (L - median)` and leave `1 - w` of its variance,
        `w = variance / (variance + own / m)`. How far they scatter says, with as many votes, how large `own` is.
        `sums`: the mean is that of their sums, as money adds; else of their logarithms, which one outlier moves less.
        """
        if not seen:
            return self
        total = fsum(item.weight for item in seen)
        count = total**2 / fsum(item.weight**2 for item in seen)
        logs = fsum(item.weight * log(item.ratio) for item in seen) / total
        variance = fsum(item.weight * item.sigma**2 for item in seen) / total
        scatter = fsum(item.weight * (log(item.ratio) - logs) ** 2 for item in seen) / total / variance
        own = (own + count * scatter) / count if count > 1.0 else own
        mean = log(fsum(item.ratio * item.weight for item in seen) / total) if sums else logs
        weight = self.variance / (self.variance + own / count)
        moved = self.median + weight * (mean - self.median)
        return _Error(median=moved, variance=(1.0 - weight) * self.variance, is_learned=True)


def _excess(seen: Sequence[_Evidence]) -> float:
    """Variance of what was seen over what the plans said of it; 1 at the least."""
    total = fsum(item.weight for item in seen)
    squares = fsum(item.weight * (log(item.ratio) / item.sigma) ** 2 for item in seen)
    return max(1.0, squares / total) if total else 1.0


@dataclass(frozen=True, kw_only=True)
class _Paces:
    """Measured over planned for what was done."""

    starts: tuple[_Evidence, ...]
    steps: tuple[_Evidence, ...]

    def of_steps(self, stage: StageSoFar) -> _Error:
        """Return what others say of a stage's steps.

        A plan's error is one part that all stages share, one that its kind shares, and one of its own.
        """
        others = [item for item in self.steps if item.stage != stage.name]
        excess = _excess(others)
        mine, rest = ([item for item in others if (item.kind == stage.kind) is same] for same in (True, False))
        error = _Error(variance=COMMON_TO_ALL * excess).given(rest, (1.0 - COMMON_TO_ALL) * excess, sums=True)
        error = replace(error, variance=error.variance + (COMMON_TO_KIND - COMMON_TO_ALL) * excess)
        error = error.given(mine, (1.0 - COMMON_TO_KIND) * excess, sums=True)
        return replace(error, variance=error.variance + (1.0 - COMMON_TO_KIND) * excess)

    def of_start(self, stage: StageSoFar) -> _Error:
        """Return what others say of a stage's start."""
        others = [item for item in self.starts if item.stage != stage.name]
        excess = _excess(others)
        own = (1.0 - COMMON_TO_STARTS) * excess
        error = _Error(variance=COMMON_TO_STARTS * excess).given(others, own, sums=False)
        return replace(error, variance=error.variance + own)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """An amount of a stage that has begun: that of its start, and of one step; None before the first."""

    start: float
    step: float | None = None
    count: int = 0
    """Steps that were timed."""
    at_most: float = 0.0
    """Of a step, if nothing of the time was a start."""


def _one(stage: StageSoFar, seconds_paces: _Paces, usd_paces: _Paces) -> StageForecast:
    if stage.done:
        usd = None if stage.planned_usd is None and stage.kept_usd is None else NONE
        return StageForecast(name=stage.name, seconds=NONE, usd=usd, basis="done")
    seconds, basis = _left(stage, "seconds", seconds_paces)
    usd, _ = _left(stage, "usd", usd_paces)
    left, planned = (
        (usd, stage.planned_usd) if usd is not None and stage.planned_usd else (seconds, stage.planned_seconds)
    )
    of_plan = planned.p50 * (1.0 - stage.share) if planned is not None else 0.0
    return StageForecast(
        name=stage.name,
        seconds=seconds or NONE,
        usd=usd,
        basis=basis,
        pace=left.p50 / of_plan if left is not None and of_plan else None,
        steps=stage.step,
    )


def _planned(stage: StageSoFar, what: Amount) -> tuple[float, Interval] | None:
    """Return what is planned for a stage's start, and for its steps; money follows the time."""
    planned, seconds = stage.planned_seconds if what == "seconds" else stage.planned_usd, stage.planned_seconds
    if planned is None:
        return None
    share = min(1.0, stage.planned_start_seconds / seconds.p50) if seconds is not None and seconds.p50 else 0.0
    return share * planned.p50, planned.scaled(1.0 - share)


def _left(stage: StageSoFar, what: Amount, paces: _Paces) -> tuple[Interval | None, Basis]:
    planned, seen, others = _planned(stage, what), _seen(stage, what), paces.of_steps(stage)
    if seen is not None and seen.step is not None and stage.target_step:
        to_do = max(0, stage.target_step - stage.step)
        return _step(stage, seen, planned[1] if planned else None, others).scaled(to_do), "measured"
    if planned is None:
        return None, "unplanned"
    start, steps = (0.0 if stage.step else planned[0]), planned[1].scaled(1.0 - stage.share)
    if (not others.is_learned and seen is None) or not steps.p50:
        planned_all = stage.planned_seconds if what == "seconds" else stage.planned_usd
        return (planned_all or NONE).scaled(1.0 - stage.share), "planned"
    starts, passed = paces.of_start(stage), seen.start if seen is not None else 0.0
    start_left = _start_left(start * exp(starts.median), START_SIGMA * sqrt(starts.variance), passed)
    if not others.is_learned:
        return add([start_left, steps]), "planned"
    median, width = steps.p50 * exp(others.median), exp(Z90 * _sigma(steps) * sqrt(others.variance))
    return add([start_left, Interval(p10=median / width, p50=median, p90=median * width)]), "scaled"


def _start_left(median: float, sigma: float, passed: float) -> Interval:
    """Return the rest of a start of which some has passed, if its logarithm is normal."""
    if not median:
        return NONE
    normal = NormalDist(log(median), sigma)
    over = min(0.999, normal.cdf(log(passed))) if passed else 0.0
    ends = {f"p{share}": exp(normal.inv_cdf(over + (1.0 - over) * share / 100)) for share in (10, 50, 90)}
    return Interval(**{name: max(0.0, end - passed) for name, end in ends.items()})


def _seen(stage: StageSoFar, what: Amount) -> _Seen | None:
    """Return what a stage has shown of its start and its pace; None where nothing of it is known."""
    measured = stage.kept_seconds if what == "seconds" else stage.kept_usd
    target = stage.target_step or (1 if stage.done else 0)
    steps = target if stage.done else stage.step
    if not measured:
        return None
    if not steps:
        return _Seen(start=measured)
    if not target:
        return None
    if stage.paced_steps and stage.kept_seconds:
        step = stage.paced_seconds / stage.paced_steps
        start = max(0.0, stage.kept_seconds - steps * step)
        if what == "usd":
            machine = (measured - stage.calls_usd) / stage.kept_seconds
            step, start = machine * step + stage.calls_usd / steps, machine * start
        return _Seen(start=start, step=step, count=stage.paced_steps)
    with_start, planned = measured / steps, _planned(stage, what)
    of_plan = planned[1].p50 / target if planned is not None else 0.0
    if stage.done or not of_plan or with_start <= of_plan:
        return _Seen(start=0.0, step=with_start, count=steps)
    longest = LONGEST_START_SECONDS * measured / stage.kept_seconds if stage.kept_seconds else 0.0
    step = max(of_plan, (measured - longest) / steps)
    return _Seen(start=measured - steps * step, step=step, count=steps, at_most=with_start)


def _step(stage: StageSoFar, seen: _Seen, planned: Interval | None, others: _Error) -> Interval:
    """Return what a step to come takes: as those that were seen, and as the plan that others have corrected."""
    assert seen.step is not None
    step, at_most = seen.step, seen.at_most
    # All steps of a stage that is done are seen; the plan has nothing to add.
    weight = 0.0 if stage.done else PLAN_WORTH_STEPS / (PLAN_WORTH_STEPS + seen.count)
    low, high = _ratios(planned)
    if planned is not None and planned.p50:
        of_plan = planned.p50 / (stage.target_step or 1) * exp(others.median)
        apart = max(step / of_plan, of_plan / step) if step else 1.0
        low, high = min(low, 1 / apart), max(high, apart)
        step = (1 - weight) * step + weight * of_plan
        at_most = (1 - weight) * at_most + weight * of_plan if at_most else 0.0
    spread, drift = sqrt(weight), 1.0 if stage.done else DRIFT_RATIO
    low, high = min(1 / drift, low**spread), max(drift, high**spread)
    return Interval(p10=step * low, p50=step, p90=max(step * high, at_most))


def _ratios(planned: Interval | None) -> tuple[float, float]:
    """p10 and p90 over the median."""
    if planned is None or not planned.p50:
        return 1 / UNPLANNED_RATIO, UNPLANNED_RATIO
    return planned.p10 / planned.p50, planned.p90 / planned.p50


def _sigma(planned: Interval) -> float:
    """Standard deviation of a plan's logarithm, if it is normal: `ln(p90 / p10) / 2.563`; p10 of 0 is a hundredth."""
    low, high = _ratios(planned)
    return max(LEAST_SIGMA, log(high / max(low, 0.01)) / (2 * Z90))


def _paces(stages: Sequence[StageSoFar], what: Amount) -> _Paces:
    """Measured over planned of every stage that has made steps."""
    starts, steps = [], []
    for stage in stages:
        planned, seen = _planned(stage, what), _seen(stage, what)
        if planned is None or seen is None or not seen.step or not stage.share:
            continue
        start, of_steps = planned
        by = {"stage": stage.name, "kind": stage.kind}
        if start and stage.paced_steps:
            ratio = max(LEAST_START, seen.start / start)
            starts.append(_Evidence(**by, ratio=ratio, weight=1.0, sigma=START_SIGMA))
        if of_steps.p50:
            pace = _step(stage, seen, of_steps, _Error()).p50 * (stage.target_step or 1)
            weight, sigma = of_steps.p50 * stage.share, _sigma(of_steps)
            steps.append(_Evidence(**by, ratio=pace / of_steps.p50, weight=weight, sigma=sigma))
    return _Paces(starts=tuple(starts), steps=tuple(steps))


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
        forecast_p10_usd=spent_usd + remaining_p10_usd,
        forecast_p50_usd=spent_usd + remaining_p50_usd,
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

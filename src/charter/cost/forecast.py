"""Forecast of a run's final cost: the amount spent, and the rest of the plan at the measured pace. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, sqrt
from typing import Any, Literal

from charter.cost.monte_carlo import add
from charter.physics.terms import Z90, Interval

PLAN_WORTH_STEPS = 5.0
"""Measured steps that count as much as the plan (judgement): the first steps of a stage are slow, and few."""
COMMON_TO_KIND, COMMON_TO_ALL = 0.8, 0.5
"""Of the variance of a plan's logarithm, what stages of one kind, and all stages, have in common (judgement)."""
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
    """Remaining time and cost of a run; parts add up to the total."""

    stages: Mapping[str, StageForecast] = field(default_factory=dict)

    @property
    def seconds(self) -> Interval:
        """Machine time that is left, stages one after the other."""
        return add(stage.seconds for stage in self.stages.values())

    @property
    def usd(self) -> Interval | None:
        """Money that is left; None when no stage that is not done has a price."""
        priced = [stage.usd for stage in self.stages.values() if stage.usd is not None]
        return add(priced) if priced else None

    def words(self, names: Collection[str]) -> str:
        """Return the basis of some stages' forecast, in a line; where many wait, they are counted, not named."""
        left = [stage for stage in self.stages.values() if stage.name in names and stage.words]
        shown = left if len(left) <= NAMED else left[: NAMED - 1]
        rest = [f"{len(left) - len(shown)} more"] if len(left) > len(shown) else []
        return ", ".join([*(stage.words for stage in shown), *rest])

    def usd_of(self, names: Sequence[str]) -> Interval:
        """Money that is left for some stages; those without a price count nothing."""
        return add(stage.usd for stage in self.stages.values() if stage.name in names and stage.usd is not None)


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def paced(progress: Mapping[str, Any]) -> tuple[int, float]:
    """Steps whose pace a stage's `progress.json` has measured, without any start, and the time that they took.

    >>> paced({"rate_steps": 20, "rate_per_second": 0.5}), paced({"rate_per_second": None})
    ((20, 40.0), (0, 0.0))
    """
    steps, rate = progress.get("rate_steps"), progress.get("rate_per_second")
    return (int(steps), steps / rate) if steps and rate else (0, 0.0)


def forecast(stages: Sequence[StageSoFar]) -> Forecast:
    """Forecast the rest of every stage from its plan and from what was measured.

    A stage that runs: `left = (target - step) x seconds per step`. The pace is that between two steps, so that a slow
    start is not charged to what follows, and the plan's, weighted by the steps seen and 5. Its quantiles keep the
    plan's ratios to its median, or the ratio of the two paces where they differ more, and shrink with the steps seen:
    `ratio ^ sqrt(5 / (5 + steps))`, to 1.15 at the least. Where the time between steps is not known (trainers of other
    projects), what is above the plan counts as start, up to half an hour, and p90 as if it were pace. A stage that has
    not begun takes its plan times the pace of the stages of its kind, or of all, that have: measured over planned, by
    their planned time, as far as stages are wrong in common (`_Paces.posterior`).
    Money follows the time, that of calls the steps.
    Quantiles add, as in plans: errors of stages are taken as fully dependent, which is too wide when they are not.
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
class _StagePace:
    """Pace of a stage over its plan, and how wide the plan was."""

    ratio: float
    weight: float
    """Planned amount of what was done."""
    sigma: float
    """Of the plan's logarithm."""


@dataclass(frozen=True, kw_only=True)
class _Paces:
    by_kind: Mapping[str, tuple[_StagePace, ...]]

    def posterior(self, kind: str, planned: Interval) -> tuple[float, float] | None:
        """Return median and sigma of the logarithm of a stage's pace over its plan; None where no stage has a pace.

        The plan's error in a stage is one part that stages share and one of its own. `m` stages of mean logarithm `L`
        leave the shared part at `w L` with `1 - w` of its variance, `w = c / (c + (1 - c) / m)` for a share `c` of the
        variance. Where the stages seen were off by more than their plans' widths, all widths grow by as much.
        """
        mine = self.by_kind.get(kind, ())
        seen = mine or tuple(pace for paces in self.by_kind.values() for pace in paces)
        if not seen:
            return None
        total = sum(pace.weight for pace in seen)
        count = total**2 / sum(pace.weight**2 for pace in seen)
        mean = log(sum(pace.ratio * pace.weight for pace in seen) / total)
        excess = sum(pace.weight * (log(pace.ratio) / pace.sigma) ** 2 for pace in seen) / total
        common = COMMON_TO_KIND if mine else COMMON_TO_ALL
        weight = common / (common + (1.0 - common) / count)
        variance = max(1.0, excess) * _sigma(planned) ** 2
        return weight * mean, sqrt(variance * ((1.0 - weight) * common + 1.0 - common))


@dataclass(frozen=True, kw_only=True)
class _Pace:
    """Seconds or dollars per step."""

    step: Interval
    at_most: float
    """If nothing of the time was a start."""


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


def _left(stage: StageSoFar, what: Amount, paces: _Paces) -> tuple[Interval | None, Basis]:
    planned = stage.planned_seconds if what == "seconds" else stage.planned_usd
    pace = _pace(stage, what)
    if pace is not None and stage.target_step:
        to_do = max(0, stage.target_step - stage.step)
        return replace(pace.step, p90=max(pace.step.p90, pace.at_most)).scaled(to_do), "measured"
    if planned is None:
        return None, "unplanned"
    left_of_plan, others = planned.scaled(1.0 - stage.share), paces.posterior(stage.kind, planned)
    if others is None or not planned.p50:
        return left_of_plan, "planned"
    middle, sigma = others
    median, width = left_of_plan.p50 * exp(middle), exp(Z90 * sigma)
    return Interval(p10=median / width, p50=median, p90=median * width), "scaled"


def _pace(stage: StageSoFar, what: Amount) -> _Pace | None:
    """The pace of a stage that has made steps; None where it has made none, or nobody knows what they took."""
    planned = stage.planned_seconds if what == "seconds" else stage.planned_usd
    measured = stage.kept_seconds if what == "seconds" else stage.kept_usd
    target = stage.target_step or (1 if stage.done else 0)
    steps = target if stage.done else stage.step
    if not measured or not steps or not target:
        return None
    with_start = measured / steps
    of_plan = planned.p50 / target if planned is not None and planned.p50 else None
    if stage.paced_steps and stage.kept_seconds:
        count, step_pace = stage.paced_steps, stage.paced_seconds / stage.paced_steps
        if what == "usd":
            step_pace = (measured - stage.calls_usd) / stage.kept_seconds * step_pace + stage.calls_usd / steps
        at_most = 0.0
    else:
        count, step_pace, at_most = steps, with_start, 0.0
        if of_plan is not None and with_start > of_plan and not stage.done:
            longest = LONGEST_START_SECONDS * measured / stage.kept_seconds if stage.kept_seconds else 0.0
            step_pace, at_most = max(of_plan, (measured - longest) / steps), with_start
    # All steps of a stage that is done are seen; the plan has nothing to add.
    weight = 0.0 if stage.done else PLAN_WORTH_STEPS / (PLAN_WORTH_STEPS + count)
    low, high = _ratios(planned)
    if of_plan is not None:
        apart = max(step_pace / of_plan, of_plan / step_pace) if step_pace else 1.0
        low, high = min(low, 1 / apart), max(high, apart)
        step_pace = (1 - weight) * step_pace + weight * of_plan
        at_most = (1 - weight) * at_most + weight * of_plan if at_most else 0.0
    spread, drift = sqrt(weight), 1.0 if stage.done else DRIFT_RATIO
    low, high = min(1 / drift, low**spread), max(drift, high**spread)
    return _Pace(step=Interval(p10=step_pace * low, p50=step_pace, p90=step_pace * high), at_most=at_most)


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
    """Measured over planned for what was done, by kind; what may be another stage's start is left out."""
    by_kind: dict[str, tuple[_StagePace, ...]] = {}
    for stage in stages:
        plan = stage.planned_seconds if what == "seconds" else stage.planned_usd
        pace = _pace(stage, what)
        if plan is None or not plan.p50 or pace is None or not pace.step.p50 or not stage.share:
            continue
        measured = _StagePace(
            ratio=pace.step.p50 * (stage.target_step or 1) / plan.p50,
            weight=plan.p50 * stage.share,
            sigma=_sigma(plan),
        )
        by_kind[stage.kind] = (*by_kind.get(stage.kind, ()), measured)
    return _Paces(by_kind=by_kind)

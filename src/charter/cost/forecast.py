"""Forecast of what is left of a run, from what was spent and the measured pace. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, fsum, log, sqrt
from statistics import NormalDist
from typing import Any, Literal

from charter.cost.monte_carlo import add
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
LIKE_WORK = 0.1
"""Before it is seen: how likely starts follow the work of their stages and not the plan's starts (judgement).

A start that loads weights is planned; one that reads all rows, or measures before the first step, grows with them.
"""
START_OF_WORK, START_OF_WORK_SIGMA = 0.1, 1.5
"""Such a start over the time of the steps: median, and standard deviation of the logarithm (judgement)."""
LEAST_START = 0.05
"""Measured over planned start that counts as no start at all."""
QUANTILE_WITHIN = 1e-4
"""Of the logarithm of a start."""
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
    shared: float = COMMON_TO_ALL
    """Of the variance of what is left, what it has in common with other stages."""

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
        return self._sum([(stage.seconds, stage.shared) for stage in self.stages.values()])

    @property
    def usd(self) -> Interval | None:
        """Money that is left; None when no stage that is not done has a price."""
        return self.usd_of(list(self.stages)) if any(stage.usd is not None for stage in self.stages.values()) else None

    def words(self, names: Collection[str]) -> str:
        """Return the basis of some stages' forecast, in a line; where many wait, they are counted, not named."""
        left = [stage for stage in self.stages.values() if stage.name in names and stage.words]
        shown = left if len(left) <= NAMED else left[: NAMED - 1]
        rest = [f"{len(left) - len(shown)} more"] if len(left) > len(shown) else []
        return ", ".join([*(stage.words for stage in shown), *rest])

    def usd_of(self, names: Sequence[str]) -> Interval:
        """Money that is left for some stages; those without a price count nothing."""
        parts = [part for part in self.stages.values() if part.name in names]
        return self._sum([(part.usd, part.shared) for part in parts if part.usd is not None])

    def _sum(self, parts: Sequence[tuple[Interval, float]]) -> Interval:
        """Before anything is measured it is the plan, which adds quantiles."""
        is_learned = any(stage.basis in ("measured", "scaled") for stage in self.stages.values())
        return together(parts) if is_learned else add([part for part, _ in parts])


def together(parts: Sequence[tuple[Interval, float]]) -> Interval:
    """Return the sum of what stages still take, each with the share `c` of its variance that all have in common.

    Medians add. An end is as far from the median as `sqrt((sum sqrt(c) d)^2 + sum (1 - c) d^2)`, where `d` is how far a
    stage's own end is.

    >>> part = Interval(p10=6.0, p50=10.0, p90=14.0)
    >>> [round(together([(part, share)] * 4).p90) for share in (0.0, 0.7, 1.0)]
    [48, 54, 56]
    """
    ends = {}
    for name in ("p10", "p90"):
        apart = [(abs(getattr(part, name) - part.p50), share) for part, share in parts]
        in_common = fsum(sqrt(share) * distance for distance, share in apart)
        ends[name] = sqrt(in_common**2 + fsum((1.0 - share) * distance**2 for distance, share in apart))
    median = fsum(part.p50 for part, _ in parts)
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
    """Of what is shared with other parts."""
    own: float = 0.0
    """Variance of what is not."""
    is_learned: bool = False

    def given(self, seen: Sequence[_Evidence], own: float, *, sums: bool) -> "_Error":
        """Return it after `m` parts were seen that share it, each with an error of its own of variance `own`.

        `m` parts of mean logarithm `L` move it by `w (L - median)` and leave `1 - w` of its variance,
        `w = variance / (variance + own / m)`.
        `sums`: the mean is that of their sums, as money adds; else of their logarithms, which one outlier moves less.
        """
        if not seen:
            return self
        total = fsum(item.weight for item in seen)
        mean = log(fsum(item.ratio * item.weight for item in seen) / total) if sums else _mean(seen)
        weight = self.variance / (self.variance + own / _votes(seen))
        moved = self.median + weight * (mean - self.median)
        return _Error(median=moved, variance=(1.0 - weight) * self.variance, is_learned=True)

    @property
    def shared(self) -> float:
        """Share of the variance that is in common with others."""
        return self.variance / (self.variance + self.own)

    def density(self, seen: Sequence[_Evidence], own: float) -> float:
        """Return the logarithm of the density of what was seen, each with an error of its own; a constant is left out.

        The covariance of `m` parts is `own I + variance 1 1'`: its determinant and inverse are known in closed form.
        """
        gaps = [log(item.ratio) / item.sigma - self.median / item.sigma for item in seen]
        both = own + len(gaps) * self.variance
        squares = fsum(gap**2 for gap in gaps) - self.variance * fsum(gaps) ** 2 / both
        return -0.5 * (squares / own + log(both / own))


def _votes(seen: Sequence[_Evidence]) -> float:
    """Number of parts of one size that would say as much: `(sum w)^2 / sum w^2`."""
    return fsum(item.weight for item in seen) ** 2 / fsum(item.weight**2 for item in seen)


def _mean(seen: Sequence[_Evidence]) -> float:
    """Mean of the logarithms."""
    return fsum(item.weight * log(item.ratio) for item in seen) / fsum(item.weight for item in seen)


def _excess(seen: Sequence[_Evidence]) -> float:
    """Variance of what was seen over what the plans said of it; 1 at the least."""
    total = fsum(item.weight for item in seen)
    squares = fsum(item.weight * (log(item.ratio) / item.sigma) ** 2 for item in seen)
    return max(1.0, squares / total) if total else 1.0


def _apart(seen: Sequence[_Evidence], own: float) -> float:
    """Variance of what is a part's own, over the `own` that is supposed, by how far those that were seen scatter.

    One part cannot tell its own error from that of all, and counts for both; the supposition counts as one part.
    """
    if not seen:
        return 1.0
    mean, total = _mean(seen), fsum(item.weight for item in seen)
    squares = fsum(item.weight * ((log(item.ratio) - mean) / item.sigma) ** 2 for item in seen) / total
    return (_excess(seen) + _votes(seen) * squares / own) / _votes(seen)


@dataclass(frozen=True, kw_only=True)
class _Paces:
    """Measured over planned for what was done."""

    starts: tuple[_Evidence, ...]
    steps: tuple[_Evidence, ...]
    work: tuple[_Evidence, ...]
    """The same starts over the measured time of their stages' steps."""

    def of_steps(self, stage: StageSoFar) -> _Error:
        """Return what others say of a stage's steps.

        A plan's error is one part that all stages share, one that its kind shares, and one of its own.
        """
        others = [item for item in self.steps if item.stage != stage.name]
        apart = _apart(others, 1.0 - COMMON_TO_ALL)
        mine, rest = ([item for item in others if (item.kind == stage.kind) is same] for same in (True, False))
        error = _Error(variance=COMMON_TO_ALL * _excess(others)).given(rest, (1.0 - COMMON_TO_ALL) * apart, sums=True)
        error = replace(error, variance=error.variance + (COMMON_TO_KIND - COMMON_TO_ALL) * apart)
        error = error.given(mine, (1.0 - COMMON_TO_KIND) * apart, sums=True)
        return replace(error, own=(1.0 - COMMON_TO_KIND) * apart)

    def of_start(self, stage: StageSoFar, planned: float, steps: float) -> tuple[tuple[float, NormalDist], ...]:
        """Return laws of the logarithm of a stage's start, each with its probability: as planned, and as its work is.

        What others' starts were says which law holds: their densities under each, the shared error integrated out.
        """
        supposed = 1.0 - COMMON_TO_STARTS
        as_planned, as_work = ([item for item in seen if item.stage != stage.name] for seen in (self.starts, self.work))
        own = supposed * _apart(as_planned, supposed)
        common = COMMON_TO_STARTS * _excess(as_planned)
        error = _Error(variance=common).given(as_planned, own, sums=False)
        law = NormalDist(log(planned) + error.median, START_SIGMA * sqrt(error.variance + own))
        if not as_work:
            return ((1.0, law),)
        of_work = _Error(median=log(START_OF_WORK), variance=(START_OF_WORK_SIGMA / START_SIGMA) ** 2)
        odds = LIKE_WORK / (1.0 - LIKE_WORK)
        odds *= exp(
            min(50.0, of_work.density(as_work, supposed) - _Error(variance=common).density(as_planned, supposed))
        )
        error = of_work.given(as_work, supposed, sums=False)
        other = NormalDist(log(steps) + error.median, START_SIGMA * sqrt(error.variance + supposed))
        return (1.0 / (1.0 + odds), law), (odds / (1.0 + odds), other)


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
        shared=seconds_paces.of_steps(stage).shared if basis == "scaled" else COMMON_TO_ALL,
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
    median, width = steps.p50 * exp(others.median), exp(Z90 * _sigma(steps) * sqrt(others.variance + others.own))
    passed = seen.start if seen is not None else 0.0
    start_left = _start_left(paces.of_start(stage, start, median), passed) if start else NONE
    if not others.is_learned:
        return add([start_left, steps]), "planned"
    return add([start_left, Interval(p10=median / width, p50=median, p90=median * width)]), "scaled"


def _start_left(laws: Sequence[tuple[float, NormalDist]], passed: float) -> Interval:
    """Return the rest of a start of which some has passed, by the laws that its logarithm may have."""
    over = min(0.999, _share_below(laws, log(passed))) if passed else 0.0
    ends = {f"p{share}": exp(_quantile(laws, over + (1.0 - over) * share / 100)) for share in (10, 50, 90)}
    return Interval(**{name: max(0.0, end - passed) for name, end in ends.items()})


def _share_below(laws: Sequence[tuple[float, NormalDist]], value: float) -> float:
    return fsum(probability * law.cdf(value) for probability, law in laws)


def _quantile(laws: Sequence[tuple[float, NormalDist]], share: float) -> float:
    """Return where a share of a mixture of laws lies below: between the quantiles of the laws, halved until it is."""
    low, high = (pick(law.inv_cdf(share) for _, law in laws) for pick in (min, max))
    while high - low > QUANTILE_WITHIN:
        middle = (low + high) / 2
        low, high = (middle, high) if _share_below(laws, middle) < share else (low, middle)
    return low


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
    starts, steps, work = [], [], []
    for stage in stages:
        planned, seen = _planned(stage, what), _seen(stage, what)
        if planned is None or seen is None or not seen.step or not stage.share:
            continue
        start, of_steps = planned
        by = {"stage": stage.name, "kind": stage.kind}
        if start and stage.paced_steps:
            ratio = max(LEAST_START, seen.start / start)
            starts.append(_Evidence(**by, ratio=ratio, weight=1.0, sigma=START_SIGMA))
            worked = seen.step * (stage.target_step or 1)
            work.append(replace(starts[-1], ratio=ratio * start / worked))
        if of_steps.p50:
            pace = _step(stage, seen, of_steps, _Error()).p50 * (stage.target_step or 1)
            weight, sigma = of_steps.p50 * stage.share, _sigma(of_steps)
            steps.append(_Evidence(**by, ratio=pace / of_steps.p50, weight=weight, sigma=sigma))
    return _Paces(starts=tuple(starts), steps=tuple(steps), work=tuple(work))

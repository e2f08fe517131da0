"""What a run will have cost when it is done: what is spent, and what is left of the plan at the measured pace. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from charter.cost.interval import add
from charter.estimate.terms import Interval

PLAN_WORTH_STEPS = 5.0
"""Measured steps that count as much as the plan (judgement): the first steps of a stage are slow, and few."""
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

    @property
    def share(self) -> float:
        """Share of its steps that is done."""
        return 1.0 if self.done else min(1.0, self.step / self.target_step) if self.target_step else 0.0


@dataclass(frozen=True, kw_only=True)
class StageForecast:
    """What is left of one stage."""

    name: str
    seconds: Interval
    usd: Interval | None
    """None where no price is known."""
    basis: Basis
    """`measured`: its own pace; `scaled`: the plan at the pace of other stages; `planned`: the plan as it is;
    `unplanned`: no plan and no step yet, so nothing is counted."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What is left of a run; parts add up to the total."""

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

    def usd_of(self, names: Sequence[str]) -> Interval:
        """Money that is left for some stages; those without a price count nothing."""
        return add(stage.usd for stage in self.stages.values() if stage.name in names and stage.usd is not None)


def forecast(stages: Sequence[StageSoFar]) -> Forecast:
    """What is left of every stage, from its plan and from what was measured.

    A stage that runs: `left = (target - step) x seconds per step`, where the pace is the measured one and the
    plan's, weighted by `step` and 5. Its quantiles keep the plan's ratios to its median, which shrink as steps are
    done: `p90 / p50 = ratio ^ (1 - share)`. A stage that has not begun takes its plan times the pace of the stages
    of its kind, or of all, that have: measured over planned, by their planned time. Money follows the same rules.
    Quantiles add, as in plans: errors of stages are taken as fully dependent, which is too wide when they are not.
    Not true where what is left differs from what was done: a last stage of longer answers, another price.

    >>> half = StageSoFar(name="sft", kind="sft", planned_seconds=Interval(p10=80, p50=100, p90=150),
    ...                   planned_usd=None, step=500, target_step=1000, kept_seconds=100.0)
    >>> left = forecast([half]).stages["sft"]
    >>> round(left.seconds.p50), left.seconds.p90 > left.seconds.p50, left.basis
    (100, True, 'measured')
    """
    seconds_paces = _paces(stages, "seconds")
    usd_paces = _paces(stages, "usd")
    return Forecast(stages={stage.name: _one(stage, seconds_paces, usd_paces) for stage in stages})


@dataclass(frozen=True, kw_only=True)
class _Paces:
    by_kind: Mapping[str, float]
    of_all: float | None

    def of(self, kind: str) -> float | None:
        return self.by_kind.get(kind, self.of_all)


def _one(stage: StageSoFar, seconds_paces: _Paces, usd_paces: _Paces) -> StageForecast:
    if stage.done:
        usd = None if stage.planned_usd is None and stage.kept_usd is None else NONE
        return StageForecast(name=stage.name, seconds=NONE, usd=usd, basis="done")
    seconds, basis = _left(stage, stage.planned_seconds, stage.kept_seconds, seconds_paces)
    usd, _ = _left(stage, stage.planned_usd, stage.kept_usd, usd_paces)
    return StageForecast(name=stage.name, seconds=seconds or NONE, usd=usd, basis=basis)


def _left(
    stage: StageSoFar, planned: Interval | None, kept: float | None, paces: _Paces
) -> tuple[Interval | None, Basis]:
    if stage.step and stage.target_step and kept:
        per_step = kept / stage.step
        if planned is not None:
            of_plan = planned.p50 / stage.target_step
            per_step = (stage.step * per_step + PLAN_WORTH_STEPS * of_plan) / (stage.step + PLAN_WORTH_STEPS)
        left = per_step * max(0, stage.target_step - stage.step)
        return _spread(left, planned, 1.0 - stage.share), "measured"
    if planned is None:
        return None, "unplanned"
    pace = paces.of(stage.kind)
    left_of_plan = planned.scaled(1.0 - stage.share)
    return (left_of_plan, "planned") if pace is None else (left_of_plan.scaled(pace), "scaled")


def _spread(median: float, planned: Interval | None, open_share: float) -> Interval:
    """A median with the plan's relative spread, as far as it is still open."""
    if planned is None or not planned.p50:
        return Interval(p10=median, p50=median, p90=median)
    low, high = planned.p10 / planned.p50, planned.p90 / planned.p50
    return Interval(p10=median * low**open_share, p50=median, p90=median * high**open_share)


def _paces(stages: Sequence[StageSoFar], what: Literal["seconds", "usd"]) -> _Paces:
    """Measured over planned for what was done, by kind and in all; the plan counts as some steps more."""
    measured: dict[str, float] = {}
    planned: dict[str, float] = {}
    for stage in stages:
        plan = stage.planned_seconds if what == "seconds" else stage.planned_usd
        kept = stage.kept_seconds if what == "seconds" else stage.kept_usd
        if plan is None or not plan.p50 or not kept or not (stage.step or stage.done):
            continue
        share = stage.share
        trust = 1.0 if stage.done else stage.step / (stage.step + PLAN_WORTH_STEPS)
        of_plan = plan.p50 * share
        measured[stage.kind] = measured.get(stage.kind, 0.0) + trust * kept + (1 - trust) * of_plan
        planned[stage.kind] = planned.get(stage.kind, 0.0) + of_plan
    of_all = sum(measured.values()) / sum(planned.values()) if sum(planned.values()) else None
    return _Paces(by_kind={kind: measured[kind] / planned[kind] for kind in planned if planned[kind]}, of_all=of_all)

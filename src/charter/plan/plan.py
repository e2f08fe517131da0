"""The plan of a project: every stage placed, timed and priced; totals, verdicts, assumptions, and prices grown old."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property

from charter.catalog.price_book import HOW_TO_REFRESH, STALE_DAYS, PriceBook
from charter.cost.job import micro_usd
from charter.cost.monte_carlo import add
from charter.errors import InfeasibleError
from charter.physics.terms import Interval
from charter.plan.money import ProjectCost
from charter.plan.risk import Assumption
from charter.plan.stage_plan import NO_MONEY, QUANTILES, MicroUsd, StagePlan, differences, interval_json, stage_line
from charter.plan.timeline import Sharing, Timeline, slots, timeline_json, timelines

# -------- The plan of a project: every stage placed, timed and priced; totals, verdicts and assumptions.

SCHEMA = "charter.plan/1"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Result of `charter plan`. Pure data: no clock, no machine beyond what was passed in."""

    name: str
    stages: tuple[StagePlan, ...]
    budget_usd: float | None
    deadline_seconds: float | None
    max_parallel: int | None
    assumptions: tuple[Assumption, ...]
    sharing: Sharing | None = None
    """What stages that run at the same time share."""
    objective: str = "cheapest"
    proven: bool = True
    """Whether no better plan exists among the options; False where the search was cut short."""
    alternatives: tuple["Plan", ...] = ()
    """The next best plans that differ in hardware, provider or market of some stage."""
    advice: tuple[str, ...] = ()
    """The nearest changes that would keep a deadline that this plan does not keep."""
    budget_advice: tuple[str, ...] = ()
    """The same for the budget."""
    start: datetime | None = None
    """When the project begins, for dates."""
    models: tuple[tuple[str, float], ...] = ()
    """Entries of `models` with their numbers of parameters."""
    cost: ProjectCost | None = None
    """What the project costs as a whole: lines by bucket, spread, cost per unit."""

    @property
    def usd(self) -> MicroUsd | None:
        """The exact sum over the stages; None when a stage has no price."""
        total = MicroUsd(p10=0, p50=0, p90=0)
        for stage in self.stages:
            if stage.usd is None:
                return None
            total = total.plus(stage.usd)
        return total

    @property
    def gpu_hours(self) -> Interval:
        """The sum over the stages."""
        return add(stage.gpu_hours for stage in self.stages)

    def timeline(self, quantile: str = "p50") -> Timeline:
        """The quantile of every start, of every end and of the last end, over joint draws of all stages."""
        return self._timelines[quantile]

    @cached_property
    def _timelines(self) -> Mapping[str, Timeline]:
        if len(self.stages) == 1 and not (self.stages[0].wait_seconds.p90 or self.stages[0].lead_seconds):
            # Alone and without waits, the stage is the whole: its own range, so that two lines agree to the digit.
            return _of_one(self.stages[0])
        return timelines(self.stages, self.shared)

    @property
    def shared(self) -> Sharing | None:
        """Return the resources that concurrent stages share: pools, else the slots of one machine."""
        if self.sharing is None and self.max_parallel is not None:
            return slots([stage.name for stage in self.stages], self.max_parallel)
        return self.sharing

    @property
    def seconds(self) -> Interval:
        """From the start of the project to its last end, over joint draws: not a sum of the stages' quantiles."""
        p10, p50, p90 = (self.timeline(quantile).total_seconds for quantile in QUANTILES)
        return Interval(p10=p10, p50=p50, p90=p90)

    @property
    def storage_bytes(self) -> float:
        """The sum over the stages."""
        return sum(stage.storage_bytes for stage in self.stages)

    def stage(self, name: str) -> StagePlan | None:
        """The stage of that name."""
        return next((stage for stage in self.stages if stage.name == name), None)

    @property
    def project_usd(self) -> MicroUsd | None:
        """Return the cost that a budget has to cover: the stages and what `costs:` adds, where that has a price."""
        return self.usd if self.cost is None or self.cost.total is None else self.cost.total

    @property
    def budget_verdict(self) -> str | None:
        """`ok`, `p90 over`, `over` or `unpriced`; None without a budget."""
        return None if self.budget_usd is None else _verdict(_usd_bounds(self.project_usd), micro_usd(self.budget_usd))

    @property
    def deadline_verdict(self) -> str | None:
        """`ok`, `p90 over` or `over`; None without a deadline."""
        if self.deadline_seconds is None:
            return None
        return _verdict((self.seconds.p50, self.seconds.p90), self.deadline_seconds)

    def to_json(self) -> dict[str, object]:
        """The object that `charter plan --json` prints: stable, sorted by the order of the run."""
        line = self.timeline()
        return {
            "schema": SCHEMA,
            "name": self.name,
            "stages": [
                {
                    **stage.to_json(),
                    "start_seconds": round(line.start_seconds[stage.name], 6),
                    "end_seconds": round(line.end_seconds[stage.name], 6),
                }
                for stage in self.stages
            ],
            "total": self._total_json(line),
            "timeline": timeline_json({q: self.timeline(q) for q in QUANTILES}, self.start),
            "objective": self.objective,
            "proven": self.proven,
            "alternatives": [plan.short_json(self) for plan in self.alternatives],
            "advice": list(self.advice),
            "budget_advice": list(self.budget_advice),
            "assumptions": [item.to_json() for item in self.assumptions],
        }

    def differences(self, base: "Plan") -> dict[str, str]:
        """Stages whose hardware, provider or market differs from `base`, with what they have here."""
        return differences(self.stages, base.stages)

    def short_json(self, base: "Plan") -> Mapping[str, object]:
        """Totals, what differs from another plan, and each stage in a line."""
        return {
            "differs": self.differences(base),
            "seconds": interval_json(self.seconds),
            "gpu_hours": interval_json(self.gpu_hours),
            "usd": NO_MONEY if self.usd is None else self.usd.to_json(),
            "stages": [stage_line(stage) for stage in self.stages],
        }

    def _total_json(self, line: Timeline) -> Mapping[str, object]:
        total = self.usd
        return {
            "seconds": interval_json(self.seconds),
            "gpu_hours": interval_json(self.gpu_hours),
            "usd": NO_MONEY if total is None else total.to_json(),
            "cost": None if self.cost is None else self.cost.to_json(),
            "storage_bytes": sum(round(stage.storage_bytes) for stage in self.stages),
            "fits": True,
            "critical_path": list(line.critical_path),
            "budget": None
            if self.budget_usd is None
            else {"limit_usd": self.budget_usd, "verdict": self.budget_verdict},
            "deadline": None
            if self.deadline_seconds is None
            else {"seconds": self.deadline_seconds, "verdict": self.deadline_verdict},
        }


def _usd_bounds(total: MicroUsd | None) -> tuple[float, float] | None:
    return None if total is None else (total.p50, total.p90)


def _of_one(stage: StagePlan) -> Mapping[str, Timeline]:
    ends = {quantile: getattr(stage.option.seconds, quantile) for quantile in QUANTILES}
    return {
        quantile: Timeline(
            start_seconds={stage.name: 0.0},
            end_seconds={stage.name: end},
            critical_path=(stage.name,),
            finish_seconds=end,
        )
        for quantile, end in ends.items()
    }


def _verdict(bounds: tuple[float, float] | None, limit: float) -> str:
    if bounds is None:
        return "unpriced"
    p50, p90 = bounds
    return "over" if p50 > limit else "p90 over" if p90 > limit else "ok"


class InfeasiblePlanError(InfeasibleError):
    """A stage does not fit anywhere; carries the stage."""

    def __init__(self, message: str, *, stage: str, is_overflow: bool = False) -> None:
        self.stage = stage
        self.is_overflow = is_overflow
        """A layout exists, and even the smallest needs more memory than there is."""
        super().__init__(message)


# -------- Prices of a plan that are too old to be trusted without another look.

PREFIX = "stale price: "


def stale_prices(plan: Plan, book: PriceBook, today: date) -> tuple[Assumption, ...]:
    """One assumption for every price of the book that the plan rests on and that may be older than 60 days."""
    old = {(offer.cloud, offer.instance_type, offer.region): offer for offer in book.stale(today)}
    assumptions: dict[Assumption, None] = {}
    for stage in plan.stages:
        places = [(stage.option.place, stage.option.price)]
        places += [(group.place, group.price) for group in stage.option.beside]
        for place, price in places:
            offer = old.get((place.infra, place.instance, price.region or ""))
            if offer is not None:
                assumptions[
                    Assumption(
                        name=f"{PREFIX}{place.label}, {price.market}",
                        value=price.usd_per_hour,
                        source=f"may be more than {STALE_DAYS} days old on {today.isoformat()}; {HOW_TO_REFRESH}",
                        as_of=price.as_of,
                    )
                ] = None
    return tuple(assumptions)

"""Every limit of a budget against what is spent and forecast: pure, the same for a run, a report and a page."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from charter.cost.budget import BudgetState, budget_verdict
from charter.cost.forecast import Forecast
from charter.ledger.sums import Sums
from charter.pipeline.spending import Spending
from charter.spec.budget import Budget
from charter.spec.project import Project
from charter.units import MICRO_USD_PER_USD, SECONDS_PER_HOUR, format_usd

Scope = Literal["project", "stage", "owner", "tag"]
ON_FORECAST = {
    "warn": BudgetState.WARN,
    "hold": BudgetState.HOLD,
    "checkpoint_and_stop": BudgetState.STOP,
}


@dataclass(frozen=True, kw_only=True)
class BudgetLine:
    """One limit."""

    scope: Scope
    name: str
    limit_usd: float
    spent_usd: float
    """With the most that calls of which nobody knows may have cost."""
    forecast_p10_usd: float
    forecast_p50_usd: float
    forecast_p90_usd: float
    """Of this run's remaining part; what other runs of an owner or a tag will still spend is not known."""
    state: BudgetState
    reason: str
    passed_share: float | None
    """The largest of 50, 80 and 90 % that is spent."""
    usd_per_hour: float
    """What is running under this limit costs."""

    @property
    def share(self) -> float:
        """Spent over limit."""
        return self.spent_usd / self.limit_usd

    @property
    def title(self) -> str:
        """What the limit is for, in words."""
        return self.name if self.scope == "project" else f"{self.scope} {self.name}"

    @property
    def seconds_left(self) -> float | None:
        """Until the limit is reached at what is spent per hour now; None when nothing runs."""
        left = max(0.0, self.limit_usd - self.spent_usd)
        return left / self.usd_per_hour * SECONDS_PER_HOUR if self.usd_per_hour > 0 else None

    def sentence(self) -> str:
        """How it stands, in a line."""
        spent = f"{self.title} has cost {format_usd(self.spent_usd)} of {format_usd(self.limit_usd)}"
        return f"{spent} ({100 * self.share:.0f} %), forecast {format_usd(self.forecast_p50_usd)}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            **asdict(self),
            "state": STATE_NAMES[self.state],
            "share": self.share,
            "seconds_left": self.seconds_left,
        }


STATE_NAMES = {BudgetState.OK: "ok", BudgetState.WARN: "warn", BudgetState.HOLD: "hold", BudgetState.STOP: "stop"}
"""Short names, for JSON and tables."""


def budget_lines(
    project: Project, spending: Spending, left: Forecast, *, running: Collection[str] = ()
) -> tuple[BudgetLine, ...]:
    """The limits of the file, each with its state; none without a budget.

    `left` is what is still to come, `running` the stages that run now. A limit of another owner or tag than this
    project's is shown too, but what this run will still spend is not part of its forecast.
    """
    if project.budget is None:
        return ()
    names = set(left.stages)
    line = _Lines(budget=project.budget, spending=spending, left=left, running=set(running))
    found = [line.of("project", project.name, project.budget.limit, spending.total, names)]
    by_stage = spending.by_stage
    for name, limit in project.budget.stages.items():
        found.append(line.of("stage", name, limit, by_stage.get(name, Sums()), {name}))
    for name, limit in project.budget.owners.items():
        part = spending.by_owner.get(name, Sums())
        found.append(line.of("owner", name, limit, part, names if name == project.owner else set()))
    own = set(_pairs(project.tags))
    for name, limit in project.budget.tags.items():
        part = spending.by_tag.get(name, Sums())
        found.append(line.of("tag", name, limit, part, names if name in own else set()))
    return tuple(found)


def binding(project: Project, lines: Collection[BudgetLine]) -> tuple[BudgetLine, ...]:
    """The limits that this project spends under: not those of other owners and tags."""
    own = {("project", project.name), *(("tag", pair) for pair in _pairs(project.tags))}
    if project.owner is not None:
        own.add(("owner", project.owner))
    return tuple(line for line in lines if line.scope == "stage" or (line.scope, line.name) in own)


def _pairs(tags: Mapping[str, str]) -> Iterator[str]:
    return (f"{name}={value}" for name, value in tags.items())


@dataclass(frozen=True, kw_only=True)
class _Lines:
    budget: Budget
    spending: Spending
    left: Forecast
    running: set[str]

    def of(self, scope: Scope, name: str, limit: float, part: Sums, stages: set[str]) -> BudgetLine:
        left = self.left.usd_of(sorted(stages))
        verdict = budget_verdict(
            limit_usd=limit,
            spent_usd=part.most_micro_usd / MICRO_USD_PER_USD,
            remaining_p10_usd=left.p10,
            remaining_p50_usd=left.p50,
            remaining_p90_usd=left.p90,
            running_p10_usd=self.left.usd_of(sorted(stages & self.running)).p10,
            on_forecast=ON_FORECAST[self.budget.on_forecast],
        )
        state = verdict.state
        if self.budget.on_exceed == "warn" and state in (BudgetState.HOLD, BudgetState.STOP):
            state = BudgetState.WARN
        attempts = (attempt for attempt in self.spending.running if attempt.stage in stages)
        prices = (attempt.count * (attempt.price_micro_usd_per_hour or 0) for attempt in attempts)
        return BudgetLine(
            scope=scope,
            name=name,
            limit_usd=limit,
            spent_usd=verdict.spent_usd,
            forecast_p10_usd=verdict.forecast_p10_usd,
            forecast_p50_usd=verdict.forecast_p50_usd,
            forecast_p90_usd=verdict.forecast_p90_usd,
            state=state,
            reason=verdict.reason,
            passed_share=verdict.passed_share,
            usd_per_hour=sum(prices) / MICRO_USD_PER_USD,
        )

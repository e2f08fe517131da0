"""The plan of a project: every stage placed, timed and priced; totals, verdicts and assumptions."""

from collections.abc import Mapping
from dataclasses import dataclass

from charter.cost.interval import add
from charter.cost.money import micro_usd
from charter.errors import InfeasibleError
from charter.estimate.terms import Interval
from charter.plan.assumption import Assumption
from charter.plan.stage_plan import NO_MONEY, QUANTILES, MicroUsd, StagePlan, interval_json
from charter.plan.timeline import Timeline, schedule

SCHEMA = "charter.plan/1"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `charter plan` found. Pure data: no clock, no machine beyond what was passed in."""

    name: str
    stages: tuple[StagePlan, ...]
    budget_usd: float | None
    deadline_seconds: float | None
    max_parallel: int | None
    assumptions: tuple[Assumption, ...]

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
        """Starts and ends when every stage takes its `quantile` time."""
        return schedule(
            [stage.name for stage in self.stages],
            {stage.name: stage.inputs for stage in self.stages},
            {stage.name: getattr(stage.option.seconds, quantile) for stage in self.stages},
            max_parallel=self.max_parallel,
        )

    @property
    def seconds(self) -> Interval:
        """From the first start to the last end, through the graph of stages."""
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
    def budget_verdict(self) -> str | None:
        """`ok`, `p90 over`, `over` or `unpriced`; None without a budget."""
        return None if self.budget_usd is None else _verdict(_usd_bounds(self.usd), micro_usd(self.budget_usd))

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
            "assumptions": [item.to_json() for item in self.assumptions],
        }

    def _total_json(self, line: Timeline) -> Mapping[str, object]:
        total = self.usd
        return {
            "seconds": interval_json(self.seconds),
            "gpu_hours": interval_json(self.gpu_hours),
            "usd": NO_MONEY if total is None else total.to_json(),
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


def _verdict(bounds: tuple[float, float] | None, limit: float) -> str:
    if bounds is None:
        return "unpriced"
    p50, p90 = bounds
    return "over" if p50 > limit else "p90 over" if p90 > limit else "ok"


class InfeasiblePlanError(InfeasibleError):
    """A stage does not fit anywhere; carries the stage."""

    def __init__(self, message: str, *, stage: str) -> None:
        self.stage = stage
        super().__init__(message)

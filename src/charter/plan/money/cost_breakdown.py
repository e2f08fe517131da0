"""Cost of a project: lines that add up exactly, the spread around them, and cost per unit of work."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from charter.cost.buckets import BUCKETS
from charter.cost.monte_carlo import CostDistribution
from charter.plan.stages.stage_plan import MicroUsd

DISK, STORAGE, TRANSFER, MANAGED, API = "disk", "object storage", "transfer", "managed service", "endpoints"
FIXED, LABELS, STAFF, CONTINGENCY = "fixed", "human labels", "staff", "contingency"
ALL_BUCKETS = (*BUCKETS, DISK, STORAGE, TRANSFER, MANAGED, API, FIXED, LABELS, STAFF, CONTINGENCY)
NOTHING = MicroUsd(p10=0, p50=0, p90=0)


@dataclass(frozen=True, kw_only=True)
class CostLine:
    """One addend of a project's cost, with what a reader needs to check it."""

    name: str
    bucket: str
    stage: str
    """Empty for what belongs to the project as a whole."""
    usd: MicroUsd
    formula: str
    source: str
    as_of: str = ""

    def to_json(self) -> dict[str, object]:
        """As `charter plan --json` prints it."""
        return {
            "name": self.name,
            "bucket": self.bucket,
            "stage": self.stage or None,
            "usd": self.usd.to_json(),
            "formula": self.formula,
            "source": self.source,
            "as_of": self.as_of,
        }


@dataclass(frozen=True, kw_only=True)
class UnitCost:
    """Cost of one unit of what the project makes."""

    name: str
    """`usd_per_million_trained_tokens`."""
    value: float
    formula: str


@dataclass(frozen=True, kw_only=True)
class ProjectCost:
    """The cost of a whole project."""

    lines: tuple[CostLine, ...]
    unpriced: tuple[str, ...]
    """Stages, models or services without a price: they are missing from every sum, not free."""
    spread: CostDistribution
    """Quantiles over random draws; narrower than the sum of the lines' quantiles, in which everything errs at once."""
    units: tuple[UnitCost, ...]
    energy_kwh: float | None
    """Of the accelerators and what cools and feeds them; None where the power of one is not known."""

    @property
    def total(self) -> MicroUsd | None:
        """The exact sum of the lines, quantile by quantile; None while something has no price."""
        return None if self.unpriced else added(self.lines)

    @property
    def by_bucket(self) -> dict[str, MicroUsd]:
        """Sums by what was paid for, in a fixed order; empty buckets are left out."""
        by_name = {bucket: [line for line in self.lines if line.bucket == bucket] for bucket in ALL_BUCKETS}
        return {bucket: added(lines) for bucket, lines in by_name.items() if lines}

    @property
    def by_stage(self) -> dict[str, MicroUsd]:
        """Sums by stage, in the order of the run; what belongs to no stage is under the empty name."""
        names = dict.fromkeys(line.stage for line in self.lines)
        return {name: added(line for line in self.lines if line.stage == name) for name in names}

    def unit(self, name: str) -> float | None:
        """The value of a unit cost; None where nothing of it is made."""
        return next((item.value for item in self.units if item.name == name), None)

    def to_json(self) -> Mapping[str, object]:
        """The object `total.cost` of `charter plan --json`."""
        total = self.total
        return {
            "usd": None if total is None else total.to_json(),
            "buckets": {name: value.to_json() for name, value in self.by_bucket.items()},
            "lines": [line.to_json() for line in self.lines],
            "unpriced": list(self.unpriced),
            "monte_carlo": {**self.spread.to_json(), **({"usd": None} if self.unpriced else {})},
            "units": {item.name: round(item.value, 9) for item in self.units},
            "energy_kwh": None if self.energy_kwh is None else round(self.energy_kwh, 3),
        }


def added(lines: Iterable[CostLine]) -> MicroUsd:
    """The exact sum of lines."""
    total = NOTHING
    for line in lines:
        total = total.plus(line.usd)
    return total

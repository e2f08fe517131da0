"""One way to run one stage, with what it needs and what it costs; and why other ways were dropped."""

from dataclasses import dataclass

from charter.cost.interval import lognormal
from charter.cost.job import job_usd
from charter.estimate.terms import Interval, Term
from charter.plan.fit import Peak
from charter.plan.place import Place, Price
from charter.plan.risk import PRICE_SIGMA, Overhead
from charter.spec.layout import Layout


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """An option that was not taken, and the one reason."""

    option: str
    reason: str

    def to_json(self) -> dict[str, str]:
        """Both fields."""
        return {"option": self.option, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class DeviceGroup:
    """Accelerators beside the main ones of an option: the generators of a split PPO, the servers of a judge."""

    name: str
    place: Place
    num_nodes: int
    layout: Layout
    layout_label: str
    price: Price
    peak: Peak
    capacity_bytes: float

    @property
    def num_accelerators(self) -> int:
        """Accelerators that are paid for."""
        return self.num_nodes * self.place.per_node


@dataclass(frozen=True, kw_only=True)
class Option:
    """A place, a number of nodes, a layout and a market for one stage."""

    place: Place
    num_nodes: int
    layout: Layout
    layout_label: str
    price: Price
    peak: Peak
    capacity_bytes: float
    time_terms: tuple[Term, ...]
    overhead: Overhead
    time_sigmas: tuple[float, ...]
    engine: str = "native"
    """Which engine runs this layout."""
    beside: tuple[DeviceGroup, ...] = ()
    """More accelerators that the stage holds at the same time, of the same kind or another."""

    @property
    def num_accelerators(self) -> int:
        """Accelerators that are paid for, all groups; none on a machine without."""
        return self._own_accelerators + sum(group.num_accelerators for group in self.beside)

    @property
    def _own_accelerators(self) -> int:
        return 0 if self.place.is_cpu else self.num_nodes * self.place.per_node

    @property
    def usd_per_hour(self) -> float | None:
        """Price of everything that the stage holds at once, per hour; None when a part has no price."""
        parts = [(max(1, self._own_accelerators), self.price)]
        parts += [(group.num_accelerators, group.price) for group in self.beside]
        prices = [(count, price.usd_per_hour) for count, price in parts]
        return None if any(usd is None for _, usd in prices) else sum(count * (usd or 0.0) for count, usd in prices)

    @property
    def seconds(self) -> Interval:
        """Wall-clock time, restarts and waits included."""
        return lognormal(self.overhead.wall_seconds, *self.time_sigmas)

    @property
    def billed_hours(self) -> Interval:
        """Hours that are paid for, of each accelerator."""
        return lognormal(self.overhead.billed_seconds / 3600, *self.time_sigmas)

    @property
    def usd(self) -> Interval | None:
        """Cost of the machines, None without a price."""
        if self.usd_per_hour is None:
            return None
        median = job_usd(
            accelerators=1, hours=self.overhead.billed_seconds / 3600, usd_per_accelerator_hour=self.usd_per_hour
        )
        price_sigma = 0.0 if self.price.market in ("contract", "owned") else PRICE_SIGMA
        return lognormal(median, *self.time_sigmas, price_sigma)

    @property
    def label(self) -> str:
        """`2 x H100-SXM-80GB:8 on aws, spot`."""
        count = f"{self.num_nodes} x " if self.num_nodes > 1 else ""
        market = f", {self.price.market}" if self.price.market == "spot" else ""
        return f"{count}{self.place.label}{market}"


def cheapest_first(options: list[Option]) -> list[Option]:
    """Options by median cost (or by time where a price is missing), then time, then a stable name."""
    unpriced = any(option.usd is None for option in options)

    def key(option: Option) -> tuple[float, float, str]:
        usd, seconds = option.usd, option.overhead.wall_seconds
        first = seconds if unpriced or usd is None else usd.p50
        return (first, seconds, option.label + option.layout_label)

    return sorted(options, key=key)


NEAR = 1.05
"""Among options within 5 % of the cheapest the fastest is taken: the estimate cannot tell them apart."""


def pick(options: list[Option]) -> Option:
    """The fastest of the options that cost nearly as little as the cheapest."""
    ranked = cheapest_first(options)
    best = ranked[0]
    if best.usd is None:
        return best
    limit = best.usd.p50 * NEAR
    near = [option for option in ranked if option.usd is not None and option.usd.p50 <= limit]
    return min(near, key=lambda option: (option.overhead.wall_seconds, option.label + option.layout_label))

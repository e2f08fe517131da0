"""One way to run one stage, with what it needs and what it costs; and why other ways were dropped."""

import math
from dataclasses import dataclass

from charter.catalog.accelerators import Accelerator
from charter.cost.job import job_usd
from charter.cost.uncertainty import lognormal
from charter.physics.terms import Interval, Term
from charter.plan.hardware.place import Place, Price
from charter.plan.options.risk import PRICE_SIGMA, Overhead
from charter.plan.physics.fit import Peak
from charter.spec.layout import Layout

SETTLED_MARKETS = ("contract", "owned", "reserved_1y", "reserved_3y", "capacity_block")
"""Markets whose price is agreed before the work starts."""


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """An option that was not taken, and the one reason."""

    option: str
    reason: str

    def to_json(self) -> dict[str, str]:
        """Both fields."""
        return {"option": self.option, "reason": self.reason}


@dataclass(frozen=True, kw_only=True)
class TiedLayout:
    """A layout on the same accelerators whose time cannot be told from the fastest one's."""

    label: str
    seconds: float
    peak_bytes: float

    def to_json(self) -> dict[str, object]:
        """All three."""
        return {"layout": self.label, "seconds": self.seconds, "peak_bytes": round(self.peak_bytes)}


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
class RoleGroup:
    """Work of one group of a stage's accelerators where not all do the same: generating, training or scoring."""

    name: str
    """`all`, `trainers`, `scorers`, `critics` or `generators`."""
    roles: tuple[str, ...]
    hardware: str
    num_accelerators: int
    layout: Layout
    layout_label: str
    peak: Peak
    capacity_bytes: float
    busy_share: float
    """Of the working time, in which they compute; the rest is paid for and waits for other groups."""

    def to_json(self) -> dict[str, object]:
        """The group as `charter plan --json` prints it."""
        return {
            "name": self.name,
            "roles": list(self.roles),
            "hardware": self.hardware,
            "num_accelerators": self.num_accelerators,
            "layout": self.layout_label,
            "peak_bytes": round(self.peak.total_bytes),
            "capacity_bytes": round(self.capacity_bytes),
            "busy_share": round(self.busy_share, 4),
        }


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
    dtype: str = ""
    """Number format of the matrix products that are trained with; empty where nothing is trained."""
    tied_layouts: tuple[TiedLayout, ...] = ()
    """The best layout of every family that cannot be told from the fastest on these accelerators, fastest first."""
    beside: tuple[DeviceGroup, ...] = ()
    """More accelerators that the stage holds at the same time, of the same kind or another."""
    placement: str = ""
    """Of the roles of a PPO stage: `colocated`, `split` or `async`; empty where there is nothing to place."""
    waits_on_host: bool = False
    """Roles that share accelerators wait in host memory while it is not their turn."""
    generator_tensor: int = 1
    """Tensor parallelism of the generator of a PPO stage."""
    host_bytes: float = 0.0
    """Bytes per accelerator that wait in host memory."""
    fixed_usd: float | None = None
    """A bill that does not follow the hours: capacity bought in whole blocks."""
    remote: tuple[str, ...] = ()
    """Roles that an endpoint answers for."""
    endpoint_usd: Interval | None = None
    """What endpoints charge, where their price is known."""
    groups: tuple[RoleGroup, ...] = ()
    """Who does what on the accelerators, those of `beside` included; empty where all do the same."""

    @property
    def idle_share(self) -> float:
        """Share of the accelerators' working time that is paid for and spent waiting for other groups."""
        total = sum(group.num_accelerators for group in self.groups)
        busy = sum(group.num_accelerators * group.busy_share for group in self.groups)
        return 1 - busy / total if total else 0.0

    @property
    def idle_usd(self) -> float | None:
        """Median bill of the accelerators for the time in which they wait for other groups; None without a price."""
        machines, hourly = self.machines_usd, self.usd_per_hour
        if machines is None or not hourly:
            return None
        prices = {group.place.accelerator.name: group.price.usd_per_hour or 0.0 for group in self.beside}
        own = self.price.usd_per_hour or 0.0
        idle = sum(
            group.num_accelerators * (1 - group.busy_share) * prices.get(group.hardware, own) for group in self.groups
        )
        return machines.p50 * idle / hourly

    @property
    def fullest_device(self) -> Accelerator:
        """The device that `peak` fills: of the group nearest to its limit where groups differ."""
        if not self.groups:
            return self.place.accelerator
        fullest = max(self.groups, key=lambda group: group.peak.total_bytes / group.capacity_bytes)
        others = {group.place.accelerator.name: group.place.accelerator for group in self.beside}
        return others.get(fullest.hardware, self.place.accelerator)

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
        """Wall-clock time, restarts and waits included.

        The luck of a spot pool is independent of how far the estimate is off: distances from the median add as squares.
        """
        around, waits = self.overhead, self.overhead.waits
        if waits is None:
            return lognormal(around.wall_seconds, *self.time_sigmas)
        working = lognormal(around.billed_seconds, *self.time_sigmas)
        middle = working.p50 + waits.p50
        early = math.hypot(working.p50 - working.p10, waits.p50 - waits.p10)
        late = math.hypot(working.p90 - working.p50, waits.p90 - waits.p50)
        return Interval(p10=max(working.p10, middle - early), p50=middle, p90=middle + late)

    @property
    def billed_hours(self) -> Interval:
        """Hours that are paid for, of each accelerator."""
        return lognormal(self.overhead.billed_seconds / 3600, *self.time_sigmas)

    @property
    def usd(self) -> Interval | None:
        """Cost of machines and endpoints, None without a price of the machines."""
        machines, endpoints = self.machines_usd, self.endpoint_usd
        if machines is None or endpoints is None:
            return machines
        return Interval(
            p10=machines.p10 + endpoints.p10, p50=machines.p50 + endpoints.p50, p90=machines.p90 + endpoints.p90
        )

    @property
    def machines_usd(self) -> Interval | None:
        """Cost of the machines, None without a price."""
        if self.fixed_usd is not None:
            return lognormal(self.fixed_usd)
        if self.usd_per_hour is None:
            return None
        median = job_usd(
            accelerators=1, hours=self.overhead.billed_seconds / 3600, usd_per_accelerator_hour=self.usd_per_hour
        )
        price_sigma = 0.0 if self.price.market in SETTLED_MARKETS else PRICE_SIGMA
        return lognormal(median, *self.time_sigmas, price_sigma)

    @property
    def label(self) -> str:
        """`2 x H100-SXM-80GB:8 on aws, spot`."""
        count = f"{self.num_nodes} x " if self.num_nodes > 1 else ""
        plain = ("on_demand", "contract", "owned", "unpriced", "own")
        market = "" if self.price.market in plain else f", {self.price.market}"
        return f"{count}{self.place.label}{market}"


NEAR = 1.05
"""Among plans within 5 % of the cheapest the fastest is taken: the estimate cannot tell them apart."""

"""Figures of a plan as text of table cells: ranges, hardware, peaks; times and money in whole units.

Times are whole milliseconds and money whole micro-USD, so that parts add up to totals.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from charter.catalog.price_book import STALE_DAYS, as_of_key
from charter.cost.job import BUCKETS, micro_usd
from charter.physics.terms import MEMORY_QUANTILE, Interval
from charter.plan.money import API, STORAGE, TRANSFER
from charter.plan.option import DeviceGroup, Option
from charter.plan.plan import PREFIX, Plan
from charter.plan.stage_memory import Peak
from charter.plan.stage_plan import MicroUsd, StagePlan
from charter.spec.stage_base import FP8
from charter.units import GIB, format_bytes, format_usd


@dataclass(frozen=True, kw_only=True)
class Amount:
    """A time and its cost; no cost where there is no price."""

    milliseconds: int
    micro_usd: int | None

    @property
    def seconds(self) -> float:
        """The time in seconds."""
        return self.milliseconds / 1000

    @property
    def usd(self) -> float | None:
        """The cost in dollars."""
        return None if self.micro_usd is None else self.micro_usd / 1_000_000

    def __add__(self, other: "Amount") -> "Amount":
        costs = [cost for cost in (self.micro_usd, other.micro_usd) if cost is not None]
        return Amount(milliseconds=self.milliseconds + other.milliseconds, micro_usd=sum(costs) if costs else None)

    def scaled(self, share: float) -> "Amount":
        """A share of it, rounded to whole units."""
        return Amount(
            milliseconds=round(self.milliseconds * share),
            micro_usd=None if self.micro_usd is None else round(self.micro_usd * share),
        )

    def to_json(self, suffix: str = "") -> dict[str, float | int | None]:
        """`seconds` and `usd` for people, `milliseconds` and `micro_usd` for exact sums."""
        return {
            f"seconds{suffix}": self.seconds,
            f"usd{suffix}": self.usd,
            f"milliseconds{suffix}": self.milliseconds,
            f"micro_usd{suffix}": self.micro_usd,
        }


NOTHING = Amount(milliseconds=0, micro_usd=None)


@dataclass(frozen=True, kw_only=True)
class AmountSpread:
    """An estimate: median, and the tenth and ninetieth percentiles."""

    p10: Amount
    p50: Amount
    p90: Amount

    def __add__(self, other: "AmountSpread") -> "AmountSpread":
        return AmountSpread(p10=self.p10 + other.p10, p50=self.p50 + other.p50, p90=self.p90 + other.p90)

    def scaled(self, share: float) -> "AmountSpread":
        """A share of it."""
        return AmountSpread(p10=self.p10.scaled(share), p50=self.p50.scaled(share), p90=self.p90.scaled(share))

    def to_json(self) -> dict[str, float | int | None]:
        """The median plain, the others with `_p10` and `_p90`."""
        return {**self.p50.to_json(), **self.p10.to_json("_p10"), **self.p90.to_json("_p90")}


NO_SPREAD = AmountSpread(p10=NOTHING, p50=NOTHING, p90=NOTHING)


def planned(stage: Mapping[str, Any]) -> AmountSpread:
    """Time and cost of one stage of a plan."""
    seconds, usd = stage.get("seconds") or {}, stage.get("usd") or {}

    def amount(quantile: str) -> Amount:
        cost = usd.get(quantile)
        return Amount(
            milliseconds=round((seconds.get(quantile) or 0) * 1000),
            micro_usd=None if cost is None else micro_usd(cost),
        )

    return AmountSpread(p10=amount("p10"), p50=amount("p50"), p90=amount("p90"))


def ratio(value: float | None, base: float | None) -> float | None:
    """A time or an amount against another, to six digits; None where there is nothing to divide by.

    >>> ratio(3.0, 2.0), ratio(3.0, 0.0), ratio(None, 2.0)
    (1.5, None, None)
    """
    return None if value is None or not base else round(value / base, 6)


VERDICT_WORDS = {
    "ok": "met at p90 as well",
    "p90 over": "met at p50, exceeded at p90",
    "over": "exceeded at p50",
    "unpriced": "cannot be checked: a stage has no price",
}
"""What a plan says of its budget and its deadline."""
_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def seconds_range(interval: Interval) -> str:
    """p50 and p90 in the unit of the upper one, so that they can be compared at a glance.

    >>> seconds_range(Interval(p10=3000.0, p50=3600.0, p90=7200.0))
    '1.0-2.0 h'
    """
    unit, size = next((u, s) for u, s in _UNITS if interval.p90 >= 2 * s or s == 1.0)
    low, high = interval.p50 / size, interval.p90 / size
    return f"{low:.0f}-{high:.0f} {unit}" if low >= 100 else f"{low:.1f}-{high:.1f} {unit}"


def usd_range(money: MicroUsd | None) -> str:
    """p50 and p90 in usd, the sign of the currency once.

    >>> usd_range(MicroUsd(p10=1, p50=12_500_000, p90=17_000_000)), usd_range(MicroUsd(p10=1, p50=9, p90=200))
    ('$12.50-17.00', 'up to $0.0002')
    >>> usd_range(None)
    'unpriced'
    """
    if money is None:
        return "unpriced"
    low, high = (format_usd(value / 1e6) for value in (money.p50, money.p90))
    if low.startswith("<") and low != high:
        return f"up to {high}"
    return low if low == high else f"{low}-{high.removeprefix('$')}"


def hours(value: float) -> str:
    """Accelerator-hours; a dash where nothing is rented.

    >>> hours(0.0), hours(3.21), hours(1234.0)
    ('-', '3.2', '1,234')
    """
    return "-" if value == 0 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def gib(num_bytes: float) -> str:
    """A size in GiB without the unit.

    >>> gib(2**30), gib(80 * 2**30)
    ('1.00', '80.0')
    """
    value = num_bytes / GIB
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def hardware(option: Option) -> str:
    """`2 nodes x 8 H100-SXM-80GB aws spot`, and beside it `+ 8 A100-80GB aws judge` where a stage holds more."""
    if option.place.is_cpu:
        return f"cpu {option.place.infra}"
    market = "" if option.price.market == "on_demand" else f" {option.price.market}"
    first = f"{option.place.machines(option.num_nodes)} {option.place.infra}{market}"
    return " + ".join((first, *(_beside(group, option) for group in option.beside)))


def _beside(group: DeviceGroup, option: Option) -> str:
    where = "" if group.place.infra == option.place.infra else f" {group.place.infra}"
    same = group.place.accelerator.name == option.place.accelerator.name
    name = "" if same else f" x {group.place.accelerator.name}"
    return f"{group.num_accelerators}{name}{where} {group.name}"


def layout(option: Option) -> str:
    """The layout's short name, behind the engine where that is not Charter's own, and behind fp8 where it trains so."""
    named = option.engine == "native" or option.layout_label.startswith(option.engine)
    words = ("" if named else option.engine, FP8 if option.dtype == FP8 else "", option.layout_label)
    return " ".join(word for word in words if word)


def held_groups(option: Option) -> list[tuple[str, Peak, float]]:
    """Name, peak and capacity of every group of accelerators that does something else; the main one has no name."""
    if option.groups:
        return [(group.name, group.peak, group.capacity_bytes) for group in option.groups]
    beside = [(group.name, group.peak, group.capacity_bytes) for group in option.beside]
    return [("", option.peak, option.capacity_bytes), *beside]


def peak_of_limit(stage: StagePlan) -> tuple[str, str]:
    """GiB to plan a stage with, and what that may reach: the limit of the sum of terms, moved as the sum is."""
    needs = stage.peak_range
    return gib(needs.enough_bytes), gib(stage.option.capacity_bytes * needs.margin)


def enough_line(sum_bytes: float, enough: float) -> str:
    """The sum of a job's terms of memory, and what it is planned with; empty where they are the same.

    >>> enough_line(2.0**36, 2.0**36), enough_line(2.0**36, 1.05 * 2.0**36)
    ('', 'Terms sum to 64.0 GiB; planned with 67.2 GiB, which 75 % of such jobs stay under.')
    """
    if enough <= sum_bytes:
        return ""
    planned = f"planned with {format_bytes(enough)}, which {100 * MEMORY_QUANTILE:.0f} % of such jobs stay under"
    return f"Terms sum to {format_bytes(sum_bytes)}; {planned}."


def full_share(option: Option) -> float:
    """Peak over capacity of the fullest accelerator of all groups."""
    return max(peak.total_bytes / capacity for _, peak, capacity in held_groups(option))


# -------- From when a plan's catalog and prices are, and how old that makes them.


def dates_line(plan: Plan, today: date | None) -> list[str]:
    """`catalog 2026-11`, `prices 2026-08-20 (92 days old)`: the newest entry used, and the oldest price used."""
    parts = []
    entries = [stage.option.place.accelerator for stage in plan.stages if not stage.option.place.is_cpu]
    dates = [entry.provenance.as_of for entry in entries if as_of_key(entry.provenance.as_of)[0]]
    if dates:
        parts.append(f"catalog {short_date(max(dates, key=as_of_key))}")
    priced = [stage.option.price for stage in plan.stages if stage.option.price.usd_per_hour]
    dated = [price.as_of for price in priced if as_of_key(price.as_of)[0]]
    if dated:
        oldest = min(dated, key=as_of_key)
        parts.append(f"prices {short_date(oldest)}{age_note(oldest, today)}")
    return parts


def short_date(as_of: str) -> str:
    """The date in a text, as precise as it is there.

    >>> short_date("2026-08-20"), short_date("2026-11 (read)"), short_date("2026 (inferred)"), short_date("now")
    ('2026-08-20', '2026-11', '2026', 'now')
    """
    year, month, day = as_of_key(as_of)
    if not year:
        return as_of
    return f"{year}" + (f"-{month:02d}" if month else "") + (f"-{day:02d}" if month and day else "")


def age_days(as_of: str, today: date | None) -> int | None:
    """Days since then; None where the text names no day and no month, or `today` is not known.

    >>> age_days("2026-11-02", date(2026, 11, 20)), age_days("2026", date(2026, 11, 20))
    (18, None)
    """
    year, month, day = as_of_key(as_of)
    if today is None or not month:
        return None
    then = date(year, month, 1) + timedelta(days=max(day, 1) - 1)
    return max(0, (today - then).days)


def age_note(as_of: str, today: date | None) -> str:
    """` (18 days old)`; that the day is not known; nothing without `today`."""
    if today is None:
        return ""
    days = age_days(as_of, today)
    if days is None:
        return " (day not known)"
    return f" ({days} days old{', stale' if days > STALE_DAYS else ''})"


def is_stale(name: str, as_of: str, today: date | None) -> bool:
    """Return True if an assumption is a price and older than 60 days, or said to be; other figures do not age."""
    days = age_days(as_of, today)
    return name.startswith(PREFIX) or ("price" in name and days is not None and days > STALE_DAYS)


# -------- Costs of a plan beside the machines of its stages, in sums that add up to its total.

NO_USD = MicroUsd(p10=0, p50=0, p90=0)
REPEATED = "reruns, idle time"


def beside_the_machines(plan: Plan) -> list[tuple[str, MicroUsd | None]]:
    """Return the costs beside the machines of the stages, by name; together with those they are the total.

    Without a price for everything these are storage, transfer, endpoints, and None for what has no price.
    """
    if plan.cost is None or plan.cost.total is None:
        return _of_stages(plan)
    buckets = plan.cost.by_bucket
    accelerators = added(buckets[name] for name in BUCKETS if name in buckets) or NO_USD
    machines = added(stage.compute_usd for stage in plan.stages if stage.compute_usd is not None) or NO_USD
    repeated = less(accelerators, machines)
    rows: list[tuple[str, MicroUsd | None]] = [(REPEATED, repeated)] if repeated.p90 else []
    return [*rows, *((name, amount) for name, amount in buckets.items() if name not in BUCKETS)]


def _of_stages(plan: Plan) -> list[tuple[str, MicroUsd | None]]:
    storage = added(stage.storage_usd for stage in plan.stages)
    moved = added(stage.transfer_usd for stage in plan.stages)
    missing = plan.cost.unpriced if plan.cost is not None else ()
    rows: list[tuple[str, MicroUsd | None]] = [(STORAGE, storage)]
    rows += [(TRANSFER, moved)] if moved is not None and moved.p90 else []
    charged = added(stage.endpoint_usd for stage in plan.stages)
    rows += [(API, charged)] if charged is not None and charged.p90 else []
    return [*rows, *((name, None) for name in missing if plan.stage(name) is None)]


def added(parts: Iterable[MicroUsd | None]) -> MicroUsd | None:
    """The exact sum; None where a part is not known.

    >>> added([MicroUsd(p10=1, p50=2, p90=3), MicroUsd(p10=1, p50=1, p90=1)]), added([None])
    (MicroUsd(p10=2, p50=3, p90=4), None)
    """
    total = NO_USD
    for part in parts:
        if part is None:
            return None
        total = total.plus(part)
    return total


def less(whole: MicroUsd, part: MicroUsd) -> MicroUsd:
    """Quantile by quantile.

    >>> less(MicroUsd(p10=2, p50=3, p90=4), MicroUsd(p10=1, p50=1, p90=1))
    MicroUsd(p10=1, p50=2, p90=3)
    """
    return MicroUsd(p10=whole.p10 - part.p10, p50=whole.p50 - part.p50, p90=whole.p90 - part.p90)


def median_usd(option: Option) -> float:
    """The cost of an option at p50; 0 where nothing has a price, so that time alone orders it."""
    return 0.0 if option.usd is None else option.usd.p50

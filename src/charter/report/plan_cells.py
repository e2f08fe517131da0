"""Figures of a plan as text of table cells: ranges, hardware, peaks."""

from charter.physics.terms import Interval
from charter.plan.option import DeviceGroup, Option
from charter.plan.stage_memory import Peak
from charter.plan.stage_plan import MicroUsd
from charter.spec.stage import FP8
from charter.units import GIB, format_usd

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

    >>> usd_range(MicroUsd(p10=1, p50=12_500_000, p90=17_000_000)), usd_range(None)
    ('$12.50-17.00', 'unpriced')
    """
    if money is None:
        return "unpriced"
    low, high = (format_usd(value / 1e6) for value in (money.p50, money.p90))
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
    """`16 x H100-SXM-80GB aws spot`, and beside it `+ 8 x A100-80GB aws judge` where a stage holds more."""
    if option.place.is_cpu:
        return f"cpu {option.place.infra}"
    own = option.num_nodes * option.place.per_node
    market = "" if option.price.market == "on_demand" else f" {option.price.market}"
    first = f"{own} x {option.place.accelerator.name} {option.place.infra}{market}"
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


def full_share(option: Option) -> float:
    """Peak over capacity of the fullest accelerator of all groups."""
    return max(peak.total_bytes / capacity for _, peak, capacity in held_groups(option))

"""Checks of price lists: each rule answers a defect that was seen in a public catalog.

| defect that was seen | rule |
| --- | --- |
| spot above on-demand (TPU v4 3.686 over 3.22) | `spot-above-on-demand` |
| a reservation listed as on-demand (H100 4.20 in 16 of 29 zones) | `on-demand-outlier`, `far-from-known-price` |
| spot equal to on-demand | `spot-is-on-demand` |
| floor bids (8 x B200 for $0.08), an instance's price as that of one accelerator | `implausible-price` |
| 12 accelerators in a machine of 8 | `impossible-count` |
| 80 GB for a B200, 288 GB for an MI325X | `memory-mismatch` |
| a price estimated from a ratio | `estimated-price` |
| no on-demand price; a price of zero | `no-on-demand-price`, `zero-price` |
| a price per accelerator that is not the price over the count | `arithmetic` |
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import date

from charter.catalog.accelerators import get
from charter.catalog.offer import PART_ONLY, arithmetic_holds, earliest_day, names_estimate
from charter.catalog.price_book import STALE_DAYS
from charter.catalog.price_finding import Finding, Severity
from charter.catalog.price_outliers import Reference, far_from_known, outliers
from charter.catalog.price_row import PriceRow, memory_problem

MACHINE_COUNTS = (1, 2, 4, 8, 16)
"""Accelerators of one rented machine; besides, a whole node or scale-up domain of the accelerator."""
MINIMUM_USD_PER_ACCELERATOR_HOUR = ((3.0e12, 0.40), (1.2e12, 0.20), (0.0, 0.03))
"""Least plausible price by memory bandwidth in bytes/s: H100 class and up, A100 class, the rest. Judgement: half of the
lowest price of each class in the snapshot (0.80, 0.44) or less."""
MAXIMUM_USD_PER_ACCELERATOR_HOUR = 30.0
"""Above it a price of a whole instance was probably taken for that of one accelerator; the snapshot ends at 17.80.
Judgement."""


def check_rows(rows: Sequence[PriceRow], *, reference: Reference, today: date | None = None) -> tuple[Finding, ...]:
    """Everything that the rules say about a price list, in the order of its lines.

    `reference` holds known prices per accelerator-hour; with `today`, old rows and ended contracts are told too.
    """
    found = [finding for row in rows for rule in _RULES for finding in rule(row)]
    found += [*outliers(rows, reference), *far_from_known(rows, reference)]
    found += _twice(rows)
    if today is not None:
        found += [finding for row in rows for finding in _age(row, today)]
    return tuple(sorted(found, key=lambda finding: finding.row))


def _identity(row: PriceRow) -> Iterable[Finding]:
    for name, value in (("cloud", row.cloud), ("region", row.region), ("accelerator", row.accelerator)):
        if not value:
            yield row.finding("missing-cell", Severity.ERROR, f"{name} is empty; every row needs it")
    for name, value in (("source", row.source), ("as_of", row.as_of), ("confidence", row.confidence)):
        if not value:
            yield row.finding("no-provenance", Severity.ERROR, f"{name} is empty; a price without it is not used")
    if row.accelerator and not row.known:
        message = f"no accelerator of the catalog is called {row.accelerator!r}; `charter gpus` lists all"
        yield row.finding("unknown-accelerator", Severity.ERROR, message)


def _missing_prices(row: PriceRow) -> Iterable[Finding]:
    zero = [str(market) for market, price in row.prices.items() if price == 0]
    if zero:
        yield row.finding("zero-price", Severity.ERROR, f"{', '.join(zero)} is 0; an unknown price is an empty cell")
    if not row.prices:
        yield row.finding("no-price", Severity.ERROR, "no price in any market")
    elif row.on_demand is None and not row.is_contract:
        yield row.finding("no-on-demand-price", Severity.NOTE, "no on-demand price: not offered on demand, not free")


def _spot(row: PriceRow) -> Iterable[Finding]:
    if row.on_demand and row.spot is not None and row.spot > row.on_demand:
        message = f"spot {row.spot:g} is above on-demand {row.on_demand:g}"
        yield row.finding("spot-above-on-demand", Severity.ERROR, message)
    if row.spot is not None and row.spot == row.on_demand:
        message = f"spot equals on-demand ({row.spot:g}): read as no spot offer, and left out of medians"
        yield row.finding("spot-is-on-demand", Severity.NOTE, message)
    if row.spot is not None and row.spot_min is not None and row.spot_min > row.spot * 1.0001:
        message = f"the cheapest zone {row.spot_min:g} is above the median {row.spot:g}"
        yield row.finding("spot-min-above-median", Severity.ERROR, message)


def _reserved(row: PriceRow) -> Iterable[Finding]:
    for name, price in (("1-year", row.reserved_1y), ("3-year", row.reserved_3y)):
        if row.on_demand and price is not None and price > row.on_demand:
            message = f"the {name} price {price:g} is above on-demand {row.on_demand:g}"
            yield row.finding("reserved-above-on-demand", Severity.WARNING, message)


def _plausible(row: PriceRow) -> Iterable[Finding]:
    if not row.known or row.count <= 0:
        return
    bandwidth = get(row.accelerator).memory_bytes_per_second
    least = next(usd for at_least, usd in MINIMUM_USD_PER_ACCELERATOR_HOUR if bandwidth >= at_least)
    for market, price in row.prices.items():
        each = price / row.count
        if 0 < each < least:
            message = f"{market} ${each:.3f} per accelerator-hour; no less than ${least:.2f} is plausible"
            yield row.finding("implausible-price", Severity.ERROR, f"{message}: an auction's floor bid?")
        if each > MAXIMUM_USD_PER_ACCELERATOR_HOUR:
            message = f"{market} ${each:.2f} per accelerator-hour: is it the price of a whole instance?"
            yield row.finding("implausible-price", Severity.WARNING, message)


def _count(row: PriceRow) -> Iterable[Finding]:
    if row.count <= 0 or row.count != int(row.count):
        yield row.finding("impossible-count", Severity.ERROR, f"{row.count:g} accelerators: must be a whole number")
        return
    if row.is_slice or not row.known:
        return
    accelerator = get(row.accelerator)
    node = accelerator.devices_per_node
    if row.count in (*MACHINE_COUNTS, node, accelerator.scaleup_domain):
        return
    if row.count > node:
        message = f"{row.count:g} accelerators in a machine; {row.accelerator} comes in machines of up to {node}"
        yield row.finding("impossible-count", Severity.ERROR, message)
    else:
        yield row.finding("impossible-count", Severity.WARNING, f"{row.count:g} accelerators is an unusual number")


def _memory(row: PriceRow) -> Iterable[Finding]:
    problem = memory_problem(row)
    if problem:
        yield row.finding("memory-mismatch", Severity.ERROR, problem)


def _provenance(row: PriceRow) -> Iterable[Finding]:
    if names_estimate(f"{row.note} {row.confidence}"):
        message = "the source calls this price an estimate; it stays marked as one"
        yield row.finding("estimated-price", Severity.WARNING, message)
    if PART_ONLY in row.instance_type:
        message = "the price covers the accelerators only; the host is billed apart, and plans leave it out"
        yield row.finding("part-of-a-machine", Severity.NOTE, message)


def _arithmetic(row: PriceRow) -> Iterable[Finding]:
    printed = row.usd_per_accelerator_hour
    if not row.on_demand or printed is None or row.count <= 0:
        return
    if not arithmetic_holds(row.on_demand, row.count, printed):
        message = f"{printed:g} per accelerator is not {row.on_demand:g} over {row.count:g}"
        yield row.finding("arithmetic", Severity.ERROR, message)


_RULES: tuple[Callable[[PriceRow], Iterable[Finding]], ...] = (
    _identity,
    _missing_prices,
    _spot,
    _reserved,
    _plausible,
    _count,
    _memory,
    _provenance,
    _arithmetic,
)


def _twice(rows: Sequence[PriceRow]) -> list[Finding]:
    """Rows that give one offer of one date a second, different price."""
    first: dict[tuple[object, ...], PriceRow] = {}
    found = []
    for row in rows:
        place = (row.cloud, row.instance_type, row.accelerator, row.count, row.region, row.zone)
        key = (*place, row.as_of, row.is_contract, tuple(row.prices) if row.is_contract else ())
        held = first.setdefault(key, row)
        if held is not row and held.prices != row.prices:
            message = f"another price for the offer of line {held.number}"
            found.append(row.finding("two-prices", Severity.WARNING, message))
    return found


def _age(row: PriceRow, today: date) -> Iterable[Finding]:
    ends = earliest_day(row.valid_until)
    if row.is_contract:
        if ends is not None and ends < today:
            yield row.finding("contract-dates", Severity.WARNING, f"the contract ended on {row.valid_until}")
        return
    seen = earliest_day(row.as_of)
    if seen is None:
        yield row.finding("stale-price", Severity.WARNING, "has no date; prices change both ways")
    elif (today - seen).days > STALE_DAYS:
        message = f"is of {row.as_of.split(' (')[0]}, which may be {(today - seen).days} days ago"
        yield row.finding("stale-price", Severity.WARNING, message)

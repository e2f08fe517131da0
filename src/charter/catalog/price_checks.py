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

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import pairwise
from statistics import median

from charter.catalog.accelerators import get
from charter.catalog.offer import (
    PART_ONLY,
    Offer,
    age_days,
    arithmetic_holds,
    as_of_key,
    earliest_day,
    names_estimate,
)
from charter.catalog.price_book import HOW_TO_REFRESH, STALE_DAYS
from charter.catalog.price_row import PriceFinding, PriceRow, Severity, memory_problem

GAP = 1.6
"""Ratio between neighbours of the sorted prices of one machine above which they are two prices, not one that varies by
region. Judgement: regions of AWS lie within 1.38 of each other, true zones of GCP's H100 within 1.30; the reservation
price that a public catalog lists as on-demand is 2.3 below."""
FAR = 2.5
"""Ratio to the known price of the same cloud and accelerator above which a price is doubted. Judgement: machines of one
cloud differ by 2.0 (A10G with little and with much host), the reservation price that was seen is 2.3 to 3.0 times
below the true ones."""
MARKETPLACES = frozenset({"vast", "mithril", "runpod", "tensordock"})
"""Clouds whose hosts name their own prices: a gap is a warning there."""

Reference = Mapping[tuple[str, str], float]
"""Known on-demand price per accelerator-hour by cloud and accelerator."""


def reference_of(offers: Sequence[Offer]) -> Reference:
    """The median on-demand price per accelerator-hour of each cloud and accelerator.

    >>> from charter.catalog.price_book import PriceBook
    >>> reference_of(PriceBook.bundled().offers("H100", cloud="aws"))[("aws", "H100-SXM-80GB")]
    8.084
    """
    prices: dict[tuple[str, str], list[float]] = defaultdict(list)
    for offer in offers:
        if offer.on_demand_usd_per_hour is not None:
            prices[offer.cloud, offer.accelerator].append(offer.on_demand_usd_per_hour / offer.count)
    return {key: round(median(values), 6) for key, values in prices.items()}


def outliers(rows: Sequence[PriceRow], reference: Reference) -> list[PriceFinding]:
    """A finding for each row on the wrong side of a gap among the prices of its machine.

    Counting rows does not tell which side is wrong (the defect that was seen stands in 16 of 29 rows). In order:
    the side where some spot price is above its on-demand price; the side farther from the reference price of the same
    cloud and accelerator; the side with fewer rows; the lower side.
    """
    machines: dict[tuple[str, str, str, float, str], list[PriceRow]] = defaultdict(list)
    for row in rows:
        if row.on_demand and row.count > 0 and not row.is_contract:
            machines[row.cloud, row.instance_type, row.accelerator, row.count, row.as_of].append(row)
    return [finding for group in machines.values() for finding in _of_machine(group, reference)]


def far_from_known(rows: Sequence[PriceRow], reference: Reference) -> list[PriceFinding]:
    """A warning for each on-demand price far from what the same cloud is known to ask for the accelerator.

    It sees a wrong price that stands in every zone, where `outliers` has nothing to compare it with.
    """
    findings = []
    for row in rows:
        usual_price = reference.get((row.cloud, row.accelerator))
        if usual_price is None or not row.on_demand or row.count <= 0 or row.is_contract:
            continue
        ratio = _each(row) / usual_price
        if max(ratio, 1 / ratio) > FAR:
            message = (
                f"on-demand ${_each(row):.2f} per accelerator-hour; {row.cloud} is known to ask ${usual_price:.2f}"
            )
            findings.append(row.finding("far-from-known-price", Severity.WARNING, message))
    return findings


def _of_machine(group: Sequence[PriceRow], reference: Reference) -> list[PriceFinding]:
    priced = sorted(group, key=_each)
    ratios = [_each(upper) / _each(lower) for lower, upper in pairwise(priced)]
    if not ratios or max(ratios) < GAP:
        return []
    cut = ratios.index(max(ratios)) + 1
    wrong, right = _wrong_side(priced[:cut], priced[cut:], reference)
    severity = Severity.WARNING if wrong[0].cloud in MARKETPLACES else Severity.ERROR
    others = f"${_each(right[0]):.2f}-{_each(right[-1]):.2f} in the {len(right)} other rows of this machine"
    cause = "a reservation or another SKU may have been read as on-demand"
    return [
        row.finding(
            "on-demand-outlier",
            severity,
            f"on-demand ${_each(row):.2f} per accelerator-hour against {others}; {cause}",
        )
        for row in wrong
    ]


def _each(row: PriceRow) -> float:
    return (row.on_demand or 0.0) / row.count


def _wrong_side(
    low: list[PriceRow], high: list[PriceRow], reference: Reference
) -> tuple[list[PriceRow], list[PriceRow]]:
    for side, other in ((low, high), (high, low)):
        if any(row.spot is not None and row.on_demand and row.spot > row.on_demand for row in side):
            return side, other
    usual_price = reference.get((low[0].cloud, low[0].accelerator))
    if usual_price:
        far_low, far_high = (abs(math.log(median(map(_each, side)) / usual_price)) for side in (low, high))
        return (low, high) if far_low >= far_high else (high, low)
    return (low, high) if len(low) <= len(high) else (high, low)


MACHINE_COUNTS = (1, 2, 4, 8, 16)
"""Accelerators of one rented machine; besides, a whole node or scale-up domain of the accelerator."""
MINIMUM_USD_PER_ACCELERATOR_HOUR = ((3.0e12, 0.40), (1.2e12, 0.20), (0.0, 0.03))
"""Least plausible price by memory bandwidth in bytes/s: H100 class and up, A100 class, the rest. Judgement: half of the
lowest price of each class in the snapshot (0.80, 0.44) or less."""
MAXIMUM_USD_PER_ACCELERATOR_HOUR = 30.0
"""Above it a price of a whole instance was probably taken for that of one accelerator; the snapshot ends at 17.80.
Judgement."""


def check_rows(
    rows: Sequence[PriceRow], *, reference: Reference, today: date | None = None
) -> tuple[PriceFinding, ...]:
    """Everything that the rules say about a price list, in the order of its lines.

    `reference` holds known prices per accelerator-hour; with `today`, old rows and ended contracts are told too.
    """
    problems = [finding for row in rows for rule in _RULES for finding in rule(row)]
    problems += [*outliers(rows, reference), *far_from_known(rows, reference)]
    problems += _twice(rows)
    if today is not None:
        problems += [finding for row in rows for finding in _dates(row, today)]
        problems += _age(rows, today)
    return tuple(sorted(problems, key=lambda finding: finding.row))


def _identity(row: PriceRow) -> Iterable[PriceFinding]:
    for name, value in (("cloud", row.cloud), ("region", row.region), ("accelerator", row.accelerator)):
        if not value:
            yield row.finding("missing-cell", Severity.ERROR, f"{name} is empty; every row needs it")
    for name, value in (("source", row.source), ("as_of", row.as_of), ("confidence", row.confidence)):
        if not value:
            yield row.finding("no-provenance", Severity.ERROR, f"{name} is empty; a price without it is not used")
    if row.accelerator and not row.known:
        message = f"no accelerator of the catalog is called {row.accelerator!r}; `charter catalog gpus` lists all"
        yield row.finding("unknown-accelerator", Severity.ERROR, message)


def _missing_prices(row: PriceRow) -> Iterable[PriceFinding]:
    zero = [str(market) for market, price in row.prices.items() if price == 0]
    if zero:
        yield row.finding("zero-price", Severity.ERROR, f"{', '.join(zero)} is 0; an unknown price is an empty cell")
    if not row.prices:
        yield row.finding("no-price", Severity.ERROR, "no price in any market")
    elif row.on_demand is None and not row.is_contract:
        yield row.finding("no-on-demand-price", Severity.NOTE, "no on-demand price: not offered on demand, not free")


def _spot(row: PriceRow) -> Iterable[PriceFinding]:
    if row.on_demand and row.spot is not None and row.spot > row.on_demand:
        message = f"spot {row.spot:g} is above on-demand {row.on_demand:g}"
        yield row.finding("spot-above-on-demand", Severity.ERROR, message)
    if row.spot is not None and row.spot == row.on_demand:
        message = f"spot equals on-demand ({row.spot:g}): read as no spot offer, and left out of medians"
        yield row.finding("spot-is-on-demand", Severity.NOTE, message)
    if row.spot is not None and row.spot_min is not None and row.spot_min > row.spot * 1.0001:
        message = f"the cheapest zone {row.spot_min:g} is above the median {row.spot:g}"
        yield row.finding("spot-min-above-median", Severity.ERROR, message)


def _reserved(row: PriceRow) -> Iterable[PriceFinding]:
    for name, price in (("1-year", row.reserved_1y), ("3-year", row.reserved_3y)):
        if row.on_demand and price is not None and price > row.on_demand:
            message = f"the {name} price {price:g} is above on-demand {row.on_demand:g}"
            yield row.finding("reserved-above-on-demand", Severity.WARNING, message)


def _plausible(row: PriceRow) -> Iterable[PriceFinding]:
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


def _count(row: PriceRow) -> Iterable[PriceFinding]:
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


def _memory(row: PriceRow) -> Iterable[PriceFinding]:
    problem = memory_problem(row)
    if problem:
        yield row.finding("memory-mismatch", Severity.ERROR, problem)


def _provenance(row: PriceRow) -> Iterable[PriceFinding]:
    if names_estimate(f"{row.note} {row.confidence}"):
        message = "the source calls this price an estimate; it stays marked as one"
        yield row.finding("estimated-price", Severity.WARNING, message)
    if PART_ONLY in row.instance_type:
        message = "the price covers the accelerators only; the host is billed apart, and plans leave it out"
        yield row.finding("part-of-a-machine", Severity.NOTE, message)


def _arithmetic(row: PriceRow) -> Iterable[PriceFinding]:
    printed = row.usd_per_accelerator_hour
    if not row.on_demand or printed is None or row.count <= 0:
        return
    if not arithmetic_holds(row.on_demand, row.count, printed):
        message = f"{printed:g} per accelerator is not {row.on_demand:g} over {row.count:g}"
        yield row.finding("arithmetic", Severity.ERROR, message)


_RULES: tuple[Callable[[PriceRow], Iterable[PriceFinding]], ...] = (
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


def _twice(rows: Sequence[PriceRow]) -> list[PriceFinding]:
    """Rows that give one offer of one date a second, different price."""
    first: dict[tuple[object, ...], PriceRow] = {}
    findings = []
    for row in rows:
        place = (row.cloud, row.instance_type, row.accelerator, row.count, row.region, row.zone)
        key = (*place, row.as_of, row.is_contract, tuple(row.prices) if row.is_contract else ())
        earlier = first.setdefault(key, row)
        if earlier is not row and earlier.prices != row.prices:
            message = f"another price for the offer of line {earlier.number}"
            findings.append(row.finding("two-prices", Severity.WARNING, message))
    return findings


DAYS = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")


def _is_day_until(text: str, today: date) -> bool:
    try:
        return date.fromisoformat(text) <= today
    except ValueError:
        return False


def _dates(row: PriceRow, today: date) -> Iterable[PriceFinding]:
    ends = earliest_day(row.valid_until)
    if row.is_contract:
        if ends is not None and ends < today:
            yield row.finding("contract-dates", Severity.WARNING, f"the contract ended on {row.valid_until}")
        return
    day = earliest_day(row.as_of)
    if not all(_is_day_until(text, today) for text in DAYS.findall(row.as_of)) or (day is not None and day > today):
        message = f"{row.as_of!r} is no day until {today}, on which it can have been read"
        yield row.finding("impossible-date", Severity.ERROR, message)


def _age(rows: Sequence[PriceRow], today: date) -> Iterator[PriceFinding]:
    """Yield one finding for the list if any of its prices may be old: one cause, so one alarm."""
    listed = [row for row in rows if not row.is_contract]
    ages = [age_days(row.as_of, today) for row in listed]
    old = sum(age is None or age > STALE_DAYS for age in ages)
    if not old:
        return
    dated = [row.as_of for row in listed if as_of_key(row.as_of)[2]]
    newest = max(dated, key=as_of_key, default="")
    newest_age = age_days(newest, today)
    when = f"the newest are of {newest.split(' (')[0]}, {newest_age} days ago" if newest_age is not None else ""
    vague = f"{len(listed) - len(dated)} name no day" if len(dated) < len(listed) else ""
    facts = "; ".join(part for part in (when, vague) if part)
    yield PriceFinding(
        rule="stale-price",
        severity=Severity.WARNING,
        row=0,
        message=f"{old} of {len(listed)} prices may be older than {STALE_DAYS} days ({facts}); {HOW_TO_REFRESH}",
    )

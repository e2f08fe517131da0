"""On-demand prices that do not belong with the other regions and zones of the same machine."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from charter.catalog.offer import Offer
from charter.catalog.price_finding import Finding, Severity
from charter.catalog.price_row import PriceRow

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


def outliers(rows: Sequence[PriceRow], reference: Reference) -> list[Finding]:
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


def far_from_known(rows: Sequence[PriceRow], reference: Reference) -> list[Finding]:
    """A warning for each on-demand price far from what the same cloud is known to ask for the accelerator.

    It sees a wrong price that stands in every zone, where `outliers` has nothing to compare it with.
    """
    findings = []
    for row in rows:
        known = reference.get((row.cloud, row.accelerator))
        if known is None or not row.on_demand or row.count <= 0 or row.is_contract:
            continue
        ratio = _each(row) / known
        if max(ratio, 1 / ratio) > FAR:
            message = f"on-demand ${_each(row):.2f} per accelerator-hour; {row.cloud} is known to ask ${known:.2f}"
            findings.append(row.finding("far-from-known-price", Severity.WARNING, message))
    return findings


def _of_machine(group: Sequence[PriceRow], reference: Reference) -> list[Finding]:
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
    known = reference.get((low[0].cloud, low[0].accelerator))
    if known:
        far_low, far_high = (abs(math.log(median(map(_each, side)) / known)) for side in (low, high))
        return (low, high) if far_low >= far_high else (high, low)
    return (low, high) if len(low) <= len(high) else (high, low)

"""A user's own prices: one line per agreement.

| column | what | |
| --- | --- | --- |
| `cloud` | provider, as in `resources.infra` | needed |
| `accelerator` | `H100`, or `H100:8` with the count | this or `instance_type` |
| `instance_type` | a type that the price book knows, or any with `accelerator` | |
| `count` | accelerators of one machine; a whole node if left out | |
| `region` | `all` if left out | |
| `usd_per_hour` | price of the machine | this or the next |
| `usd_per_accelerator_hour` | price of one accelerator | |
| `market` | `on_demand` (if left out), `spot`, `reserved_1y`, `reserved_3y` | |
| `valid_from`, `valid_until` | first and last day, `2026-12-31` | |
| `note` | any text | |
"""

import re
from collections.abc import Sequence
from datetime import date

from charter.catalog.accelerators import get
from charter.catalog.offer import ALL_REGIONS, CONTRACT, Market
from charter.catalog.price_book import CONTRACT_INSTANCE
from charter.catalog.price_finding import Finding, Severity
from charter.catalog.price_reading import Import, Reading
from charter.catalog.price_row import PriceRow, number, resolve
from charter.catalog.rows import Row

_FIELD = {
    Market.ON_DEMAND: "on_demand",
    Market.SPOT: "spot",
    Market.RESERVED_1Y: "reserved_1y",
    Market.RESERVED_3Y: "reserved_3y",
}


def read_contract(lines: Sequence[Row], about: Import) -> Reading:
    """Rows of a contract file; every problem of every line is a finding."""
    findings: list[Finding] = []
    rows = tuple(_row(line, about, findings) for line in lines)
    return Reading(rows=rows, findings=tuple(findings))


def _row(line: Row, about: Import, findings: list[Finding]) -> PriceRow:
    cloud, instance = line.optional_text("cloud") or about.cloud, line.optional_text("instance_type")
    name, known, count = _hardware(line, cloud, instance, about, findings)
    market = _market(line, findings)
    whole, each = (number(line, column, findings) for column in ("usd_per_hour", "usd_per_accelerator_hour"))
    price = whole if whole is not None else None if each is None else round(each * count, 6)
    if whole is None and each is None:
        _problem(line, "no-price", "neither usd_per_hour nor usd_per_accelerator_hour has a price", findings)
    _dates(line, findings)
    return PriceRow(
        number=line.number,
        cloud=cloud,
        instance_type=instance or CONTRACT_INSTANCE,
        accelerator=name,
        known=known,
        count=count,
        region=line.optional_text("region") or ALL_REGIONS,
        usd_per_accelerator_hour=each if whole is not None and market is Market.ON_DEMAND else None,
        is_contract=True,
        as_of=line.optional_text("valid_from") or about.date_of_prices,
        confidence=CONTRACT,
        source=about.source("contract"),
        note=line.optional_text("note"),
        valid_from=line.optional_text("valid_from"),
        valid_until=line.optional_text("valid_until"),
        **{_FIELD[market]: price},  # type: ignore[arg-type]
    )


def _hardware(line: Row, cloud: str, instance: str, about: Import, findings: list[Finding]) -> tuple[str, bool, float]:
    """Accelerator, whether it is known, and how many a machine has."""
    text, _, suffix = line.optional_text("accelerator").partition(":")
    written = number(line, "count", findings)
    if suffix.isdecimal():
        if written is not None and written != int(suffix):
            _problem(line, "arithmetic", f"accelerator says {suffix}, count says {written:g}", findings)
        written = float(suffix)
    known_type = about.instances.get((cloud, instance))
    if text:
        name, known = resolve(text)
    elif known_type is not None:
        name, known = known_type[0], True
    else:
        asked = f"instance_type {instance!r} of {cloud} is not in the price book" if instance else "both are empty"
        _problem(line, "unknown-accelerator", f"give accelerator or a known instance_type: {asked}", findings)
        return "", False, written or 1.0
    if written is not None:
        return name, known, written
    if known_type is not None and known_type[0] == name:
        return name, known, float(known_type[1])
    return name, known, float(get(name).devices_per_node) if known else 1.0


def _market(line: Row, findings: list[Finding]) -> Market:
    text = line.optional_text("market").casefold().replace("-", "_") or Market.ON_DEMAND.value
    try:
        return Market(text)
    except ValueError:
        allowed = ", ".join(market.value for market in Market)
        _problem(line, "unknown-market", f"column market: {text!r} is none of {allowed}", findings)
        return Market.ON_DEMAND


def _dates(line: Row, findings: list[Finding]) -> None:
    days = []
    for column in ("valid_from", "valid_until"):
        text = line.optional_text(column)
        try:
            if text and not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
                raise ValueError
            days.append(date.fromisoformat(text) if text else None)
        except ValueError:
            _problem(line, "not-a-date", f"column {column}: {text!r} is not a day like 2026-12-31", findings)
    if len(days) == 2 and days[0] and days[1] and days[0] > days[1]:
        _problem(line, "contract-dates", f"valid_from {days[0]} is after valid_until {days[1]}", findings)


def _problem(line: Row, rule: str, message: str, findings: list[Finding]) -> None:
    findings.append(Finding(rule=rule, severity=Severity.ERROR, row=line.number, message=message))

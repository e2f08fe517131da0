"""Views of `charter catalog prices`: offers, storage prices and findings."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from charter.catalog.facts import StoragePrice
from charter.catalog.offer import Market, Offer
from charter.catalog.price_book import STALE_DAYS, PriceBook
from charter.catalog.price_row import PriceFinding
from charter.cli.common import console, plain_table, short_confidence

SHOWN_ROWS = 4
"""Lines named for each kind of finding; the JSON has them all."""


def offer_json(offer: Offer, today: date) -> dict[str, Any]:
    """An offer in USD."""
    return {
        "cloud": offer.cloud,
        "region": offer.region,
        "instance_type": offer.instance_type,
        "accelerator": offer.accelerator,
        "count": offer.count,
        "whole_machine": offer.whole_machine,
        "usd_per_hour": {str(market): offer.usd_per_hour(market) for market in Market},
        "usd_per_accelerator_hour": {str(market): offer.usd_per_accelerator_hour(market) for market in Market},
        "as_of": offer.provenance.as_of,
        "stale": offer.is_stale(today, STALE_DAYS),
        "contract": offer.is_contract,
        "estimated": offer.is_estimate,
        "valid_from": offer.valid_from,
        "valid_until": offer.valid_until,
        "confidence": offer.provenance.confidence,
        "source": offer.provenance.source,
        "note": offer.note,
    }


def storage_json(price: StoragePrice) -> dict[str, Any]:
    """A storage price in USD."""
    return {
        "provider": price.provider,
        "product": price.product,
        "tier": price.tier,
        "region": price.region,
        "usd": price.usd,
        "unit": price.unit,
        "min_duration_days": price.min_duration_days,
        "retrieval_usd_per_gb": price.retrieval_usd_per_gb,
        "as_of": price.provenance.as_of,
        "confidence": price.provenance.confidence,
        "source": price.provenance.source,
        "note": price.note,
    }


def finding_json(finding: PriceFinding) -> dict[str, Any]:
    """A finding with its place."""
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "row": finding.row,
        "offer": finding.offer,
        "message": finding.message,
    }


def print_offers(offers: Sequence[Offer], book: PriceBook, today: date) -> None:
    """Offers per accelerator-hour, cheapest first."""
    markets = [market for market in Market if any(offer.usd_per_hour(market) is not None for offer in offers)]
    table = plain_table(
        ("accelerators", "left"),
        *((str(market).replace("_", " "), "right") for market in markets),
        ("cloud", "left"),
        ("region", "left"),
        ("instance", "left"),
        ("as of", "left"),
        ("figures", "left"),
    )
    for offer in sorted(offers, key=_cheapest):
        table.add_row(
            f"{offer.count} x {offer.accelerator}",
            *(_usd(offer.usd_per_accelerator_hour(market)) for market in markets),
            offer.cloud,
            offer.region,
            offer.instance_type,
            offer.provenance.as_of.split(" (")[0],
            "estimated" if offer.is_estimate else short_confidence(offer.provenance.confidence),
        )
    out = console()
    out.print(table)
    for issue in book.issues:
        out.print(f"{issue.offer}: {issue.message}", style="yellow")
    old = sum(offer.is_stale(today, STALE_DAYS) for offer in offers)
    out.print(
        "USD per accelerator-hour; spot is the median zone; `-` is not offered or not known.\n"
        "Dated lists, not live prices. "
        + (f"{old} of {len(offers)} may be older than {STALE_DAYS} days. " if old else "")
        + "`charter catalog prices import FILE` adds newer lists and contracts; `resources.price` sets one.",
        style="dim",
    )


def print_storage(prices: Sequence[StoragePrice]) -> None:
    """Prices of storage, requests and transfer."""
    columns = (("provider", "left"), ("product", "left"), ("tier", "left"), ("region", "left"), ("USD", "right"))
    more = (("per", "left"), ("min days", "right"), ("as of", "left"), ("figures", "left"))
    table = plain_table(*columns, *more)
    for price in prices:
        days = price.min_duration_days
        table.add_row(
            *(
                price.provider,
                price.product,
                price.tier,
                price.region,
                f"{price.usd:g}",
                price.unit.removeprefix("per "),
            ),
            "-" if days is None else f"{days:g}",
            price.provenance.as_of,
            short_confidence(price.provenance.confidence),
        )
    out = console()
    out.print(table)
    out.print(
        "GB is 10^9 bytes, a month 730 hours. Bytes deleted earlier than `min days` are billed for that time.",
        style="dim",
    )


def finding_lines(findings: Sequence[PriceFinding]) -> list[str]:
    """Findings by rule, the first few lines of each in full."""
    by_rule: dict[tuple[str, str], list[PriceFinding]] = {}
    for finding in findings:
        by_rule.setdefault((finding.severity.value, finding.rule), []).append(finding)
    lines = []
    for (severity, rule), group in sorted(by_rule.items()):
        lines.append(f"{severity}  {rule}: {_rows(len({finding.row for finding in group}))}")
        lines += [f"  row {item.row}: {' '.join((item.offer, item.message)).strip()}" for item in group[:SHOWN_ROWS]]
        if len(group) > SHOWN_ROWS:
            lines.append(f"  and {len(group) - SHOWN_ROWS} more")
    return lines


def left_out_lines(left_out: Mapping[str, int]) -> list[str]:
    """Lines that are no offers of accelerators, counted by reason."""
    return [f"not offers of accelerators: {_rows(count)}, {reason}" for reason, count in left_out.items()]


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def _usd(price: float | None) -> str:
    return "-" if price is None else f"{price:.2f}"


def _cheapest(offer: Offer) -> tuple[str, float, str, str]:
    prices = [p for market in Market if (p := offer.usd_per_accelerator_hour(market)) is not None]
    return offer.accelerator, offer.usd_per_accelerator_hour(Market.ON_DEMAND) or min(prices), offer.cloud, offer.region

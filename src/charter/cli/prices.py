"""`charter prices`: rental offers of the bundled snapshot, with date and confidence."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import JsonOption, print_json

if TYPE_CHECKING:
    from charter.catalog.prices import Offer


def prices(
    accelerator: Annotated[str | None, typer.Argument(help="One accelerator (H100, A100-80GB, ...).")] = None,
    cloud: Annotated[str | None, typer.Option("--cloud", help="aws, gcp, lambda, nebius, ...")] = None,
    region: Annotated[str | None, typer.Option("--region", help="One region.")] = None,
    history: Annotated[bool, typer.Option("--history", help="Older snapshots of the same offer too.")] = False,
    json_: JsonOption = False,
) -> None:
    """List prices per accelerator-hour; every row is a dated snapshot, not a live price."""
    from charter.catalog.names import closest
    from charter.catalog.prices import offers, snapshot
    from charter.errors import UsageError

    found = offers(accelerator, cloud=cloud, region=region, latest=not history)
    if not found:
        clouds = sorted({offer.cloud for offer in snapshot()})
        wanted = ", ".join(part for part in (accelerator, cloud, region) if part)
        hint = closest(cloud, clouds) if cloud and cloud not in clouds else ""
        raise UsageError(f"no price is known for {wanted}{hint}; clouds with prices: {', '.join(clouds)}")
    if json_:
        print_json({"offers": [_as_json(offer) for offer in found]})
    else:
        _print_table(found)


def _as_json(offer: "Offer") -> dict[str, Any]:
    from charter.catalog.prices import Market

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
        "confidence": offer.provenance.confidence,
        "source": offer.provenance.source,
        "note": offer.note,
    }


def _print_table(found: "tuple[Offer, ...]") -> None:
    from charter.catalog.prices import Market
    from charter.cli.tables import console, plain_table, short_confidence

    markets = [market for market in Market if any(offer.usd_per_hour(market) is not None for offer in found)]
    table = plain_table(
        ("accelerators", "left"),
        *((str(market).replace("_", " "), "right") for market in markets),
        ("cloud", "left"),
        ("region", "left"),
        ("instance", "left"),
        ("as of", "left"),
        ("figures", "left"),
    )
    for offer in sorted(found, key=_cheapest):
        table.add_row(
            f"{offer.count} x {offer.accelerator}",
            *(_usd(offer.usd_per_accelerator_hour(market)) for market in markets),
            offer.cloud,
            offer.region,
            offer.instance_type,
            offer.provenance.as_of.split(" (")[0],
            short_confidence(offer.provenance.confidence),
        )
    out = console()
    out.print(table)
    out.print(
        "USD per accelerator-hour; spot is the median zone. Dated snapshots, not live prices: give your own with "
        "`resources.price`.",
        style="dim",
    )


def _usd(price: float | None) -> str:
    return "-" if price is None else f"{price:.2f}"


def _cheapest(offer: "Offer") -> tuple[str, float, str, str]:
    from charter.catalog.prices import Market

    known = [p for market in Market if (p := offer.usd_per_accelerator_hour(market)) is not None]
    return offer.accelerator, offer.usd_per_accelerator_hour(Market.ON_DEMAND) or min(known), offer.cloud, offer.region

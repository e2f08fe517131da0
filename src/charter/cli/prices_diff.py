"""`charter prices diff`: what changed between two price lists."""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.cli.common import JsonOption, print_json

if TYPE_CHECKING:
    from charter.catalog.price_book import PriceBook
    from charter.catalog.price_diff import Change, Difference

BUNDLED = "bundled"


def prices_diff(
    old: Annotated[str, typer.Argument(metavar="A", help="A prices.csv, or the word bundled.")],
    new: Annotated[str, typer.Argument(metavar="B", help="A prices.csv, or the word bundled.")],
    json_: JsonOption = False,
) -> None:
    """Compare two price lists offer by offer: old and new price, ratio, dates."""
    from charter.catalog.price_diff import difference

    found = difference(_book(old), _book(new))
    if json_:
        print_json(
            {
                "changed": [_change_json(change) for change in found.changed],
                "unchanged": found.unchanged,
                "only_in_a": [list(offer.key) for offer in found.only_in_old],
                "only_in_b": [list(offer.key) for offer in found.only_in_new],
            }
        )
    else:
        _print(found, old, new)


def _book(text: str) -> "PriceBook":
    from charter.catalog.offer import read_offers
    from charter.catalog.price_book import PriceBook
    from charter.cli.prices_import import read_list
    from charter.errors import UsageError

    if text == BUNDLED:
        return PriceBook.bundled()
    path = Path(text)
    if not path.is_file():
        raise UsageError(f"there is no file {text}; give a prices.csv, or the word {BUNDLED}")
    read_list(path, layout="charter", cloud="", as_of="", today=date.today())  # refuses what is no price list
    return PriceBook(
        rows=read_offers(path.read_text(encoding="utf-8"), path.name),
        storage=(),
        source=str(path),
        as_of=date.today().isoformat(),
    )


def _change_json(change: "Change") -> dict[str, Any]:
    return {
        "cloud": change.old.cloud,
        "instance_type": change.old.instance_type,
        "accelerator": change.old.accelerator,
        "region": change.old.region,
        "market": change.market.value,
        "old_usd_per_hour": change.old_usd_per_hour,
        "new_usd_per_hour": change.new_usd_per_hour,
        "ratio": change.ratio,
        "old_as_of": change.old.provenance.as_of,
        "new_as_of": change.new.provenance.as_of,
    }


def _print(found: "Difference", old: str, new: str) -> None:
    from charter.cli.tables import console, plain_table

    texts = ("cloud", "instance", "region", "market")
    table = plain_table(
        *((name, "left") for name in texts),
        ("old $/h", "right"),
        ("new $/h", "right"),
        ("ratio", "right"),
        ("old as of", "left"),
        ("new as of", "left"),
    )
    for change in found.changed:
        table.add_row(
            *(change.old.cloud, change.old.instance_type, change.old.region, str(change.market).replace("_", " ")),
            _usd(change.old_usd_per_hour),
            _usd(change.new_usd_per_hour),
            "-" if change.ratio is None else f"{change.ratio:.2f}",
            change.old.provenance.as_of.split(" (")[0],
            change.new.provenance.as_of.split(" (")[0],
        )
    out = console()
    if found.changed:
        out.print(table)
    out.print(
        f"{len(found.changed)} prices changed, {found.unchanged} the same; "
        f"{len(found.only_in_old)} offers only in {old}, {len(found.only_in_new)} only in {new}",
        style="dim",
    )


def _usd(price: float | None) -> str:
    return "-" if price is None else f"{price:.2f}"

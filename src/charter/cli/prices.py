"""`charter prices`: rental and storage prices with date and confidence; import, compare and check price lists."""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charter.cli.common import DirOption, JsonOption, print_json, project_root
from charter.cli.default_command import ListByDefault
from charter.cli.prices_check import prices_check
from charter.cli.prices_diff import prices_diff
from charter.cli.prices_import import prices_import

if TYPE_CHECKING:
    from charter.catalog.price_book import PriceBook

prices_app = typer.Typer(
    cls=ListByDefault,
    help="Prices with date and source: the bundled snapshot, your own lists and contracts, and checks of both.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
prices_app.command("import")(prices_import)
prices_app.command("diff")(prices_diff)
prices_app.command("check")(prices_check)


@prices_app.command("list")
def prices_list(
    accelerator: Annotated[str | None, typer.Argument(help="One accelerator (H100, A100-80GB, ...).")] = None,
    cloud: Annotated[str | None, typer.Option("--cloud", help="aws, gcp, lambda, nebius, ...")] = None,
    region: Annotated[str | None, typer.Option("--region", help="One region.")] = None,
    history: Annotated[bool, typer.Option("--history", help="Older snapshots of the same offer too.")] = False,
    storage: Annotated[bool, typer.Option("--storage", help="Prices of storage, requests and transfer.")] = False,
    directory: DirOption = Path("."),
    json_: JsonOption = False,
) -> None:
    """List prices per accelerator-hour; every row is a dated snapshot or a contract, not a live price."""
    from charter.catalog.price_book import read_price_book

    today = date.today()
    book = read_price_book(project_root(directory) / "prices.csv", today=today)
    if storage:
        _list_storage(book, accelerator, cloud, region, as_json=json_)
    else:
        _list_offers(book, accelerator, cloud, region, today=today, latest=not history, as_json=json_)


def _list_offers(
    book: "PriceBook",
    accelerator: str | None,
    cloud: str | None,
    region: str | None,
    *,
    today: date,
    latest: bool,
    as_json: bool,
) -> None:
    from charter.catalog.names import closest
    from charter.cli.prices_view import offer_json, print_offers
    from charter.errors import UsageError

    found = book.offers(accelerator, cloud=cloud, region=region, latest=latest)
    if not found:
        clouds = sorted({offer.cloud for offer in book.rows})
        wanted = ", ".join(part for part in (accelerator, cloud, region) if part)
        hint = closest(cloud, clouds) if cloud and cloud not in clouds else ""
        raise UsageError(f"no price is known for {wanted}{hint}; clouds with prices: {', '.join(clouds)}")
    if as_json:
        print_json(
            {
                "offers": [offer_json(offer, today) for offer in found],
                "source": book.source,
                "as_of": book.as_of,
                "issues": [issue.message for issue in book.issues],
            }
        )
    else:
        print_offers(found, book, today)


def _list_storage(
    book: "PriceBook", accelerator: str | None, cloud: str | None, region: str | None, *, as_json: bool
) -> None:
    from charter.cli.prices_view import print_storage, storage_json
    from charter.errors import UsageError

    if accelerator is not None:
        raise UsageError(f"--storage lists storage; {accelerator} is an accelerator: leave one of the two out")
    found = [
        price for price in book.storage if cloud in (None, price.provider) and region in (None, price.region, "any")
    ]
    if not found:
        known = ", ".join(sorted({price.provider for price in book.storage}))
        raise UsageError(f"no storage price is known for {cloud or region}; providers: {known}")
    if as_json:
        print_json({"storage": [storage_json(price) for price in found]})
    else:
        print_storage(found)

"""`charter catalog gpus`: the accelerators of the catalog, with what they cost."""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charter.cli.common import DirOption, JsonOption, ShowOrListByDefault, print_json, project_root

if TYPE_CHECKING:
    from charter.catalog.price_book import PriceBook

gpus_app = typer.Typer(
    cls=ShowOrListByDefault,
    help="Accelerators: memory, rates, links, prices per unit of compute, and where each figure comes from.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
SORT_KEYS = (
    "name",
    "year",
    "memory",
    "bandwidth",
    "peak",
    "price",
    "spot-price",
    "price-per-pflop",
    "price-per-measured-pflop",
    "price-per-bandwidth",
)
SortOption = Annotated[
    str | None,
    typer.Option("--sort", help=f"One of {', '.join(SORT_KEYS)}; prices from cheap to dear, the rest from large."),
]


@gpus_app.command("list")
def gpus_list(
    name: Annotated[str | None, typer.Argument(help="One accelerator (H100, A100-80GB, tpu-v5e, ...).")] = None,
    sort: SortOption = None,
    directory: DirOption = Path("."),
    json_: JsonOption = False,
) -> None:
    """List accelerators: memory, rates, best price, price per dense PFLOP-hour."""
    from charter.catalog import accelerators
    from charter.cli.gpus_view import as_json, print_list, rated, sorted_by

    devices = (accelerators.get(name),) if name else accelerators.catalog()
    views = sorted_by(rated(devices, _book(directory)), _sort_key(sort))
    if json_:
        print_json({"accelerators": [as_json(view) for view in views]})
    else:
        print_list(views)


@gpus_app.command("show")
def gpus_show(
    name: Annotated[str, typer.Argument(help="An accelerator (H100, A100-80GB, tpu-v5e, ...).")],
    directory: DirOption = Path("."),
    json_: JsonOption = False,
) -> None:
    """Show one accelerator: every figure with its source, and its best prices."""
    from charter.catalog import accelerators
    from charter.cli.gpus_view import as_json, print_one, rated

    (view,) = rated((accelerators.get(name),), _book(directory))
    if json_:
        print_json({"accelerators": [as_json(view)]})
    else:
        print_one(view)


@gpus_app.command("compare")
def gpus_compare(
    names: Annotated[list[str], typer.Argument(help="Two or more accelerators.")],
    sort: SortOption = None,
    directory: DirOption = Path("."),
    json_: JsonOption = False,
) -> None:
    """Compare accelerators side by side: rates, links, prices per PFLOP-hour and per TB/s-hour."""
    from charter.catalog import accelerators
    from charter.cli.gpus_view import as_json, print_comparison, rated, sorted_by

    book = _book(directory)
    views = rated(tuple(accelerators.get(name) for name in names), book)
    views = sorted_by(views, _sort_key(sort)) if sort else views
    if json_:
        print_json({"accelerators": [as_json(view) for view in views]})
    else:
        print_comparison(views, stale={offer.key for offer in book.stale(date.today())})


def _book(directory: Path) -> "PriceBook":
    from charter.catalog.price_book import read_price_book

    return read_price_book(project_root(directory) / "prices.csv", today=date.today())


def _sort_key(sort: str | None) -> str | None:
    from charter.catalog.aliases import closest
    from charter.errors import UsageError

    if sort is not None and sort not in SORT_KEYS:
        raise UsageError(f"--sort {sort} is unknown{closest(sort, SORT_KEYS)}; it is one of {', '.join(SORT_KEYS)}")
    return sort

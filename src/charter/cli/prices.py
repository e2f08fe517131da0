"""`charter catalog prices`: rental and storage prices with date and confidence; import and checks of price lists."""

from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.catalog.offer import Market, Offer, age_days, as_of_key, read_offers
from charter.catalog.price_book import HOW_TO_REFRESH, STALE_DAYS, PriceBook, read_price_book
from charter.catalog.price_row import PriceFinding, lines_of
from charter.catalog.rows import DATA, StoragePrice
from charter.cli.common import (
    DirOption,
    JsonOption,
    ListByDefault,
    command_group,
    console,
    plain_table,
    print_json,
    project_root,
    short_confidence,
    write_asked,
)
from charter.errors import DataError, UsageError

if TYPE_CHECKING:
    from charter.catalog.price_book import PriceBook
    from charter.catalog.price_import import Checked
    from charter.catalog.price_lists import Change, PriceBookDifference


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
        "age_days": age_days(offer.provenance.as_of, today),
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
        ("age", "right"),
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
            _age(offer, today),
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
        + (f"{old} of {len(offers)} may be older than {STALE_DAYS} days; {HOW_TO_REFRESH}. " if old else "")
        + "`charter catalog prices import FILE` adds contracts; `resources.price` sets one.",
        style="dim",
    )


def _age(offer: Offer, today: date) -> str:
    """`98 d`; `<= 329 d` of a date without its day; a contract has none while it holds."""
    days = age_days(offer.provenance.as_of, today)
    if offer.is_contract or days is None:
        return "-" if offer.is_contract else "not known"
    return f"{days} d" if as_of_key(offer.provenance.as_of)[2] else f"<= {days} d"


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
        if not any(item.row for item in group):
            lines += [f"{severity}  {rule}: {item.message}" for item in group]
            continue
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


def _cheapest(offer: Offer) -> tuple[str, float, str, str]:
    prices = [p for market in Market if (p := offer.usd_per_accelerator_hour(market)) is not None]
    return offer.accelerator, offer.usd_per_accelerator_hour(Market.ON_DEMAND) or min(prices), offer.cloud, offer.region


BUNDLED = "bundled"


def prices_diff(
    old: Annotated[str, typer.Argument(metavar="A", help="A prices.csv, or the word bundled.")],
    new: Annotated[str, typer.Argument(metavar="B", help="A prices.csv, or the word bundled.")],
    json_: JsonOption = False,
) -> None:
    """Compare two price lists offer by offer: old and new price, ratio, dates."""
    from charter.catalog.price_lists import difference

    changes = difference(_book(old), _book(new))
    if json_:
        print_json(
            {
                "changed": [_change_json(change) for change in changes.changed],
                "unchanged": changes.unchanged,
                "only_in_a": [list(offer.key) for offer in changes.only_in_old],
                "only_in_b": [list(offer.key) for offer in changes.only_in_new],
            }
        )
    else:
        _print(changes, old, new)


def _book(text: str) -> "PriceBook":
    from charter.catalog.price_lists import list_in

    if text == BUNDLED:
        return PriceBook.bundled()
    path = Path(text)
    if not path.is_file():
        raise UsageError(f"there is no file {text}; give a prices.csv, or the word {BUNDLED}")
    present = list_in(path)
    present.checked(layout="charter", today=date.today())  # refuses what is no price list
    return PriceBook(
        rows=read_offers(present.text, path.name),
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


def _print(changes: "PriceBookDifference", old: str, new: str) -> None:
    texts = ("cloud", "instance", "region", "market")
    table = plain_table(
        *((name, "left") for name in texts),
        ("old $/h", "right"),
        ("new $/h", "right"),
        ("ratio", "right"),
        ("old as of", "left"),
        ("new as of", "left"),
    )
    for change in changes.changed:
        table.add_row(
            *(change.old.cloud, change.old.instance_type, change.old.region, str(change.market).replace("_", " ")),
            _usd(change.old_usd_per_hour),
            _usd(change.new_usd_per_hour),
            "-" if change.ratio is None else f"{change.ratio:.2f}",
            change.old.provenance.as_of.split(" (")[0],
            change.new.provenance.as_of.split(" (")[0],
        )
    out = console()
    if changes.changed:
        out.print(table)
    out.print(
        f"{len(changes.changed)} prices changed, {changes.unchanged} the same; "
        f"{len(changes.only_in_old)} offers only in {old}, {len(changes.only_in_new)} only in {new}",
        style="dim",
    )


def _usd(price: float | None) -> str:
    return "-" if price is None else f"{price:.2f}"


FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="charter, skypilot, gpuhunt or contract; read from the header if left out."),
]


def prices_import(
    file: Annotated[Path, typer.Argument(help="A price list (CSV): a catalog, or your contracts.")],
    layout: FormatOption = None,
    cloud: Annotated[str, typer.Option("--cloud", help="The cloud of a skypilot or gpuhunt file.")] = "",
    as_of: Annotated[str, typer.Option("--as-of", help="Date of the prices, 2026-08-20; today if left out.")] = "",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out the rows that fail a check.")] = False,
    accelerator: Annotated[
        list[str] | None, typer.Option("--accelerator", help="Import only these accelerators; repeatable.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; prices.csv of the project if left out.")
    ] = None,
    directory: DirOption = Path("."),
    json_: JsonOption = False,
) -> None:
    """Check a price list and add it to the project's prices.csv, which plans then use."""
    from charter.catalog.price_lists import by_region, list_in, merged, only, prices_csv

    today = date.today()
    checked = only(list_in(file, cloud=cloud).checked(layout=layout, as_of=as_of, today=today), accelerator or ())
    _refuse_bad(checked, file, skip_bad=skip_bad)
    target = output or (directory.parent if directory.is_file() else directory) / "prices.csv"
    present = list_in(target).checked(layout="charter", today=today).rows if target.is_file() else ()
    new = by_region(checked.good_rows)
    rows = merged(present, new)
    write_asked("--output", target, prices_csv(rows), make_directory=True)
    _tell(checked, target, written=len(new), total=len(rows), as_json=json_)


def _refuse_bad(checked: "Checked", file: Path, *, skip_bad: bool) -> None:
    bad = len(lines_of(checked.findings))
    if bad and not skip_bad:
        raise UsageError(
            "\n".join(
                (
                    f"{file.name}: {bad} rows fail a check; nothing was written",
                    *finding_lines(checked.errors),
                    "correct the rows, or leave them out with --skip-bad",
                )
            )
        )
    if not checked.good_rows:
        raise UsageError(f"{file.name}: no row can be used; `charter catalog prices check {file}` says why")


def _tell(checked: "Checked", target: Path, *, written: int, total: int, as_json: bool) -> None:
    skipped = sorted(lines_of(checked.findings))
    if as_json:
        print_json(
            {
                "output": str(target),
                "format": checked.format.value,
                "rows_read": len(checked.rows),
                "offers_written": written,
                "offers_total": total,
                "rows_skipped": skipped,
                "left_out": dict(checked.left_out),
                "findings": [finding_json(finding) for finding in checked.findings],
            }
        )
        return
    for line in [*finding_lines(checked.findings), *left_out_lines(checked.left_out)]:
        typer.echo(line)
    if skipped:
        typer.echo(f"left out by --skip-bad: {len(skipped):,} rows, each named above or in --json")
    typer.echo(
        f"Wrote {target}: {written:,} offer{'' if written == 1 else 's'} from {len(checked.good_rows):,} good "
        f"row{'' if len(checked.good_rows) == 1 else 's'}; the file now holds {total:,}"
    )


def prices_check(
    file: Annotated[Path | None, typer.Argument(help="A price list; the bundled snapshot if left out.")] = None,
    layout: FormatOption = None,
    cloud: Annotated[str, typer.Option("--cloud", help="The cloud of a skypilot or gpuhunt file.")] = "",
    json_: JsonOption = False,
) -> None:
    """Check a price list by every rule; exit code 8 when rows must not be used."""
    from charter.catalog.price_lists import list_in

    path = file or DATA / "prices.csv"
    checked = list_in(path, cloud=cloud).checked(layout=layout, today=date.today())
    if json_:
        print_json(
            {
                "file": str(file) if file else "bundled",
                "format": checked.format.value,
                "rows": len(checked.rows),
                "errors": len(checked.errors),
                "left_out": dict(checked.left_out),
                "findings": [finding_json(finding) for finding in checked.findings],
            }
        )
    else:
        for line in [*finding_lines(checked.findings), *left_out_lines(checked.left_out)]:
            typer.echo(line)
        counts = (len(checked.rows), len(checked.errors), len(checked.findings))
        typer.echo("rows checked: {:,}; errors: {:,}; findings in all: {:,}".format(*counts))
    if checked.errors:
        raise DataError(
            f"{path.name}: {len(checked.errors)} findings are errors, the first in row {checked.errors[0].row}: "
            f"{checked.errors[0].message}"
        )


SOURCES = """name one list or more; Charter fetches nothing by itself. A SOURCE is
  - the address or file of a CSV or JSON list, in the columns of prices.csv, of SkyPilot's catalog or of gpuhunt:
    charter catalog prices refresh --cloud lambda \\
      https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs/v8/lambda/vms.csv
  - the directory of a SkyPilot catalog, with a list for each cloud, which SkyPilot keeps where it is installed:
    charter catalog prices refresh ~/.sky/catalogs/v8"""


def prices_refresh(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE...", help="Address of a CSV or JSON list, file, or SkyPilot catalog."),
    ] = None,
    cloud: Annotated[str, typer.Option("--cloud", help="The cloud of lists that do not name it.")] = "",
    accelerator: Annotated[
        list[str] | None, typer.Option("--accelerator", help="Take only these accelerators; repeatable.")
    ] = None,
    as_of: Annotated[str, typer.Option("--as-of", help="Date of the prices; today if left out.")] = "",
    directory: DirOption = Path("."),
    json_: JsonOption = False,
) -> None:
    """Bring the project's prices.csv up to date from lists that you name; rows that fail a check are left out."""
    from charter.catalog.price_lists import by_region, list_in, lists_at, merged, only, prices_csv

    if not sources:
        raise UsageError(SOURCES)
    today = date.today()
    target = project_root(directory) / "prices.csv"
    rows = list_in(target).checked(layout="charter", today=today).rows if target.is_file() else ()
    lists: list[dict[str, Any]] = []
    for item in lists_at(sources, cloud=cloud):
        checked = only(item.checked(as_of=as_of, today=today), accelerator or ())
        new = by_region(checked.good_rows)
        rows = merged(rows, new)
        bad = len(lines_of(checked.findings))
        lists.append({"source": item.source, "cloud": item.cloud, "offers": len(new), "rows_that_fail_a_check": bad})
    if not any(item["offers"] for item in lists):
        raise UsageError("none of these lists has a row that can be used; `charter catalog prices check FILE` says why")
    write_asked("prices.csv", target, prices_csv(rows), make_directory=True)
    if json_:
        print_json({"output": str(target), "lists": lists, "offers_total": len(rows)})
        return
    for line in lists:
        failed = line["rows_that_fail_a_check"]
        left = f"; {failed} rows fail a check and are left out" if failed else ""
        typer.echo(f"{line['source']}: {line['offers']:,} offers{left}")
    typer.echo(f"Wrote {target}: it now holds {len(rows):,} offers, those above as of {as_of or today.isoformat()}")


prices_app = command_group(
    "Prices with date and source: the bundled snapshot, your own lists and contracts, and checks of both.",
    cls=ListByDefault,
)
prices_app.command("import")(prices_import)
prices_app.command("refresh")(prices_refresh)
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
    from charter.catalog.accelerators import closest

    offers = book.offers(accelerator, cloud=cloud, region=region, latest=latest)
    if not offers:
        clouds = sorted({offer.cloud for offer in book.rows})
        wanted = ", ".join(part for part in (accelerator, cloud, region) if part)
        hint = closest(cloud, clouds) if cloud and cloud not in clouds else ""
        raise UsageError(f"no price is known for {wanted}{hint}; clouds with prices: {', '.join(clouds)}")
    if as_json:
        print_json(
            {
                "offers": [offer_json(offer, today) for offer in offers],
                "source": book.source,
                "as_of": book.as_of,
                "issues": [issue.message for issue in book.issues],
            }
        )
    else:
        print_offers(offers, book, today)


def _list_storage(
    book: "PriceBook", accelerator: str | None, cloud: str | None, region: str | None, *, as_json: bool
) -> None:

    if accelerator is not None:
        raise UsageError(f"--storage lists storage; {accelerator} is an accelerator: leave one of the two out")
    prices = [
        price for price in book.storage if cloud in (None, price.provider) and region in (None, price.region, "any")
    ]
    if not prices:
        providers = ", ".join(sorted({price.provider for price in book.storage}))
        raise UsageError(f"no storage price is known for {cloud or region}; providers: {providers}")
    if as_json:
        print_json({"storage": [storage_json(price) for price in prices]})
    else:
        print_storage(prices)

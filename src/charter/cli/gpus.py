"""`charter catalog gpus` and `models`: accelerators listed, in full, side by side; models that a plan knows by name."""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from charter.catalog.accelerators import DTYPES, Accelerator, closest
from charter.catalog.offer import Market, Offer
from charter.catalog.price_book import PriceBook, Value, read_price_book, values
from charter.cli.common import (
    DirOption,
    JsonOption,
    ShowOrListByDefault,
    command_group,
    console,
    plain_table,
    print_json,
    project_root,
    short_confidence,
)
from charter.errors import UsageError
from charter.units import format_bytes, format_count

if TYPE_CHECKING:
    from charter.catalog.models import CatalogModel


@dataclass(frozen=True, kw_only=True)
class AcceleratorView:
    """An accelerator with its best prices."""

    item: Accelerator
    on_demand: Value
    spot: Value


def rated(devices: Sequence[Accelerator], book: PriceBook) -> tuple[AcceleratorView, ...]:
    """Accelerators with their cheapest offers."""
    on_demand, spot = (values(devices, book, market) for market in (Market.ON_DEMAND, Market.SPOT))
    return tuple(
        AcceleratorView(item=item, on_demand=first, spot=second)
        for item, first, second in zip(devices, on_demand, spot, strict=True)
    )


_SORTS: dict[str, Callable[[AcceleratorView], float | None]] = {
    "price": lambda view: view.on_demand.usd_per_accelerator_hour,
    "spot-price": lambda view: view.spot.usd_per_accelerator_hour,
    "price-per-pflop": lambda view: view.on_demand.usd_per_pflop_hour,
    "price-per-measured-pflop": lambda view: view.on_demand.usd_per_measured_pflop_hour,
    "price-per-bandwidth": lambda view: view.on_demand.usd_per_terabyte_per_second_hour,
    "year": lambda view: -view.item.year,
    "memory": lambda view: -view.item.memory_bytes,
    "bandwidth": lambda view: -view.item.memory_bytes_per_second,
    "peak": lambda view: -view.item.peak_flops_per_second("bf16"),
}


def sorted_by(views: Iterable[AcceleratorView], key: str | None) -> tuple[AcceleratorView, ...]:
    """Sorted by a key of `--sort`, what has no such figure last; in the catalog's order without a key."""
    if key is None:
        return tuple(views)
    if key == "name":
        return tuple(sorted(views, key=lambda view: view.item.name))
    of = _SORTS[key]

    def place(view: AcceleratorView) -> tuple[bool, float, str]:
        figure = of(view)
        return figure is None, figure or 0.0, view.item.name

    return tuple(sorted(views, key=place))


def as_json(view: AcceleratorView) -> dict[str, Any]:
    """Everything about an accelerator in base units."""
    item = view.item
    return {
        "name": item.name,
        "vendor": item.vendor,
        "kind": item.kind,
        "memory_bytes": item.memory_bytes,
        "memory_is_reported": item.memory_is_reported,
        "memory_source": item.memory_provenance.source,
        "memory_bytes_per_second": item.memory_bytes_per_second,
        "dense_flops_per_second": dict(item.dense_flops_per_second),
        "matmul_ceiling": dict(item.matmul_ceiling),
        "scaleup_link": item.scaleup_link,
        "scaleup_bytes_per_second": item.scaleup_bytes_per_second,
        "scaleup_domain": item.scaleup_domain,
        "devices_per_node": item.devices_per_node,
        "scaleout_bytes_per_second_per_node": item.scaleout_bytes_per_second_per_node,
        "tdp_watts": item.tdp_watts,
        "year": item.year,
        "confidence": item.provenance.confidence,
        "source": item.provenance.source,
        "as_of": item.provenance.as_of,
        "best_price": {value.market.value: _value_json(value) for value in (view.on_demand, view.spot)},
    }


def _value_json(value: Value) -> dict[str, Any] | None:
    if value.offer is None:
        return None
    return {
        "usd_per_accelerator_hour": value.usd_per_accelerator_hour,
        "usd_per_pflop_hour": value.usd_per_pflop_hour,
        "usd_per_measured_pflop_hour": value.usd_per_measured_pflop_hour,
        "usd_per_terabyte_per_second_hour": value.usd_per_terabyte_per_second_hour,
        "cloud": value.offer.cloud,
        "region": value.offer.region,
        "instance_type": value.offer.instance_type,
        "count": value.offer.count,
        "as_of": value.offer.provenance.as_of,
        "source": value.offer.provenance.source,
        "estimated": value.offer.is_estimate,
        "contract": value.offer.is_contract,
    }


def _tera(item: Accelerator, dtype: str) -> str:
    rate = item.dense_flops_per_second.get(dtype)
    return f"{rate / 1e12:,.0f}" if rate else "-"


def _usd(price: float | None, digits: int = 2) -> str:
    return "-" if price is None else f"{price:.{digits}f}"


def print_list(views: Sequence[AcceleratorView]) -> None:
    """One line for each accelerator."""
    names = ("GiB", "GB/s", "bf16", "fp8", "link", "$/h", "spot", "$/PFLOP-h")
    right = ((name, "right") for name in names)
    table = plain_table(("accelerator", "left"), *right, ("cheapest at", "left"), ("figures", "left"))
    for view in views:
        item, offer = view.item, view.on_demand.offer or view.spot.offer
        table.add_row(
            item.name,
            f"{item.memory_bytes / 2**30:.1f}{' ' if item.memory_is_reported else '*'}",
            f"{item.memory_bytes_per_second / 1e9:,.0f}",
            f"{_tera(item, 'bf16')} " if item.has_bf16 else f"{_tera(item, 'fp16')}'",
            _tera(item, "fp8"),
            f"{item.scaleup_bytes_per_second / 1e9:,.0f}",
            _usd(view.on_demand.usd_per_accelerator_hour),
            _usd(view.spot.usd_per_accelerator_hour),
            _usd(view.on_demand.usd_per_pflop_hour, 1),
            f"{offer.cloud} {_date(offer)}" if offer else "-",
            short_confidence(item.provenance.confidence),
        )
    out = console()
    out.print(table)
    out.print(
        "Rates are dense TFLOP/s; links GB/s per direction; `from memory` means: verify before relying on it. USD per\n"
        "accelerator-hour of the cheapest whole machine, on demand and spot: dated snapshots, not live prices.\n"
        "* data sheet's GB read as 10^9 bytes, for want of a device's own report. ' fp16: the device has no bf16.\n"
        "`charter catalog gpus show NAME`: sources; `compare A B`: side by side; `--sort price-per-pflop`.",
        style="dim",
    )


def _date(offer: Offer) -> str:
    return offer.provenance.as_of.split(" (")[0]


def print_one(view: AcceleratorView, others: str) -> None:
    """One accelerator with its sources; `others` says which the name that was given could mean as well."""
    item = view.item
    rates = ", ".join(f"{dtype} {rate / 1e12:,.1f}" for dtype, rate in item.dense_flops_per_second.items())
    measured = ", ".join(f"{dtype} {share:.0%}" for dtype, share in item.matmul_ceiling.items())
    memory = short_confidence(item.memory_provenance.confidence)
    lines = {
        "others": others,
        "memory": f"{format_bytes(item.memory_bytes)} ({item.memory_provenance.source}; {memory})",
        "bandwidth": f"{item.memory_bytes_per_second / 1e9:,.0f} GB/s",
        "peak": f"{rates} TFLOP/s, dense",
        "ceiling": f"{measured} of peak, best measured matrix product" if measured else "no matrix product measured",
        "link": f"{item.scaleup_link}, {item.scaleup_bytes_per_second / 1e9:,.0f} GB/s per direction",
        "node": f"{item.devices_per_node} devices, {_network(item)}; the link joins {item.scaleup_domain}",
        "on demand": _price_line(view.on_demand),
        " which is": _unit_prices(view.on_demand),
        "spot": _price_line(view.spot),
        " that is": _unit_prices(view.spot),
        "figures": f"{short_confidence(item.provenance.confidence)}, as of {item.provenance.as_of}",
        "source": item.provenance.source,
    }
    out = console()
    out.print(f"{item.name}  ({item.vendor}, {item.form_factor}, {item.year})", style="bold")
    for name, text in lines.items():
        if text:
            out.print(f"  {name:<11}{text}")


def _network(item: Accelerator) -> str:
    node = item.scaleout_bytes_per_second_per_node
    return f"{node * 8 / 1e9:,.0f} Gbit/s in the reference node" if node else "unknown network"


def _price_line(value: Value) -> str:
    offer = value.offer
    if offer is None:
        return "no price known"
    mark = ", estimated" if offer.is_estimate else ", contract" if offer.is_contract else ""
    where = f"{offer.cloud} {offer.region}, {offer.instance_type}, as of {_date(offer)}{mark}"
    return f"${_usd(value.usd_per_accelerator_hour)} per hour ({where})"


def _unit_prices(value: Value) -> str:
    if value.offer is None:
        return ""
    measured = value.usd_per_measured_pflop_hour
    per = (
        f"${_usd(value.usd_per_pflop_hour)} per dense PFLOP-h",
        f"${_usd(measured)} per measured PFLOP-h" if measured is not None else "",
        f"${_usd(value.usd_per_terabyte_per_second_hour)} per TB/s-h",
    )
    return ", ".join(text for text in per if text)


def print_comparison(views: Sequence[AcceleratorView], *, stale: AbstractSet[tuple[str, str, str, str]]) -> None:
    """Accelerators as columns, properties as lines."""
    table = plain_table(("", "left"), *((view.item.name, "right") for view in views))
    for heading, cell in _LINES.items():
        cells = [cell(view) for view in views]
        if any(text != "-" for text in cells):
            table.add_row(heading, *cells)
    out = console()
    out.print(table)
    old = sum(value.offer.key in stale for view in views for value in (view.on_demand, view.spot) if value.offer)
    out.print(
        "Peaks are dense; links are per direction. Prices are of the cheapest whole machine, dated snapshots"
        + (f"; {old} of those shown may be older than 60 days." if old else "."),
        style="dim",
    )


def _of_offer(text: Callable[[Offer], str], market: str) -> Callable[[AcceleratorView], str]:
    def cell(view: AcceleratorView) -> str:
        value: Value = getattr(view, market)
        return "-" if value.offer is None else text(value.offer)

    return cell


def _place(offer: Offer) -> str:
    return f"{offer.cloud} {offer.region}"


_LINES: dict[str, Callable[[AcceleratorView], str]] = {
    "year": lambda view: str(view.item.year),
    "memory GiB": lambda view: f"{view.item.memory_bytes / 2**30:.1f}",
    "bandwidth GB/s": lambda view: f"{view.item.memory_bytes_per_second / 1e9:,.0f}",
    **{f"{dtype} TFLOP/s": (lambda view, dtype=dtype: _tera(view.item, dtype)) for dtype in DTYPES},  # type: ignore[misc]
    "measured bf16": lambda view: f"{m:.0%}" if (m := view.item.matmul_ceiling.get("bf16")) else "-",
    "link GB/s": lambda view: f"{view.item.scaleup_bytes_per_second / 1e9:,.0f}",
    "per node": lambda view: str(view.item.devices_per_node),
    "scale-up domain": lambda view: str(view.item.scaleup_domain),
    "power W": lambda view: f"{view.item.tdp_watts:.0f}" if view.item.tdp_watts else "-",
    "$/h on demand": lambda view: _usd(view.on_demand.usd_per_accelerator_hour),
    "  at": _of_offer(_place, "on_demand"),
    "  as of": _of_offer(_date, "on_demand"),
    "$/h spot": lambda view: _usd(view.spot.usd_per_accelerator_hour),
    "  at ": _of_offer(_place, "spot"),
    "  as of ": _of_offer(_date, "spot"),
    "$/dense PFLOP-h": lambda view: _usd(view.on_demand.usd_per_pflop_hour),
    "$/measured PFLOP-h": lambda view: _usd(view.on_demand.usd_per_measured_pflop_hour),
    "$/TB/s-h (decode)": lambda view: _usd(view.on_demand.usd_per_terabyte_per_second_hour),
    "spot $/dense PFLOP-h": lambda view: _usd(view.spot.usd_per_pflop_hour),
}


gpus_app = command_group(
    "Accelerators: memory, rates, links, prices per unit of compute, and where each figure comes from.",
    cls=ShowOrListByDefault,
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
    typer.Option("--sort", help=f"One of {', '.join(SORT_KEYS)}; prices from the lowest, the rest from the highest."),
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

    (view,) = rated((accelerators.get(name),), _book(directory))
    if json_:
        print_json({"accelerators": [as_json(view)]})
    else:
        others = ", ".join(accelerators.others_called(name))
        print_one(view, f"{others}, which {name} could mean too; a plan takes it for this one" if others else "")


@gpus_app.command("compare")
def gpus_compare(
    names: Annotated[list[str], typer.Argument(help="Two or more accelerators.")],
    sort: SortOption = None,
    directory: DirOption = Path("."),
    json_: JsonOption = False,
) -> None:
    """Compare accelerators side by side: rates, links, prices per PFLOP-hour and per TB/s-hour."""
    from charter.catalog import accelerators

    book = _book(directory)
    views = rated(tuple(accelerators.get(name) for name in names), book)
    views = sorted_by(views, _sort_key(sort)) if sort else views
    if json_:
        print_json({"accelerators": [as_json(view) for view in views]})
    else:
        print_comparison(views, stale={offer.key for offer in book.stale(date.today())})


def _book(directory: Path) -> "PriceBook":
    return read_price_book(project_root(directory) / "prices.csv", today=date.today())


def _sort_key(sort: str | None) -> str | None:
    if sort is not None and sort not in SORT_KEYS:
        raise UsageError(f"--sort {sort} is unknown{closest(sort, SORT_KEYS)}; it is one of {', '.join(SORT_KEYS)}")
    return sort


def models(
    search: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Only models with this in their name or another name of theirs.")
    ] = "",
    json_: JsonOption = False,
) -> None:
    """List models: parameters, layers, context, other names, and where each architecture was read."""
    from charter.catalog.models import catalog

    needle = search.casefold()
    matches = [model for model in catalog() if any(needle in name.casefold() for name in (model.name, *model.aliases))]
    if not matches:
        raise UsageError(
            f"no model of the catalog has {search!r} in its name; a plan takes the path of a config.json too"
        )
    rows = [_facts(model) for model in matches]
    if json_:
        print_json({"models": rows})
        return
    figures = ("parameters", "active", "layers", "width", "context")
    table = plain_table(("model", "left"), *((name, "right") for name in figures), ("as of", "left"))
    for row in rows:
        table.add_row(
            row["name"], format_count(row["parameters"]), format_count(row["active_parameters"]), str(row["layers"]),
            f"{row['hidden_size']:,}", f"{row['context']:,}", row["as_of"],
        )  # fmt: skip
    console().print(table)
    if len(rows) == 1:
        typer.echo(f"Other names: {', '.join(rows[0]['aliases']) or 'none'}. Source: {rows[0]['source']}.")


def _facts(model: "CatalogModel") -> dict[str, Any]:
    from charter.physics.shapes import count_parameters

    shape, count = model.architecture, count_parameters(model.architecture)
    return {
        "name": model.name,
        "aliases": list(model.aliases),
        "parameters": count.total,
        "active_parameters": count.active,
        "layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "context": shape.max_position_embeddings,
        "experts": shape.mixture.num_experts if shape.mixture else 0,
        "source": model.provenance.source,
        "as_of": model.provenance.as_of,
        "confidence": model.provenance.confidence,
        "note": model.note,
    }

"""Stored and sent bytes of a run: bytes, GiB-months and money by place, beside the plan. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from charter.ledger.stored import StoredSample, by_place, byte_milliseconds, gib_months, micro_usd_of, steps
from charter.units import GB, MICRO_USD_PER_USD, format_bytes, format_usd


@dataclass(frozen=True, kw_only=True)
class StoredPlace:
    """One place: what was metered from its first sample to its last, and what it holds since."""

    place: str
    provider: str
    bytes_now: int
    """By the last sample."""
    gib_months: float
    micro_usd: int | None
    """None while no sample has a price."""
    usd_per_month: float | None
    """What the bytes of the last sample cost per month."""
    sent_bytes: int
    samples: int
    first_at: float
    last_at: float
    since_gib_months: float
    """From the last sample to now, if nothing has changed: in no sum, since nobody has looked."""
    price_source: str
    price_as_of: str


def stored_places(samples: Iterable[StoredSample], *, now: float) -> tuple[StoredPlace, ...]:
    """By place; `now` is unix time."""
    return tuple(_place(series, now_milliseconds=round(now * 1000)) for series in by_place(samples).values())


def storage_json(places: Iterable[StoredPlace], plan: Mapping[str, Any] | None) -> dict[str, Any]:
    """The `storage` of `charter cost report --json`: metered beside planned; `usd` is null where no price is known."""
    listed = list(places)
    priced = [place.micro_usd for place in listed if place.micro_usd is not None]
    return {
        "planned_usd": planned_usd(plan, "storage"),
        "metered_usd": sum(priced) / MICRO_USD_PER_USD if priced else None,
        "metered_micro_usd": sum(priced) if priced else None,
        "metered_gib_months": sum(place.gib_months for place in listed),
        "planned_transfer_usd": planned_usd(plan, "transfer"),
        "sent_bytes": sum(place.sent_bytes for place in listed),
        "places": [{**asdict(place), "usd": _usd(place.micro_usd)} for place in listed],
    }


def planned_usd(plan: Mapping[str, Any] | None, part: str) -> float | None:
    """Return the planned `storage` or `transfer` of all stages; None where a stage has no price, or without a plan."""
    stages = (plan or {}).get("stages") or ()
    amounts = [((stage.get("breakdown") or {}).get("usd") or {}).get(part) for stage in stages]
    priced = [float(amount) for amount in amounts if amount is not None]
    return sum(priced) if priced and len(priced) == len(amounts) else None


def print_storage(places: tuple[StoredPlace, ...], plan: Mapping[str, Any] | None, console: Console) -> None:
    """A table of the places, and a line that compares them with the plan."""
    if not places:
        return
    table = Table(
        title="Storage", title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    table.add_column("Place")
    for column in ("Holds", "GiB-months", "Cost", "Sent", "Metered until"):
        table.add_column(column, justify="right")
    for place in places:
        table.add_row(
            Text(place.place),
            format_bytes(place.bytes_now),
            f"{place.gib_months:.3g}",
            format_usd(_usd(place.micro_usd)),
            format_bytes(place.sent_bytes) if place.sent_bytes else "",
            f"{datetime.fromtimestamp(place.last_at, tz=UTC):%Y-%m-%d %H:%M} UTC",
        )
    console.print(table)
    content = storage_json(places, plan)
    planned = content["planned_usd"]
    said = "" if planned is None else f", planned {format_usd(planned)} with what is kept afterwards"
    console.print(f"Stored so far: {format_usd(content['metered_usd'])}{said}", highlight=False)
    for place in places:
        if place.usd_per_month:
            text = f"{place.place} costs {format_usd(place.usd_per_month)} a month as it is"
            console.print(Text(text), highlight=False)
    console.print()


def _place(series: tuple[StoredSample, ...], *, now_milliseconds: int) -> StoredPlace:
    ordered = steps(series)
    first, last = ordered[0], ordered[-1]
    until, price = last.at_milliseconds, last.price_micro_usd_per_gb_month
    is_priced = any(sample.price_micro_usd_per_gb_month is not None for sample in ordered)
    since = byte_milliseconds([last], since=until, until=max(until, now_milliseconds))
    return StoredPlace(
        place=last.place,
        provider=last.provider,
        bytes_now=last.bytes,
        gib_months=gib_months(byte_milliseconds(ordered, since=first.at_milliseconds, until=until)),
        micro_usd=micro_usd_of(ordered) if is_priced else None,
        usd_per_month=None if price is None else price * last.bytes / GB / MICRO_USD_PER_USD,
        sent_bytes=sum(sample.sent_bytes for sample in series),
        samples=len(series),
        first_at=first.at_milliseconds / 1000,
        last_at=until / 1000,
        since_gib_months=gib_months(since),
        price_source=last.price_source,
        price_as_of=last.price_as_of,
    )


def _usd(micro_usd: int | None) -> float | None:
    return None if micro_usd is None else micro_usd / MICRO_USD_PER_USD

"""The prices that a plan is made with: the bundled snapshot, and rows that the user adds to it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from charter.catalog.accelerators import CPU, Accelerator, get, parse_request
from charter.catalog.offer import ALL_REGIONS, Market, Offer, as_of_key, earliest_day, offer_of_row, read_offers
from charter.catalog.price_row import PriceFinding, Severity
from charter.catalog.rows import StoragePrice, read_table, storage_prices
from charter.errors import CatalogError
from charter.units import TB

STALE_DAYS = 60
"""Days after which a price is called stale. Judgement; within one to two years a list price of the snapshot rose by
33 % (8 x H100 at Lambda) and a spot price by 64 % (A100 at GCP us-central1)."""
HOW_TO_REFRESH = "`charter catalog prices refresh` shows how to load newer ones"
"""The advice that goes with old prices."""
CONTRACT_INSTANCE = "by contract"
"""The instance type of a contract that names an accelerator only."""


@dataclass(frozen=True, kw_only=True)
class PriceBook:
    """Rental and storage prices with their dates; older snapshots of an offer are kept beside newer ones."""

    rows: tuple[Offer, ...]
    storage: tuple[StoragePrice, ...]
    source: str
    as_of: str
    """The newest date in the book; each row has its own."""
    issues: tuple[PriceFinding, ...] = ()
    """What had to be left out or doubted when rows were added."""

    @staticmethod
    def bundled() -> "PriceBook":
        """The snapshot that Charter ships.

        >>> PriceBook.bundled().as_of
        '2026-08-20'
        """
        return _bundled()

    def offers(
        self,
        accelerator: str | None = None,
        *,
        cloud: str | None = None,
        region: str | None = None,
        market: Market | None = None,
        latest: bool = True,
    ) -> tuple[Offer, ...]:
        """Offers, narrowed down; `latest` drops older snapshots of the same offer.

        >>> sorted({offer.cloud for offer in PriceBook.bundled().offers("L40S", market=Market.SPOT)})
        ['crusoe']
        """
        name = None if accelerator is None else get(accelerator).name
        matches = tuple(
            offer
            for offer in self.rows
            if name in (None, offer.accelerator)
            and cloud in (None, offer.cloud)
            and (offer.region == ALL_REGIONS or region in (None, offer.region))
        )
        selected = _newest(matches) if latest else matches
        return tuple(offer for offer in selected if market is None or offer.usd_per_hour(market) is not None)

    def machine_sizes(self, accelerator: str) -> tuple[int, ...]:
        """Return how many accelerators the machines on offer have; the usual number where each one has a price.

        >>> PriceBook.bundled().machine_sizes("H100"), PriceBook.bundled().machine_sizes("v5p")
        ((1, 8), (4,))
        """
        usual = get(accelerator).devices_per_node
        rows = [offer for offer in self.offers(accelerator) if offer.whole_machine]
        return tuple(sorted({usual if offer.scales else offer.count for offer in rows}))

    def storage_prices(self, provider: str | None = None, product: str | None = None) -> tuple[StoragePrice, ...]:
        """Prices of storage, requests and transfer, narrowed down.

        >>> PriceBook.bundled().storage_prices("aws", "S3")[0].usd
        0.023
        """
        return tuple(row for row in self.storage if provider in (None, row.provider) and product in (None, row.product))

    def with_rows(self, more: Iterable[Offer], *, source: str = "", today: date | None = None) -> "PriceBook":
        """A book with further rows: the newer snapshot of an offer wins, of two with one date the added one.

        A contract takes the place of list prices in its market: of the same cloud, accelerator and count, in its
        region (and of its instance type, if it names one that is listed). Their other markets stay. With `today`,
        contracts that have ended or not begun are left out and told in `issues`. What an added row does not know of
        its machine (network, disk, host) is taken from the listed instance type of that name.
        """
        added = tuple(more)
        out = {offer: reason for offer in added if today is not None and (reason := _outside(offer, today))}
        issues = tuple(
            PriceFinding(
                rule="contract-dates", severity=Severity.WARNING, row=0, message=reason, offer=" ".join(offer.key)
            )
            for offer, reason in out.items()
        )
        completed = tuple(_completed(offer, self.rows) for offer in added if offer not in out)
        listed = self.rows
        for contract in (offer for offer in completed if offer.is_contract):
            listed = tuple(reduced for offer in listed if (reduced := _without(offer, contract)) is not None)
        rows = (*listed, *completed)
        return replace(
            self,
            rows=rows,
            source=", ".join(part for part in (self.source, source) if part),
            as_of=_newest_date(rows),
            issues=(*self.issues, *issues),
        )

    def stale(self, today: date) -> tuple[Offer, ...]:
        """Latest offers whose date may be more than `STALE_DAYS` before today; a row without a date is stale.

        A date without day or month is read as the first day that it may mean. Contracts are stale once ended.

        >>> len(PriceBook.bundled().stale(date(2026, 8, 21))) < len(PriceBook.bundled().stale(date(2027, 8, 21)))
        True
        """
        return tuple(offer for offer in self.offers() if offer.is_stale(today, STALE_DAYS))


@cache
def _bundled() -> PriceBook:
    rows = read_table("prices.csv", offer_of_row)
    return PriceBook(
        rows=rows, storage=storage_prices(), source="snapshot bundled with Charter", as_of=_newest_date(rows)
    )


def _newest_date(rows: Iterable[Offer]) -> str:
    dates = [offer.provenance.as_of for offer in rows]
    return max(dates, key=as_of_key, default="")


def _newest(candidates: tuple[Offer, ...]) -> tuple[Offer, ...]:
    newest: dict[tuple[str, str, str, str], Offer] = {}
    for offer in candidates:
        latest = newest.get(offer.key)
        if latest is None or as_of_key(offer.provenance.as_of) >= as_of_key(latest.provenance.as_of):
            newest[offer.key] = offer
    return tuple(newest.values())


_MACHINE_FACTS = ("vcpus", "host_memory_bytes", "network_bytes_per_second", "local_disk_bytes")


def _completed(offer: Offer, listed: Iterable[Offer]) -> Offer:
    """An offer with the facts of its machine that only listed rows of the same instance type have."""
    missing = [name for name in _MACHINE_FACTS if getattr(offer, name) is None]
    machine = (offer.cloud, offer.instance_type, offer.count)
    details: dict[str, Any] = {}
    for other in listed if missing else ():
        if (other.cloud, other.instance_type, other.count) == machine:
            details |= {name: value for name in missing if (value := getattr(other, name)) is not None}
    return replace(offer, **details)


def _outside(offer: Offer, today: date) -> str:
    """Return the reason why a contract does not hold today, or nothing."""
    starts, ends = earliest_day(offer.valid_from), earliest_day(offer.valid_until)
    if not offer.is_contract:
        return ""
    if ends is not None and ends < today:
        return f"the contract ended on {offer.valid_until}; its price is not used"
    if starts is not None and starts > today:
        return f"the contract begins on {offer.valid_from}; its price is not used yet"
    return ""


_FIELDS = {
    Market.ON_DEMAND: ("on_demand_usd_per_hour",),
    Market.SPOT: ("spot_usd_per_hour", "spot_min_usd_per_hour"),
    Market.RESERVED_1Y: ("reserved_1y_usd_per_hour",),
    Market.RESERVED_3Y: ("reserved_3y_usd_per_hour",),
}


def _without(offer: Offer, contract: Offer) -> Offer | None:
    """A listed offer without the markets that a contract covers; None if no price is left."""
    same = (offer.cloud, offer.accelerator, offer.count) == (contract.cloud, contract.accelerator, contract.count)
    here = contract.region in (ALL_REGIONS, offer.region)
    named = contract.instance_type in (CONTRACT_INSTANCE, offer.instance_type)
    if offer.is_contract or not (same and here and named):
        return offer
    covered = [market for market in Market if contract.usd_per_hour(market) is not None]
    emptied = {field: None for market in covered for field in _FIELDS[market]}
    remaining = replace(offer, **emptied)  # type: ignore[arg-type]
    return remaining if any(remaining.usd_per_hour(market) is not None for market in Market) else None


def own_offers(file: Path) -> tuple[Offer, ...]:
    """Offers of a project's own `prices.csv`."""
    try:
        return read_offers(file.read_text(encoding="utf-8"), file.name)
    except UnicodeDecodeError as error:
        raise CatalogError(f"{file} is not UTF-8 text: {error}") from None


def read_price_book(file: Path, *, today: date) -> PriceBook:
    """The bundled book with the rows of a project's `prices.csv`, or the bundled book if there is no such file."""
    if not file.is_file():
        return PriceBook.bundled()
    return PriceBook.bundled().with_rows(own_offers(file), source=file.name, today=today)


__all__ = ["Market", "Offer", "PriceBook", "as_of_key", "offers", "read_offers"]


def offers(
    accelerator: str | None = None,
    *,
    cloud: str | None = None,
    region: str | None = None,
    market: Market | None = None,
    latest: bool = True,
) -> tuple[Offer, ...]:
    """Offers of the bundled snapshot, narrowed down; `latest` drops older snapshots of the same offer.

    >>> sorted({offer.cloud for offer in offers("L40S", market=Market.SPOT)})
    ['crusoe']
    """
    return PriceBook.bundled().offers(accelerator, cloud=cloud, region=region, market=market, latest=latest)


def machines_of(request: str) -> tuple[str, int | None]:
    """Return the machine that a request means and how many, where more accelerators are asked for than any has.

    Of a type that nobody offers, machines have their usual number.

    >>> machines_of("H100:16"), machines_of("H100:8"), machines_of("H100:12"), machines_of("v5p:64")
    (('H100:8', 2), ('H100:8', None), ('H100:12', None), ('v5p:4', 16))
    """
    name, count = parse_request(request)
    if name == CPU:
        return request, None
    largest = max(PriceBook.bundled().machine_sizes(name), default=get(name).devices_per_node)
    if largest == 1 or count <= largest or count % largest:
        return request, None
    return f"{request.partition(':')[0]}:{largest}", count // largest


PETA = 1e15


@dataclass(frozen=True, kw_only=True)
class Value:
    """An accelerator with its cheapest offer in one market."""

    accelerator: Accelerator
    market: Market
    offer: Offer | None
    """The cheapest whole machine per accelerator-hour; None where nobody offers the accelerator in this market."""

    @property
    def usd_per_accelerator_hour(self) -> float | None:
        """The price of that offer per accelerator."""
        return None if self.offer is None else self.offer.usd_per_accelerator_hour(self.market)

    @property
    def usd_per_pflop_hour(self) -> float | None:
        """Price of 10^15 flops per second for an hour at the dense bf16 peak (of fp16, on a device without bf16)."""
        price = self.usd_per_accelerator_hour
        return None if price is None else usd_per_pflop_hour(price, self.accelerator)

    @property
    def usd_per_measured_pflop_hour(self) -> float | None:
        """The same at the best measured matrix product; None where nobody measured one."""
        price, share = self.usd_per_accelerator_hour, self.accelerator.matmul_ceiling.get("bf16")
        return None if price is None or share is None else usd_per_pflop_hour(price, self.accelerator) / share

    @property
    def usd_per_terabyte_per_second_hour(self) -> float | None:
        """Price of 10^12 bytes per second of memory bandwidth for an hour: what decoding tokens is bound by."""
        price = self.usd_per_accelerator_hour
        return None if price is None else price / (self.accelerator.memory_bytes_per_second / TB)


def usd_per_pflop_hour(usd_per_accelerator_hour: float, accelerator: Accelerator) -> float:
    """Price per dense bf16 PFLOP-hour: `price / (peak / 10^15)`.

    >>> from charter.catalog.accelerators import get
    >>> round(usd_per_pflop_hour(4.20, get("TPU-v5p")), 1), round(usd_per_pflop_hour(4.89, get("B200")), 1)
    (9.2, 2.2)
    """
    return usd_per_accelerator_hour / (accelerator.peak_flops_per_second("bf16") / PETA)


def values(accelerators: Iterable[Accelerator], book: PriceBook, market: Market) -> tuple[Value, ...]:
    """Each accelerator with its cheapest offer in a market."""
    offers = book.offers(market=market)
    return tuple(Value(accelerator=item, market=market, offer=_cheapest(offers, item, market)) for item in accelerators)


def _cheapest(offers: Iterable[Offer], accelerator: Accelerator, market: Market) -> Offer | None:
    """The cheapest whole machine; an estimated price only where there is no other."""
    mine = [offer for offer in offers if offer.accelerator == accelerator.name and offer.whole_machine]
    return min(mine, key=lambda offer: (offer.is_estimate, offer.usd_per_accelerator_hour(market)), default=None)

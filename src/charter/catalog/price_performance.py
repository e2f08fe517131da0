"""Price of compute and bandwidth: per PFLOP-hour and per TB/s-hour, across generations and vendors.

Ratios of a price and a data sheet; they say nothing of how much of a rate a model reaches on the device, nor whether
it fits. `charter plan` does.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from charter.catalog.accelerators import Accelerator
from charter.catalog.offer import Market, Offer
from charter.catalog.price_book import PriceBook
from charter.units import TB

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


def usd_per_pflop_hour(usd_per_accelerator_hour: float, accelerator: Accelerator, dtype: str = "bf16") -> float:
    """Price per dense PFLOP-hour: `price / (peak / 10^15)`.

    >>> from charter.catalog.accelerators import get
    >>> round(usd_per_pflop_hour(4.20, get("TPU-v5p")), 1), round(usd_per_pflop_hour(4.89, get("B200")), 1)
    (9.2, 2.2)
    """
    return usd_per_accelerator_hour / (accelerator.peak_flops_per_second(dtype) / PETA)


def values(accelerators: Iterable[Accelerator], book: PriceBook, market: Market) -> tuple[Value, ...]:
    """Each accelerator with its cheapest offer in a market."""
    offers = book.offers(market=market)
    return tuple(Value(accelerator=item, market=market, offer=_cheapest(offers, item, market)) for item in accelerators)


def _cheapest(offers: Iterable[Offer], accelerator: Accelerator, market: Market) -> Offer | None:
    """The cheapest whole machine; an estimated price only where there is no other."""
    mine = [offer for offer in offers if offer.accelerator == accelerator.name and offer.whole_machine]
    return min(mine, key=lambda offer: (offer.is_estimate, offer.usd_per_accelerator_hour(market)), default=None)

"""Rental offers of the bundled snapshot; see `price_book` for a book with further rows."""

from charter.catalog.offer import Market, Offer, as_of_key, read_offers
from charter.catalog.price_book import PriceBook

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

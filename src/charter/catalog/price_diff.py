"""Differences between two price books."""

from dataclasses import dataclass

from charter.catalog.offer import Market, Offer
from charter.catalog.price_book import PriceBook

SAME_PRICE = 5e-5
"""USD per hour below which two prices are one: they are written with that precision."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One price that is not what it was."""

    old: Offer
    new: Offer
    market: Market

    @property
    def old_usd_per_hour(self) -> float | None:
        """Price of the instance in the first book, None if it was not offered."""
        return self.old.usd_per_hour(self.market)

    @property
    def new_usd_per_hour(self) -> float | None:
        """Price of the instance in the second book, None if it is not offered."""
        return self.new.usd_per_hour(self.market)

    @property
    def ratio(self) -> float | None:
        """New over old; None where one of them is not offered: null is not zero."""
        old, new = self.old_usd_per_hour, self.new_usd_per_hour
        return None if old is None or new is None else new / old


@dataclass(frozen=True, kw_only=True)
class PriceBookDifference:
    """Two books side by side."""

    changed: tuple[Change, ...]
    unchanged: int
    """Prices of offers in both books that are equal."""
    only_in_old: tuple[Offer, ...]
    only_in_new: tuple[Offer, ...]


def difference(old: PriceBook, new: PriceBook) -> PriceBookDifference:
    """Compare the latest offers of two books, market by market.

    >>> difference(PriceBook.bundled(), PriceBook.bundled()).changed
    ()
    """
    first = {offer.key: offer for offer in old.offers()}
    second = {offer.key: offer for offer in new.offers()}
    changes = [
        Change(old=first[key], new=second[key], market=market)
        for key in first
        if key in second
        for market in Market
        if (first[key].usd_per_hour(market), second[key].usd_per_hour(market)) != (None, None)
    ]
    changed = tuple(change for change in changes if not _same(change))
    return PriceBookDifference(
        changed=tuple(sorted(changed, key=lambda change: (change.old.accelerator, change.old.key, change.market))),
        unchanged=len(changes) - len(changed),
        only_in_old=tuple(offer for key, offer in first.items() if key not in second),
        only_in_new=tuple(offer for key, offer in second.items() if key not in first),
    )


def _same(change: Change) -> bool:
    old, new = change.old_usd_per_hour, change.new_usd_per_hour
    return old is not None and new is not None and abs(new - old) < SAME_PRICE

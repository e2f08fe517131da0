"""Prices of a plan that are too old to be trusted without another look."""

from datetime import date

from charter.catalog.price_book import STALE_DAYS, PriceBook
from charter.plan.assumption import Assumption
from charter.plan.plan import Plan

PREFIX = "stale price: "


def stale_prices(plan: Plan, book: PriceBook, today: date) -> tuple[Assumption, ...]:
    """One assumption for every price of the book that the plan rests on and that may be older than 60 days."""
    old = {(offer.cloud, offer.instance_type, offer.region): offer for offer in book.stale(today)}
    assumptions: dict[Assumption, None] = {}
    for stage in plan.stages:
        places = [(stage.option.place, stage.option.price)]
        places += [(group.place, group.price) for group in stage.option.beside]
        for place, price in places:
            offer = old.get((place.infra, place.instance, price.region or ""))
            if offer is not None:
                assumptions[
                    Assumption(
                        name=f"{PREFIX}{place.label}, {price.market}",
                        value=price.usd_per_hour,
                        source=f"may be more than {STALE_DAYS} days old on {today.isoformat()}; refresh it with "
                        "`charter catalog prices import FILE`",
                        as_of=price.as_of,
                    )
                ] = None
    return tuple(assumptions)

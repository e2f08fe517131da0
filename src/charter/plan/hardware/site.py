"""Providers that a plan may use, and what charter.yaml says about each: prices of one's own, nodes, waits."""

from collections.abc import Iterable
from dataclasses import dataclass

from charter.catalog.accelerators import CPU
from charter.catalog.price_book import PriceBook
from charter.plan.hardware.machine import Machine
from charter.plan.hardware.place import ANY, LOCAL, ON_PREM, Price, is_cpu_request
from charter.spec.project import Place as AllowedPlace
from charter.spec.project import Resources


@dataclass(frozen=True, kw_only=True)
class Site:
    """One provider that may be used, and what charter.yaml says about it."""

    infra: str
    region: str | None = None
    names: tuple[str, ...] = ()
    """Accelerators asked for there; the default ones if empty."""
    price: Price | None = None
    """The user's own price, in place of the price book's."""
    pool: str = ""
    pool_nodes: int | None = None
    lead_seconds: float = 0.0
    queue_seconds: float = 0.0


def sites(resources: Resources, book: PriceBook) -> Iterable[Site]:
    """The providers that `infra` or `any_of` names, else all of the price book; less what `clouds` does not allow."""
    for index, entry in enumerate(resources.any_of):
        if _allowed(entry.infra, resources):
            yield _entry_site(index, entry, resources)
    if resources.any_of:
        return
    if resources.infra is not None:
        infras = [resources.infra]
    elif resources.clouds or not all(map(is_cpu_request, resources.accelerators)):
        infras = sorted({offer.cloud for offer in book.rows})
    else:
        infras = [LOCAL]
    for infra in infras:
        if _allowed(infra, resources):
            yield Site(
                infra=infra,
                names=resources.accelerators,
                price=_own_price(resources.price, "contract", "resources.price in charter.yaml"),
                lead_seconds=0.0 if infra in (LOCAL, ON_PREM) else resources.lead_time or 0.0,
                queue_seconds=0.0 if infra == LOCAL else resources.queue_wait or 0.0,
            )


def _allowed(infra: str, resources: Resources) -> bool:
    return not resources.clouds or infra in resources.clouds


def _entry_site(index: int, entry: AllowedPlace, resources: Resources) -> Site:
    where = f"resources.any_of[{index}]"
    rented = entry.infra not in (LOCAL, ON_PREM)
    lead = entry.lead_time if entry.lead_time is not None else resources.lead_time if rented else None
    queue = entry.queue_wait if entry.queue_wait is not None else resources.queue_wait
    own = _own_price(entry.price, entry.market or "contract", f"{where}.price in charter.yaml")
    return Site(
        infra=entry.infra,
        region=entry.region,
        names=entry.accelerators or resources.accelerators,
        price=own or _own_price(resources.price, "contract", "resources.price in charter.yaml"),
        pool="" if entry.nodes is None else f"{entry.infra} nodes of {where}",
        pool_nodes=entry.nodes,
        lead_seconds=lead or 0.0,
        queue_seconds=0.0 if entry.infra == LOCAL else queue or 0.0,
    )


def requests(names: tuple[str, ...], site: Site, book: PriceBook, machine: Machine | None) -> tuple[str, ...]:
    """Accelerators asked for at a site; `any` stands for every whole machine that its provider offers."""
    if site.infra == LOCAL:
        # On this machine one accelerator if it has any (the native engine takes one), else its processors.
        here = CPU if machine is None or machine.gpu_name is None else f"{machine.gpu_name}:1"
        return (here,) if names in ((), (ANY,)) else names
    if ANY not in names:
        return names or DEFAULT_ACCELERATORS
    offered = {
        (offer.accelerator, offer.count)
        for offer in book.offers(cloud=site.infra, region=site.region)
        if offer.whole_machine
    }
    largest = {name: max(count for other, count in offered if other == name) for name, _ in offered}
    named = tuple(name for name in names if name != ANY)
    return named + tuple(f"{name}:{count}" for name, count in sorted(largest.items()))


DEFAULT_ACCELERATORS = ("H100:8", "A100-80GB:8")


def _own_price(usd_per_hour: float | None, market: str, source: str) -> Price | None:
    if usd_per_hour is None:
        return None
    return Price(market=market, usd_per_hour=usd_per_hour, source=source, as_of="")

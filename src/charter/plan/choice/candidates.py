"""Candidates of a plan: of every stage, everything that fits."""

from dataclasses import dataclass

from charter.plan.hardware.place import LOCAL
from charter.plan.options.option import Option, Rejected
from charter.plan.options.question import Found
from charter.plan.options.why_not import loses_to
from charter.plan.work.phase import Workload
from charter.spec.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Everything that fits for one stage."""

    name: str
    stage: Stage
    work: Workload
    inputs: tuple[str, ...]
    """Stages that it waits for."""
    found: Found
    options: tuple[Option, ...]
    """What was found, in every way to pay for it."""
    refused: tuple[Rejected, ...]

    @property
    def unpriced(self) -> bool:
        """Return True if some option has no price, so that options are compared by time."""
        return any(option.usd is None for option in self.options)

    def family(self, option: Option) -> tuple[object, ...]:
        """Hardware, provider and market: what makes two options different in kind."""
        place = option.place
        return (place.infra, option.price.region or place.region, place.hardware, option.price.market)


def rejections(item: Candidates, chosen: Option) -> tuple[Rejected, ...]:
    """Return the options that fitted and lost, best first; then those that do not fit; then those not offered.

    Of every number of nodes at a place and market only the best layout is named.
    """
    best: dict[str, Option] = {}
    for option in sorted(item.options, key=_cheapest):
        best.setdefault(option.label, option)
    lost = [
        Rejected(option=f"{option.label} {option.layout_label}", reason=loses_to(option, chosen))
        for label, option in best.items()
        if label != chosen.label
    ]
    return (*lost, *item.found.rejected, *item.refused)


def _cheapest(option: Option) -> tuple[float, float, str]:
    usd = option.usd
    return (usd.p50 if usd is not None else 0.0, option.overhead.wall_seconds, option.label + option.layout_label)


def held(item: Candidates, option: Option) -> dict[str, float]:
    """Return what an option holds while it runs: nodes, its share of a pool, accelerators by type, a local slot."""
    place = option.place
    if place.infra == LOCAL:
        return {SLOTS: 1.0}
    groups = [(place, option.num_nodes), *((group.place, group.num_nodes) for group in option.beside)]
    amounts: dict[str, float] = {}
    for where, nodes in groups:
        names = [NODES, accelerators_of(where.accelerator.name)] + ([where.pool] if where.pool else [])
        for name in names:
            amount = nodes * where.per_node if name not in (NODES, where.pool) else nodes
            amounts[name] = amounts.get(name, 0.0) + amount
    return amounts


NODES = "nodes (resources.max_nodes)"
SLOTS = "stages on this machine (resources.max_parallel_stages)"


def accelerators_of(name: str) -> str:
    """The pool of a quota."""
    return f"{name} (resources.quota)"

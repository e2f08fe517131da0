"""Where a stage could run: accelerator, number per node, nodes, and what an hour of it costs there."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from charter.catalog import accelerators, prices
from charter.catalog.accelerators import CPU, Accelerator
from charter.catalog.prices import Market, Offer
from charter.cost.onprem import B200_MID, H100_MID, owned_usd_per_accelerator_hour
from charter.errors import InfeasibleError, UsageError
from charter.plan.machine import Machine
from charter.spec.project import Project, Resources
from charter.spec.stage import Stage

LOCAL, ON_PREM = "local", "on_prem"
OWNED = {"H100-SXM-80GB": H100_MID, "B200-SXM-180GB": B200_MID}
OWNED_SOURCE = "cost of ownership, middle scenario (charter.cost.onprem)"


@dataclass(frozen=True, kw_only=True)
class Price:
    """What one accelerator (or, on a local machine, the machine) costs per hour in one market."""

    market: str
    """`on_demand`, `spot`, `owned`, `contract` or `unpriced`."""
    usd_per_hour: float | None
    source: str
    as_of: str


UNPRICED = Price(market="unpriced", usd_per_hour=None, source="no price known", as_of="")


@dataclass(frozen=True, kw_only=True)
class Place:
    """One kind of node at one provider."""

    infra: str
    region: str | None
    accelerator: Accelerator
    per_node: int
    """Accelerators of a node; 1 stands for the processors of a local machine."""
    instance: str
    price: Price
    spot: Price | None = None
    nodes: tuple[int, ...] = (1,)
    """Node counts to consider."""

    @property
    def is_cpu(self) -> bool:
        """Whether the processors do the work."""
        return self.accelerator.kind == CPU

    @property
    def hardware(self) -> str:
        """`H100-SXM-80GB:8`, or `cpu`."""
        return CPU if self.is_cpu else f"{self.accelerator.name}:{self.per_node}"

    @property
    def label(self) -> str:
        """`H100-SXM-80GB:8 on aws`."""
        return f"{self.hardware} on {self.infra}"


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A place that was asked for and cannot be used."""

    option: str
    reason: str


def places(project: Project, stage: Stage, machine: Machine | None) -> tuple[tuple[Place, ...], tuple[Refused, ...]]:
    """Every place where a stage could run, the cheapest offer of each provider and accelerator; and what fell out."""
    resources = project.resources
    wanted = stage.resources.accelerators if stage.resources and stage.resources.accelerators else None
    threads = (stage.resources.cpus if stage.resources else None) or resources.cpus or _share(resources, machine)
    found: list[Place] = []
    refused: list[Refused] = []
    for infra, region, names in _sites(resources):
        for text in (wanted,) if wanted else names or _default_accelerators(infra, machine):
            made = _place(infra, region, text, resources, machine, threads)
            if isinstance(made, Refused):
                refused.append(made)
            else:
                found.append(replace(made, nodes=_node_counts(resources, stage, made)))
    kept = [place for place in found if _affordable(place, resources, refused)]
    if not kept:
        reasons = "\n".join(f"  {item.option}: {item.reason}" for item in refused)
        raise InfeasibleError(f"no place offers what resources ask for\n{reasons}")
    return tuple(_cheapest_first(kept)), tuple(refused)


def may_run_here(project: Project) -> bool:
    """Whether a stage of the project may run on this machine."""
    resources = project.resources
    if resources.any_of:
        return any(place.infra == LOCAL for place in resources.any_of)
    if resources.infra is not None:
        return resources.infra == LOCAL
    return not resources.accelerators or resources.accelerators[0] == "cpu"


def control_place(machine: Machine | None) -> Place:
    """The machine that runs Charter, for stages without a model; nothing is rented for them."""
    known = machine or _SMALL_MACHINE
    return Place(
        infra=LOCAL,
        region=None,
        accelerator=known.processor(threads=1),
        per_node=1,
        instance="the machine that runs Charter",
        price=Price(market="own", usd_per_hour=0.0, source="nothing is rented for a stage without a model", as_of=""),
    )


_SMALL_MACHINE = Machine(
    name="not probed", cores=1, memory_bytes=8e9, flops_per_second=5e10, memory_bytes_per_second=1e10
)
"""Stands for the control machine in a plan that does not probe it."""


def _share(resources: Resources, machine: Machine | None) -> int | None:
    """Cores of a stage that says nothing: the machine divided by the stages that may run side by side."""
    return None if machine is None else max(1, machine.cores // max(1, resources.max_parallel_stages))


def _sites(resources: Resources) -> Iterable[tuple[str, str | None, tuple[str, ...]]]:
    if resources.any_of:
        for place in resources.any_of:
            yield place.infra, place.region, place.accelerators or resources.accelerators
    elif resources.infra is not None:
        yield resources.infra, None, resources.accelerators
    else:
        clouds = sorted({offer.cloud for offer in prices.snapshot()})
        for infra in clouds if resources.accelerators and resources.accelerators != (CPU,) else (LOCAL,):
            yield infra, None, resources.accelerators


def _default_accelerators(infra: str, machine: Machine | None) -> tuple[str, ...]:
    """On this machine one accelerator if it has any (the native engine takes one), else its processors."""
    if infra != LOCAL:
        return ("H100:8", "A100-80GB:8")
    return (CPU,) if machine is None or machine.gpu_name is None else (f"{machine.gpu_name}:1",)


def _place(
    infra: str,
    region: str | None,
    text: str,
    resources: Resources,
    machine: Machine | None,
    threads: int | None,
) -> Place | Refused:
    name, per_node = accelerators.parse_request(text)
    own = _contract(resources)
    if infra == LOCAL:
        return _local(name, per_node, own, machine, threads)
    if name == CPU:
        return Refused(option=f"cpu on {infra}", reason="training on rented processors is not planned yet")
    accelerator = accelerators.get(name)
    if infra == ON_PREM:
        return Place(
            infra=infra,
            region=region,
            accelerator=accelerator,
            per_node=per_node,
            instance="own node",
            price=own or _owned(name),
        )
    return _rented(infra, region, accelerator, per_node, own)


def _contract(resources: Resources) -> Price | None:
    if resources.price is None:
        return None
    return Price(market="contract", usd_per_hour=resources.price, source="resources.price in charter.yaml", as_of="")


def _owned(name: str) -> Price:
    if name not in OWNED:
        return UNPRICED
    usd = owned_usd_per_accelerator_hour(OWNED[name])
    return Price(market="owned", usd_per_hour=usd, source=OWNED_SOURCE, as_of="2026")


def _local(
    name: str, per_node: int, own: Price | None, machine: Machine | None, threads: int | None
) -> Place | Refused:
    if machine is None:
        raise UsageError("a local plan needs the probe of the machine")
    if name == CPU:
        accelerator, count = machine.processor(threads=threads), 1
    elif machine.gpu_name is None:
        return Refused(option=f"{name}:{per_node} on local", reason="nvidia-smi shows no accelerator on this machine")
    else:
        accelerator, count = accelerators.get(name), min(per_node, machine.gpu_count)
        if count < per_node:
            return Refused(
                option=f"{name}:{per_node} on local", reason=f"this machine has {count} x {machine.gpu_name}"
            )
    return Place(
        infra=LOCAL,
        region=None,
        accelerator=accelerator,
        per_node=count,
        instance=machine.name,
        price=own or UNPRICED,
    )


def _rented(
    infra: str, region: str | None, accelerator: Accelerator, per_node: int, own: Price | None
) -> Place | Refused:
    matching = [
        offer
        for offer in prices.offers(accelerator.name, cloud=infra, region=region)
        if offer.count == per_node and offer.whole_machine
    ]
    option = f"{accelerator.name}:{per_node} on {infra}" + (f" {region}" if region else "")
    on_demand = _lowest(matching, Market.ON_DEMAND)
    spot = _lowest(matching, Market.SPOT)
    anchor = on_demand or spot
    if anchor is None:
        if own is None:
            return Refused(option=option, reason="no such offer in the price snapshot; set resources.price to plan it")
        return Place(
            infra=infra,
            region=region,
            accelerator=accelerator,
            per_node=per_node,
            instance="by contract",
            price=own,
        )
    network = anchor.network_bytes_per_second or accelerator.scaleout_bytes_per_second_per_node
    return Place(
        infra=infra,
        region=anchor.region,
        accelerator=replace(accelerator, scaleout_bytes_per_second_per_node=network),
        per_node=per_node,
        instance=anchor.instance_type,
        price=own or _market_price(on_demand, Market.ON_DEMAND),
        spot=None if own else _market_price(spot, Market.SPOT) if spot else None,
    )


def _lowest(offers: list[Offer], market: Market) -> Offer | None:
    priced = [offer for offer in offers if offer.usd_per_hour(market) is not None]
    return min(priced, key=lambda offer: (offer.usd_per_hour(market), offer.region), default=None)


def _market_price(offer: Offer | None, market: Market) -> Price:
    if offer is None:
        return UNPRICED
    return Price(
        market=market.value,
        usd_per_hour=offer.usd_per_accelerator_hour(market),
        source=f"{offer.cloud} {offer.instance_type} {offer.region}: {offer.provenance.source}",
        as_of=offer.provenance.as_of,
    )


def _node_counts(resources: Resources, stage: Stage, place: Place) -> tuple[int, ...]:
    fixed = stage.resources.num_nodes if stage.resources and stage.resources.num_nodes else resources.num_nodes
    if place.infra == LOCAL:
        return (1,)
    if fixed is not None:
        return (fixed,)
    counts = [1]
    while counts[-1] * 2 <= resources.max_nodes:
        counts.append(counts[-1] * 2)
    return tuple(counts)


def _affordable(place: Place, resources: Resources, refused: list[Refused]) -> bool:
    limit, price = resources.max_hourly_cost, place.price.usd_per_hour
    if limit is None or price is None or price * place.per_node <= limit:
        return True
    hourly = price * place.per_node
    refused.append(
        Refused(option=place.label, reason=f"${hourly:,.2f} per hour is above resources.max_hourly_cost ${limit:,.2f}")
    )
    return False


def _cheapest_first(found: list[Place]) -> list[Place]:
    """Sorted by accelerator, then price; unpriced last."""
    return sorted(
        found,
        key=lambda place: (
            place.accelerator.name,
            place.per_node,
            place.price.usd_per_hour is None,
            place.price.usd_per_hour or 0.0,
            place.infra,
        ),
    )

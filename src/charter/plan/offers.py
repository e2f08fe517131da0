"""Every place where a stage could run: accelerators, nodes, providers, regions, quotas, the price of an hour there."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from charter.catalog import accelerators, price_book
from charter.catalog.accelerators import CPU, Accelerator
from charter.catalog.price_book import Market, Offer, PriceBook
from charter.errors import InfeasibleError, UsageError
from charter.plan.machine import Machine
from charter.spec.project import Place as AllowedPlace
from charter.spec.project import Project, Resources
from charter.spec.stage import TRAINS
from charter.spec.stage_base import Stage
from charter.units import format_machines

# -------- Place that a stage could run at: accelerator, number per node, nodes, and the price of an hour there.

LOCAL, ON_PREM = "local", "on_prem"
OWN_MACHINES = frozenset({ON_PREM, "slurm"})
"""A cluster under Slurm is planned as one's own, whoever owns it: its machines are fixed in number, cost while they
wait, and one that fails is back after its repair; a cloud gives another."""
NOT_RENTED = OWN_MACHINES | {LOCAL}
ANY = "any"
CAPACITY_BLOCK = "capacity_block"
NODES_OF_A_REPLICA = 4
"""Nodes over which a model that answers may be spread, and only where fewer cannot hold it (judgement)."""


@dataclass(frozen=True, kw_only=True)
class Price:
    """Price per hour of one accelerator (or, on a local machine, of the machine) in one market."""

    market: str
    """`on_demand`, `spot`, `reserved_1y`, `reserved_3y`, `capacity_block`, `owned`, `contract` or `unpriced`."""
    usd_per_hour: float | None
    source: str
    as_of: str
    region: str | None = None
    """Where it is offered, when the price book says so."""


UNPRICED = Price(market="unpriced", usd_per_hour=None, source="no price known", as_of="")


@dataclass(frozen=True, kw_only=True)
class NodeOffer:
    """One kind of node at one provider."""

    infra: str
    region: str | None
    accelerator: Accelerator
    per_node: int
    """Accelerators of a node; 1 stands for the processors of a local machine."""
    processes: int = 1
    """Into which the processors of a local machine are divided; `accelerator` is what one of them has."""
    instance: str
    price: Price
    spot: Price | None = None
    nodes: tuple[int, ...] = (1,)
    """Node counts to consider."""
    reserved: tuple[Price, ...] = ()
    """Prices under a commitment of one or three years."""
    pool: str = ""
    """Names the nodes that all stages at this place share; empty where more can always be rented."""
    pool_nodes: int | None = None
    """How many there are in it."""
    lead_seconds: float = 0.0
    """From asking for the capacity to having it."""
    queue_seconds: float = 0.0
    """Median wait in the queue before each stage."""
    memory_bytes: float | None = None
    """System memory of a node, where the project says it."""
    slowdown: float = 1.0
    """Time on the clock over processor time, on this machine: more than 1 where other programs are at work."""

    @property
    def is_cpu(self) -> bool:
        """Return True if the processors do the work."""
        return self.accelerator.kind == CPU

    @property
    def hardware(self) -> str:
        """`H100-SXM-80GB:8`, `cpu`, or `cpu:4` for four processes."""
        if self.is_cpu:
            return CPU if self.processes == 1 else f"{CPU}:{self.processes}"
        return f"{self.accelerator.name}:{self.per_node}"

    @property
    def where(self) -> str:
        """`on aws`, `on premises`, `on this machine`."""
        return {LOCAL: "on this machine", ON_PREM: "on premises"}.get(self.infra, f"on {self.infra}")

    def machines(self, nodes: int) -> str:
        """`4 nodes x 8 H100-SXM-80GB`."""
        return self.hardware if self.is_cpu else format_machines(self.accelerator.name, self.per_node, nodes)

    @property
    def label(self) -> str:
        """`H100-SXM-80GB:8 on aws`."""
        return f"{self.hardware} {self.where}"


@dataclass(frozen=True, kw_only=True)
class RefusedPlace:
    """A place that was asked for and cannot be used."""

    option: str
    reason: str


def may_run_here(project: Project) -> bool:
    """Return True if a stage of the project may run on this machine."""
    resources = project.resources
    if resources.any_of:
        return any(place.infra == LOCAL for place in resources.any_of)
    if resources.infra is not None:
        return resources.infra == LOCAL
    if resources.clouds and LOCAL not in resources.clouds:
        return False
    return not resources.accelerators or is_cpu_request(resources.accelerators[0])


def is_cpu_request(accelerators: str) -> bool:
    """Return True if `cpu`, or `cpu:4` for four processes, is requested.

    >>> is_cpu_request("cpu:4"), is_cpu_request("H100:4")
    (True, False)
    """
    return accelerators.partition(":")[0] == CPU


def control_place(machine: Machine | None) -> NodeOffer:
    """The machine that runs Charter, for stages without a model; nothing is rented for them."""
    controller = machine or _SMALL_MACHINE
    return NodeOffer(
        infra=LOCAL,
        region=None,
        accelerator=controller.processor(threads=1),
        per_node=1,
        instance="the machine that runs Charter",
        price=NOTHING_RENTED,
    )


NOTHING_RENTED = Price(
    market="own", usd_per_hour=0.0, source="nothing is rented for a stage without a model here", as_of=""
)


_SMALL_MACHINE = Machine(
    name="not probed", cores=1, memory_bytes=8e9, flops_per_second=5e10, memory_bytes_per_second=1e10
)
"""Stands for the control machine in a plan that does not probe it."""


# -------- Providers that a plan may use, and what charter.yaml says about each: prices of one's own, nodes, waits.


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
                lead_seconds=0.0 if infra in NOT_RENTED else resources.lead_time or 0.0,
                queue_seconds=0.0 if infra == LOCAL else resources.queue_wait or 0.0,
            )


def _allowed(infra: str, resources: Resources) -> bool:
    return not resources.clouds or infra in resources.clouds


def _entry_site(index: int, entry: AllowedPlace, resources: Resources) -> Site:
    where = f"resources.any_of[{index}]"
    rented = entry.infra not in NOT_RENTED
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


# -------- Every place where a stage could run: the providers that are allowed, what they offer, what is to be had of
# it.

NO_OFFER = "no such offer"
OWNED_SOURCE = "cost of ownership, middle scenario (charter.cost.own_hardware)"


def places(
    project: Project, stage: Stage, machine: Machine | None, book: PriceBook | None = None
) -> tuple[tuple[NodeOffer, ...], tuple[RefusedPlace, ...]]:
    """Every place where a stage could run, the cheapest offer of each provider and accelerator; and what fell out.

    `book` is the bundled price book unless given.
    """
    resources = project.resources
    prices = book or PriceBook.bundled()
    wanted = stage.resources.accelerators if stage.resources and stage.resources.accelerators else None
    threads = (stage.resources.cpus if stage.resources else None) or resources.cpus or _share(resources, machine)
    candidates: list[NodeOffer] = []
    refused: list[RefusedPlace] = []
    for site in sites(resources, prices):
        for text in requests((wanted,) if wanted else site.names, site, prices, machine):
            option = _place(site, text, resources, prices, machine, threads, is_spread=stage.kind in TRAINS)
            if isinstance(option, NodeOffer):
                option = _with_nodes(option, resources, stage)
            if isinstance(option, RefusedPlace):
                refused.append(option)
            else:
                candidates.append(option)
    affordable = [place for place in candidates if _affordable(place, resources, spot_of(project, stage), refused)]
    if not affordable:
        reasons = "\n".join(_refusals(refused, prices)) or _no_site(resources)
        raise InfeasibleError(f"no place offers what resources ask for\n{reasons}")
    return tuple(_cheapest_first(affordable)), tuple(refused)


def _refusals(refused: list[RefusedPlace], book: PriceBook) -> Iterator[str]:
    """Yield a line for each request that is refused for one reason, with all its places; sizes that are offered."""
    places: dict[tuple[str, str], list[str]] = {}
    for item in refused:
        request, _, place = item.option.partition(" on ")
        places.setdefault((request, item.reason), []).append(place)
    for (request, reason), where in places.items():
        name = request.partition(":")[0]
        sizes = book.machine_sizes(name) if reason.startswith(NO_OFFER) else ()
        counts = " or ".join(", ".join(map(str, sizes)).rsplit(", ", 1))
        has = f"; the machines on offer have {counts}, and resources.max_nodes takes several of them"
        yield f"  {request} on {', '.join(where)}: {reason}{has if sizes else ''}"


def _no_site(resources: Resources) -> str:
    allowed = f"{', '.join(resources.clouds)}" + (f" in {', '.join(resources.regions)}" if resources.regions else "")
    return f"  nothing is left of infra and any_of with resources.clouds: {allowed}"


def _share(resources: Resources, machine: Machine | None) -> int | None:
    """Cores of a stage that says nothing: the machine divided by the stages that may run side by side."""
    return None if machine is None else max(1, machine.cores // max(1, resources.max_parallel_stages))


def _place(
    site: Site,
    text: str,
    resources: Resources,
    book: PriceBook,
    machine: Machine | None,
    threads: int | None,
    *,
    is_spread: bool,
) -> NodeOffer | RefusedPlace:
    name, per_node = accelerators.parse_request(text)
    if site.infra == LOCAL:
        return _local(name, per_node, site.price, machine, threads, is_spread=is_spread)
    if name == CPU:
        return RefusedPlace(option=f"cpu on {site.infra}", reason="models on rented processors are not planned yet")
    accelerator = accelerators.get(name)
    if site.infra in OWN_MACHINES:
        place: NodeOffer | RefusedPlace = NodeOffer(
            infra=site.infra,
            region=site.region,
            accelerator=at_machine(accelerator, per_node, resources.network),
            per_node=per_node,
            instance="own node",
            price=site.price or _owned(name),
            memory_bytes=resources.memory,
        )
    else:
        place = _rented(site, accelerator, per_node, resources, book)
    if isinstance(place, RefusedPlace):
        return place
    return replace(
        place,
        pool=site.pool,
        pool_nodes=site.pool_nodes,
        lead_seconds=site.lead_seconds,
        queue_seconds=site.queue_seconds,
    )


def _owned(name: str) -> Price:
    # Costs of machines of one's own, which rented ones do without.
    from charter.cost.own_hardware import SERVERS, listed_server, owned_usd_per_accelerator_hour

    if name not in SERVERS:
        return UNPRICED
    usd = owned_usd_per_accelerator_hour(listed_server(name))
    return Price(market="owned", usd_per_hour=usd, source=OWNED_SOURCE, as_of="2026")


def _local(
    name: str, per_node: int, own: Price | None, machine: Machine | None, threads: int | None, *, is_spread: bool
) -> NodeOffer | RefusedPlace:
    """On this machine; of its processors, `cpu:4` for a stage that is spread means four processes that divide them."""
    if machine is None:
        raise UsageError("a local plan needs the probe of the machine")
    processes = per_node if name == CPU and is_spread else 1
    slowdown = 1.0
    if name == CPU:
        threads = min(threads or machine.cores, machine.cores)
        accelerator, count = machine.processor(threads=max(1, threads // processes)), 1
        slowdown = machine.slowdown(threads)
    elif machine.gpu_name is None:
        return RefusedPlace(
            option=f"{name}:{per_node} on this machine", reason="nvidia-smi shows no accelerator on this machine"
        )
    else:
        accelerator, count = accelerators.get(name), min(per_node, machine.gpu_count)
        if count < per_node:
            return RefusedPlace(
                option=f"{name}:{per_node} on this machine", reason=f"this machine has {count} x {machine.gpu_name}"
            )
    return NodeOffer(
        infra=LOCAL,
        region=None,
        accelerator=accelerator,
        per_node=count,
        processes=processes,
        instance=machine.name,
        price=own or UNPRICED,
        slowdown=slowdown,
    )


def _rented(
    site: Site, accelerator: Accelerator, per_node: int, resources: Resources, book: PriceBook
) -> NodeOffer | RefusedPlace:
    offers = [
        offer
        for offer in book.offers(accelerator.name, cloud=site.infra, region=site.region)
        if offer.whole_machine and _in_regions(offer, resources)
    ]
    matching = [offer for offer in offers if offer.count == per_node and not offer.scales]
    if not matching and per_node == accelerator.devices_per_node:
        matching = [offer for offer in offers if offer.scales]
    best = {market: _lowest(matching, market) for market in Market}
    anchor = best[Market.ON_DEMAND] or best[Market.SPOT] or best[Market.RESERVED_1Y] or best[Market.RESERVED_3Y]
    if anchor is None:
        if site.price is None:
            option = f"{accelerator.name}:{per_node} on {site.infra}" + (f" {site.region}" if site.region else "")
            where = f" in {', '.join(resources.regions)}" if resources.regions else ""
            reason = f"{NO_OFFER}{where} in the price snapshot; set resources.price to plan it"
            return RefusedPlace(option=option, reason=reason)
        return NodeOffer(
            infra=site.infra,
            region=site.region,
            accelerator=at_machine(accelerator, per_node, resources.network),
            per_node=per_node,
            instance="by contract",
            price=site.price,
        )
    network = resources.network or anchor.network_bytes_per_second
    reserved = [best[market] for market in (Market.RESERVED_1Y, Market.RESERVED_3Y)]
    years = zip(reserved, (Market.RESERVED_1Y, Market.RESERVED_3Y), strict=True)
    spot = best[Market.SPOT]
    return NodeOffer(
        infra=site.infra,
        region=anchor.region,
        accelerator=at_machine(accelerator, per_node, network),
        per_node=per_node,
        instance=anchor.instance_type,
        price=site.price or _market_price(best[Market.ON_DEMAND], Market.ON_DEMAND),
        spot=None if site.price or spot is None else _market_price(spot, Market.SPOT),
        reserved=() if site.price else tuple(_market_price(offer, market) for offer, market in years if offer),
    )


SMALL_MACHINE_BYTES_PER_SECOND = 6.25e9
"""50 Gbit/s: of a machine with fewer accelerators than the usual one, where neither the offer nor the file says more.
Judgement, November 2026: clouds give such machines 25 to 100 Gbit/s and a share of the host's cards."""


def at_machine(accelerator: Accelerator, per_node: int, network_bytes_per_second: float | None) -> Accelerator:
    """Return the accelerator as it is in a machine with so many of them: its fast link ends with the machine.

    Links that join racks stay as they are. The network is that of the machine, all cards together.

    >>> one = at_machine(accelerators.get("H100"), 1, None)
    >>> one.devices_per_node, one.scaleup_domain, one.scaleout_bytes_per_second_per_node
    (1, 1, 6250000000.0)
    """
    usual, domain = accelerator.devices_per_node, accelerator.scaleup_domain
    if domain <= usual:
        domain = per_node if domain == usual > 1 else min(domain, per_node)
    network = network_bytes_per_second or accelerator.scaleout_bytes_per_second_per_node
    if network_bytes_per_second is None and network is not None and per_node < usual:
        network = min(network * per_node / usual, SMALL_MACHINE_BYTES_PER_SECOND)
    return replace(
        accelerator,
        devices_per_node=per_node,
        scaleup_domain=max(1, domain),
        scaleout_bytes_per_second_per_node=network,
    )


def _in_regions(offer: Offer, resources: Resources) -> bool:
    return not resources.regions or offer.region == "all" or offer.region in resources.regions


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
        region=offer.region,
    )


def _with_nodes(place: NodeOffer, resources: Resources, stage: Stage) -> NodeOffer | RefusedPlace:
    """The place with the node counts to consider: powers of two, and the most that may be held."""
    if place.infra == LOCAL:
        return replace(place, nodes=(1,))
    fixed = stage.resources.num_nodes if stage.resources and stage.resources.num_nodes else resources.num_nodes
    limits = {
        "resources.max_nodes": resources.max_nodes,
        "its nodes in resources.any_of": place.pool_nodes,
        "resources.quota": _quota_nodes(place, resources),
    }
    given = {name: most for name, most in limits.items() if most is not None}
    name, most = min(given.items(), key=lambda item: item[1])
    if most < (fixed or 1):
        return RefusedPlace(option=place.label, reason=f"{name} allows {most} nodes; asked for {fixed or 1}")
    if fixed is not None:
        return replace(place, nodes=(fixed,))
    counts = [1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return replace(place, nodes=tuple(counts if counts[-1] == most else [*counts, most]))


def _quota_nodes(place: NodeOffer, resources: Resources) -> int | None:
    quota = quota_of(resources).get(place.accelerator.name)
    return None if quota is None else quota // place.per_node


def quota_of(resources: Resources) -> dict[str, int]:
    """Accelerators that may be held at once, by their name in the catalog."""
    return {accelerators.get(name).name: most for name, most in resources.quota.items()}


def spot_of(project: Project, stage: Stage) -> bool | str:
    """Return the markets that a stage may take: what `use_spot` of the stage says, or that of the project."""
    own = stage.resources.use_spot if stage.resources is not None else None
    return project.resources.use_spot if own is None else own


def _affordable(place: NodeOffer, resources: Resources, use_spot: bool | str, refused: list[RefusedPlace]) -> bool:
    """Return True if a machine of a place is cheap enough in one of the markets that the stage may take."""
    committed = (price for price in place.reserved if price.market == f"reserved_{resources.reserved}")
    prices = () if use_spot is True else (place.price, *committed)
    prices += (place.spot,) if use_spot and place.spot is not None else ()
    dear = [price for price in prices if not is_within_hourly_cost(place, price, resources)]
    if len(dear) < len(prices) or not dear:
        return True
    lowest = min((price.usd_per_hour or 0.0) * place.per_node for price in dear)
    reason = f"${lowest:,.2f} per hour is above resources.max_hourly_cost ${resources.max_hourly_cost:,.2f}"
    refused.append(RefusedPlace(option=place.label, reason=reason))
    return False


def is_within_hourly_cost(place: NodeOffer, price: Price, resources: Resources) -> bool:
    """Return True if one machine of a place costs no more per hour, at a price, than the project allows."""
    limit, usd = resources.max_hourly_cost, price.usd_per_hour
    return limit is None or usd is None or usd * place.per_node <= limit


def _cheapest_first(options: list[NodeOffer]) -> list[NodeOffer]:
    """Sorted by accelerator, then price; unpriced last."""
    return sorted(
        options,
        key=lambda place: (
            place.accelerator.name,
            place.per_node,
            place.price.usd_per_hour is None,
            place.price.usd_per_hour or 0.0,
            place.infra,
        ),
    )


# -------- System memory of the nodes that an accelerator is rented in.

HOST_BYTES_PER_ACCELERATOR = 128e9
"""Of a node where no offer of the accelerator says it; judgement."""


def node_memory_bytes(place: NodeOffer) -> float:
    """System memory of a node: as the project says, else the smallest that is offered with its accelerators."""
    return known_memory_bytes(place) or HOST_BYTES_PER_ACCELERATOR * place.per_node


def known_memory_bytes(place: NodeOffer) -> float | None:
    """The same, but None where neither the project nor any offer says it."""
    if place.memory_bytes is not None:
        return place.memory_bytes
    each = host_bytes_per_accelerator(place.accelerator.name, place.per_node)
    return None if each is None else each * place.per_node


@lru_cache(maxsize=256)
def host_bytes_per_accelerator(accelerator: str, per_node: int) -> float | None:
    """System memory per accelerator of the smallest node that any provider offers with it; None where none says it.

    >>> (host_bytes_per_accelerator("H100-SXM-80GB", 8) or 0) > 150e9, host_bytes_per_accelerator("none such", 8)
    (True, None)
    """
    shares = [
        offer.host_memory_bytes / offer.count
        for offer in price_book.offers()
        if offer.accelerator == accelerator and offer.count == per_node and offer.host_memory_bytes
    ]
    return min(shares, default=None)

"""Place that a stage could run at: accelerator, number per node, nodes, and the price of an hour there."""

from dataclasses import dataclass

from charter.catalog.accelerators import CPU, Accelerator
from charter.plan.hardware.machine import Machine
from charter.spec.project import Project

LOCAL, ON_PREM = "local", "on_prem"
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
class Place:
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
    def label(self) -> str:
        """`H100-SXM-80GB:8 on aws`."""
        return f"{self.hardware} on {self.infra}"


@dataclass(frozen=True, kw_only=True)
class Refused:
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


def control_place(machine: Machine | None) -> Place:
    """The machine that runs Charter, for stages without a model; nothing is rented for them."""
    controller = machine or _SMALL_MACHINE
    return Place(
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

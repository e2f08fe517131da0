"""How many spare nodes keep a job at full size, and whether they are worth their price."""

import math
from dataclasses import dataclass

HOURS_PER_MONTH = 720.0


def spare_nodes(*, num_nodes: int, failures_per_node_day: float, repair_days: float, availability: float = 0.99) -> int:
    """Smallest number s of spares with P(nodes in repair > s) < 1 - availability.

    Nodes in repair are Poisson with mean `N r T_repair` (M/G/infinity, any distribution of repair time).
    It assumes independent failures; a switch that takes out a rack is outside it.

    >>> spare_nodes(num_nodes=128, failures_per_node_day=6.5e-3, repair_days=3)
    7
    """
    mean = num_nodes * failures_per_node_day * repair_days
    log_term = -mean
    below = math.exp(log_term)
    spares = 0
    while 1 - below >= 1 - availability:
        spares += 1
        log_term += math.log(mean) - math.log(spares)
        below += math.exp(log_term)
    return spares


def waiting_share(*, num_nodes: int, failures_per_node_day: float, repair_days: float, spares: int) -> float:
    """Share of time in which a job of full size waits for a repair: Erlang's loss formula B(spares + 1, mu).

    mu = N r T_repair. Nodes fail while the job runs; with s spares it stops when s + 1 nodes are in repair, which is a
    loss system of s + 1 servers, whatever the distribution of repair times. Computed by the usual recursion
    `B(k) = mu B(k-1) / (k + mu B(k-1))`.

    >>> round(waiting_share(num_nodes=128, failures_per_node_day=6.5e-3, repair_days=3, spares=0), 3)
    0.714
    """
    mean = num_nodes * failures_per_node_day * repair_days
    blocked = 1.0
    for servers in range(1, spares + 2):
        blocked = mean * blocked / (servers + mean * blocked)
    return blocked


@dataclass(frozen=True, kw_only=True)
class SpareWorth:
    """What a number of spare nodes saves and costs in a month of 720 hours."""

    spares: int
    hours_saved: float
    """Hours in which the whole job would wait for a repair without them."""
    node_hours_saved: float
    """The same in hours of nodes: the job's nodes stand still together."""
    node_hours_cost: float

    @property
    def pays(self) -> bool:
        """`hours saved x nodes x price > spares x 720 x price`; the price of a node is on both sides."""
        return self.node_hours_saved > self.node_hours_cost


def spare_worth(*, num_nodes: int, failures_per_node_day: float, repair_days: float, spares: int) -> SpareWorth:
    """What `spares` save and cost: hours waiting with none less hours waiting with them, against their rent.

    `repair_days` is the time until a failed node is replaced: a repair on own machines, minutes in a cloud.

    >>> spare_worth(num_nodes=128, failures_per_node_day=6.5e-3, repair_days=3, spares=7).pays
    True
    >>> spare_worth(num_nodes=8, failures_per_node_day=6.5e-3, repair_days=3, spares=2).pays
    False
    """
    fixed = {"num_nodes": num_nodes, "failures_per_node_day": failures_per_node_day, "repair_days": repair_days}
    without, with_them = (waiting_share(**fixed, spares=count) for count in (0, spares))  # type: ignore[arg-type]
    hours = HOURS_PER_MONTH * (without - with_them)
    return SpareWorth(
        spares=spares,
        hours_saved=hours,
        node_hours_saved=hours * num_nodes,
        node_hours_cost=spares * HOURS_PER_MONTH,
    )


def best_spares(*, num_nodes: int, failures_per_node_day: float, repair_days: float) -> int:
    """The number of spares, up to the 99 % quantile, that saves most node-hours after its own are paid; 0 if none do.

    >>> best_spares(num_nodes=128, failures_per_node_day=6.5e-3, repair_days=3)
    6
    >>> best_spares(num_nodes=4, failures_per_node_day=6.5e-3, repair_days=3)
    0
    """
    most = spare_nodes(num_nodes=num_nodes, failures_per_node_day=failures_per_node_day, repair_days=repair_days)

    def net(spares: int) -> float:
        worth = spare_worth(
            num_nodes=num_nodes,
            failures_per_node_day=failures_per_node_day,
            repair_days=repair_days,
            spares=spares,
        )
        return worth.node_hours_saved - worth.node_hours_cost

    return max(range(most + 1), key=net)

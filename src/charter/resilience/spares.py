"""How many spare nodes keep a job at full size."""

import math


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

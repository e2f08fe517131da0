"""How often a job of many nodes is interrupted."""

import math
from dataclasses import dataclass

HOURS_PER_DAY = 24.0


@dataclass(frozen=True, kw_only=True)
class NodeFailureRate:
    """Unexpected interruptions per node and day, with the fleet it was seen on."""

    per_node_day: float
    source: str


LLAMA3_H100 = NodeFailureRate(
    per_node_day=3.79e-3,
    source="Llama 3 paper, table 5: 419 unexpected interruptions in 54 days on 2,048 nodes of 8 H100",
)
META_RSC1_A100 = NodeFailureRate(
    per_node_day=6.50e-3,
    source="Kokolis et al. 2024 (arXiv:2410.21680), RSC-1: 6.50 per 1,000 node-days (second-hand)",
)
META_RSC2_A100 = NodeFailureRate(
    per_node_day=2.34e-3,
    source="Kokolis et al. 2024 (arXiv:2410.21680), RSC-2: 2.34 per 1,000 node-days (second-hand)",
)
BLOOM_A100 = NodeFailureRate(
    per_node_day=2.98e-3,
    source="BLOOM-176B logbook: about one GPU a week on 48 nodes of 8 A100; hangs of software are not in it",
)
OPT_A100 = NodeFailureRate(per_node_day=15.6e-3, source="OPT-175B logbook: about 2 machines a day out of 128")

PUBLISHED = {
    "llama3": LLAMA3_H100,
    "rsc1": META_RSC1_A100,
    "rsc2": META_RSC2_A100,
    "bloom": BLOOM_A100,
    "opt": OPT_A100,
}
"""The rates above by a short name."""


def mean_between_failures_seconds(
    *, num_nodes: int, failures_per_node_day: float, preemptions_per_hour: float = 0.0
) -> float:
    """Mean seconds between interruptions of a job; rates of independent causes add.

    `1/M = N r / 24 h + preemptions per hour`; infinite when nothing ever fails. The preemption rate is that
    of the whole gang, not per node: preemptions of one pool are correlated. The hardware term grows with N;
    it explains large jobs only (a 1,024-GPU job on RSC-1 failed 3.6 times as often as its node rate says).

    >>> round(mean_between_failures_seconds(num_nodes=2048, failures_per_node_day=3.79e-3) / 3600, 2)
    3.09
    """
    per_hour = num_nodes * failures_per_node_day / HOURS_PER_DAY + preemptions_per_hour
    return math.inf if per_hour == 0 else 3600.0 / per_hour

"""Interruptions of a job of many nodes: rates, detection, spare nodes, notices, and seconds of a save."""

import math
from dataclasses import dataclass

from charter.errors import UsageError
from charter.units import HOURS_PER_MONTH

# -------- Seconds to write or read a checkpoint; `physics/node.py` has its size.


def transfer_seconds(
    num_bytes: float,
    *,
    bytes_per_second_per_writer: float,
    num_writers: int = 1,
) -> float:
    """Seconds to write (or read) a checkpoint: bytes over the rate of the writers together.

    >>> transfer_seconds(2.3e12, bytes_per_second_per_writer=1.2e9, num_writers=48)
    39.93055555555556
    """
    return num_bytes / (bytes_per_second_per_writer * num_writers)


# -------- Value of a warning before a preemption: AWS gives 120 s, GCP 30 s (their docs), Azure 30 s (from memory).

NOTICE_SUCCESS = 0.9
"""Share of preemptions whose notice is seen in time; AWS calls it best effort. Judgement."""


def notice_success(*, save_seconds: float, notice_seconds: float) -> float:
    """Share of preemptions before which one more checkpoint is written: none where a save does not fit the notice.

    >>> notice_success(save_seconds=20, notice_seconds=120), notice_success(save_seconds=60, notice_seconds=30)
    (0.9, 0.0)
    """
    return NOTICE_SUCCESS if 0 < save_seconds <= notice_seconds else 0.0


# -------- Interruption rate of a job of many nodes.

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


@dataclass(frozen=True, kw_only=True)
class JobFailureRate:
    """Crashes of code, memory and servers per day of a running job, however many nodes it has."""

    per_day: float
    source: str


LLAMA3_SOFTWARE = JobFailureRate(
    per_day=1.0,
    source="Llama 3 paper, table 5: 54 software bugs in 54 days of one run; that a job of any size has as many is "
    "judgement (at 2,048 nodes an eighth of the node rate is counted twice so)",
)
PUBLISHED = {
    "llama3": LLAMA3_H100,
    "rsc1": META_RSC1_A100,
    "rsc2": META_RSC2_A100,
    "bloom": BLOOM_A100,
    "opt": OPT_A100,
}
"""The rates above by a short name."""


def mean_between_failures_seconds(
    *,
    num_nodes: int,
    failures_per_node_day: float,
    preemptions_per_hour: float = 0.0,
    job_failures_per_day: float = 0.0,
) -> float:
    """Mean seconds between interruptions of a job; rates of independent causes add.

    `1/M = N r / 24 h + s / 24 h + preemptions per hour`; infinite when nothing ever fails. The preemption rate is that
    of the whole gang, not per node: preemptions of one pool are correlated. The hardware term grows with N and
    explains large jobs only (a 1,024-GPU job on RSC-1 failed 3.6 times as often as its node rate says); software fails
    per job (s), whatever its size.

    >>> round(mean_between_failures_seconds(num_nodes=2048, failures_per_node_day=3.79e-3) / 3600, 2)
    3.09
    """
    per_day = num_nodes * failures_per_node_day + job_failures_per_day
    per_hour = per_day / HOURS_PER_DAY + preemptions_per_hour
    return math.inf if per_hour == 0 else 3600.0 / per_hour


@dataclass(frozen=True, kw_only=True)
class Detection:
    """Seconds between a failure and the moment that somebody acts on it, with where the figure comes from."""

    seconds: float
    source: str


SLURM = Detection(
    seconds=300.0,
    source="Slurm: SlurmdTimeout, 300 s unless set otherwise (slurm.conf): a silent node is DOWN, its jobs are ended",
)
KUBERNETES = Detection(
    seconds=380.0,
    source="Kubernetes: node-monitor-grace-period 50 s (older releases: 40 s) + toleration of an unreachable node 300 "
    "s + grace period of the pod 30 s, all unless set otherwise",
)
RAY = Detection(
    seconds=65.0,
    source="Ray: the head gives a node up after 5 checks without an answer in 10 s, 3 s apart (ray_config_def.h: "
    "health_check_failure_threshold, _timeout_ms, _period_ms), all unless set otherwise",
)
NCCL = Detection(
    seconds=600.0,
    source="PyTorch: NCCL process groups time out after 10 min (kProcessGroupNCCLDefaultTimeout; pull request 110947)",
)
WATCHDOG = Detection(
    seconds=120.0,
    source="a supervisor that restarts a stage without progress after 2 min; judgement, ByteRobust reports 10 to 30 s",
)
SILENT_SECONDS = 20.0
"""Five beats of a node's agent: one that has been silent for so long, while an agent beside it was not, is lost. A
scheduler may need minutes to say so (Slurm's `SlurmdTimeout` is 300 s where nobody has set it)."""
AGENTS = Detection(
    seconds=28.0,
    source=f"Charter's agents on several nodes: one that is silent for {SILENT_SECONDS:g} s while another is not is "
    "lost, and the others end; seen after 21 to 28 s (benchmarks/node_loss.py, frozen nodes of Ray)",
)
UNDISTURBED = Detection(seconds=0.0, source="this machine is not expected to fail")
SPOT_NOTICE = Detection(
    seconds=30.0,
    source="spot: the provider announces it (AWS 2 min, GCP 30 s before); notices are polled, 30 s is judgement",
)
CRASH = Detection(
    seconds=30.0,
    source="whoever started a process sees at the next look that it has ended; 30 s is judgement",
)
BY_SCHEDULER = {"slurm": SLURM, "ray": RAY, "kubernetes": KUBERNETES}
BY_NAME = {**BY_SCHEDULER, "nccl": NCCL, "watchdog": WATCHDOG, "agents": AGENTS}


def detection(wanted: str | float) -> Detection:
    """The delay of a name (`slurm`, `ray`, `kubernetes`, `nccl`, `watchdog`, `agents`), or one's own in seconds.

    These are the times of a node that falls silent or a collective that hangs; a process that crashes is seen at once,
    so they are upper values for a mixture of both. Raises `UsageError` for an unknown name.

    >>> detection("slurm").seconds, detection(45.0).seconds
    (300.0, 45.0)
    """
    if isinstance(wanted, str):
        if wanted not in BY_NAME:
            raise UsageError(f"detection {wanted!r} is not known; it is {', '.join(BY_NAME)}, or a time like 30m")
        return BY_NAME[wanted]
    return Detection(seconds=wanted, source="your own")


def spare_nodes(*, num_nodes: int, failures_per_node_day: float, repair_days: float) -> int:
    """Smallest number s of spares with P(nodes in repair > s) < 1 %.

    Nodes in repair are Poisson with mean `N r T_repair` (M/G/infinity, any distribution of repair time).
    It assumes independent failures; a switch that takes out a rack is outside it.

    >>> spare_nodes(num_nodes=128, failures_per_node_day=6.5e-3, repair_days=3)
    7
    """
    mean = num_nodes * failures_per_node_day * repair_days
    log_term = -mean
    below = math.exp(log_term)
    spares = 0
    while 1 - below >= 1 - 0.99:
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
    """Savings and costs of a number of spare nodes in a month of 730 hours."""

    spares: int
    hours_saved: float
    """Hours in which the whole job would wait for a repair without them."""
    node_hours_saved: float
    """The same in hours of nodes: the job's nodes stand still together."""
    node_hours_cost: float

    @property
    def pays(self) -> bool:
        """`hours saved x nodes x price > spares x 730 x price`; the price of a node is on both sides."""
        return self.node_hours_saved > self.node_hours_cost


def spare_worth(*, num_nodes: int, failures_per_node_day: float, repair_days: float, spares: int) -> SpareWorth:
    """Return the worth of `spares`: hours waiting with none less hours waiting with them, against their rent.

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

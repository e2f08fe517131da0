"""Assumptions of a plan, and what failures, preemptions and checkpoints add to a stage in time and money."""

import math
from dataclasses import dataclass

from charter.plan.knowledge import LOCAL_SIGMA, LOCAL_SIGMA_SOURCE, TRAINING, Knowledge
from charter.plan.offers import LOCAL, OWN_MACHINES, NodeOffer
from charter.resilience.expected_time import ExpectedTime, Interruptions, best_interval_seconds, expected_time
from charter.resilience.failures import (
    AGENTS,
    BY_SCHEDULER,
    CRASH,
    LLAMA3_H100,
    LLAMA3_SOFTWARE,
    META_RSC1_A100,
    NCCL,
    SLURM,
    SPOT_NOTICE,
    UNDISTURBED,
    Detection,
    JobFailureRate,
    NodeFailureRate,
    detection,
    mean_between_failures_seconds,
    notice_success,
    transfer_seconds,
    waiting_share,
)
from charter.resilience.spot import AVAILABILITY, MEAN_UP_HOURS, SPOT_SOURCE, SpotWaits, first_wait_seconds, spot_waits
from charter.spec.sections import RiskSettings

# -------- A number the plan rests on that nobody measured for this project.


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """One assumed value, where it comes from and from when."""

    name: str
    value: str | float | int | bool | None
    source: str
    as_of: str = ""

    def to_json(self) -> dict[str, object]:
        """The four fields."""
        return {"name": self.name, "value": self.value, "source": self.source, "as_of": self.as_of}


# -------- Time and money that failures, preemptions and checkpoints add to a stage, and the width of its range.

CHECKPOINT_BYTES_PER_SECOND_PER_NODE = 1.2e9
CHECKPOINT_SOURCE = "BLOOM-176B: 2.3 TB in 40 s from 48 nodes"
COPY_BYTES_PER_SECOND_PER_NODE = 20e9
COPY_SOURCE = "stall of an asynchronous save, copy to host memory: judgement, half of DLRover's 21 GB in 0.5 s"
LEAST_SAVE_SECONDS = 1.0
RESTART_SECONDS = 300.0
RESTART_SOURCE = "judgement: rescheduling, loading, warm-up; detection comes on top"
START_SECONDS = 300.0
FIRST_LOCAL_START_SECONDS = 3.3
"""From the start of a run's first stage here to its first step: torch and transformers are imported. Median of five
runs of cai-smoke on two quiet cores, 3.2 to 3.4 s (an earlier series of `tools/record_runs.py`, 2026-11)."""
LOCAL_START_SECONDS = 0.25
"""The same of every later stage, which is forked from the process that has imported them: of the same runs; model,
tokenizer and data of a few MB are loaded."""
OWN = "risk: in charter.yaml"
NO_WAIT = "risk.spares: auto takes a node to be at hand whenever one fails; a number of spares plans the wait"
PUBLISHED = RiskSettings()
"""Nothing is known but what was published."""

LENGTH_SIGMA = 0.25
PRICE_SIGMA = 0.05
SIGMA_SOURCE = "judgement (standard deviation of the logarithm), until the ledger has enough runs to measure it"


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """Expected wall and billed seconds of a stage, and what they come from."""

    useful_seconds: float
    wall_seconds: float
    billed_seconds: float
    interval_seconds: float
    save_seconds: float
    """What one save blocks."""
    start_seconds: float
    mean_between_failures_seconds: float
    detection: Detection
    """Delay before the failure of a machine is noticed."""
    spent: ExpectedTime | None = None
    """Where the expected time goes; None where nothing is expected to fail."""
    interval_units: int | None = None
    """Steps or batches between checkpoints."""
    persist_seconds: float = 0.0
    """Until an asynchronous save is durable."""
    waits: SpotWaits | None = None
    """How long a spot pool may make it wait; the mean is in `wall_seconds`."""
    granule_seconds: float = 1.0
    """What a started machine is billed in multiples of."""

    @property
    def median_wall_seconds(self) -> float:
        """Wall time at the median wait: what is waited for is heavy-tailed, so the mean lies above it."""
        return self.wall_seconds if self.waits is None else self.billed_seconds + self.waits.p50


def failure_rate(place: NodeOffer, settings: RiskSettings = PUBLISHED) -> NodeFailureRate:
    """Failures per node and day: the project's own, else RSC-1's for Ampere and older, Llama 3's for later ones."""
    if settings.failures_per_node_day is not None:
        return NodeFailureRate(per_node_day=settings.failures_per_node_day, source=OWN)
    return META_RSC1_A100 if place.accelerator.year <= 2021 else LLAMA3_H100


def software_rate(settings: RiskSettings = PUBLISHED) -> JobFailureRate:
    """Failures of software per day of a job: the project's own, else those of one published run."""
    if settings.software_failures_per_day is not None:
        return JobFailureRate(per_day=settings.software_failures_per_day, source=OWN)
    return LLAMA3_SOFTWARE


def detection_delay(place: NodeOffer, settings: RiskSettings = PUBLISHED, *, agents: bool = False) -> Detection:
    """Return the delay before a failed machine is noticed.

    Own clusters are taken to run Slurm unless they are named by their scheduler, rented machines to wait for NCCL.
    `agents`: the stage has Charter's agents on several nodes, which notice each other's silence; rented machines may be
    started by a script of another launcher (SkyPilot, a managed service), which has none.
    """
    if settings.detection is not None:
        return detection(settings.detection)
    scheduler = SLURM if place.infra in OWN_MACHINES else BY_SCHEDULER.get(place.infra)
    if scheduler is None:
        return NCCL
    return AGENTS if agents else scheduler


def overhead(
    useful_seconds: float,
    *,
    place: NodeOffer,
    num_nodes: int,
    spot: bool,
    checkpoint_bytes: float,
    settings: RiskSettings = PUBLISHED,
    units: float | None = None,
    is_first: bool = False,
    agents: bool = False,
) -> Overhead:
    """Expected wall and billed time around `useful_seconds` of work; see `resilience.expected_time`.

    `units` is the number of steps or batches of the stage: checkpoints fall between them. A stage that writes records
    instead of checkpoints loses at most a batch, so its saves are taken as free. Own machines cost while they wait.
    `is_first`: of the run, which on this machine makes its start longer. `agents`: on more than one node, Charter's
    agents watch each other (`detection_delay`).
    """
    if place.infra == LOCAL:
        start = FIRST_LOCAL_START_SECONDS if is_first else LOCAL_START_SECONDS
        return _without_failures(useful_seconds, start * place.slowdown, UNDISTURBED)
    unseen = detection_delay(place, settings, agents=agents and num_nodes > 1)
    if useful_seconds <= 0:
        return _without_failures(useful_seconds, START_SECONDS, unseen)
    save, persist = _save_seconds(checkpoint_bytes, num_nodes, settings)
    job = interruptions(place, num_nodes, spot=spot, settings=settings, save_seconds=save, unseen=unseen)
    best = best_interval_seconds(useful_seconds, save_seconds=save, interruptions=job, persist_seconds=persist)
    interval, interval_units = _whole_units(best, useful_seconds, units)
    spent = expected_time(
        useful_seconds,
        save_seconds=save,
        persist_seconds=min(persist, interval),
        interval_seconds=interval,
        interruptions=job,
    )
    up, available = spot_pool(settings)
    pool = {"mean_up_seconds": up, "availability": available}
    first_wait = first_wait_seconds(**pool) if spot else 0.0
    wall = spent.wall_seconds + first_wait + START_SECONDS
    return Overhead(
        useful_seconds=useful_seconds,
        wall_seconds=wall,
        billed_seconds=wall if place.infra in OWN_MACHINES else spent.billed_seconds + START_SECONDS,
        interval_seconds=interval,
        interval_units=interval_units,
        save_seconds=save,
        persist_seconds=persist,
        start_seconds=START_SECONDS,
        mean_between_failures_seconds=job.mean_between_failures_seconds,
        detection=unseen,
        spent=spent,
        waits=spot_waits(spent.billed_seconds, **pool) if spot and math.isfinite(spent.billed_seconds) else None,
    )


def _without_failures(useful_seconds: float, start_seconds: float, unseen: Detection) -> Overhead:
    total = useful_seconds + start_seconds
    return Overhead(
        useful_seconds=useful_seconds,
        wall_seconds=total,
        billed_seconds=total,
        interval_seconds=useful_seconds,
        save_seconds=0.0,
        start_seconds=start_seconds,
        mean_between_failures_seconds=math.inf,
        detection=unseen,
    )


def _save_seconds(checkpoint_bytes: float, num_nodes: int, settings: RiskSettings) -> tuple[float, float]:
    """Return the seconds for which a save blocks, and those after which it is durable."""
    write = transfer_seconds(
        checkpoint_bytes,
        bytes_per_second_per_writer=settings.save_bandwidth or CHECKPOINT_BYTES_PER_SECOND_PER_NODE,
        num_writers=num_nodes,
    )
    if not settings.async_saves:
        return max(write, LEAST_SAVE_SECONDS), 0.0
    copy = transfer_seconds(
        checkpoint_bytes, bytes_per_second_per_writer=COPY_BYTES_PER_SECOND_PER_NODE, num_writers=num_nodes
    )
    return max(copy, LEAST_SAVE_SECONDS), write


def _whole_units(interval: float, useful_seconds: float, units: float | None) -> tuple[float, int | None]:
    """The interval in whole steps: the optimum is flat, so that rounding costs nothing that can be measured."""
    if units is None or units < 1:
        return interval, None
    count = max(1, round(interval * units / useful_seconds))
    return min(useful_seconds, count * useful_seconds / units), count


def spot_pool(settings: RiskSettings) -> tuple[float, float]:
    """Mean seconds that the pool keeps a job's machines, and the share of time in which it has them."""
    up = MEAN_UP_HOURS * 3600 if settings.spot_mean_up is None else settings.spot_mean_up
    return up, AVAILABILITY if settings.spot_availability is None else settings.spot_availability


def interruptions(
    place: NodeOffer,
    num_nodes: int,
    *,
    spot: bool,
    unseen: Detection,
    settings: RiskSettings = PUBLISHED,
    save_seconds: float = 0.0,
) -> Interruptions:
    """Failures of machines and software, and preemptions: rates add, delays and waits are weighted by them.

    A crash of software is seen at once, is restarted like after a failed machine, and waits for no repair.
    """
    rate, software = failure_rate(place, settings).per_node_day, software_rate(settings).per_day
    restart = RESTART_SECONDS if settings.restart is None else settings.restart
    up, available = spot_pool(settings)
    failing, crashing = num_nodes * rate / 86400, software / 86400
    preempted = 1 / up if spot else 0.0
    together = failing + crashing + preempted
    share, of_machines, of_software = (part / together if together else 0.0 for part in (preempted, failing, crashing))
    outage = up * (1 - available) / available
    repair = _repair_wait_seconds(place, num_nodes, rate, settings)
    return Interruptions(
        mean_between_failures_seconds=mean_between_failures_seconds(
            num_nodes=num_nodes,
            failures_per_node_day=rate,
            preemptions_per_hour=3600 * preempted,
            job_failures_per_day=software,
        ),
        restart_seconds=restart,
        detection_seconds=share * SPOT_NOTICE.seconds + of_machines * unseen.seconds + of_software * CRASH.seconds,
        capacity_wait_seconds=share * outage + of_machines * repair,
        notice_success=share * notice_success(save_seconds=save_seconds, notice_seconds=settings.notice),
    )


def _repair_wait_seconds(place: NodeOffer, num_nodes: int, rate: float, settings: RiskSettings) -> float:
    """Mean wait for a repair per failure with a given number of own spares: `M B / (1 - B)`, B the share waited."""
    if place.infra not in OWN_MACHINES or settings.spares == "auto" or rate == 0:
        return 0.0
    waited = waiting_share(
        num_nodes=num_nodes,
        failures_per_node_day=rate,
        repair_days=settings.repair_days,
        spares=settings.spares,
    )
    return 86400 / (num_nodes * rate) * waited / (1 - waited)


def time_sigmas(efficiency: float, *, generates: bool, fixed_length: bool) -> tuple[float, ...]:
    """Standard deviations of the logarithm of a stage's time, one per independent cause."""
    return (efficiency, LENGTH_SIGMA) if generates and not fixed_length else (efficiency,)


def risk_assumptions(
    place: NodeOffer, *, spot: bool, unseen: Detection, knowledge: Knowledge, settings: RiskSettings = PUBLISHED
) -> tuple[Assumption, ...]:
    """Return the assumptions behind the range and the overhead; `unseen` is the overhead's."""
    if place.infra == LOCAL:
        return (
            Assumption(name="sigma of local time", value=LOCAL_SIGMA, source=LOCAL_SIGMA_SOURCE),
            Assumption(
                name="start of a run's first local stage, seconds",
                value=FIRST_LOCAL_START_SECONDS,
                source="median of five recorded runs on two quiet cores: torch and transformers are imported",
            ),
            Assumption(
                name="start of a later local stage, seconds",
                value=LOCAL_START_SECONDS,
                source="the same runs: small models, tokenizer and data are loaded",
            ),
            *_shared_machine(place),
        )
    assumptions = [
        Assumption(
            name="half-width of the 80 % interval of a training step, logarithm",
            value=round(knowledge.half_width(TRAINING, "training dense"), 3),
            source=f"sources left out of the fit: {knowledge.source}",
            as_of=knowledge.as_of,
        ),
        Assumption(name="sigma of answer length", value=LENGTH_SIGMA, source=SIGMA_SOURCE),
        Assumption(name="sigma of price", value=PRICE_SIGMA, source=SIGMA_SOURCE),
        Assumption(name="start of a stage, seconds", value=START_SECONDS, source="judgement: machines and images"),
    ]
    return (
        *assumptions,
        *_failure_assumptions(place, unseen, settings),
        *(_spot_assumptions(settings) if spot else ()),
    )


def _shared_machine(place: NodeOffer) -> tuple[Assumption, ...]:
    if place.slowdown <= 1.0:
        return ()
    source = (
        "others at work in the last five minutes and now, and stages side by side; that this stays so is a judgement"
    )
    name, value = "clock over processor time of a local stage", round(place.slowdown, 2)
    return (Assumption(name=name, value=value, source=source),)


def _failure_assumptions(place: NodeOffer, unseen: Detection, settings: RiskSettings) -> list[Assumption]:
    rate = failure_rate(place, settings)
    software = software_rate(settings)
    own = settings.save_bandwidth is not None
    assumptions = [
        Assumption(name="failures per node and day", value=rate.per_node_day, source=rate.source),
        Assumption(name="failures of software per job and day", value=software.per_day, source=software.source),
        Assumption(name="detection of a failed machine, seconds", value=unseen.seconds, source=unseen.source),
        Assumption(name="detection of a crash, seconds", value=CRASH.seconds, source=CRASH.source),
        Assumption(
            name="restart after a failure, seconds",
            value=RESTART_SECONDS if settings.restart is None else settings.restart,
            source=RESTART_SOURCE if settings.restart is None else OWN,
        ),
        Assumption(
            name="checkpoint bytes per second and node",
            value=settings.save_bandwidth or CHECKPOINT_BYTES_PER_SECOND_PER_NODE,
            source=OWN if own else CHECKPOINT_SOURCE,
        ),
    ]
    if place.infra in OWN_MACHINES and settings.spares == "auto":
        assumptions.append(Assumption(name="wait for the repair of an own node, seconds", value=0, source=NO_WAIT))
    if settings.async_saves:
        assumptions.append(
            Assumption(
                name="copied to host memory, bytes per second and node",
                value=COPY_BYTES_PER_SECOND_PER_NODE,
                source=COPY_SOURCE,
            )
        )
    return assumptions


def _spot_assumptions(settings: RiskSettings) -> list[Assumption]:
    up, available = spot_pool(settings)
    return [
        Assumption(
            name="spot: mean hours up",
            value=round(up / 3600, 4),
            source=SPOT_SOURCE if settings.spot_mean_up is None else OWN,
        ),
        Assumption(
            name="spot: availability",
            value=available,
            source=SPOT_SOURCE if settings.spot_availability is None else OWN,
        ),
        Assumption(name="spot: detection, seconds", value=SPOT_NOTICE.seconds, source=SPOT_NOTICE.source),
    ]

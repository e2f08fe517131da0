"""What failures, preemptions and checkpoints add to a stage's time and bill, and how wide its range is."""

import math
from dataclasses import dataclass

from charter.plan.assumption import Assumption
from charter.plan.knowledge import LOCAL_SIGMA, LOCAL_SIGMA_SOURCE, TRAINING, Knowledge
from charter.plan.place import LOCAL, Place
from charter.resilience.checkpoint import transfer_seconds
from charter.resilience.expected_time import (
    NEVER,
    Interruptions,
    best_interval_seconds,
    expected_billed_seconds,
    expected_wall_seconds,
)
from charter.resilience.failures import LLAMA3_H100, META_RSC1_A100, NodeFailureRate, mean_between_failures_seconds

CHECKPOINT_BYTES_PER_SECOND_PER_NODE = 1.2e9
CHECKPOINT_SOURCE = "BLOOM-176B: 2.3 TB in 40 s from 48 nodes"
RESTART_SECONDS = 600.0
START_SECONDS = 300.0
LOCAL_START_SECONDS = 1.5
SPOT_UP_HOURS = 2.75
SPOT_AVAILABILITY = 0.65
SPOT_SOURCE = "median of ten public AWS traces of 2022-23 (V100); none is public for A100 or H100"

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
    start_seconds: float
    mean_between_failures_seconds: float


def failure_rate(place: Place) -> NodeFailureRate:
    """Failures per node and day: RSC-1's for Ampere and older, Llama 3's for later ones."""
    return META_RSC1_A100 if place.accelerator.year <= 2021 else LLAMA3_H100


def overhead(useful_seconds: float, *, place: Place, num_nodes: int, spot: bool, checkpoint_bytes: float) -> Overhead:
    """Expected wall and billed time around `useful_seconds` of work; see `resilience.expected_time`.

    A stage that writes records instead of checkpoints loses at most a batch, so its saves are taken as free.
    """
    save = transfer_seconds(
        checkpoint_bytes,
        bytes_per_second_per_writer=CHECKPOINT_BYTES_PER_SECOND_PER_NODE,
        num_writers=num_nodes,
    )
    job = NEVER if place.infra == LOCAL else _interruptions(place, num_nodes, spot)
    start = LOCAL_START_SECONDS if place.infra == LOCAL else START_SECONDS
    if place.infra == LOCAL or useful_seconds <= 0:
        total = useful_seconds + start
        return Overhead(
            useful_seconds=useful_seconds,
            wall_seconds=total,
            billed_seconds=total,
            interval_seconds=useful_seconds,
            save_seconds=0.0,
            start_seconds=start,
            mean_between_failures_seconds=math.inf,
        )
    save = max(save, 1.0)
    interval = best_interval_seconds(useful_seconds, save_seconds=save, interruptions=job)
    terms = {"save_seconds": save, "interval_seconds": interval}
    wall = expected_wall_seconds(useful_seconds, **terms, interruptions=job)
    billed = expected_billed_seconds(useful_seconds, **terms, interruptions=job)
    return Overhead(
        useful_seconds=useful_seconds,
        wall_seconds=wall + start,
        billed_seconds=billed + start,
        interval_seconds=interval,
        save_seconds=save,
        start_seconds=start,
        mean_between_failures_seconds=job.mean_between_failures_seconds,
    )


def _interruptions(place: Place, num_nodes: int, spot: bool) -> Interruptions:
    mean = mean_between_failures_seconds(
        num_nodes=num_nodes,
        failures_per_node_day=failure_rate(place).per_node_day,
        preemptions_per_hour=1 / SPOT_UP_HOURS if spot else 0.0,
    )
    wait_hours = SPOT_UP_HOURS * (1 - SPOT_AVAILABILITY) / SPOT_AVAILABILITY if spot else 0.0
    return Interruptions(
        mean_between_failures_seconds=mean,
        restart_seconds=RESTART_SECONDS,
        capacity_wait_seconds=wait_hours * 3600,
    )


def time_sigmas(efficiency: float, *, generates: bool, fixed_length: bool) -> tuple[float, ...]:
    """Standard deviations of the logarithm of a stage's time, one per independent cause."""
    return (efficiency, LENGTH_SIGMA) if generates and not fixed_length else (efficiency,)


def risk_assumptions(place: Place, *, spot: bool, knowledge: Knowledge) -> tuple[Assumption, ...]:
    """What the range and the overhead rest on."""
    if place.infra == LOCAL:
        return (
            Assumption(name="sigma of local time", value=LOCAL_SIGMA, source=LOCAL_SIGMA_SOURCE),
            Assumption(
                name="start of a local stage, seconds",
                value=LOCAL_START_SECONDS,
                source="models, tokenizer and data are loaded; torch is imported once per run",
            ),
        )
    rate = failure_rate(place)
    made = [
        Assumption(
            name="half-width of the 80 % interval of a training step, logarithm",
            value=round(knowledge.half_width(TRAINING, "training dense"), 3),
            source=f"sources left out of the fit: {knowledge.source}",
            as_of=knowledge.as_of,
        ),
        Assumption(name="sigma of answer length", value=LENGTH_SIGMA, source=SIGMA_SOURCE),
        Assumption(name="sigma of price", value=PRICE_SIGMA, source=SIGMA_SOURCE),
        Assumption(name="failures per node and day", value=rate.per_node_day, source=rate.source),
        Assumption(
            name="checkpoint bytes per second and node",
            value=CHECKPOINT_BYTES_PER_SECOND_PER_NODE,
            source=CHECKPOINT_SOURCE,
        ),
        Assumption(name="start of a stage, seconds", value=START_SECONDS, source="judgement: machines and images"),
        Assumption(
            name="restart after a failure, seconds", value=RESTART_SECONDS, source="judgement, detection included"
        ),
    ]
    if spot:
        made.append(Assumption(name="spot: mean hours up", value=SPOT_UP_HOURS, source=SPOT_SOURCE))
        made.append(Assumption(name="spot: availability", value=SPOT_AVAILABILITY, source=SPOT_SOURCE))
    return tuple(made)

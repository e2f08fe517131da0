"""Failures in the plan of a stage: checkpoints, interruptions, spare nodes, and the scenario of the simulator."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from charter.plan.offers import LOCAL, OWN_MACHINES
from charter.plan.option import Option
from charter.plan.risk import RESTART_SECONDS, START_SECONDS, failure_rate, software_rate, spot_pool
from charter.resilience.expected_time import ExpectedTime
from charter.resilience.failures import (
    CRASH,
    SPOT_NOTICE,
    UNDISTURBED,
    Detection,
    SpareWorth,
    best_spares,
    mean_between_failures_seconds,
    notice_success,
    spare_worth,
)
from charter.resilience.spot import first_wait_seconds, heavy_tailed_market
from charter.spec.sections import RiskSettings
from charter.units import format_pace, format_seconds

if TYPE_CHECKING:
    from charter.resilience.scenario import Scenario, SpotPool

# -------- Failures in the plan of a stage: checkpoints, interruptions, lost hours, spare nodes.


@dataclass(frozen=True, kw_only=True)
class SpareAdvice:
    """Number of spare nodes that a stage should have, and whether they are worth their price."""

    nodes: int
    """As many as the project says, else `best`."""
    worth: SpareWorth
    best: int
    """How many save most after their own rent."""
    replaced_in_days: float

    def to_json(self) -> dict[str, object]:
        """All of it."""
        return {
            "nodes": self.nodes,
            "pay": self.worth.pays,
            "best": self.best,
            "hours_saved_per_month": round(self.worth.hours_saved, 3),
            "replaced_in_days": round(self.replaced_in_days, 6),
        }


@dataclass(frozen=True, kw_only=True)
class StageRisk:
    """Expected failures of a stage and what they cost it, in seconds."""

    interval_seconds: float
    """Work between checkpoints."""
    interval_units: int | None
    """The same in steps (training) or batches."""
    save_seconds: float
    """What one save blocks."""
    persist_seconds: float
    """Until an asynchronous save is durable; 0: saves block."""
    mean_between_failures_seconds: float
    software_share: float
    """Of the interruptions; the rest are machines and preemptions."""
    spent: ExpectedTime
    detection: Detection
    failures_source: str
    spares: SpareAdvice | None
    """None on this machine."""

    @property
    def interruptions(self) -> float:
        """Expected number of failures and preemptions."""
        return self.spent.interruptions

    @property
    def lost_seconds(self) -> float:
        """Work that is expected to be done twice."""
        return self.spent.lost_seconds

    @property
    def lost_seconds_each(self) -> float:
        """Work lost at one interruption, on average."""
        return self.spent.lost_seconds / self.spent.interruptions if self.spent.interruptions else 0.0

    @property
    def down_seconds(self) -> float:
        """Detection and restarts."""
        return self.spent.detection_seconds + self.spent.restart_seconds

    @property
    def useful_share(self) -> float:
        """Useful over wall-clock time without the wait for machines (ETTR)."""
        billed = self.spent.billed_seconds
        return self.spent.useful_seconds / billed if billed > 0 else 1.0

    def to_json(self) -> dict[str, object]:
        """The risk as `charter plan --json` prints it; times in seconds, null where nothing fails."""
        mean = self.mean_between_failures_seconds
        return {
            "checkpoint_interval_seconds": round(self.interval_seconds, 3),
            "checkpoint_interval_steps": self.interval_units,
            "save_seconds": round(self.save_seconds, 3),
            "persist_seconds": round(self.persist_seconds, 3),
            "mean_between_failures_seconds": round(mean, 3) if math.isfinite(mean) else None,
            "expected_interruptions": round(self.spent.interruptions, 6),
            "software_share": round(self.software_share, 6),
            "lost_seconds": round(self.spent.lost_seconds, 3),
            "saving_seconds": round(self.spent.save_seconds, 3),
            "detection_seconds": round(self.spent.detection_seconds, 3),
            "restart_seconds": round(self.spent.restart_seconds, 3),
            "wait_seconds": round(self.spent.wait_seconds, 3),
            "useful_share": round(self.useful_share, 6),
            "detection": {"seconds": self.detection.seconds, "source": self.detection.source},
            "failures_source": self.failures_source,
            "spares": None if self.spares is None else self.spares.to_json(),
        }


def stage_risk(option: Option, settings: RiskSettings) -> StageRisk:
    """Return the expected failures of an option, with advice on spares."""
    around, place = option.overhead, option.place
    local = place.infra == LOCAL
    spent = around.spent or ExpectedTime(
        useful_seconds=around.useful_seconds,
        save_seconds=0.0,
        lost_seconds=0.0,
        detection_seconds=0.0,
        restart_seconds=0.0,
        wait_seconds=0.0,
        interruptions=0.0,
    )
    return StageRisk(
        interval_seconds=around.interval_seconds,
        interval_units=around.interval_units,
        save_seconds=around.save_seconds,
        persist_seconds=around.persist_seconds,
        mean_between_failures_seconds=around.mean_between_failures_seconds,
        software_share=0.0 if local else _software_share(around.mean_between_failures_seconds, settings),
        spent=spent,
        detection=around.detection,
        failures_source=UNDISTURBED.source if local else failure_rate(place, settings).source,
        spares=None if local else _spares(option, settings),
    )


def _software_share(mean_between_failures_seconds: float, settings: RiskSettings) -> float:
    if math.isinf(mean_between_failures_seconds):
        return 0.0
    return software_rate(settings).per_day / 86400 * mean_between_failures_seconds


def _spares(option: Option, settings: RiskSettings) -> SpareAdvice:
    """A cloud replaces a node within the time of a start, so that spares hardly ever pay there."""
    days = settings.repair_days if option.place.infra in OWN_MACHINES else START_SECONDS / 86400
    nodes = option.num_nodes + sum(group.num_nodes for group in option.beside)
    rate = failure_rate(option.place, settings).per_node_day
    best = best_spares(num_nodes=nodes, failures_per_node_day=rate, repair_days=days) if rate else 0
    advised = best if settings.spares == "auto" else settings.spares
    return SpareAdvice(
        nodes=advised,
        worth=spare_worth(num_nodes=nodes, failures_per_node_day=rate, repair_days=days, spares=advised),
        best=best,
        replaced_in_days=days,
    )


# -------- A planned stage as a scenario for the simulator.


def stage_scenario(option: Option, settings: RiskSettings) -> "tuple[Scenario, tuple[str, ...]]":
    """Return the failures that a stage's plan assumes, and lines that say so; on this machine nothing fails."""
    # The simulator, which a plan does without.
    from charter.resilience.scenario import Scenario

    around, place = option.overhead, option.place
    nodes = option.num_nodes + sum(group.num_nodes for group in option.beside)
    if place.infra == LOCAL:
        never = Scenario(
            useful_seconds=around.useful_seconds,
            num_nodes=nodes,
            mean_between_failures_seconds=math.inf,
            save_seconds=0.0,
        )
        return never, (UNDISTURBED.source,)
    rate, unseen = failure_rate(place, settings), around.detection
    spares = settings.spares if isinstance(settings.spares, int) and place.infra in OWN_MACHINES else None
    # A crash of software takes no node out, so that with a pool of spares machines alone are simulated.
    software = software_rate(settings)
    crashes = software.per_day if spares is None else 0.0
    mean = mean_between_failures_seconds(
        num_nodes=nodes, failures_per_node_day=rate.per_node_day, job_failures_per_day=crashes
    )
    of_software = crashes / 86400 * mean if math.isfinite(mean) else 0.0
    scenario = Scenario(
        useful_seconds=around.useful_seconds,
        num_nodes=nodes,
        mean_between_failures_seconds=mean,
        save_seconds=around.save_seconds,
        persist_seconds=min(around.persist_seconds, around.interval_seconds),
        restart_seconds=RESTART_SECONDS if settings.restart is None else settings.restart,
        detection_seconds=of_software * CRASH.seconds + (1 - of_software) * unseen.seconds,
        preemption_detection_seconds=SPOT_NOTICE.seconds,
        spot=_pool(settings) if option.price.market == "spot" else None,
        notice_success=notice_success(save_seconds=around.save_seconds, notice_seconds=settings.notice),
        spares=spares,
        repair_days=settings.repair_days,
    )
    often = format_pace("failure", mean)
    notes = [
        f"{often}: {1000 * rate.per_node_day:.3g} per 1,000 node-days; {rate.source}",
        f"{crashes:g} crashes of software per day in it; {software.source}"
        if crashes
        else "no crashes of software in it",
        f"noticed after {format_seconds(unseen.seconds)}: {unseen.source}",
    ]
    if scenario.spot is not None:
        notes.append(f"spot: mean time up {format_seconds(scenario.spot.mean_up_seconds)}")
    return scenario, tuple(notes)


def _pool(settings: RiskSettings) -> "SpotPool":
    from charter.resilience.scenario import SpotPool

    up, available = spot_pool(settings)
    shares = {"mean_up_seconds": up, "availability": min(available, 0.999)}
    return SpotPool.of_market(heavy_tailed_market(**shares), first_wait_seconds(**shares))

"""A planned stage as a scenario for the simulator."""

import math

from charter.plan.hardware.place import LOCAL, ON_PREM
from charter.plan.options.option import Option
from charter.plan.options.risk import RESTART_SECONDS, detection_delay, failure_rate, software_rate, spot_pool
from charter.resilience.failures import CRASH, SPOT_NOTICE, mean_between_failures_seconds
from charter.resilience.notice import notice_success
from charter.resilience.scenario import Scenario, SpotPool
from charter.resilience.spot import first_wait_seconds, heavy_tailed_market
from charter.spec.sections import RiskSettings
from charter.units import format_seconds


def stage_scenario(option: Option, settings: RiskSettings) -> tuple[Scenario, tuple[str, ...]]:
    """Return the failures that a stage's plan assumes, and lines that say so; on this machine nothing fails."""
    around, place = option.overhead, option.place
    nodes = option.num_nodes + sum(group.num_nodes for group in option.beside)
    if place.infra == LOCAL:
        never = Scenario(
            useful_seconds=around.useful_seconds,
            num_nodes=nodes,
            mean_between_failures_seconds=math.inf,
            save_seconds=0.0,
        )
        return never, ("this machine is not expected to fail",)
    rate, unseen = failure_rate(place, settings), detection_delay(place, settings)
    spares = settings.spares if isinstance(settings.spares, int) and place.infra == ON_PREM else None
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
    often = "no failures" if math.isinf(mean) else f"a failure every {format_seconds(mean)}"
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


def _pool(settings: RiskSettings) -> SpotPool:
    up, available = spot_pool(settings)
    shares = {"mean_up_seconds": up, "availability": min(available, 0.999)}
    return SpotPool.of_market(heavy_tailed_market(**shares), first_wait_seconds(**shares))

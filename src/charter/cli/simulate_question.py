"""What `charter simulate` is asked: a scenario from options, or from the plan of a stage."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from charter.cli.common import open_project
from charter.errors import UsageError
from charter.plan.options.stage_scenario import stage_scenario
from charter.plan.project_plan import plan_project
from charter.resilience.detection import BY_NAME, SPOT_NOTICE
from charter.resilience.detection import detection as delay
from charter.resilience.failures import PUBLISHED, NodeFailureRate, mean_between_failures_seconds
from charter.resilience.notice import notice_success
from charter.resilience.scenario import Scenario, SpotPool
from charter.resilience.spot_waits import first_wait_seconds
from charter.resilience.traces import find_trace, trace_statistics
from charter.resilience.windows import SPOT_SOURCE, heavy_tailed_market
from charter.units import format_seconds, parse_seconds

PoolOf = Callable[[int], tuple[SpotPool | None, str]]
"""The pool for a gang of so many nodes, and a line about it."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A scenario, what it was made from in words, and the interval that was asked for."""

    scenario: Scenario
    title: str
    notes: tuple[str, ...]
    interval_seconds: float
    accelerators: int
    usd_per_accelerator_hour: float | None


def seconds(flag: str, text: str) -> float:
    """The duration that an option gives."""
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def given(
    *,
    work: float,
    gpus: int,
    per_node: int,
    mtbf: str | None,
    rate: str | None,
    price: float | None,
    interval: str,
    times: dict[str, float],
    unseen: str,
    shape: float,
    spares: int | None,
    repair_days: float,
    pool: PoolOf,
    notice_seconds: float,
) -> Asked:
    """A scenario from options; `times` are fields of `Scenario`."""
    nodes = max(1, -(-gpus // per_node))
    mean, failing = _mean_between_failures(mtbf, rate, nodes)
    known = delay(unseen if unseen in BY_NAME else seconds(f"--detection ({', '.join(BY_NAME)}, or a time)", unseen))
    market, about = pool(nodes)
    saved = notice_success(save_seconds=times["save_seconds"], notice_seconds=notice_seconds)
    scenario = Scenario(
        useful_seconds=work,
        num_nodes=nodes,
        mean_between_failures_seconds=mean,
        detection_seconds=known.seconds,
        preemption_detection_seconds=SPOT_NOTICE.seconds,
        shape=shape,
        spares=spares,
        repair_days=repair_days,
        spot=market,
        notice_success=saved,
        **times,
    )
    notes = [failing]
    notes += [f"noticed after {format_seconds(known.seconds)}: {known.source}"] if known.seconds else []
    notes += [about] if about else []
    notes += [] if spares is None else ["spares: all nodes are sound at the start; the closed form is the long run"]
    return Asked(
        scenario=scenario,
        title=f"{gpus:,} accelerators on {nodes:,} node{'s' if nodes > 1 else ''}, {format_seconds(work)} of work",
        notes=tuple(notes),
        interval_seconds=_interval(interval, scenario),
        accelerators=gpus,
        usd_per_accelerator_hour=price,
    )


def _mean_between_failures(mtbf: str | None, rate: str | None, nodes: int) -> tuple[float, str]:
    """Mean seconds between failures of the job, and where they come from."""
    if mtbf is not None:
        if rate is not None:
            raise UsageError("give --mtbf or --failures-per-node-day, not both")
        mean = seconds("--mtbf", mtbf)
        if mean <= 0:
            raise UsageError("--mtbf: must be above zero")
        return mean, f"a failure every {format_seconds(mean)}: your own"
    name = rate or "llama3"
    if name in PUBLISHED:
        known = PUBLISHED[name]
    else:
        try:
            known = NodeFailureRate(per_node_day=float(name), source="your own")
        except ValueError:
            raise UsageError(f"--failures-per-node-day {name}: a number, or one of {', '.join(PUBLISHED)}") from None
        if not 0 <= known.per_node_day < float("inf"):
            raise UsageError(f"--failures-per-node-day {name}: must be 0 or more")
    mean = mean_between_failures_seconds(num_nodes=nodes, failures_per_node_day=known.per_node_day)
    often = "no failures" if mean == float("inf") else f"a failure every {format_seconds(mean)}"
    return mean, f"{often}: {1000 * known.per_node_day:.3g} per 1,000 node-days; {known.source}"


def spot_pool(spot: bool, up: str, availability: float, trace: str | None, nodes: int) -> tuple[SpotPool | None, str]:
    """The spot pool that was asked for, and a line about it."""
    if trace is not None:
        record = find_trace(trace)
        most = max(record.available)
        gang = max(1, min(nodes, most))
        found = SpotPool.of_periods(record.periods(gang))
        share = "always" if found.mean_down_seconds == 0 else f"{trace_statistics(record, gang).availability:.0%}"
        stands = f" (stands for {nodes:,} nodes)" if nodes > most else ""
        return found, (
            f"trace {record.name}: gang of {gang}{stands}, available {share} of the time, "
            f"mean time up {format_seconds(min(found.mean_up_seconds, record.length_seconds))}"
        )
    if not spot:
        return None, ""
    mean = seconds("--spot-up", up)
    if mean <= 0:
        raise UsageError("--spot-up: must be above zero")
    shares = {"mean_up_seconds": mean, "availability": min(availability, 0.999)}
    market = heavy_tailed_market(**shares)
    line = f"spot: mean time up {format_seconds(mean)}, available {availability:.0%} of the time"
    return SpotPool.of_market(market, first_wait_seconds(**shares)), f"{line}; defaults: {SPOT_SOURCE}"


def _interval(text: str, scenario: Scenario) -> float:
    wanted = scenario.best_interval_seconds if text == "auto" else seconds("--interval", text)
    if wanted <= 0:
        raise UsageError("--interval: must be above zero, or auto; and --work must be above zero")
    return min(wanted, scenario.useful_seconds)


def planned(name: str, directory: Path, overrides: list[str] | None, interval: str) -> Asked:
    """A stage as it is planned: its machines, useful time, checkpoints and rates."""
    project, root = open_project(directory, overrides)
    plan = plan_project(project, root)
    stage = plan.stage(name)
    if stage is None:
        raise UsageError(f"there is no stage {name!r}; this project has {', '.join(item.name for item in plan.stages)}")
    option = stage.option
    scenario, notes = stage_scenario(option, project.risk)
    hourly = option.usd_per_hour
    return Asked(
        scenario=scenario,
        title=f"stage {name} on {option.label}, {option.layout_label}",
        notes=notes,
        interval_seconds=option.overhead.interval_seconds if interval == "auto" else _interval(interval, scenario),
        accelerators=max(1, option.num_accelerators),
        usd_per_accelerator_hour=None if hourly is None else hourly / max(1, option.num_accelerators),
    )

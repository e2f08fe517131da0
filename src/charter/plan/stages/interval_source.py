"""Sources of the intervals of a stage's time and memory: which measurements set their width."""

from dataclasses import dataclass
from math import exp, log

from charter.engines import rl_engines
from charter.physics.terms import Interval
from charter.plan.options.option import Option
from charter.plan.options.risk import LENGTH_SIGMA
from charter.plan.physics.knowledge import (
    CPU_USABLE_SHARE,
    ENDPOINT_SIGMA_SOURCE,
    LOCAL_SIGMA_SOURCE,
    Knowledge,
    memory_group,
    time_group,
)
from charter.plan.work.phase import Workload
from charter.spec.stage import Stage


@dataclass(frozen=True, kw_only=True)
class PeakRange:
    """The 80 % interval of a stage's peak memory on one accelerator."""

    interval: Interval
    source: str


def peak_range(stage: Stage, option: Option, knowledge: Knowledge) -> PeakRange:
    """p10 to p90 of the peak: the half-width of its group; on processors the share that a plan leaves free."""
    quantity, group = memory_group(stage)
    if option.place.is_cpu:
        width = -log(CPU_USABLE_SHARE)
        source = "judgement: the share of the machine's memory that a local plan leaves free"
    else:
        width, source = knowledge.half_width(quantity, group), knowledge.told(quantity, group)
    peak = option.peak.total_bytes
    return PeakRange(interval=Interval(p10=peak * exp(-width), p50=peak, p90=peak * exp(width)), source=source)


def time_source(stage: Stage, option: Option, work: Workload, knowledge: Knowledge) -> str:
    """Return the source of the width of the stage's time, in words."""
    moe = any(role.architecture.mixture is not None for role in work.roles)
    quantity, group = time_group(stage, moe=moe)
    engine = rl_engines().get(option.engine) if option.groups else None
    pace = None if engine else knowledge.pace(option.place.accelerator, stage.kind)
    if work.remote and not work.needs_accelerator:
        source = ENDPOINT_SIGMA_SOURCE
    elif not work.needs_accelerator or (option.place.is_cpu and pace is None):
        source = LOCAL_SIGMA_SOURCE
    elif pace is not None:
        source = f"{pace.steps} steps measured ({pace.source}); what is left after a few rows: {quantity}"
    else:
        source = knowledge.told(quantity, group, rl_stack=engine.stack.label if engine else None)
    if work.remote and work.needs_accelerator:
        source += f"; of the endpoint {ENDPOINT_SIGMA_SOURCE}"
    return source + (f"; and answer lengths (sigma {LENGTH_SIGMA:g}, judgement)" if len(option.time_sigmas) > 1 else "")

"""End and final cost of a run: forecasts of its stages, and how they fit beside each other. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from charter.cost.forecast import Forecast, StageSoFar, forecast, paced, planned_start_seconds
from charter.dashboard.snapshot import Snapshot, StageNow
from charter.physics.terms import Interval
from charter.units import MICRO_USD_PER_USD

_WORDS = {"measured": "measured pace", "scaled": "plan scaled by it", "planned": "plan"}


@dataclass(frozen=True, kw_only=True)
class Eta:
    """Remaining seconds and money of a run."""

    left: Forecast
    run_seconds: float | None
    """Until the last stage ends; None where nobody can say."""
    ends_in: Mapping[str, float | None]
    """When each stage ends, with what it waits for."""
    source: str
    """What it rests on, in words."""

    def stage_seconds(self, name: str) -> float | None:
        """Return the seconds that a stage itself still takes."""
        rest = self.left.stages[name]
        return None if rest.basis == "unplanned" else rest.seconds.p50


def eta_of(snapshot: Snapshot) -> Eta:
    """The forecast of a run as `charter cost` makes it, with stages as early as inputs and slots allow."""
    left = forecast([so_far(snapshot, stage) for stage in snapshot.stages])
    ends = _schedule(snapshot, left)
    known_ends = [end for end in ends.values() if end is not None]
    bases = dict.fromkeys(stage.basis for stage in left.stages.values())
    return Eta(
        left=left,
        run_seconds=max(known_ends, default=0.0) if len(known_ends) == len(ends) else None,
        ends_in=ends,
        source=", ".join(_WORDS[basis] for basis in ("measured", "scaled", "planned") if basis in bases) or "nothing",
    )


def so_far(snapshot: Snapshot, stage: StageNow) -> StageSoFar:
    """Return the progress of one stage, as the forecast takes it."""
    sums = snapshot.ledger.stage(stage.name)
    paced_steps, paced_seconds = paced(stage.progress)
    lasting = sums.totals.micro_usd - sums.totals.lost_to_kills_micro_usd - sums.totals.lost_to_failures_micro_usd
    return StageSoFar(
        name=stage.name,
        kind=stage.kind,
        planned_seconds=planned_interval(stage, "seconds"),
        planned_usd=planned_interval(stage, "usd"),
        planned_start_seconds=planned_start_seconds(stage.planned),
        done=stage.state == "done",
        step=stage.step,
        target_step=stage.target_step,
        kept_seconds=sums.totals.useful_milliseconds / 1000,
        calls_usd=sums.calls.settled_micro_usd / MICRO_USD_PER_USD,
        paced_steps=paced_steps,
        paced_seconds=paced_seconds,
        kept_usd=(lasting + sums.calls.settled_micro_usd) / MICRO_USD_PER_USD if sums.is_priced else None,
    )


def planned_interval(stage: StageNow, what: str) -> Interval | None:
    """`seconds` or `usd` of a stage as the plan has it; None where it has none."""
    interval = stage.planned.get(what)
    if not isinstance(interval, Mapping) or not isinstance(interval.get("p50"), int | float):
        return None
    middle = float(interval["p50"])
    ends = [float(interval[name]) if isinstance(interval.get(name), int | float) else middle for name in ("p10", "p90")]
    return Interval(p10=ends[0], p50=middle, p90=ends[1])


def _schedule(snapshot: Snapshot, left: Forecast) -> dict[str, float | None]:
    """Each stage as early as its inputs and a free slot allow; what runs already keeps its slot."""
    free = [0.0] * snapshot.max_parallel_stages
    ends: dict[str, float | None] = {}
    running = [stage for stage in snapshot.stages if stage.state == "running"]
    for stage in [*running, *(stage for stage in snapshot.stages if stage.state != "running")]:
        took = left.stages[stage.name]
        inputs = [ends.get(name, 0.0) for name in stage.inputs]
        known_ends = [end for end in inputs if end is not None]
        if took.basis == "unplanned" or stage.state == "failed" or len(known_ends) < len(inputs):
            ends[stage.name] = None  # what failed, and what reads it, goes on when somebody has mended it
        elif took.basis == "done":
            ends[stage.name] = 0.0
        else:
            slot = free.index(min(free))
            free[slot] = max(free[slot], *known_ends, 0.0) + took.seconds.p50
            ends[stage.name] = free[slot]
    return ends

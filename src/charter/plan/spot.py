"""Spot or on demand for a stage, and why: by expected billed cost and by the p90 of the finish, in one line.

The bill of a spot job follows from a formula; when it is done does not, since outages are heavy-tailed. So money is
compared at its median and time at p90, whose waits come from drawn histories (`resilience.spot`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from charter.plan.options.option import Option
from charter.plan.plan import Plan
from charter.plan.stages.stage_plan import StagePlan
from charter.units import SECONDS_PER_HOUR, format_seconds, format_usd

SPOT, ON_DEMAND = "spot", "on_demand"


@dataclass(frozen=True, kw_only=True)
class SpotVerdict:
    """Better one of two versions of an option, and what the other would change."""

    market: Literal["spot", "on_demand"]
    usd_saved: float
    """By spot, at the median of the bill; below zero where spot costs more."""
    more_seconds: float
    """That spot takes, at p50."""
    interruptions: float
    lost_seconds_each: float
    """Work lost at one interruption."""
    late_seconds: float | None
    """By how much the p90 of spot misses the time allowed; below zero inside it, None without a limit."""

    @property
    def reason(self) -> str:
        """One line for a table."""
        late, saved = self.late_seconds, format_usd(abs(self.usd_saved))
        if self.usd_saved <= 0:
            return f"on demand: spot costs {saved} more after {self._trouble}"
        if late is not None and late > 0:
            return f"on demand: p90 of spot misses the deadline by {_hours(late)} (it costs {saved} less)"
        inside = "" if late is None else "; p90 inside the deadline"
        return f"spot: {saved} less for {_more(self.more_seconds)}; {self._trouble}{inside}"

    @property
    def _trouble(self) -> str:
        count = self.interruptions
        times = f"{count:.0f} interruptions" if count >= 1.5 else f"{count:.2g} interruptions expected"
        return f"{times}, {format_seconds(self.lost_seconds_each)} lost each"


def spot_verdict(on_demand: Option, spot: Option, *, allowed_seconds: float | None = None) -> SpotVerdict | None:
    """Spot where it is billed less in expectation and its p90 is within the time allowed; None without both prices.

    Where on demand misses the time allowed as well, the deadline decides nothing and money does.
    """
    if on_demand.usd is None or spot.usd is None:
        return None
    saved = on_demand.usd.p50 - spot.usd.p50
    late = None if allowed_seconds is None else spot.seconds.p90 - allowed_seconds
    hopeless = allowed_seconds is not None and on_demand.seconds.p90 > allowed_seconds
    in_time = late is None or late <= 0 or hopeless
    spent = spot.overhead.spent
    count = spent.interruptions if spent else 0.0
    return SpotVerdict(
        market="spot" if saved > 0 and in_time else "on_demand",
        usd_saved=saved,
        more_seconds=spot.seconds.p50 - on_demand.seconds.p50,
        interruptions=count,
        lost_seconds_each=spent.lost_seconds / count if spent and count else 0.0,
        late_seconds=None if hopeless else late,
    )


def market_reason(chosen: Option, options: Iterable[Option], *, allowed_seconds: float | None = None) -> str:
    """Return why the chosen option is on spot or on demand; empty where it could only be one of them.

    `options` is everything that fits, `allowed_seconds` what the deadline leaves for this stage. A choice that the
    comparison of the two alone does not explain was made for the whole plan, and the line says so.
    """
    other = _twin(chosen, options)
    if other is None:
        if chosen.price.market == SPOT:
            return "spot: no other market is allowed or offered here"
        return ""
    pair = (other, chosen) if chosen.price.market == SPOT else (chosen, other)
    verdict = spot_verdict(*pair, allowed_seconds=allowed_seconds)
    if verdict is None:
        return ""
    if verdict.market == chosen.price.market:
        return verdict.reason
    if chosen.price.market == SPOT:
        return f"spot: for the whole plan; alone, {verdict.reason}"
    saved = format_usd(verdict.usd_saved)
    return f"on demand: {_more(verdict.more_seconds, less=True)} for {saved} more, for the whole plan"


def explain_markets(plan: Plan) -> Plan:
    """The plan with the reason for each stage's market, among the `options` of the stage.

    What the deadline leaves for a stage is its own p90 on spot plus what the whole plan, drawn with it there, has left.
    """

    def explained(stage: StagePlan) -> StagePlan:
        allowed = None
        spot = stage.option if stage.option.price.market == SPOT else _twin(stage.option, stage.options)
        if plan.deadline_seconds is not None and spot is not None:
            drawn = plan if spot is stage.option else _with(plan, stage, spot)
            allowed = plan.deadline_seconds - drawn.seconds.p90 + spot.seconds.p90
        reason = market_reason(stage.option, stage.options, allowed_seconds=allowed)
        return replace(stage, market_reason=reason)

    return replace(plan, stages=tuple(explained(stage) for stage in plan.stages))


def _with(plan: Plan, stage: StagePlan, option: Option) -> Plan:
    """The plan with another option for one stage."""
    changed = replace(stage, option=option)
    return replace(plan, stages=tuple(changed if item is stage else item for item in plan.stages))


def _twin(chosen: Option, options: Iterable[Option]) -> Option | None:
    """The same job on the same machines at the other market, else the cheapest job there."""
    wanted = {SPOT: ON_DEMAND, ON_DEMAND: SPOT}.get(chosen.price.market)
    others = [option for option in options if option.price.market == wanted and option.usd is not None]

    def like(option: Option) -> tuple[bool, float, str]:
        same = (option.place, option.num_nodes, option.layout_label, option.beside) == (
            chosen.place,
            chosen.num_nodes,
            chosen.layout_label,
            chosen.beside,
        )
        return (not same, option.usd.p50 if option.usd else 0.0, option.label + option.layout_label)

    return min(others, key=like, default=None)


def _hours(seconds: float) -> str:
    hours = seconds / SECONDS_PER_HOUR
    return f"{hours:.0f} h" if hours >= 2 else format_seconds(seconds)


def _more(seconds: float, *, less: bool = False) -> str:
    sign = "-" if less else "+"
    return f"{sign}{_hours(abs(seconds))}"

"""Cost per unit of what a project makes, and the electricity it takes."""

from collections.abc import Mapping, Sequence

from charter.cost.money import usd
from charter.plan.money.cost_breakdown import CostLine, UnitCost, added
from charter.plan.stages.stage_plan import StagePlan
from charter.units import SECONDS_PER_HOUR

LOAD_FACTOR = 0.8
"""Mean draw of a busy accelerator over its rated power: on-premises assumptions, middle scenario (judgement)."""
POWER_USAGE_EFFECTIVENESS = 1.3
"""Electricity of the building over that of the machines: the same table; Uptime's survey mean is 1.56."""
PER_UNIT = (
    ("usd_per_million_trained_tokens", ("pretrain", "sft", "judge", "preference_model", "dpo"), "tokens", 1e6),
    ("usd_per_million_generated_tokens", ("generate", "critique"), "generated_tokens", 1e6),
    ("usd_per_preference_pair", ("label",), "pairs", 1.0),
    ("usd_per_critique_revision", ("critique",), "records", 1.0),
    ("usd_per_pm_example", ("preference_model",), "pairs", 1.0),
    ("usd_per_ppo_episode", ("ppo",), "episodes", 1.0),
)
"""Name, kinds of stage that make the unit, counter, units per price."""


def unit_costs(stages: Sequence[StagePlan], lines: Sequence[CostLine]) -> tuple[UnitCost, ...]:
    """Whole cost of the stages that make a unit over the units they make, at the median; waste makes units dearer."""
    spent = {stage.name: usd(added(line for line in lines if line.stage == stage.name).p50) for stage in stages}
    priced = [stage for stage in stages if stage.compute_usd is not None]
    costs = [_per_unit(name, kinds, counter, per, priced, spent) for name, kinds, counter, per in PER_UNIT]
    runs = [stage for stage in priced if stage.kind == "eval"]
    if runs:
        costs.append(_ratio("usd_per_eval_run", sum(spent[stage.name] for stage in runs), len(runs), "eval stages"))
    total = usd(added(lines).p50)
    if total:
        useful = usd(added(line for line in lines if line.bucket == "useful").p50)
        costs.append(_ratio("useful_usd_per_total_usd", useful, total, "all lines"))
    operations = sum(stage.done.useful_flops for stage in priced)
    if operations:
        costs.append(_ratio("usd_per_useful_pflop", sum(spent.values()), operations / 1e15, "10^15 operations"))
    return tuple(item for item in costs if item is not None)


def energy_kwh(stages: Sequence[StagePlan], factor: float = 1.0) -> float | None:
    """Rated power x load x PUE x billed hours, times `factor`; None where the power of an accelerator is not known.

    The processors, memory and network of the node are not in it; BLOOM's 433 MWh over 1.08 M hours are 400 W per
    A100, its rated power without load and PUE.
    """
    watts_hours = 0.0
    for stage in stages:
        option = stage.option
        hours = option.overhead.billed_seconds / SECONDS_PER_HOUR
        beside = sum(group.num_accelerators for group in option.beside)
        groups = [(option.num_accelerators - beside, option.place.accelerator.tdp_watts)]
        groups += [(group.num_accelerators, group.place.accelerator.tdp_watts) for group in option.beside]
        for count, watts in groups:
            if watts is None or count == 0:
                return None
            watts_hours += count * watts * hours
    return watts_hours * LOAD_FACTOR * POWER_USAGE_EFFECTIVENESS * factor / 1000


def _per_unit(
    name: str,
    kinds: tuple[str, ...],
    counter: str,
    per: float,
    stages: Sequence[StagePlan],
    spent: Mapping[str, float],
) -> UnitCost | None:
    of = [stage for stage in stages if stage.kind in kinds and getattr(stage.counters, counter) > 0]
    units = sum(getattr(stage.counters, counter) for stage in of)
    return _ratio(name, sum(spent[stage.name] for stage in of), units / per, counter) if units else None


def _ratio(name: str, above: float, below: float, what: str) -> UnitCost:
    return UnitCost(name=name, value=above / below, formula=f"${above:,.6g} / {below:,.6g} {what}")

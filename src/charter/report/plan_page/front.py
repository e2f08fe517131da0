"""Options of a stage as points, and the values of the plan page's charts, as one JSON value: time, money, causes.

Times are seconds, memory bytes, money usd."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from charter.physics.terms import Z90
from charter.plan.money import ProjectCost
from charter.plan.option import Option, near_tied, pareto
from charter.plan.plan import Plan
from charter.plan.risk import PRICE_SIGMA
from charter.plan.stage_plan import MicroUsd, StagePlan
from charter.report.plan_cells import full_share, hardware, held_groups, layout, median_usd

PARTS = ("work", "saves, failures and start", "storage")
PROJECT = "the project"
"""Row of what belongs to no stage."""


def chart_data(plan: Plan, *, start: float | None) -> dict[str, Any]:
    """All chart data; `start` in seconds since 1970 puts dates on the time axis."""
    return {
        "stages": [stage.name for stage in plan.stages],
        "buckets": buckets(plan),
        "gantt": gantt(plan, start=start),
        "memory": memory(plan),
        "pareto": [front_points(stage) for stage in plan.stages if _has_choice(stage)],
        "tornado": tornado(plan),
        "levers": levers(plan),
    }


def _has_choice(stage: StagePlan) -> bool:
    return len(stage.options) > 1 and all(option.usd is not None for option in stage.options)


def buckets(plan: Plan) -> dict[str, Any]:
    """Money of each stage, and of the project around them, by what it is for; time where a price is missing."""
    unit, _ = median_total(plan)
    if unit == "usd" and plan.cost is not None and plan.cost.total is not None:
        return _of_lines(plan.cost)
    rows = [{"stage": stage.name, "values": _values(stage, unit)} for stage in plan.stages]
    used = [index for index in range(len(PARTS)) if any(row["values"][index] for row in rows)]
    return {
        "unit": unit,
        "parts": [PARTS[index] for index in used],
        "rows": [{"stage": row["stage"], "values": [row["values"][index] for index in used]} for row in rows],
    }


def _of_lines(cost: ProjectCost) -> dict[str, Any]:
    parts = list(cost.by_bucket)
    sums: dict[str, dict[str, float]] = {}
    for line in cost.lines:
        values = sums.setdefault(line.stage or PROJECT, dict.fromkeys(parts, 0.0))
        values[line.bucket] += line.usd.p50 / 1e6
    rows = [{"stage": name, "values": list(values.values())} for name, values in sums.items()]
    return {"unit": "usd", "parts": parts, "rows": rows}


def _values(stage: StagePlan, unit: str) -> list[float]:
    risk = stage.option.overhead
    if unit == "seconds" or stage.compute_usd is None or stage.storage_usd is None:
        return [risk.useful_seconds, max(0.0, risk.wall_seconds - risk.useful_seconds), 0.0]
    useful = min(1.0, risk.useful_seconds / risk.billed_seconds) if risk.billed_seconds else 1.0
    machines = stage.compute_usd.p50 / 1e6
    return [machines * useful, machines * (1 - useful), stage.storage_usd.p50 / 1e6]


def gantt(plan: Plan, *, start: float | None) -> dict[str, Any]:
    """Median and p90 of start and end of each stage over draws of the whole plan."""
    median, high = plan.timeline("p50"), plan.timeline("p90")
    rows = [
        {
            "stage": stage.name,
            "p50": [median.start_seconds[stage.name], median.end_seconds[stage.name]],
            "p90": [high.start_seconds[stage.name], high.end_seconds[stage.name]],
            "critical": stage.name in median.critical_path,
        }
        for stage in plan.stages
    ]
    return {"start": start, "deadline": plan.deadline_seconds, "rows": rows}


def memory(plan: Plan) -> dict[str, Any]:
    """Peak bytes per accelerator by part, and the capacity; groups beside the main one have rows of their own."""
    rows: list[dict[str, Any]] = [
        {"stage": f"{stage.name} ({name})" if name else stage.name, "terms": peak.by_part(), "capacity": capacity}
        for stage in plan.stages
        for name, peak, capacity in held_groups(stage.option)
        if peak.total_bytes > 0
    ]
    names = dict.fromkeys(name for row in rows for name in row["terms"])
    return {"terms": list(names), "rows": rows}


def tornado(plan: Plan) -> dict[str, Any]:
    """Return the total with one cause low or high."""
    unit, base = median_total(plan)
    rows = [{"name": item.name, "low": item.low, "high": item.high} for item in drivers(plan)]
    return {"unit": unit, "base": base, "rows": rows}


def levers(plan: Plan) -> dict[str, Any]:
    """Return the values from which the sliders compute totals."""
    rows = [
        {
            "stage": stage.name,
            "inputs": list(stage.inputs),
            "fixed": stage.option.overhead.start_seconds,
            "wall": stage.option.overhead.wall_seconds,
            "seconds": [stage.option.seconds.p50, stage.option.seconds.p90],
            "machines": _middle_and_high(stage.compute_usd),
            "storage": _middle_and_high(stage.storage_usd),
        }
        for stage in plan.stages
    ]
    return {
        "rows": rows,
        "slots": plan.max_parallel,
        "budget": plan.budget_usd,
        "deadline": plan.deadline_seconds,
        "total": [plan.seconds.p50, plan.seconds.p90],
        "around": _around(plan),
    }


def _around(plan: Plan) -> list[float]:
    """Return the cost beside the machines and the storage of its stages, at p50 and p90."""
    total = plan.project_usd
    if total is None:
        return [0.0, 0.0]
    parts = [amount for stage in plan.stages for amount in (stage.compute_usd, stage.storage_usd) if amount is not None]
    return [(getattr(total, name) - sum(getattr(part, name) for part in parts)) / 1e6 for name in ("p50", "p90")]


def _middle_and_high(money: MicroUsd | None) -> list[float] | None:
    return None if money is None else [money.p50 / 1e6, money.p90 / 1e6]


FIXED_PRICES = ("contract", "owned", "own")
"""Markets whose price is known."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The total when one cause is at its 10th and at its 90th percentile, all else at its median."""

    name: str
    low: float
    high: float
    note: str

    @property
    def width(self) -> float:
        """Return the distance by which it moves the total."""
        return abs(self.high - self.low)


def median_total(plan: Plan) -> tuple[str, float]:
    """`usd` and the total at the median, or `seconds` and the sum of the stages where a price is missing."""
    total = plan.project_usd
    if total is None or total.p50 == 0:
        return "seconds", sum(stage.option.seconds.p50 for stage in plan.stages)
    return "usd", total.p50 / 1e6


def drivers(plan: Plan) -> list[Driver]:
    """Causes that move the total, widest first; one that moves nothing is left out.

    Stages move together, as in the totals of a plan. Of a lognormal cause with standard deviation sigma the bill of
    the machines is multiplied by `exp(-+1.2816 sigma)`. For failures the low end has none and no checkpoints, and
    the high end twice the expected loss: a bound, not a percentile.
    """
    unit, base = median_total(plan)
    entries = []
    for name, note, shift in _causes(unit):
        low, high = (base + sum(_amount(stage, unit) * shift(stage, side) for stage in plan.stages) for side in (-1, 1))
        entries.append(Driver(name=name, low=low, high=high, note=note))
    return sorted((item for item in entries if item.width > 1e-9 * base), key=lambda item: -item.width)


def _causes(unit: str) -> Iterator[tuple[str, str, Callable[[StagePlan, int], float]]]:
    """Each cause with the share of a stage's amount that it adds at its low (-1) and high (+1) end."""
    yield (
        "speed of training and generation",
        "width of the calibration, by kind of stage",
        lambda s, e: _factor(s, 0, e),
    )
    yield "length of answers", "generated tokens are guessed where lengths are not fixed", lambda s, e: _factor(s, 1, e)
    yield "failures, checkpoints and restarts", "from none at all to twice the expected loss", _lost_share
    if unit == "usd":
        yield "price per hour", "list and spot prices move; contracts do not", _price


def _factor(stage: StagePlan, index: int, end: int) -> float:
    sigmas = stage.option.time_sigmas
    return math.expm1(end * Z90 * sigmas[index]) if index < len(sigmas) else 0.0


def _price(stage: StagePlan, end: int) -> float:
    return 0.0 if stage.option.price.market in FIXED_PRICES else math.expm1(end * Z90 * PRICE_SIGMA)


def _lost_share(stage: StagePlan, end: int) -> float:
    risk = stage.option.overhead
    lost = risk.billed_seconds - risk.useful_seconds - risk.start_seconds
    return end * max(0.0, lost) / risk.billed_seconds if risk.billed_seconds else 0.0


def _amount(stage: StagePlan, unit: str) -> float:
    if unit == "seconds":
        return stage.option.seconds.p50
    return 0.0 if stage.compute_usd is None else stage.compute_usd.p50 / 1e6


MAX_POINTS = 60
"""Points of one chart beside the front; the cheapest are drawn, and the page says how many are not."""


def front_points(stage: StagePlan) -> dict[str, Any]:
    """Points of one stage's options: those that none beats, near ties of the chosen one, and the cheapest others."""
    front, tied = set(map(id, pareto(stage.options))), set(map(id, near_tied(stage.options, stage.option)))
    marked = [option for option in stage.options if id(option) in front | tied or option is stage.option]
    others = sorted(
        (option for option in stage.options if not any(option is item for item in marked)),
        key=lambda option: (median_usd(option), option.seconds.p50, option.label + option.layout_label),
    )
    shown = [*marked, *others[: max(0, MAX_POINTS - len(marked))]]
    points = [_point(option, stage.option, front=id(option) in front, tied=id(option) in tied) for option in shown]
    return {"stage": stage.name, "points": points, "left_out": len(stage.options) - len(shown)}


def _point(option: Option, chosen: Option, *, front: bool, tied: bool) -> dict[str, Any]:
    return {
        "seconds": option.seconds.p50,
        "usd": median_usd(option),
        "headroom": max(0.0, 1 - full_share(option)),
        "label": hardware(option),
        "layout": layout(option),
        "chosen": option is chosen,
        "tied": tied and option is not chosen,
        "front": front,
    }

"""Plans side by side as plain values: ratios of totals and stages to the first plan's."""

from collections.abc import Mapping, Sequence
from typing import Any

from charter.plan.plan import Plan

MEASURES = ("seconds", "gpu_hours", "usd")


def ratios(plan: Plan, base: Plan) -> Mapping[str, float | None]:
    """Medians of a plan over those of another; None where one has no price."""
    return {
        "seconds": _over(plan.seconds.p50, base.seconds.p50),
        "gpu_hours": _over(plan.gpu_hours.p50, base.gpu_hours.p50),
        "usd": _over(None if plan.usd is None else plan.usd.p50, None if base.usd is None else base.usd.p50),
    }


def comparison(plans: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, object]:
    """Plans as `charter plan --json` writes them, side by side: totals, and every stage that any of them has."""
    names = list(dict.fromkeys(stage["name"] for _, plan in plans for stage in plan["stages"]))
    first = plans[0][1]
    return {
        "plans": [
            {
                "label": label,
                "name": plan["name"],
                "total": {measure: plan["total"][measure] for measure in MEASURES},
                "ratio": _ratio(plan["total"], first["total"]),
                "risk": _risk_of_plan(plan),
                "budget": plan["total"].get("budget"),
                "deadline": plan["total"].get("deadline"),
            }
            for label, plan in plans
        ],
        "stages": [
            {"name": name, "plans": [_stage(_find(plan, name), _find(first, name)) for _, plan in plans]}
            for name in names
        ],
    }


def _find(plan: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    return next((stage for stage in plan["stages"] if stage["name"] == name), None)


def _stage(stage: Mapping[str, Any] | None, base: Mapping[str, Any] | None) -> dict[str, object] | None:
    if stage is None:
        return None
    return {
        "accelerator": stage["accelerator"],
        "count": stage["count"],
        "infra": stage.get("infra"),
        "market": stage["market"],
        "layout": stage["layout"].get("label", ""),
        "peak_bytes": stage["peak_bytes"],
        "capacity_bytes": stage["capacity_bytes"],
        **{measure: stage[measure] for measure in MEASURES},
        "ratio": None if base is None else _ratio(stage, base),
        "risk": stage.get("risk"),
    }


def _ratio(value: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, float | None]:
    return {measure: _over(value[measure]["p50"], base[measure]["p50"]) for measure in MEASURES}


def _over(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else round(value / base, 6)


def _risk_of_plan(plan: Mapping[str, Any]) -> dict[str, float]:
    """Return the distance from the median to the p90 of the total, in time and money."""
    total = plan["total"]
    spread = {measure: _over(total[measure]["p90"], total[measure]["p50"]) for measure in ("seconds", "usd")}
    return {f"{measure}_p90_over_p50": value for measure, value in spread.items() if value is not None}

"""Peak memory of every stage by who holds it: policy, value model, reference, judge. Pure."""

from collections.abc import Iterator
from typing import Any

from charter.plan.plan import Plan
from charter.plan.stage_memory import Peak
from charter.report.plan_cells import held_groups

SHARED, MODEL = "shared by all", "model"
"""What belongs to no role beside others, and where there is only one."""


def memory_by_role(plan: Plan) -> dict[str, Any]:
    """Bytes per accelerator at the fullest moment, by role and within it by part, and what a plan may use.

    Groups of accelerators that do something else than the main ones have rows of their own.
    """
    rows = list(_rows(plan))
    roles = dict.fromkeys(role for row in rows for role in row["roles"])
    return {"roles": list(roles), "rows": rows}


def _rows(plan: Plan) -> Iterator[dict[str, Any]]:
    for stage in plan.stages:
        for name, peak, capacity in held_groups(stage.option):
            if peak.total_bytes > 0:
                parts = _by_role(peak)
                yield {
                    "stage": f"{stage.name} ({name})" if name else stage.name,
                    "roles": {role: sum(terms.values()) for role, terms in parts.items()},
                    "parts": parts,
                    "capacity": capacity,
                    "moment": peak.moment,
                }


def _by_role(peak: Peak) -> dict[str, dict[str, float]]:
    alone = len({role for role, _ in peak.parts if role}) == 0
    by_role: dict[str, dict[str, float]] = {}
    for role, term in peak.parts:
        parts = by_role.setdefault(role or (MODEL if alone else SHARED), {})
        parts[term.part] = parts.get(term.part, 0.0) + term.value
    return by_role

"""How long every stage takes on every candidate, for SkyPilot's optimizer: what the plan found, by SkyPilot's names."""

from collections.abc import Sequence
from typing import Any

from charter.errors import InfeasibleError
from charter.launch.skypilot.names import CLOUDS, sky_accelerator
from charter.launch.skypilot.task import chosen, task_name
from charter.plan.plan import Plan
from charter.spec.project import Project

SECONDS_PER_HOUR = 3600


def time_table(project: Project, plan: Plan, stages: Sequence[str] = ()) -> list[dict[str, Any]]:
    """One row per stage, cloud, accelerators of a node and market: the median seconds, restarts and waits included.

    Of options that differ in layout only the fastest stands for all; those of several nodes are left out, since tasks
    have one (`charter.launch.skypilot.resources.check_nodes`). True as far as the plan's estimates are.
    """
    rows = []
    for name in chosen(project, stages):
        planned = plan.stage(name)
        fastest: dict[tuple[str, str, int, bool], float] = {}
        for option in planned.options if planned is not None else ():
            place, market = option.place, option.price.market
            if option.num_nodes > 1 or place.infra not in CLOUDS or place.is_cpu:
                continue
            key = (place.infra, sky_accelerator(place.accelerator.name), place.per_node, market == "spot")
            fastest[key] = min(fastest.get(key, float("inf")), option.seconds.p50)
        if not fastest:
            raise InfeasibleError(
                f"stage {name} fits on no single machine of a cloud that SkyPilot knows\n"
                "  charter plan --explain says what it needs; add larger machines to resources, or use slurm or ray"
            )
        rows += [
            {
                "task": task_name(name),
                "infra": infra,
                "accelerator": accelerator,
                "count": count,
                "use_spot": use_spot,
                "seconds": round(seconds),
            }
            for (infra, accelerator, count, use_spot), seconds in sorted(fastest.items())
        ]
    return rows

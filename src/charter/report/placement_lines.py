"""Division of work in a plan, as lines of text: groups of a placement, endpoints, servers between stages."""

from collections.abc import Iterator

from charter.plan.keep_warm import shared_servers
from charter.plan.plan import Plan
from charter.plan.stage_plan import StagePlan
from charter.units import format_usd


def placement_lines(plan: Plan) -> Iterator[str]:
    """One line per stage that has something to place, then one per pause between two stages that serve one model."""
    for stage in plan.stages:
        if len(stage.option.groups) > 1:
            yield _groups(stage)
        if stage.serving_reason:
            yield f"Serving for {stage.name}: {stage.serving_reason}."
    largest = {
        (shared.earlier, shared.later): shared
        for shared in sorted(shared_servers(plan.stages, plan.timeline()), key=lambda shared: shared.gap.load_seconds)
    }
    for shared in largest.values():
        yield f"Servers of {shared.line}."


def _groups(stage: StagePlan) -> str:
    """`Roles of ppo, async: trainers 7 x H100-SXM-80GB 88 % busy, ...; 12 % of the paid time waits ($23)`."""
    option = stage.option
    groups = ", ".join(
        f"{group.name} {group.num_accelerators} x {group.hardware} {100 * group.busy_share:.0f} % busy"
        for group in option.groups
    )
    waits = "" if option.idle_usd is None else f" ({format_usd(option.idle_usd)})"
    share = f"{100 * option.idle_share:.0f} % of the accelerators' time"
    return f"Roles of {stage.name}, {option.placement}: {groups}; {share}{waits} waits for other groups."

"""View model of the plan page: controls with the file's values, and a result, a wait or an error. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from charter.report.what_if.question import WhatIfQuestion
from charter.spec.project import Project
from charter.units import format_seconds, format_usd

MARKETS = (("spot", "spot"), ("on_demand", "on demand"), ("auto", "whichever is cheaper"))
OBJECTIVES = (("cheapest", "cheapest"), ("fastest", "fastest"), ("balanced", "balanced"))
State = Literal["ready", "loading", "error"]


@dataclass(frozen=True, kw_only=True)
class InFile:
    """Values of `charter.yaml` for each control, in words: shown where a control is empty."""

    accelerators: str = "as in charter.yaml"
    market: str = "as in charter.yaml"
    deadline: str = "none"
    budget: str = "none"
    nodes: str = "planned"
    max_nodes: str = ""
    objective: str = "as in charter.yaml"


@dataclass(frozen=True, kw_only=True)
class PlanPage:
    """The page."""

    question: WhatIfQuestion
    in_file: InFile
    accelerators: tuple[str, ...]
    """Known ones, to choose from."""
    state: State
    markets: tuple[tuple[str, str], ...] = MARKETS
    objectives: tuple[tuple[str, str], ...] = OBJECTIVES
    result: Mapping[str, Any] | None = None
    error: str = ""


def in_file(project: Project | None) -> InFile:
    """The values of a project for the controls."""
    if project is None:
        return InFile()
    resources = project.resources
    named = [*resources.accelerators, *(name for place in resources.any_of for name in place.accelerators)]
    markets = {True: "spot", False: "on demand", "auto": "whichever is cheaper"}
    return InFile(
        accelerators=", ".join(dict.fromkeys(named)) or "any that fits",
        market=markets[resources.use_spot],
        deadline=format_seconds(project.deadline) if project.deadline else "none",
        budget=format_usd(project.budget.limit) if project.budget else "none",
        nodes=str(resources.num_nodes) if resources.num_nodes else "planned",
        max_nodes=str(resources.max_nodes),
        objective=project.objective,
    )

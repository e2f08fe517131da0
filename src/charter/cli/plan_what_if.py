"""`charter plan --what-if`: the plan again with a change, beside the first."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from charter.cli.common import print_json
from charter.cli.plan_source import console, planned_project

if TYPE_CHECKING:
    from charter.plan.plan import Plan
    from charter.spec.project import Project


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One question, the values that were put over charter.yaml, and the plan or why there is none."""

    asked: str
    changes: list[str]
    plan: "Plan | None"
    reason: str = ""


def answers(
    questions: list[str],
    project: "Project",
    path: Path,
    template: str | None,
    overrides: list[str],
    planned: "Callable[[Project], Plan]",
) -> list[Answer]:
    """The plans of all questions; one that fits nowhere is an answer too."""
    from charter.errors import BudgetError, InfeasibleError
    from charter.plan.what_if import overrides_of

    found = []
    for asked in questions:
        changes = overrides_of(asked, project)
        changed, _ = planned_project(path, template, [*overrides, *changes])
        try:
            found.append(Answer(asked=asked, changes=changes, plan=planned(changed)))
        except (InfeasibleError, BudgetError) as error:
            found.append(Answer(asked=asked, changes=changes, plan=None, reason=str(error)))
    return found


def show(made: "Plan", found: list[Answer], *, as_json: bool, more: dict[str, object]) -> None:
    """Side by side with ratios; what cannot be planned is said below."""
    from charter.report.compare_table import compare_table
    from charter.report.compare_totals import ratios

    if as_json:
        told = [
            {
                "change": answer.asked,
                "set": answer.changes,
                "plan": None if answer.plan is None else answer.plan.to_json(),
                "ratio": None if answer.plan is None else ratios(answer.plan, made),
                "reason": answer.reason,
            }
            for answer in found
        ]
        print_json({**made.to_json(), **more, "what_if": told})
        return
    terminal = console()
    beside = [(answer.asked, answer.plan) for answer in found if answer.plan is not None]
    terminal.print(compare_table([("plan", made), *beside]))
    for answer in found:
        for line in answer.plan.advice if answer.plan else (answer.reason,):
            terminal.print(f"What if {answer.asked}: {line}", markup=False, highlight=False)

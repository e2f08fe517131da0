"""What the run has cost against what it may cost."""

from charter.cost.budget import budget_verdict
from charter.errors import BudgetError
from charter.ledger import Ledger
from charter.ledger.usage import usage_sums
from charter.pipeline.events import Events
from charter.spec.project import Project
from charter.units import MICRO_USD_PER_USD, format_usd

NO_PRICE = "resources.price is not set"


def spent_usd(project: Project, ledger: Ledger) -> float | None:
    """Cost of all attempts and calls so far; None when nothing has a price.

    Running attempts count up to their last heartbeat, calls that may or may not have been billed with the most
    that they can cost: a limit holds for the bill, not for what is known of it.
    """
    totals, calls = ledger.totals(run=project.name), usage_sums(ledger.usage(run=project.name))
    if not totals.priced_attempts and not calls.most_micro_usd:
        return None
    return (totals.micro_usd + calls.most_micro_usd) / MICRO_USD_PER_USD


def limit_passed(project: Project, spent: float | None) -> bool:
    """Whether more is spent than the file allows."""
    return project.budget is not None and spent is not None and spent > project.budget.limit


def stops_at_limit(project: Project) -> bool:
    """Whether the file asks to stop at the limit, not only to warn."""
    return project.budget is not None and project.budget.on_exceed == "checkpoint_and_stop"


def share_warning(project: Project, spent: float | None, told: float) -> tuple[float, str] | None:
    """The largest of 50, 80 and 90 % of the limit that is spent, if that is more than was `told`, and what to say."""
    if project.budget is None or spent is None or limit_passed(project, spent):
        return None
    verdict = budget_verdict(
        limit_usd=project.budget.limit, spent_usd=spent, remaining_p50_usd=0.0, remaining_p90_usd=0.0
    )
    passed = verdict.passed_share or 0.0
    if passed <= told:
        return None
    return passed, f"{project.name} has cost {format_usd(spent)}, {100 * passed:.0f} % of its limit or more"


def budget_error(project: Project, spent: float | None) -> BudgetError:
    """The error that ends a run at its limit."""
    assert project.budget is not None
    return BudgetError(
        f"{project.name} has cost {format_usd(spent)}, over its limit of {format_usd(project.budget.limit)}\n"
        "  everything done so far is kept; raise budget.limit, or set budget.on_exceed: warn, and run again"
    )


def check_budget(project: Project, ledger: Ledger, events: Events) -> None:
    """Refuse to start when the limit is already passed; warn when the file only asks for that."""
    spent = spent_usd(project, ledger)
    if limit_passed(project, spent) and stops_at_limit(project):
        raise budget_error(project, spent)
    if project.budget is not None and project.resources.price is None:
        events.emit("budget_unpriced", message=f"the budget cannot be watched{_but_calls(project)}: {NO_PRICE}")


def _but_calls(project: Project) -> str:
    priced = any(serving.usd_per_million_input_tokens is not None for serving in project.serving.values())
    return " but for calls to servers" if priced else ""

"""What `charter plan` is asked, checked before anything is planned: a typing error should not cost a planning time."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from charter.spec.project import Project


def start_of(text: str | None) -> datetime | None:
    """The moment of `--start` in UTC; a date is its midnight, and a time without an offset is UTC.

    >>> start_of("2026-12-01T09:30+02:00").isoformat()
    '2026-12-01T07:30:00+00:00'
    """
    from charter.errors import UsageError

    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(f"--start {text}: is no date; write it like 2026-12-01 or 2026-12-01T09:30") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def objective_of(text: str) -> str:
    """The objective that `--objective` names, or a `UsageError` with those that there are."""
    from typing import get_args

    from charter.errors import UsageError
    from charter.plan.choice.objective import Objective

    known = get_args(Objective)
    if text not in known:
        raise UsageError(f"--objective {text}: there is no such objective; give {', '.join(known)}")
    return text


def print_expanded(project: "Project", deviations: Sequence[str], *, as_json: bool) -> None:
    """The project with its presets written out, as YAML; where the preset differs from its paper, as comments."""
    from charter.errors import UsageError
    from charter.spec.expand import project_yaml

    if as_json:
        raise UsageError("--expand prints YAML and --json prints JSON; give one of them")
    typer.echo("".join(f"# {line}\n" for line in deviations) + project_yaml(project), nl=False)


def check_asked(project: "Project", *, explain: str | None, what_if: Sequence[str] | None, as_json: bool) -> None:
    """Raise a `UsageError` for a stage or a question that there is not, and for two ways to print at once."""
    from charter.errors import UsageError
    from charter.plan.what_if import overrides_of

    if explain is not None and explain not in project.pipeline:
        known = ", ".join(project.pipeline)
        raise UsageError(f"--explain {explain}: there is no such stage; this project has {known}")
    if explain is not None and (as_json or what_if):
        other = "--json" if as_json else "--what-if"
        raise UsageError(f"--explain prints one stage and {other} the plan; give one of them")
    for question in what_if or ():
        overrides_of(question, project)

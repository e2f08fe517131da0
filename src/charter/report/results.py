"""The end of a run in a terminal: what was measured, what it may and may not claim, plan against actual."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from charter.evaluate.outcome import EvaluationOutcome, outcome_of
from charter.report.cost_text import print_budget, print_plan_against_actual, print_waste, state_text
from charter.report.overview import overview
from charter.report.read import RunFiles, read_run


def print_summary(project_dir: Path, console: Console) -> None:
    """Print figures with their 95 % intervals, claims, and plan against actual by stage, of one project."""
    run = read_run(project_dir, with_metrics=False)
    view = overview(run)
    console.print(f"[bold]{escape(view.project)}[/bold]  {state_text(view.state)}", highlight=False)
    for outcome in outcomes(run):
        for comparison in outcome.comparisons:
            console.print(str(comparison), markup=False, highlight=False)
    for name, results in all_results(run):
        console.print()
        figures = results.get("figures", [])
        shown = [figure for figure in figures if figure.get("headline")] or figures
        console.print(figures_table(name, shown))
        more = f"{len(figures) - len(shown)} more figures, and how" if len(shown) < len(figures) else "How"
        console.print(f"{more} each was measured: in the page of `charter report`.", style="dim", highlight=False)
        print_claims(results.get("claims", {}), console)
    console.print()
    print_plan_against_actual(view, console)
    console.print()
    print_waste(view, console)
    print_budget(view, console)


def outcomes(run: RunFiles) -> list[EvaluationOutcome]:
    """Return the outcomes of the evaluations."""
    return [outcome_of(name, results) for name, results in all_results(run)]


def all_results(run: RunFiles) -> list[tuple[str, Mapping[str, Any]]]:
    """The results of every evaluation stage that has some."""
    return [(name, files.results) for name, files in run.stages.items() if files.results]


def figures_table(stage: str, figures: Sequence[Mapping[str, Any]]) -> Table:
    """Measured figures, each with its interval and the number of cases behind it."""
    table = Table(
        title=f"Results of {escape(stage)}, on held-out data", title_justify="left", title_style="bold", box=None,
        pad_edge=False, padding=(0, 2, 0, 0),
    )  # fmt: skip
    table.add_column("Figure")
    table.add_column("Value", justify="right", style="bold")
    table.add_column("95 % interval", justify="right")
    table.add_column("n", justify="right")
    suite = None
    for figure in figures:
        if suite is not None and suite != _suite(figure):
            table.add_row()
        suite = _suite(figure)
        table.add_row(
            Text(str(figure.get("label") or figure.get("key") or "")),
            value_text(figure),
            interval_text(figure),
            f"{figure['n']:,}" if isinstance(figure.get("n"), int) else "",
        )
    return table


def _suite(figure: Mapping[str, Any]) -> str:
    return str(figure.get("key") or "").partition(".")[0]


def unit_of(figure: Mapping[str, Any]) -> str:
    """Return the unit in which people read a figure: a difference of two shares is in percentage points."""
    unit = str(figure.get("unit") or "")
    return POINTS if unit == "share" and "paired" in str(figure.get("method")) else unit


def value_text(figure: Mapping[str, Any]) -> str:
    """`57.7 %`, or `+6.2 points` of a difference."""
    return figure_text(figure.get("value"), unit_of(figure), with_unit=True)


def interval_text(figure: Mapping[str, Any]) -> str:
    """`50.9 to 64.3`, or nothing where no interval was computed."""
    low, high, unit = figure.get("low"), figure.get("high"), unit_of(figure)
    if low is None or high is None:
        return ""
    return f"{figure_text(low, unit)} to {figure_text(high, unit)}"


POINTS = "points"
_UNIT_WORDS = {"deviations": "standard deviations"}
"""Units of `results.json` that people read in other words."""


def figure_text(value: float | None, unit: str, *, with_unit: bool = False) -> str:
    """A figure as people read it; shares as per cent, their differences in points.

    >>> figure_text(0.577, "share", with_unit=True), figure_text(0.062, "points", with_unit=True)
    ('57.7 %', '+6.2 points')
    """
    if value is None:
        return "not measured"
    if unit == "share":
        return f"{100 * value:.1f}" + (" %" if with_unit else "")
    if unit == POINTS:
        return f"{100 * value:+.1f}" + (" points" if with_unit else "")
    unit = _UNIT_WORDS.get(unit, unit)
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}" + (f" {unit}" if with_unit and unit else "")


def print_claims(claims: Mapping[str, Any], console: Console) -> None:
    """Print what the run may and may not claim, where the evaluation says."""
    for key, title, mark in (("may", "This run may claim", "+"), ("may_not", "It may not claim", "-")):
        sentences = claims.get(key) or []
        if sentences:
            console.print(f"\n{title}", style="bold")
            lines = Table.grid(padding=(0, 1, 0, 0))
            for reason, claims_of_it in by_reason(sentences):
                if len(claims_of_it) > 1:
                    lines.add_row(f"  {mark}", Text(f"{reason}:"))
                    lines.add_row("", Text("\n".join(f"{mark} {claim}" for claim in claims_of_it)))
                else:
                    lines.add_row(f"  {mark}", Text(": ".join((*filter(None, (reason,)), *claims_of_it))))
            console.print(lines)


def by_reason(sentences: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Group what is not shown by the reason that its sentences begin with; other sentences have none and stay apart.

    >>> by_reason(["Not shown, too few rows: a.", "Not shown, too few rows: b.", "That: c."])
    [('Not shown, too few rows', ['a.', 'b.']), ('', ['That: c.'])]
    """
    groups: list[tuple[str, list[str]]] = []
    for sentence in map(str, sentences):
        reason, colon, claim = sentence.partition(": ")
        if not colon or not reason.startswith("Not shown"):
            groups.append(("", [sentence]))
        elif groups and groups[-1][0] == reason:
            groups[-1][1].append(claim)
        else:
            groups.append((reason, [claim]))
    return groups

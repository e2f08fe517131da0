"""The end of a run in a terminal: what was measured, what it may and may not claim, plan against actual."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from charter.evaluate.outcome import EvaluationOutcome, outcome_of
from charter.report.cost import titled_table
from charter.report.cost_text import print_budget, print_plan_against_actual, print_waste, state_text
from charter.report.markup import chart, join
from charter.report.overview import overview
from charter.report.read import RunFiles, read_run

HEIGHT = 260
"""Pixels of one curve."""
_SHOWN = ("low", "high", "n", "label")


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """Style of the points of one sort."""

    title: str
    x: str
    y: str
    diagonal: bool = False
    """Whether x and y are the same measure, so that points on the diagonal are right."""


RELIABILITY, REWARD, QUALITY = (
    _Kind(title="Reliability", x="how sure the model is", y="how often it is right", diagonal=True),
    _Kind(title="Reward over training", x="KL, nats per answer", y="reward"),
    _Kind(title="Quality over training", x="KL, nats per answer", y="share won"),
)


def is_point(figure: Mapping[str, Any]) -> bool:
    """Return True if a figure is a point of a curve, and not a row of its own in charts."""
    return figure.get("at") is not None


def measured_curves(run: RunFiles) -> list[dict[str, Any]]:
    """Every curve that evaluation stages measured, with its points in the order of their places."""
    points: dict[tuple[str, str], list[dict[str, Any]]] = {}
    kinds: dict[tuple[str, str], _Kind] = {}
    for stage, results in all_results(run):
        for figure in results.get("figures", []):
            if is_point(figure) and figure.get("value") is not None:
                group, kind = _curve_of(str(figure.get("key") or ""))
                curve = (stage, f"{kind.title}: {group}")
                kinds[curve] = kind
                point = {"x": figure["at"], "y": figure["value"]}
                points.setdefault(curve, []).append(point | {name: figure.get(name) for name in _SHOWN})
    return training_curves(run) + [
        {
            "title": curve[1],
            "x": kinds[curve].x,
            "y": kinds[curve].y,
            "diagonal": kinds[curve].diagonal,
            "points": sorted(marks, key=lambda point: float(point["x"])),
        }
        for curve, marks in points.items()
    ]


MOST_POINTS = 60
"""Of a curve over training; more lie on each other."""


def training_curves(run: RunFiles) -> list[dict[str, Any]]:
    """Reward and gold over KL, or over rollouts where no KL is measured, of stages that have a gold."""
    panels = []
    for name, stage in run.stages.items():
        gold = ((stage.job or {}).get("spec") or {}).get("gold")
        rows = [point for point in stage.metrics if gold and f"reward_{gold}_mean" in point.values]
        has_kl = all("kl" in point.values for point in rows)
        for title, metric in (("reward", "reward_mean"), (f"gold {gold}", f"reward_{gold}_mean")):
            points = [
                {
                    "x": point.values["kl"] if has_kl else point.step,
                    "y": point.values[metric],
                    "low": point.values[metric],
                    "high": point.values[metric],
                    "n": int(point.values.get("episodes", 0)),
                    "label": f"rollout {point.step}",
                }
                for point in rows[:: max(1, -(-len(rows) // MOST_POINTS))]
                if metric in point.values
            ]
            if points:
                x = "KL, nats per answer" if has_kl else "rollout"
                points.sort(key=lambda point: float(point["x"]))
                panels.append({"title": f"{name}: {title}", "x": x, "y": title, "diagonal": False, "points": points})
    return panels


def measured_charts(panels: list[dict[str, Any]]) -> str:
    """Places for the curves."""
    titles = [str(panel["title"]) for panel in panels]
    return join(
        chart("measured", label=f"{title}, with 95 % intervals", height=HEIGHT, caption=title, index=index)
        for index, title in enumerate(titles)
    )


def _curve_of(key: str) -> tuple[str, _Kind]:
    """The curve that a point belongs to, by its key.

    >>> _curve_of("pm_calibration.also.pm2.bin.80")[0], _curve_of("goodhart.step_4.quality")[1].title
    ('also.pm2', 'Quality over training')
    """
    parts = key.split(".")
    if "bin" in parts:
        return ".".join(parts[1 : parts.index("bin")]), RELIABILITY
    return parts[0], QUALITY if parts[-1] == "quality" else REWARD


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
    figures_of = f"Results of {escape(stage)}, on held-out data"
    table = titled_table(figures_of, "Figure", right=("Value", "95 % interval", "n"))
    table.columns[1].style = "bold"
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

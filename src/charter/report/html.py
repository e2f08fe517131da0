"""One self-contained HTML page of a plan or a run: style, charts and data in the file, nothing loaded."""

from collections.abc import Mapping, Sequence
from typing import Any

from charter import __version__
from charter.ledger.account import Accounted
from charter.report import sections
from charter.report.markup import document, script_json
from charter.report.overview import Overview, overview
from charter.report.read import RunFiles
from charter.report.results import POINTS, all_results, is_point, measured_curves, unit_of
from charter.report.sections import header
from charter.tracking.base import series
from charter.units import format_moment

CURVES = (
    "loss", "accuracy", "reward_mean", "kl", "kl_coefficient", "policy_loss", "value_loss", "entropy",
    "clip_fraction", "response_tokens",
)  # fmt: skip
"""Metrics that are drawn, in this order."""
DIFFERENCE = "share difference"
MAX_POINTS = 240
"""Points of one curve; longer ones are drawn as means of equal numbers of steps."""
GAP_SHARE = 0.15
"""Pauses longer than this share of the busy time are cut out of the timeline, and said to be."""


def chart_data(run: RunFiles, view: Overview) -> dict[str, Any]:
    """All chart data of a report."""
    return {
        "stages": [stage.name for stage in view.stages],
        "results": result_panels(run),
        "measured": measured_curves(run),
        "allocation": allocation(view),
        "timeline": timeline(run.accounted),
        "against": plan_and_actual(view),
        "memory": memory(view),
        "curves": curves(run, order=[stage.name for stage in view.stages]),
    }


def result_panels(run: RunFiles) -> list[dict[str, Any]]:
    """Figures with an interval, one panel per unit: they share an axis only where they share a unit.

    Shares have a mark at one half; paired differences of shares are a panel of their own, with a mark at zero.
    """
    panels: dict[str, list[dict[str, Any]]] = {"share": [], DIFFERENCE: []}
    for _, results in all_results(run):
        for figure in results.get("figures", []):
            if figure.get("value") is None or is_point(figure):
                continue
            unit = unit_of(figure)
            unit = DIFFERENCE if unit == POINTS else unit
            row = {name: figure.get(name) for name in ("label", "value", "low", "high")}
            panels.setdefault(unit, []).append(row)
    marks = {"share": 0.5, DIFFERENCE: 0.0}
    return [{"unit": unit, "rows": rows, "mark": marks.get(unit)} for unit, rows in panels.items() if rows]


def allocation(view: Overview) -> dict[str, Any]:
    """Return the spending by stage, kept and lost; the time where there is no price, the plan before a run."""
    ran = view.totals.attempts > 0
    unit = "usd" if (view.actual.usd if ran else view.plan.p50.usd) is not None else "seconds"
    rows = []
    for stage in view.stages:
        totals = stage.totals
        if not ran and stage.plan is not None:
            total, wasted = getattr(stage.plan.p50, unit) or 0.0, 0.0
        elif unit == "usd":
            total = totals.micro_usd / 1e6
            wasted = (totals.lost_to_kills_micro_usd + totals.lost_to_failures_micro_usd) / 1e6
        else:
            total = totals.milliseconds / 1e3
            wasted = (totals.milliseconds - totals.useful_milliseconds) / 1e3
        if total > 0:
            rows.append({"stage": stage.name, "kept": total - wasted, "lost": wasted})
    return {"unit": unit, "planned": not ran, "rows": rows}


def timeline(accounted: Sequence[Accounted]) -> dict[str, Any]:
    """Start and end of every attempt, in seconds since the first, with long pauses cut out."""
    attempts = sorted((item.attempt for item in accounted), key=lambda attempt: attempt.started_at)
    busy = sum(attempt.seconds for attempt in attempts)
    cut, reached, rows = 0.0, attempts[0].started_at if attempts else 0.0, []
    origin = reached
    for attempt in attempts:
        pause = attempt.started_at - reached
        if pause > GAP_SHARE * busy:
            cut += pause - 0.02 * busy
        start = attempt.started_at - origin - cut
        rows.append(
            {
                "stage": attempt.stage,
                "number": attempt.number,
                "start": start,
                "end": start + attempt.seconds,
                "outcome": attempt.outcome,
            }
        )
        reached = max(reached, attempt.started_at + attempt.seconds)
    return {"rows": rows, "cut_seconds": cut}


def plan_and_actual(view: Overview) -> list[dict[str, Any]]:
    """Planned interval and actual time of every stage that was planned."""
    return [
        {
            "stage": stage.name,
            "p10": stage.plan.p10.seconds,
            "p50": stage.plan.p50.seconds,
            "p90": stage.plan.p90.seconds,
            "actual": stage.actual.seconds if stage.totals.attempts else None,
            "done": stage.state == "done",
        }
        for stage in view.stages
        if stage.plan is not None and stage.plan.p50.milliseconds > 0
    ]


def memory(view: Overview) -> dict[str, Any]:
    """Planned peak bytes per accelerator by term, and the capacity, of every stage."""
    rows: list[dict[str, Any]] = []
    for stage in view.stages:
        plan = stage.planned_stage
        if not plan.get("peak_bytes"):
            continue
        terms = memory_terms(plan.get("breakdown") or {}) or {"total": float(plan["peak_bytes"])}
        rows.append({"stage": stage.name, "terms": terms, "capacity": plan.get("capacity_bytes")})
    names = dict.fromkeys(name for row in rows for name in row["terms"])
    return {"terms": list(names), "rows": rows}


def memory_terms(breakdown: Mapping[str, Any]) -> dict[str, float]:
    """The bytes in a plan's breakdown by term, whether they lie in it or under `memory`.

    >>> memory_terms({"memory": {"parameters": 10.0, "optimizer": 20.0}, "seconds": {"compute": 3.0}})
    {'parameters': 10.0, 'optimizer': 20.0}
    """
    inner = next((breakdown[key] for key in ("memory", "memory_bytes", "bytes") if key in breakdown), breakdown)
    if not isinstance(inner, Mapping):
        return {}
    terms = {str(name): float(value) for name, value in inner.items() if isinstance(value, int | float)}
    return {name: value for name, value in terms.items() if value > 0}


def curves(run: RunFiles, *, order: Sequence[str]) -> list[dict[str, Any]]:
    """The training curves of every stage that logged some; a metric that never changes is left out."""
    drawn = []
    for name in order:
        points_of_stage = run.stages[name].metrics if name in run.stages else ()
        for metric in CURVES:
            points = list(series(points_of_stage, metric))
            if len({value for _, value in points}) > 1:
                drawn.append({"stage": name, "metric": metric, **thinned(points)})
    return drawn


def thinned(points: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """At most `MAX_POINTS` points; `mean_of` says of how many steps each is the mean.

    >>> thinned([(1, 2.0), (2, 4.0)])
    {'mean_of': 1, 'points': [[1, 2.0], [2, 4.0]]}
    """
    size = -(-len(points) // MAX_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    means = [[group[-1][0], sum(value for _, value in group) / len(group)] for group in groups]
    return {"mean_of": size, "points": means}


def report_html(run: RunFiles, *, now: float) -> str:
    """The whole page; `now` is the time that it says it was made at."""
    view = overview(run)
    charts = chart_data(run, view)
    ran = view.totals.attempts > 0
    body = (
        header(view, title=run.project, subtitle=f"{'Run' if ran else 'Plan'} report, {format_moment(now)}"),
        sections.results(run, charts["results"], charts["measured"]),
        sections.rewards(run),
        sections.stage_table(view),
        sections.spending(view, charts),
        sections.timeline(charts),
        sections.curves(view, charts),
        sections.memory(run, view, charts),
        sections.ledger(view, run.accounted),
        sections.fees(run),
        sections.rejected(view),
        sections.assumptions(run),
        sections.versions(run, charter_version=__version__),
    )
    return document(title=f"{run.project} - Charter report", body="".join(body), data=script_json(charts))

"""The top of the HTML report: project, state, the numbers that matter, the budget."""

from charter.report.cost import budget_json
from charter.report.markup import Markup, esc, join
from charter.report.overview import Overview
from charter.units import format_seconds, format_usd


def header(view: Overview, *, title: str, subtitle: str) -> Markup:
    """Project, state, and the four numbers that matter."""
    cards = join(_card(*card) for card in _cards(view))
    state = pill(view.state) if view.totals.attempts else ""
    return Markup(
        f'<header><p class="kicker">{esc(subtitle)}</p><h1>{esc(title)} {state}</h1>'
        f'<div class="cards">{cards}</div>{_budget_bar(view)}</header>'
    )


def pill(state: str) -> Markup:
    """A state as a coloured word."""
    return Markup(f'<span class="pill {esc(state)}">{esc(state)}</span>')


def _cards(view: Overview) -> list[tuple[str, str, str]]:
    plan, actual, ran = view.plan, view.actual, view.totals.attempts > 0
    planned_cost = format_usd(plan.p50.usd) if plan.p50.usd else ""
    if not ran:
        cost_note = f"p90 {format_usd(plan.p90.usd)}" if plan.p90.usd else "no price is set"
        return [
            ("Planned time", format_seconds(plan.p50.seconds), f"p90 {format_seconds(plan.p90.seconds)}"),
            ("Planned cost", format_usd(plan.p50.usd), cost_note),
            ("Stages", str(len(view.stages)), "nothing has run yet"),
        ]
    useful = view.totals.useful_milliseconds / max(1, view.totals.milliseconds)
    done = sum(stage.state == "done" for stage in view.stages)
    return [
        ("Wall clock", format_seconds(view.wall_seconds), _machine_time(view)),
        ("Cost", format_usd(actual.usd), f"planned {planned_cost}" if planned_cost else "no price is set"),
        ("Kept", f"{100 * useful:.1f} %", f"of the time of {view.totals.attempts} attempts"),
        ("Stages done", f"{done} of {len(view.stages)}", _forecast_note(view)),
    ]


def _machine_time(view: Overview) -> str:
    """The sum over all attempts, beside that over all planned stages."""
    planned = f"planned {format_seconds(view.plan.p50.seconds)}" if view.plan.p50.milliseconds else "not planned"
    return f"machine time {format_seconds(view.actual.seconds)}, {planned}"


def _forecast_note(view: Overview) -> str:
    if view.state == "done":
        return "the run is complete"
    return f"forecast {format_seconds(view.forecast.p50.seconds)} of machine time in all"


def _card(name: str, value: str, note: str) -> str:
    return (
        f'<div class="card"><p class="name">{esc(name)}</p><p class="value">{esc(value)}</p>'
        f'<p class="note">{esc(note)}</p></div>'
    )


def _spent(view: Overview) -> str:
    return f"spent {format_usd(view.actual.usd)}" if view.totals.attempts else "nothing spent yet"


def _budget_bar(view: Overview) -> str:
    budget = budget_json(view)
    if budget is None:
        return ""
    limit, used = budget["limit_usd"], budget["spent_usd"] or 0.0
    median, high = budget["forecast_usd"] or 0.0, budget["forecast_usd_p90"] or 0.0
    scale = max(limit, high, median, used) * 1.04 or 1.0
    bars = "".join(
        f'<span class="{name}" style="width:{100 * value / scale:.2f}%"></span>'
        for name, value in (("high", high), ("median", median), ("used", used))
    )
    text = (
        f"Budget {format_usd(limit)}: {_spent(view)}, forecast "
        f"{format_usd(budget['forecast_usd'])} (p90 {format_usd(budget['forecast_usd_p90'])})"
    )
    mark = f'<span class="limit" style="left:{100 * limit / scale:.2f}%"></span>'
    return f'<div class="budget {esc(budget["state"])}"><div class="bar">{bars}{mark}</div><p>{esc(text)}</p></div>'

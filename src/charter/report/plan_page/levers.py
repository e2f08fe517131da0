"""Two sliders, price and speed, and the totals that the page's script recomputes from them."""

from charter.plan.plan import Plan
from charter.report.markup import Markup, esc, section
from charter.units import format_seconds, format_usd

LOWEST, HIGHEST = 50, 200
"""Per cent of the planned value that a slider reaches."""


def sliders(plan: Plan) -> Markup:
    """The sliders and, until one is moved, the totals of the plan; without a script there is nothing to move."""
    seconds, usd = plan.seconds, plan.project_usd
    shown = [("time", "Time", f"{format_seconds(seconds.p50)} (p90 {format_seconds(seconds.p90)})")]
    if usd is not None and usd.p50:
        shown.append(("cost", "Cost", f"{format_usd(usd.p50 / 1e6)} (p90 {format_usd(usd.p90 / 1e6)})"))
    inputs = _slider("speed", "Speed of the work")
    inputs += _slider("price", "Price per hour") if len(shown) > 1 else ""
    outputs = "".join(
        f'<p><span class="name">{name}</span> <output data-total="{key}">{esc(text)}</output> '
        f'<span class="note" data-verdict="{key}"></span></p>'
        for key, name, text in shown
    )
    body = Markup(f'<div class="levers"><div>{inputs}</div><div aria-live="polite">{outputs}</div></div>')
    note = (
        "Computed in this page: hardware and layouts stay, and so does the time to start a stage. "
        "For another choice of hardware ask charter plan again."
    )
    return section("What if", body, note=note)


def _slider(key: str, label: str) -> str:
    return (
        f'<label>{label} <span data-percent="{key}">100 %</span>'
        f'<input type="range" data-lever="{key}" min="{LOWEST}" max="{HIGHEST}" step="5" value="100"></label>'
    )

"""The top of the plan page: totals, and bars against the budget and the deadline."""

from datetime import UTC, date, datetime

from charter.plan.plan import Plan
from charter.report.markup import Markup, esc, join
from charter.report.plan_cells import VERDICT_WORDS
from charter.report.plan_dates import dates_line
from charter.report.plan_notes import dominant_phase, longest_pole
from charter.units import format_count, format_seconds, format_usd


def heading(plan: Plan, *, now: float, start: float | None) -> Markup:
    """Name, when it was made, dates of catalog and prices, four figures, budget and deadline."""
    today = datetime.fromtimestamp(now, tz=UTC).date()
    kicker = f"Plan, {_minute(now)}; nothing was started"
    cards = join(_card(*card) for card in _cards(plan, start))
    return Markup(
        f'<header><p class="kicker">{esc(kicker)}</p><h1>{esc(plan.name)}</h1>{_models(plan, today)}'
        f'<div class="cards">{cards}</div>{_bars(plan)}</header>'
    )


def _models(plan: Plan, today: date) -> str:
    parts = [f"{name} {format_count(size)}" for name, size in plan.models] + dates_line(plan, today)
    return f'<p class="note">{esc(" · ".join(parts))}</p>' if parts else ""


def _cards(plan: Plan, start: float | None) -> list[tuple[str, str, str]]:
    seconds, usd = plan.seconds, plan.project_usd
    cost = (
        (format_usd(usd.p50 / 1e6), f"p90 {format_usd(usd.p90 / 1e6)}") if usd else ("unpriced", "a stage has no price")
    )
    pole = longest_pole(plan)
    phase = dominant_phase(pole)
    most = f"{100 * phase[1]:.0f} % of its time in {phase[0]}" if phase else "longest stage of the critical path"
    cards = [
        ("Time", format_seconds(seconds.p50), f"p90 {format_seconds(seconds.p90)}"),
        ("Cost", *cost),
        ("Accelerator-hours", f"{plan.gpu_hours.p50:,.0f}", f"p90 {plan.gpu_hours.p90:,.0f}"),
        ("Bottleneck", pole.name, most),
    ]
    if start is not None:
        cards.insert(1, ("Done", _day(start + seconds.p50), f"p90 {_day(start + seconds.p90)}; started {_day(start)}"))
    return cards


def _card(name: str, value: str, note: str) -> str:
    return (
        f'<div class="card"><p class="name">{esc(name)}</p><p class="value">{esc(value)}</p>'
        f'<p class="note">{esc(note)}</p></div>'
    )


def _bars(plan: Plan) -> str:
    bars = ""
    total = plan.project_usd
    if plan.budget_usd is not None and total is not None:
        median, high = total.p50 / 1e6, total.p90 / 1e6
        text = f"Budget {format_usd(plan.budget_usd)}: {format_usd(median)} at p50, {format_usd(high)} at p90"
        bars += _bar(median, high, plan.budget_usd, text, plan.budget_verdict)
    elif plan.budget_usd is not None:
        bars += (
            f'<p class="note">Budget {esc(format_usd(plan.budget_usd))}: cannot be checked, a stage has no price.</p>'
        )
    if plan.deadline_seconds is not None:
        limit, time = plan.deadline_seconds, plan.seconds
        text = f"Deadline {format_seconds(limit)}: {format_seconds(time.p50)} at p50, {format_seconds(time.p90)} at p90"
        bars += _bar(time.p50, time.p90, limit, text, plan.deadline_verdict)
    return bars


def _bar(median: float, high: float, limit: float, text: str, verdict: str | None) -> str:
    """Two bars on one axis and a mark at the limit; the colour and the words say the verdict."""
    scale = max(limit, high) * 1.04 or 1.0
    state = {"ok": "", "p90 over": " warn", "over": " exceeded"}.get(verdict or "", "")
    spans = "".join(
        f'<span class="{name}" style="width:{100 * value / scale:.2f}%"></span>'
        for name, value in (("high", high), ("used", median))
    )
    mark = f'<span class="limit" style="left:{100 * limit / scale:.2f}%"></span>'
    words = f"{text}: {VERDICT_WORDS.get(verdict or '', verdict or '')}"
    return f'<div class="budget{state}"><div class="bar">{spans}{mark}</div><p>{esc(words)}</p></div>'


def _minute(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%d %b %H:%M")

"""The sections of the HTML report, one function each: values in, markup out."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import starmap
from typing import Any

from charter.ledger.account import Accounted, day_of
from charter.report.cost import budget_json
from charter.report.cost_text import BEYOND_WORDS, time_ratio_text, unit_rows
from charter.report.estimate_actual import process_memory, tensor_memory
from charter.report.markup import Markup, card, chart, esc, folded, join, plain_value, section, stage_name, table
from charter.report.overview import Overview, StageView, lost
from charter.report.plan_cells import NO_SPREAD, AmountSpread
from charter.report.read import RunFiles
from charter.report.results import all_results, by_reason, interval_text, measured_charts, outcomes, value_text
from charter.units import MICRO_USD_PER_USD, format_bytes, format_seconds, format_usd

ROW = 30
"""Pixels of one row of a horizontal chart."""


def results(run: RunFiles, panels: list[dict[str, Any]], curves: list[dict[str, Any]]) -> Markup:
    """Measured figures with their intervals, and what they may be taken for."""
    parts: list[str] = []
    for outcome in outcomes(run):
        parts += [
            f'<p class="outcome"><strong>{esc(item.question)} {esc(item.printed)}.</strong> {esc(item.why)}.</p>'
            for item in outcome.comparisons
        ]
    for _, stage_results in all_results(run):
        parts.append(_claims(stage_results.get("claims") or {}))
    for index, panel in enumerate(panels):
        label = f"Figures in {panel['unit'] or 'their own unit'} with 95 % intervals"
        height = ROW * len(panel["rows"]) + (46 if panel["mark"] == 0.5 else 66)
        parts.append(chart("results", label=label, height=height, index=index))
    parts.append(measured_charts(curves))
    for _, stage_results in all_results(run):
        rows = [_figure_row(figure) for figure in stage_results.get("figures", [])]
        head = ("Figure", "Value", "95 % interval", "n", "Method", "Note")
        parts.append(table(head, rows, numeric=(1, 2, 3)))
    return section(
        "Results",
        *parts,
        note="Measured on held-out data. A dot is the figure, its line the 95 % interval; dashed: no effect.",
    )


def rewards(run: RunFiles) -> Markup:
    """Every reward of a list: where it began and ended, its spread, what failed, what it took; and alarms."""
    rows, alarms = list[tuple[object, ...]](), list[str]()
    for name, stage in run.stages.items():
        spec = (stage.job or {}).get("spec") or {}
        values = [point.values for point in stage.metrics]
        for reward in spec.get("rewards") or ():
            rows += _reward_rows(name, reward, values)
        first = next((point.step for point in stage.metrics if point.values.get("overoptimised")), None)
        if first is not None:
            text = f"{name}: the reward rises while the gold, {spec.get('gold')}, falls (seen at rollout {first})."
            alarms.append(f'<p class="outcome"><strong>{esc(text)}</strong> Policies after it exploit the reward.</p>')
    if not rows:
        return Markup("")
    head = ("Stage", "Reward", "Weight", "First mean", "Last mean", "Deviation", "Not applicable", "Failed",
            "Seconds a rollout", "USD a rollout")  # fmt: skip
    note = (
        "Weight 0: measured, never learnt from. Shares, seconds and money are means over the rollouts that were logged."
    )
    return section("Rewards", *alarms, table(head, rows, numeric=tuple(range(2, len(head)))), note=note)


def _reward_rows(
    stage: str, reward: Mapping[str, Any], values: Sequence[Mapping[str, float]]
) -> list[tuple[object, ...]]:
    """One row, or none where no rollout was measured."""
    name = str(reward["name"])
    series = {
        part: [row[f"reward_{name}_{part}"] for row in values if f"reward_{name}_{part}" in row]
        for part in ("mean", "deviation", "not_applicable", "failed", "seconds", "usd")
    }
    if not series["mean"]:
        return []
    means = {part: sum(column) / len(column) if column else 0.0 for part, column in series.items()}
    ends = (f"{value:.4g}" for value in (series["mean"][0], series["mean"][-1], series["deviation"][-1]))
    shares = (f"{100 * means[part]:.1f} %" for part in ("not_applicable", "failed"))
    weight = f"{float(reward.get('weight', 1.0)):g}"
    return [(stage, name, weight, *ends, *shares, f"{means['seconds']:.3g}", format_usd(means["usd"]))]


def _claims(claims: Mapping[str, Any]) -> str:
    columns = ""
    for key, title in (("may", "This run may claim"), ("may_not", "It may not claim")):
        items = "".join(starmap(_claim_item, by_reason(claims.get(key) or [])))
        columns += f'<div class="{key}"><h3>{title}</h3><ul>{items}</ul></div>' if items else ""
    return f'<div class="claims">{columns}</div>' if columns else ""


def _claim_item(reason: str, sentences: Sequence[str]) -> str:
    if len(sentences) == 1:
        return f"<li>{esc(': '.join((*filter(None, (reason,)), *sentences)))}</li>"
    return f"<li>{esc(reason)}:<ul>{''.join(f'<li>{esc(item)}</li>' for item in sentences)}</ul></li>"


def _figure_row(figure: Mapping[str, Any]) -> tuple[object, ...]:
    number = figure.get("n")
    value = Markup(f"<strong>{esc(value_text(figure))}</strong>")
    label = figure.get("label") or figure.get("key") or ""
    shown = f"{number:,}" if isinstance(number, int) else ""
    return (label, value, interval_text(figure), shown, figure.get("method") or "", figure.get("note") or "")


def stage_table(view: Overview) -> Markup:
    """Every stage: state, hardware, planned and actual time and cost; before a run, what is planned."""
    if not view.totals.attempts:
        return _planned_table(view)
    head = ["Stage", "Kind", "State", "Runs on", "Attempts", "Planned p50", "p90", "Actual", "x plan"]
    head += ["Planned cost", "Cost"] if view.priced else []
    rows = [_stage_row(view, stage) for stage in view.stages]
    total: list[object] = [Markup("<strong>Total</strong>"), "", "", "", view.totals.attempts]
    total += [format_seconds(amount.seconds) for amount in (view.plan.p50, view.plan.p90, view.actual)]
    total += [time_ratio_text(view)]
    total += [format_usd(view.plan.p50.usd), format_usd(view.actual.usd)] if view.priced else []
    note = f"Planned and actual times are machine time. {BEYOND_WORDS}."
    return section("Stages", table(head, rows, numeric=range(4, len(head)), foot=total), note=note)


def _planned_table(view: Overview) -> Markup:
    head = ("Stage", "Kind", "Runs on", "Where", "Layout", "Time p50", "p90", "Cost p50", "p90")
    rows = []
    for stage in view.stages:
        plan, spread = stage.planned_stage, stage.plan or NO_SPREAD
        where = " ".join(str(plan[key]) for key in ("infra", "region", "market") if plan.get(key))
        amounts = (format_seconds(spread.p50.seconds), format_seconds(spread.p90.seconds))
        costs = (format_usd(spread.p50.usd), format_usd(spread.p90.usd))
        row = (stage_name(view, stage.name), stage.kind, _hardware(stage), where, _layout(plan.get("layout") or {}))
        rows.append((*row, *amounts, *costs))
    total: list[object] = [Markup("<strong>Total</strong>"), "", "", "", ""]
    total += [format_seconds(view.plan.p50.seconds), format_seconds(view.plan.p90.seconds)]
    total += [format_usd(view.plan.p50.usd), format_usd(view.plan.p90.usd)]
    return section("Stages", table(head, rows, numeric=range(5, 9), foot=total))


def _hardware(stage: StageView) -> Markup | str:
    plan = stage.planned_stage
    if not plan.get("accelerator"):
        return ""
    number = f"{int(plan['count'])} x " if plan.get("count") else ""
    return Markup(f'<span class="stage">{number}{esc(plan["accelerator"])}</span>')


def _layout(layout: Mapping[str, Any]) -> str:
    """The layout's own short name, else the parts of it that differ from the plainest one."""
    if layout.get("label"):
        return str(layout["label"])
    plain = (None, 0, 1, False, "", "none")
    parts = ((name, value) for name, value in layout.items() if not isinstance(value, dict | list))
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in parts if value not in plain)


def _stage_row(view: Overview, stage: StageView) -> list[object]:
    plan, ran = stage.plan, stage.totals.attempts > 0
    state = pill(stage.state)
    if stage.state in ("running", "interrupted", "failed") and stage.target_step:
        state = Markup(f"{state} <small>{stage.step} / {stage.target_step}</small>")
    row: list[object] = [
        stage_name(view, stage.name),
        stage.kind,
        state,
        _hardware(stage),
        stage.totals.attempts or "",
        format_seconds(plan.p50.seconds) if plan else "",
        format_seconds(plan.p90.seconds) if plan else "",
        format_seconds(stage.actual.seconds) if ran else "",
        time_ratio_text(stage),
    ]
    if view.priced:
        row += [format_usd(plan.p50.usd) if plan else "", format_usd(stage.actual.usd) if ran else ""]
    return row


def spending(view: Overview, charts: Mapping[str, Any]) -> Markup:
    """Return the section on time and money: allocation, waste, plan against actual, cost per unit."""
    share = charts["allocation"]
    what = "Cost" if share["unit"] == "usd" else "Time (no price is set)"
    title = f"{'Planned ' + what.lower() if share['planned'] else what} by stage"
    parts = [
        chart("allocation", label=title, height=ROW * len(share["rows"]) + 16, caption=title) if share["rows"] else ""
    ]
    if charts["against"] and view.totals.attempts:
        caption = "Planned time (p10 to p90, ring at p50) and actual time (diamond; hollow while unfinished)"
        height = ROW * len(charts["against"]) + 56
        parts.append(chart("against", label=caption, height=height, caption=caption))
    return section(
        "Where it went" if view.totals.attempts else "Where it goes", _grid(parts), _waste(view), _units(view)
    )


def _grid(parts: list[str | Markup]) -> Markup:
    shown = [part for part in parts if part]
    return Markup(f'<div class="grid">{"".join(shown)}</div>') if shown else Markup("")


def _waste(view: Overview) -> str:
    sentences = []
    for cause, words in (("kills", "steps done again after a kill"), ("failures", "failed attempts")):
        amount = lost(view.totals, "kills" if cause == "kills" else "failures")
        if amount.milliseconds:
            money = f" ({format_usd(amount.usd)})" if amount.usd is not None else ""
            sentences.append(f"{format_seconds(amount.seconds)}{money} to {words}")
    return f"<p>Lost: {esc(', '.join(sentences))}.</p>" if sentences else ""


def _units(view: Overview) -> str:
    rows = [(stage_name(view, stage.name), *cells) for stage in view.stages for cells in unit_rows(stage)]
    head = ("Stage", "Unit", "Kept", "Rate", "Cost per unit")
    shown = table(head, rows, numeric=(2, 3, 4)) if rows else ""
    return f"<details><summary>Cost and rate per unit</summary>{shown}</details>" if shown else ""


def timeline(charts: Mapping[str, Any]) -> Markup:
    """Every attempt on a common axis of time."""
    rows = charts["timeline"]["rows"]
    if not rows:
        return Markup("")
    cut = charts["timeline"]["cut_seconds"]
    note = "One bar per attempt; killed and failed ones are hatched."
    if cut:
        note += f" Pauses of {format_seconds(cut)} in all are cut out."
    stages = len({row["stage"] for row in rows})
    return section("Timeline", chart("timeline", label="Timeline of attempts", height=ROW * stages + 50), note=note)


def curves(view: Overview, charts: Mapping[str, Any]) -> Markup:
    """Loss, reward, KL and the rest over steps, in small multiples."""
    charted = charts["curves"]
    cells = [
        chart(
            "curve",
            label=f"{curve['metric']} of stage {curve['stage']} by step",
            height=170,
            caption=f"{curve['stage']}: {curve['metric'].replace('_', ' ')}"
            + (f" (mean of {curve['mean_of']} steps)" if curve["mean_of"] > 1 else ""),
            index=index,
        )
        for index, curve in enumerate(charted)
    ]
    if not charted:
        return Markup("")
    head = ("Stage", "Metric", "First", "Last", "Lowest", "Highest")
    rows = [_curve_row(view, curve) for curve in charted]
    numbers = f"<details><summary>As numbers</summary>{table(head, rows, numeric=(2, 3, 4, 5))}</details>"
    return section("Curves", Markup(f'<div class="multiples">{"".join(cells)}</div>'), numbers)


def _curve_row(view: Overview, curve: Mapping[str, Any]) -> tuple[object, ...]:
    values = [value for _, value in curve["points"]]
    ends = (values[0], values[-1], min(values), max(values))
    return (stage_name(view, curve["stage"]), curve["metric"].replace("_", " "), *(f"{end:.4g}" for end in ends))


def memory(run: RunFiles, view: Overview, charts: Mapping[str, Any]) -> Markup:
    """Planned peak memory by term, against the capacity and what was measured."""
    charted = charts["memory"]
    if not charted["rows"]:
        return Markup("")
    head = ("Stage", "Planned peak", "Capacity", "Full", "Measured", "Tensors: planned", "measured", "Largest terms")
    planned = {stage.name: stage.planned_stage for stage in view.stages}
    rows = []
    for row in charted["rows"]:
        peak, capacity = sum(row["terms"].values()), row["capacity"]
        largest = sorted(row["terms"].items(), key=lambda term: -term[1])[:3]
        words = ", ".join(f"{name} {format_bytes(value)}" for name, value in largest)
        full = f"{100 * peak / capacity:.0f} %" if capacity else ""
        limit = format_bytes(capacity) if capacity else ""
        files = run.stages.get(row["stage"])
        process, tensors = process_memory(planned[row["stage"]], files, done=True), tensor_memory(files, done=True)
        measured = [_bytes(value) for value in (process.actual, tensors.p50, tensors.actual)]
        rows.append((stage_name(view, row["stage"]), format_bytes(peak), limit, full, *measured, words))
    drawn = chart("memory", label="Planned peak memory by term", height=ROW * len(rows) + 90)
    note = (
        "Peak of all that a stage's processes take of one accelerator (on a local machine: of its memory), planned and "
        "measured; of that, the engine's own tensors. The line is the capacity."
    )
    return section("Memory", drawn, table(head, rows, numeric=(1, 2, 3, 4, 5, 6)), note=note)


def _bytes(value: float | None) -> str:
    return "" if value is None else format_bytes(value)


def ledger(view: Overview, accounted: tuple[Accounted, ...]) -> Markup:
    """Every attempt, as the ledger has it."""
    head = ["Stage", "No.", "Started (UTC)", "Time", "Outcome", "Steps", "Ran on", "Price / h", "Cost", "Lost"]
    rows = [_attempt_row(view, item) for item in accounted]
    if not rows:
        return Markup("")
    foot: list[object] = [Markup("<strong>Total</strong>"), "", "", format_seconds(view.actual.seconds), "", "", "", ""]
    wasted = view.totals.milliseconds - view.totals.useful_milliseconds
    foot += [format_usd(view.actual.usd), format_seconds(wasted / 1000)]
    return section("Ledger", table(head, rows, numeric=(1, 3, 5, 7, 8, 9), foot=foot))


def fees(run: RunFiles) -> Markup:
    """Return what was added to the ledger by hand."""
    rows = [
        (fee.service, fee.resource, fee.provider, " to ".join(day_of(at) for at in (fee.started_at, fee.ended_at)),
         format_usd((fee.micro_usd or 0) / MICRO_USD_PER_USD))
        for fee in run.fees
    ]  # fmt: skip
    head, note = ("What", "For", "Provider", "Days (UTC)", "Cost"), "On top of the cost of attempts and calls."
    return section("Fees and credits", table(head, rows, numeric=(4,)), note=note) if rows else Markup("")


def _attempt_row(view: Overview, item: Accounted) -> list[object]:
    attempt = item.attempt
    started = datetime.fromtimestamp(attempt.started_at, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
    price = attempt.price_micro_usd_per_hour
    note = Markup(f"<br><small>{esc(attempt.note)}</small>") if attempt.outcome == "failed" and attempt.note else ""
    return [
        stage_name(view, attempt.stage),
        attempt.number,
        started,
        format_seconds(attempt.seconds),
        Markup(f"{pill(attempt.outcome)}{note}"),
        f"{attempt.first_step} to {attempt.last_step}",
        f"{attempt.count} x {attempt.accelerator}, {attempt.infra}",
        format_usd(None if price is None else price / 1e6),
        format_usd(None if item.cost_micro_usd is None else item.cost_micro_usd / 1e6),
        format_seconds(item.lost_milliseconds / 1000) if item.lost_milliseconds else "",
    ]


# -------- The top of the HTML report: project, state, the numbers that matter, the budget.


def header(view: Overview, *, title: str, subtitle: str) -> Markup:
    """Project, state, and the four numbers that matter."""
    cards = join(card(*figure) for figure in _cards(view))
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
            _planned_time(view),
            ("Planned cost", format_usd(plan.p50.usd), cost_note),
            ("Stages", str(len(view.stages)), "nothing has run yet"),
        ]
    useful = view.totals.useful_milliseconds / max(1, view.totals.milliseconds)
    done = sum(stage.state == "done" for stage in view.stages)
    return [
        ("Wall clock", format_seconds(view.wall_seconds), _planned_note(view.wall_plan)),
        ("Machine time", format_seconds(actual.seconds), _planned_note(plan)),
        ("Cost", format_usd(actual.usd), f"planned {planned_cost}" if planned_cost else "no price is set"),
        ("Kept", f"{100 * useful:.1f} %", f"of the time of {view.totals.attempts} attempts"),
        ("Stages done", f"{done} of {len(view.stages)}", _forecast_note(view)),
    ]


def _planned_time(view: Overview) -> tuple[str, str, str]:
    """The planned time by the clock, where the plan has it; else that of all stages one after another."""
    by_clock = view.wall_plan if view.wall_plan.p50.milliseconds else view.plan
    note = f"p90 {format_seconds(by_clock.p90.seconds)}; machine time {format_seconds(view.plan.p50.seconds)}"
    return ("Planned time", format_seconds(by_clock.p50.seconds), note)


def _planned_note(plan: AmountSpread) -> str:
    """`planned 7 min 47 s, p90 11 min 26 s`."""
    if not plan.p50.milliseconds:
        return "not planned"
    return f"planned {format_seconds(plan.p50.seconds)}, p90 {format_seconds(plan.p90.seconds)}"


def _forecast_note(view: Overview) -> str:
    if view.state == "done":
        return "the run is complete"
    return f"forecast {format_seconds(view.forecast.p50.seconds)} of machine time in all"


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


# -------- The end of the HTML report: what the plan rests on, what it did not take, and what computed the run.


def assumptions(run: RunFiles) -> Markup:
    """Return the assumptions of the plan, with source and date."""
    rows = [
        (item.get("name", ""), plain_value(item.get("value")), item.get("source", ""), item.get("as_of") or "")
        for item in (run.plan or {}).get("assumptions", [])
    ]
    head = ("Assumption", "Value", "Source", "As of")
    return section("Assumptions", table(head, rows, numeric=()) if rows else "")


def rejected(view: Overview) -> Markup:
    """The options that the plan did not take, with the reason of each."""
    rows = [
        (stage_name(view, stage.name), item.get("option", ""), item.get("reason", ""))
        for stage in view.stages
        for item in stage.planned_stage.get("rejected") or []
    ]
    shown = table(("Stage", "Option", "Reason"), rows) if rows else ""
    return section("Options not taken", folded(f"{len(rows)} options", shown) if rows else "")


def versions(run: RunFiles, *, charter_version: str) -> Markup:
    """Return the versions of the software that computed the run, and the files that could not be read."""
    all_versions = {"report made by charter": charter_version, **run.versions}
    notes = join(f"<p>{esc(note)}</p>" for note in run.notes)
    return section("Versions", table(("Part", "Version"), list(all_versions.items())), notes)

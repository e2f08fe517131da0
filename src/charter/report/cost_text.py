"""The cost report for a terminal: plan against actual, groups, waste, cost per unit, budget. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from charter.cost.advice import Advice
from charter.ledger.account import Accounted, day_of, totals_of
from charter.ledger.stored import CREDIT
from charter.ledger.sums import Sums, total_of
from charter.metering.row import JOULES_PER_KILOWATT_HOUR
from charter.report.cost import CostFacts, budget_json, print_storage, storage_json, titled_table, unit_costs
from charter.report.overview import Overview, StageView, lost, spent, spent_on_calls
from charter.report.plan_cells import Amount
from charter.run.budget import STATE_NAMES, BudgetLine
from charter.units import MICRO_USD_PER_USD, format_count, format_seconds, format_usd

TITLES = {"owner": "owner", "accelerator": "accelerator", "market": "market"}
LIMIT_STYLES = {"ok": "green", "warn": "yellow", "hold": "yellow", "stop": "bold red"}


def groups_json(facts: CostFacts) -> dict[str, Any]:
    """Return the later fields of `charter cost report --json`: `by`, `waste`, `energy`, `storage`, `fees`, `limits`.

    In every group the parts add up to the same total; waste is part of the cost, not beside it.
    """
    return {
        "by": {name: [sums_json(part) for part in parts] for name, parts in facts.groups.items()},
        "waste": waste_json(facts.spending.total),
        "energy": energy_json(facts.spending.total, facts.project.metering.power_usage_effectiveness),
        "storage": storage_json(facts.stored, facts.plan),
        "fees": [
            {
                "what": fee.resource,
                "service": fee.service,
                "provider": fee.provider,
                "stage": fee.stage or None,
                "micro_usd": fee.micro_usd,
                "usd": None if fee.micro_usd is None else fee.micro_usd / MICRO_USD_PER_USD,
                "started_at": fee.started_at,
                "ended_at": fee.ended_at,
            }
            for fee in facts.fees
        ],
        "usd_per_hour": facts.spending.usd_per_hour,
        "limits": [line.to_json() for line in facts.lines],
        "bills": [
            {"name": bill.name, "format": bill.format, "lines": bill.lines, "billed_usd": f"{bill.billed_usd:f}"}
            for bill in facts.bills
        ],
    }


def sums_json(part: Sums) -> dict[str, Any]:
    """One part."""
    totals = part.totals
    return {
        **dict(part.key),
        "usd": part.usd if part.is_priced else None,
        "usd_most": part.most_usd if part.is_priced else None,
        "micro_usd": part.micro_usd,
        "seconds": totals.milliseconds / 1000,
        "accelerator_seconds": totals.billed_unit_milliseconds / 1000,
        "attempts": totals.attempts,
        "calls": part.calls.requests,
        "waste_usd": part.waste_micro_usd / MICRO_USD_PER_USD,
    }


def by_month(parts: Iterable[Sums]) -> tuple[Sums, ...]:
    """Return sums by `day` as sums by `month`, the months in their order and the dearest first in each."""
    months: dict[tuple[tuple[str, str], ...], Sums] = {}
    for part in parts:
        key = {"month": part.key["day"][:7], **{name: value for name, value in part.key.items() if name != "day"}}
        before = months.get(tuple(key.items()))
        months[tuple(key.items())] = replace(part if before is None else before + part, key=key)
    return tuple(sorted(months.values(), key=lambda part: (part.key["month"], -part.micro_usd, *part.key.values())))


def months_table(by: Sequence[str], parts: Sequence[Sums]) -> Table:
    """Return every month's cost by whom it is shown to, and the total."""
    groups = (name.removeprefix("tag:").capitalize() for name in by)
    figures = ("Cost", "At most", "Waste", "Machine time", "Calls")
    table = titled_table("Cost by month", "Month", *groups, right=figures)
    for part in parts:
        keys = [Text(part.key[name] or "(none)") for name in ("month", *by)]
        table.add_row(*keys, *_money_cells(part))
    table.add_row("total", *("" for _ in by), *_money_cells(total_of(parts)), style="bold")
    return table


def _money_cells(part: Sums) -> tuple[str, ...]:
    usd, most = (part.usd, part.most_usd) if part.is_priced else (None, None)
    waste = part.waste_micro_usd / MICRO_USD_PER_USD if part.is_priced else None
    seconds = part.totals.milliseconds / 1000
    return format_usd(usd), format_usd(most), format_usd(waste), format_seconds(seconds), f"{part.calls.requests:,}"


def waste_json(part: Sums) -> dict[str, float | None]:
    """Return the money paid for nothing, by cause; `idle` is null where nobody looked."""
    totals = part.totals
    return {
        "lost_to_kills_usd": totals.lost_to_kills_micro_usd / MICRO_USD_PER_USD,
        "lost_to_failures_usd": totals.lost_to_failures_micro_usd / MICRO_USD_PER_USD,
        "idle_usd": totals.idle_micro_usd / MICRO_USD_PER_USD if totals.watched_milliseconds else None,
        "idle_seconds": totals.idle_milliseconds / 1000 if totals.watched_milliseconds else None,
        "usd": part.waste_micro_usd / MICRO_USD_PER_USD,
        "share": part.waste_micro_usd / part.micro_usd if part.micro_usd else None,
    }


def energy_json(part: Sums, power_usage_effectiveness: float) -> dict[str, float | None]:
    """Energy of machines, and of the data centre for them; null where nobody measured."""
    totals = part.totals
    metered = bool(totals.metered_milliseconds)
    machines = totals.energy_joules / JOULES_PER_KILOWATT_HOUR if metered else None
    return {
        "machines_kwh": machines,
        "facility_kwh": None if machines is None else machines * power_usage_effectiveness,
        "metered_share": totals.metered_milliseconds / totals.milliseconds if totals.milliseconds else None,
    }


def print_groups(facts: CostFacts, console: Console) -> None:
    """Print the spending by group, where there is more than one, with its idle part, and the energy."""
    for name, parts in facts.groups.items():
        shown = name.startswith("tag:") or name in TITLES
        if shown and len(parts) > 1:
            console.print(_table_of(name, parts))
            console.print()
    print_storage(facts.stored, facts.plan, console)
    totals = facts.spending.total.totals
    if totals.idle_milliseconds:
        usd = f", {format_usd(totals.idle_micro_usd / MICRO_USD_PER_USD)}" if totals.priced_attempts else ""
        text = f"Idle: machines were held and did nothing for {format_seconds(totals.idle_milliseconds / 1000)}{usd}"
        console.print(text, style="yellow", highlight=False)
    for fee in facts.fees:
        days = " to ".join(day_of(at) for at in (fee.started_at, fee.ended_at))
        usd = format_usd((fee.micro_usd or 0) / MICRO_USD_PER_USD)
        of = f"{fee.service}: {escape(fee.resource)}, {escape(fee.provider)}, {days}"
        console.print(f"{of}: {usd}{'' if fee.service == CREDIT else ' on top'}", highlight=False)
    energy = energy_json(facts.spending.total, facts.project.metering.power_usage_effectiveness)
    if energy["facility_kwh"] is not None:
        share = 100 * (energy["metered_share"] or 0)
        console.print(
            f"Energy: {energy['facility_kwh']:.3g} kWh, measured for {share:.0f} % of the time", highlight=False
        )


def limits_table(lines: tuple[BudgetLine, ...]) -> Table:
    """The limits of the budget: spent, forecast, state."""
    table = titled_table("Limits")
    for name in ("Limit of", "Limit", "Spent", "", "Forecast (p90)", "Per hour", "Reached in", "State"):
        table.add_column(name, justify="left" if name in ("Limit of", "State") else "right")
    for line in lines:
        state = STATE_NAMES[line.state]
        table.add_row(
            Text(line.title),
            format_usd(line.limit_usd),
            format_usd(line.spent_usd),
            f"{100 * line.share:.0f} %",
            f"{format_usd(line.forecast_p50_usd)} ({format_usd(line.forecast_p90_usd)})",
            format_usd(line.usd_per_hour) if line.usd_per_hour else "",
            "" if line.seconds_left is None else format_seconds(line.seconds_left),
            Text(f"{state}: {line.reason}", style=LIMIT_STYLES[state]),
        )
    return table


def advice_table(found: tuple[Advice, ...]) -> Table:
    """Advice with its saving."""
    table = titled_table("What would be cheaper")
    table.add_column("Stage")
    table.add_column("Saves", justify="right")
    table.add_column("What")
    for item in found:
        saving = "" if item.saving_usd is None else f"{format_usd(item.saving_usd)} of what is {_of(item)}"
        table.add_row(Text(item.stage), saving, Text(item.text))
    return table


def _of(item: Advice) -> str:
    return "left" if item.of == "remaining" else "spent"


def _table_of(name: str, parts: tuple[Sums, ...]) -> Table:
    title = name.removeprefix("tag:")
    table = titled_table(f"By {title}", title.capitalize(), right=("Cost", "Waste", "Time", "Attempts"))
    for part in sorted(parts, key=lambda part: -part.micro_usd):
        values: Mapping[str, str] = part.key
        table.add_row(
            Text(values[name] or "(none)"),
            format_usd(part.usd if part.is_priced else None),
            format_usd(part.waste_micro_usd / MICRO_USD_PER_USD) if part.is_priced else "",
            format_seconds(part.totals.milliseconds / 1000),
            str(part.totals.attempts),
        )
    return table


STATE_STYLES = {"done": "green", "running": "cyan", "failed": "red", "interrupted": "yellow", "pending": "dim"}
BEYOND = " !"
"""Beside a ratio to the plan whose amount is above the plan's p90."""
BEYOND_WORDS = "!: more than the plan's p90"
LEAST_SHOWN_USD = 0.001
"""The smallest price of units that four decimals show well."""


def print_cost(view: Overview, console: Console) -> None:
    """Print the cost report."""
    console.print(f"[bold]{escape(view.project)}[/bold]  {state_text(view.state)}", highlight=False)
    console.print()
    print_plan_against_actual(view, console)
    if view.totals.attempts:
        wall, machine = format_seconds(view.wall_seconds), format_seconds(view.actual.seconds)
        planned = f", planned {words}" if (words := _range(view.wall_plan.p50, view.wall_plan.p90)) else ""
        console.print(
            f"Wall clock of the run: {wall}{planned}; machine time (the sum above): {machine}", highlight=False
        )
    console.print()
    print_waste(view, console)
    print_samples(view, console)
    calls = calls_table(view)
    if calls.row_count:
        console.print()
        console.print(calls)
    units = unit_table(view)
    if units.row_count:
        console.print()
        console.print(units)
    console.print()
    print_budget(view, console)


def cost_words(view: Overview) -> str:
    """Say in a line what a run took: `25 s by the clock, 32 s of machine time, $0.0009 (planned $0.0006)`."""
    money = format_usd(view.actual.usd) if view.priced else "unpriced; set resources.price to count money"
    planned = f" (planned {format_usd(view.plan.p50.usd)})" if view.priced and view.plan.p50.usd else ""
    wall, machine = format_seconds(view.wall_seconds), format_seconds(view.actual.seconds)
    return f"{wall} by the clock, {machine} of machine time, {money}{planned}"


def state_text(state: str) -> str:
    """A state with its colour, as rich markup."""
    return f"[{STATE_STYLES[state]}]{state}[/]"


def print_plan_against_actual(view: Overview, console: Console) -> None:
    """Print the table of planned and actual amounts, and what its mark means where it has one."""
    console.print(_plan_against_actual(view))
    rows: list[StageView | Overview] = [*view.stages, view]
    shown = [text for row in rows for text in (time_ratio_text(row), cost_ratio_text(row))]
    if any(text.endswith(BEYOND) for text in shown):
        console.print(BEYOND_WORDS, style="dim", highlight=False)


def _plan_against_actual(view: Overview) -> Table:
    """Planned and actual time and cost by stage, with their ratio, and the totals."""
    figures = ("Planned (p50 - p90)", "Actual", "x plan", *(("Planned", "Cost", "x plan") if view.priced else ()))
    table = titled_table("Plan against actual", "Stage", "State", right=figures)
    for stage in view.stages:
        table.add_row(*_stage_cells(stage, priced=view.priced))
    table.add_section()
    cells: list[str | Text] = [Text("total", style="bold"), "", _range(view.plan.p50, view.plan.p90)]
    cells += [format_seconds(view.actual.seconds), time_ratio_text(view)]
    if view.priced:
        cells += [format_usd(view.plan.p50.usd), format_usd(view.actual.usd), cost_ratio_text(view)]
    table.add_row(*cells)
    if view.state != "done":
        forecast = view.forecast
        cells = [Text("forecast", style="bold"), "", "", _range(forecast.p50, forecast.p90), ""]
        table.add_row(*cells, *(("", format_usd(forecast.p50.usd), "") if view.priced else ()))
    return table


def print_waste(view: Overview, console: Console) -> None:
    """Say in a line or two what was spent for nothing."""
    kills, failures = lost(view.totals, "kills"), lost(view.totals, "failures")
    if not kills.milliseconds and not failures.milliseconds:
        if view.totals.attempts:
            console.print("Nothing was lost to kills or failures.", highlight=False)
        return
    for amount, what in ((kills, "steps done again after a kill"), (failures, "failed attempts")):
        if amount.milliseconds:
            share = amount.milliseconds / max(1, view.totals.milliseconds)
            cost = f", {format_usd(amount.usd)}" if amount.usd is not None else ""
            text = f"Lost to {what}: {format_seconds(amount.seconds)}{cost} ({100 * share:.1f} % of machine time)"
            console.print(text, style="yellow", highlight=False)


def print_samples(view: Overview, console: Console) -> None:
    """Say in a line what answers for people to read took of the sums above."""
    drawn = [stage for stage in view.stages if stage.samples.milliseconds]
    if drawn:
        amount = sum((stage.samples for stage in drawn[1:]), start=drawn[0].samples)
        share = amount.milliseconds / max(1, view.totals.milliseconds)
        cost = f", {format_usd(amount.usd)}" if amount.usd is not None else ""
        names = ", ".join(stage.name for stage in drawn)
        took = f"{format_seconds(amount.seconds)}{cost} ({100 * share:.1f} % of the sum above)"
        console.print(f"Samples to read, of {names}: {took}", highlight=False)


def print_imported(accounted: Sequence[Accounted], console: Console) -> None:
    """Say which part is of runs that Charter did not start."""
    imported = [item for item in accounted if item.attempt.is_imported]
    if imported:
        totals = totals_of(imported)
        stages = ", ".join(dict.fromkeys(escape(item.attempt.stage) for item in imported))
        cost = f", {format_usd(spent(totals).usd)}" if totals.priced_attempts else ", unpriced"
        time = format_seconds(totals.milliseconds / 1000)
        console.print(f"Imported (charter artifacts import): {time}{cost} of stage {stages}", highlight=False)


def unit_table(view: Overview) -> Table:
    """Return the table of the cost of one kept token, pair, episode or record, by stage."""
    table = titled_table("Per unit that was kept", "Stage", "Unit", right=("Kept", "Rate", "Cost per unit"))
    for stage in view.stages:
        for cells in unit_rows(stage):
            table.add_row(Text(stage.name), *cells)
    return table


def unit_rows(stage: StageView) -> list[tuple[str, str, str, str]]:
    """Unit, number that was kept, rate, and cost with the number of units it is for, as every report shows them."""
    rows = []
    for name, unit in unit_costs(stage.totals, stage.actual).items():
        seconds = unit["seconds_each"] or 0
        rate = f"{_rate(1 / seconds)} {name}/s" if seconds else ""
        rows.append((name, format_count(unit["count"] or 0), rate, _cost_of_units(name, unit["usd_each"])))
    return rows


def _cost_of_units(name: str, usd_each: float | None) -> str:
    """The price of a million tokens; of other units, that of as many as cost a tenth of a cent.

    >>> _cost_of_units("tokens", 1.6e-9), _cost_of_units("pairs", 0.0213), _cost_of_units("pairs", 2.6e-7)
    ('$0.0016 per M', '$0.021 each', '$0.26 per M')
    """
    if not usd_each:
        return format_usd(usd_each)
    sizes = {1: "each", 1_000: "per 1,000", 1_000_000: "per M"}
    size = 1_000_000 if name == "tokens" else next((n for n in sizes if usd_each * n >= LEAST_SHOWN_USD), 1_000_000)
    return f"{format_usd(usd_each * size)} {sizes[size]}"


def calls_table(view: Overview) -> Table:
    """Calls to servers by stage: how they went, and what is billed for sure and at most."""
    figures = ("Calls", "Answered", "Unknown", "Tokens in (cached)", "Tokens out", "Settled", "At most")
    table = titled_table("Calls to servers", "Stage", right=figures)
    for name, calls in (*((stage.name, stage.calls) for stage in view.stages), ("total", view.calls)):
        if calls.requests:
            table.add_row(
                Text(name, style="bold" if name == "total" else ""),
                *(format_count(count) for count in (calls.requests, calls.answered, calls.unknown)),
                f"{format_count(calls.prompt_tokens)} ({format_count(calls.cached_tokens)})",
                format_count(calls.completion_tokens),
                format_usd(spent_on_calls(calls).usd),
                format_usd(None if spent_on_calls(calls).usd is None else calls.most_micro_usd / 1e6),
            )
    return table


def print_budget(view: Overview, console: Console) -> None:
    """Say where the budget stands."""
    budget = budget_json(view)
    if budget is None:
        if not view.priced:
            console.print("Unpriced: set resources.price in charter.yaml to see costs.", style="dim")
        return
    style = {"ok": "green", "warn": "yellow", "exceeded": "bold red", "unpriced": "dim"}[budget["state"]]
    more = view.calls.unknown_micro_usd
    unknown = f" and at most {format_usd(more / 1e6)} for calls that are not settled" if more else ""
    text = (
        f"Budget {format_usd(budget['limit_usd'])}: spent {format_usd(budget['spent_usd'])}{unknown}, "
        f"forecast {format_usd(budget['forecast_usd'])} (p90 {format_usd(budget['forecast_usd_p90'])})"
        f"  {budget['state']}"
    )
    console.print(text, style=style, highlight=False)


def _stage_cells(stage: StageView, *, priced: bool) -> list[str | Text]:
    plan, ran = stage.plan, stage.totals.attempts > 0
    cells: list[str | Text] = [
        Text(stage.name),
        Text.from_markup(state_text(stage.state) + _progress(stage)),
        _range(plan.p50, plan.p90) if plan else "not planned",
        format_seconds(stage.actual.seconds) if ran else "",
        time_ratio_text(stage),
    ]
    if priced:
        cells += [
            format_usd(plan.p50.usd) if plan else "",
            format_usd(stage.actual.usd) if ran else "",
            cost_ratio_text(stage),
        ]
    return cells


def time_ratio_text(view: StageView | Overview) -> str:
    """Return actual over planned time, marked beyond p90; empty until it is finished."""
    return _ratio_text(view.time_ratio, view.actual.milliseconds, view.plan.p90.milliseconds if view.plan else None)


def cost_ratio_text(view: StageView | Overview) -> str:
    """Return actual over planned cost, marked beyond p90; empty until it is finished."""
    return _ratio_text(view.cost_ratio, view.actual.micro_usd, view.plan.p90.micro_usd if view.plan else None)


def _ratio_text(ratio: float | None, actual: int | None, p90: int | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.2f}{BEYOND if actual and p90 and actual > p90 else ''}"


def _progress(stage: StageView) -> str:
    if stage.state in ("done", "pending") or not stage.target_step:
        return ""
    return f" {100 * stage.step / stage.target_step:.0f} %"


def _rate(per_second: float) -> str:
    return format_count(per_second) if per_second >= 1000 else f"{per_second:.3g}"


def _range(low: Amount, high: Amount) -> str:
    if not low.milliseconds and not high.milliseconds:
        return ""
    return f"{format_seconds(low.seconds)} - {format_seconds(high.seconds)}"

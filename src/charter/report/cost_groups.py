"""The cost of a run divided by stage, owner, tag, accelerator, market and day, with waste and energy: pure."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from charter.cost.advice import Advice
from charter.ledger.sums import Sums
from charter.report.cost_read import CostFacts
from charter.report.cost_storage import print_storage, storage_json
from charter.report.cost_text import titled_table
from charter.run.budget import STATE_NAMES, BudgetLine
from charter.units import MICRO_USD_PER_USD, format_seconds, format_usd

JOULES_PER_KILOWATT_HOUR = 3.6e6
TITLES = {"owner": "owner", "accelerator": "accelerator", "market": "market"}
STATE_STYLES = {"ok": "green", "warn": "yellow", "hold": "yellow", "stop": "bold red"}


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
                "provider": fee.provider,
                "stage": fee.stage or None,
                "micro_usd": fee.micro_usd,
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
        days = " to ".join(f"{datetime.fromtimestamp(at, tz=UTC):%Y-%m-%d}" for at in (fee.started_at, fee.ended_at))
        usd = format_usd((fee.micro_usd or 0) / MICRO_USD_PER_USD)
        console.print(f"Fee: {escape(fee.resource)}, {escape(fee.provider)}, {days}: {usd} on top", highlight=False)
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
            Text(f"{state}: {line.reason}", style=STATE_STYLES[state]),
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
    table = titled_table(f"By {title}")
    table.add_column(title.capitalize())
    for column in ("Cost", "Waste", "Time", "Attempts"):
        table.add_column(column, justify="right")
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

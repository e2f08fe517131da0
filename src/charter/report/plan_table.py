"""A plan as a terminal table: what each stage runs on, how full it is, how long it takes, what it costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from charter.plan.money import STORAGE
from charter.plan.plan import Plan
from charter.plan.stage_plan import StagePlan
from charter.report.plan_cells import (
    beside_the_machines,
    dates_line,
    gib,
    hardware,
    hours,
    layout,
    seconds_range,
    usd_range,
)
from charter.report.plan_notes import longest_pole, notes
from charter.units import format_bytes, format_count

COLUMNS_FOR_LAYOUT = 118
"""From this width on the layout has a column of its own; below, it stands under the hardware."""
COLUMNS_FOR_HOURS = 92
"""Below this width accelerator-hours are left out and a peak is its share alone."""
CHOSEN = "\N{HEAVY CHECK MARK}"
"""Stands at the stage that decides how long the run takes."""


def plan_table(
    plan: Plan, *, today: date | None = None, command: str = "charter plan", then: str = "charter run"
) -> "PlanTable":
    """The stages, the totals and what decides them; the age of prices where `today` is given.

    `command` asks for this plan again, and `then` goes on from it: the last line names both.
    """
    return PlanTable(plan=plan, today=today, command=command, then=then)


@dataclass(frozen=True, kw_only=True)
class PlanTable:
    """A plan that is laid out for the width it is printed at."""

    plan: Plan
    today: date | None
    command: str
    then: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Title, table, notes."""
        yield _title(self.plan, self.today)
        yield _table(self.plan, options.max_width)
        yield from notes(self.plan, command=self.command, then=self.then)


def _title(plan: Plan, today: date | None) -> Text:
    models = [f"{name} {format_count(size)}" for name, size in plan.models]
    return Text(" \N{MIDDLE DOT} ".join((f"Plan of {plan.name}", *models, *dates_line(plan, today))), style="bold")


def _table(plan: Plan, width: int) -> Table:
    apart, full = width >= COLUMNS_FOR_LAYOUT, width >= COLUMNS_FOR_HOURS
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), collapse_padding=True)
    table.add_column("Stage", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("Hardware" if apart else "Hardware, layout", overflow="fold")
    if apart:
        table.add_column("Layout", overflow="fold")
    table.add_column("Peak GiB" if full else "Peak", justify="right", no_wrap=True)
    table.add_column("Time p50-p90", justify="right", no_wrap=True)
    if full:
        table.add_column("GPU-h", justify="right", no_wrap=True)
    table.add_column("Cost p50-p90", justify="right", no_wrap=True)
    pole = longest_pole(plan)
    for stage in plan.stages:
        table.add_row(*_row(stage, mark=stage is pole and len(plan.stages) > 1, apart=apart, full=full))
    for what, detail, cost in _beside_the_stages(plan):
        table.add_row(*_wide_row(what, detail, cost, apart=apart, full=full), style="dim")
    table.add_section()
    table.add_row(*_total(plan, apart=apart, full=full), style="bold")
    return table


def _row(stage: StagePlan, *, mark: bool, apart: bool, full: bool) -> list[Text]:
    option = stage.option
    place = [hardware(option), layout(option)] if apart else [f"{hardware(option)}\n{layout(option)}"]
    share = f"{option.peak.total_bytes / option.capacity_bytes:.0%}"
    peak = f"{gib(option.peak.total_bytes)}/{gib(option.capacity_bytes)} {share}" if full else share
    cells = [stage.name, CHOSEN if mark else "", *place, peak, seconds_range(option.seconds)]
    cells += [hours(stage.gpu_hours.p50)] if full else []
    return [Text(cell) for cell in (*cells, usd_range(stage.compute_usd))]


def _wide_row(what: str, detail: str, cost: str, *, apart: bool, full: bool) -> list[Text]:
    """A row that is no stage: only words and money."""
    empty = [""] * (2 + apart + full)
    return [Text(cell) for cell in (what, "", detail, *empty, cost)]


def _total(plan: Plan, *, apart: bool, full: bool) -> list[Text]:
    cells = ["total", "", *[""] * (1 + apart), "", seconds_range(plan.seconds)]
    cells += [hours(plan.gpu_hours.p50)] if full else []
    return [Text(cell) for cell in (*cells, usd_range(plan.project_usd))]


def _beside_the_stages(plan: Plan) -> Sequence[tuple[str, str, str]]:
    """Rows of what is paid for beside the machines of the stages."""
    stored = f"{format_bytes(plan.storage_bytes)}: checkpoints, results"
    return [
        ("storage", stored, usd_range(amount)) if name == STORAGE else (name, "", usd_range(amount))
        for name, amount in beside_the_machines(plan)
    ]

"""The table of a plan for a terminal, its alternatives, and every term of one stage (`--explain STAGE`)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from charter.physics.terms import Term
from charter.plan.money import STORAGE
from charter.plan.option import Option, near_tied, pareto
from charter.plan.plan import Plan
from charter.plan.stage_plan import QUANTILES, MicroUsd, StagePlan
from charter.plan.stage_risk import StageRisk
from charter.report.plan_cells import (
    beside_the_machines,
    dates_line,
    enough_line,
    full_share,
    hardware,
    hours,
    layout,
    peak_of_limit,
    seconds_range,
    usd_range,
)
from charter.report.plan_notes import engine_lines, longest_pole, next_line, note_groups
from charter.units import format_bytes, format_count, format_pace, format_seconds, format_usd

COLUMNS_FOR_TABLE = 66
"""Below this width there is no table, but a paragraph for each of its rows."""
COLUMNS_FOR_LAYOUT = 118
"""From this width on the layout has a column of its own; below, it stands under the hardware."""
COLUMNS_FOR_HOURS = 92
"""Below this width accelerator-hours are left out and a peak is its share alone."""
CHOSEN = "\N{HEAVY CHECK MARK}"
"""Stands at the stage that decides how long the run takes."""


def plan_table(
    plan: Plan,
    *,
    today: date | None = None,
    command: str = "charter plan",
    then: str = "charter run",
    assumed: Sequence[str] = (),
) -> "PlanTable":
    """The stages, the totals and what decides them; the age of prices where `today` is given.

    `command` asks for this plan again, and `then` goes on from it: the last line names both. `assumed` is what a
    question without a file left open, and how it was taken.
    """
    return PlanTable(plan=plan, today=today, command=command, then=then, assumed=tuple(assumed))


@dataclass(frozen=True, kw_only=True)
class PlanTable:
    """A plan that is laid out for the width it is printed at."""

    plan: Plan
    today: date | None
    command: str
    then: str
    assumed: tuple[str, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Title, table, alternatives, notes in groups, and how to go on."""
        yield _title(self.plan, self.today)
        narrow = options.max_width < COLUMNS_FOR_TABLE
        yield Text(_paragraphs(self.plan)) if narrow else _table(self.plan, options.max_width)
        if self.plan.alternatives:
            yield alternatives_table(self.plan)
        for heading, lines in note_groups(self.plan):
            yield from _listed(heading, lines)
        if self.assumed:
            yield from _listed("Assumed, where the question says nothing", map(Text, self.assumed))
        if blocks := [*engine_lines(self.plan)]:
            yield from (Text("Other engines on the same accelerators", style="bold"), *map(Text, blocks), Text())
        yield next_line(self.plan, command=self.command, then=self.then)


def _listed(heading: str, lines: Iterable[Text]) -> Iterator[RenderableType]:
    """A heading, a line for each note with its further lines indented, and an empty line."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        grid.add_row("\N{MIDDLE DOT}", line)
    yield from (Text(heading, style="bold"), grid, Text())


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


def _paragraphs(plan: Plan) -> str:
    """The table's rows one below the other, for a narrow terminal."""
    lines = []
    for stage in plan.stages:
        name, _, place, peak, *amounts = (cell.plain for cell in _row(stage, mark=False, apart=False, full=False))
        lines += [name, *(f"  {line}" for line in place.splitlines()), f"  peak {peak}, {', '.join(amounts)}"]
    for what, detail, cost in _beside_the_stages(plan):
        lines += [what, f"  {detail}, {cost}" if detail else f"  {cost}"]
    return "\n".join((*lines, "total", f"  {seconds_range(plan.seconds)}, {usd_range(plan.project_usd)}", ""))


def _row(stage: StagePlan, *, mark: bool, apart: bool, full: bool) -> list[Text]:
    option = stage.option
    place = [hardware(option), layout(option)] if apart else [f"{hardware(option)}\n{layout(option)}"]
    share = f"{option.peak.total_bytes / option.capacity_bytes:.0%}"
    peak = f"{'/'.join(peak_of_limit(stage))} {share}" if full else share
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


MOST_NAMED = 3


def alternatives_table(plan: Plan) -> RenderableType:
    """The plan and its alternatives in one row each, with ratios of the medians to the plan's."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("Plan", "Differs in", "Time p50-p90", "", "Cost p50-p90", ""):
        table.add_column(heading, justify="left" if heading in ("Plan", "Differs in") else "right")
    table.add_row("chosen", "", seconds_range(plan.seconds), "", usd_range(plan.usd), "")
    for number, other in enumerate(plan.alternatives, start=1):
        usd = "" if other.usd is None or plan.usd is None else _ratio(other.usd.p50, plan.usd.p50)
        time = _ratio(other.seconds.p50, plan.seconds.p50)
        cells = (_differs(other, plan), seconds_range(other.seconds), time, usd_range(other.usd), usd)
        table.add_row(f"{number}", *cells)
    return Group(Text(f"Alternatives for the objective {plan.objective!r}:"), table)


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.2f} x" if base else ""


def _differs(other: Plan, plan: Plan) -> str:
    """`ppo, pm: H100-SXM-80GB:8 on lambda, on demand`, one line for every kind of hardware."""
    stages: dict[str, list[str]] = {}
    for name, kind in other.differences(plan).items():
        stages.setdefault(kind, []).append(name)
    return "\n".join(f"{_names(names)}: {kind}" for kind, names in stages.items())


def _names(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:MOST_NAMED])} and {more} more"


def explain_stage(stage: StagePlan, plan: Plan) -> RenderableType:
    """Every term of one stage with formula and source, what was dropped and what was assumed."""
    option = stage.option
    head = Text.assemble(
        (f"{stage.name}", "bold"),
        f" ({stage.kind}) on {option.label}, layout {option.layout_label}\n",
        f"price {_price(stage)}",
    )
    peak, spread = option.peak, stage.peak_range.interval
    memory = (
        f"Memory per accelerator at {peak.moment}: {format_bytes(peak.total_bytes)}"
        f" of {format_bytes(option.capacity_bytes)} usable; p10-p90 {format_bytes(spread.p10)} to"
        f" {format_bytes(spread.p90)}"
    )
    seconds = option.seconds
    time = (
        f"Time: {format_seconds(seconds.p50)} at the median; p10-p90 {format_seconds(seconds.p10)} to"
        f" {format_seconds(seconds.p90)}"
    )
    return Group(
        head,
        _terms("Workload", stage.workload_terms),
        _terms(memory, peak.terms),
        *([Text(planned)] if (planned := enough_line(peak.total_bytes, stage.peak_range.enough_bytes)) else []),
        Text(f"Width of the memory: {stage.peak_range.source}.", style="dim"),
        _terms(time, _time_terms(stage)),
        Text(f"Width of the time: {stage.time_source}.", style="dim"),
        _terms("Around the accelerators: memory, cores, network of a node; disk of the stage", stage.node.terms),
        *_risk(stage),
        *_groups(stage),
        _money_table(stage, plan),
        *_options(stage),
        *([_rejected_table(stage)] if stage.rejected else []),
        _assumption_table(plan),
    )


def _price(stage: StagePlan) -> str:
    price = stage.option.price
    if price.usd_per_hour is None:
        return "unknown (set resources.price)"
    return f"{format_usd(price.usd_per_hour)} per hour, {price.market}; {price.source}; as of {price.as_of or 'now'}"


def _time_terms(stage: StagePlan) -> tuple[Term, ...]:
    option = stage.option
    risk = option.overhead
    more = risk.wall_seconds - risk.useful_seconds - risk.start_seconds
    extra = (
        Term(
            name="checkpoints and failures",
            part="risk",
            value=max(0.0, more),
            unit="seconds",
            formula=f"saves of {risk.save_seconds:.3g} s every {format_seconds(risk.interval_seconds)}, "
            f"{format_pace('failure', risk.mean_between_failures_seconds)}",
            source="Daly 2006, expected time (resilience/expected_time.py)",
        ),
        Term(name="start", part="risk", value=risk.start_seconds, unit="seconds", formula="", source="assumption"),
    )
    return (*option.time_terms, *extra)


def _titled(title: str, *headers: str) -> Table:
    return Table(*headers, title=title, title_justify="left", box=box.SIMPLE_HEAD)


def _terms(title: str, terms: tuple[Term, ...]) -> Table:
    table = _titled(title)
    table.add_column("Term")
    table.add_column("Value", justify="right", no_wrap=True)
    table.add_column("Formula")
    table.add_column("Source", style="dim")
    for term in terms:
        table.add_row(_words(term.name), _value(term), term.formula, term.source)
    return table


def _words(name: str) -> str:
    """Name a term for people: phases are called by the fields of a stage, and `against` is no noun."""
    return name.replace("answers of against", "answers of the model compared with")


def _value(term: Term) -> str:
    if term.unit == "bytes":
        return format_bytes(term.value)
    if term.unit == "seconds":
        return format_seconds(term.value)
    if term.unit == "bytes per second":
        return _rate(term.value)
    if term.unit == "cores":
        return f"{term.value:,.2g} cores"
    return f"{format_count(term.value)} {term.unit}"


def _rate(bytes_per_second: float) -> str:
    """Decimal units, as links are sold."""
    unit, size = next((u, s) for u, s in (("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 0.0)) if bytes_per_second >= s)
    return f"{bytes_per_second / (size or 1e3):,.3g} {unit}"


def _risk(stage: StagePlan) -> list[RenderableType]:
    """Return a table of expected failures, with the reason for this market."""
    blocks: list[RenderableType] = []
    if stage.market_reason:
        blocks.append(Text(f"Market: {stage.market_reason}."))
    risk = stage.risk
    if risk is None or not risk.interruptions:
        return blocks
    table = _titled("Failures expected", "What", "Value", "From")
    spares = risk.spares
    rows = [
        ("checkpoint every", format_seconds(risk.interval_seconds), _interval_of(risk)),
        ("mean between failures", format_seconds(risk.mean_between_failures_seconds), risk.failures_source),
        ("interruptions", f"{risk.interruptions:.3g}", "expected during the stage"),
        ("work done twice", format_seconds(risk.lost_seconds), f"{format_seconds(risk.lost_seconds_each)} at each"),
        ("detection and restart", format_seconds(risk.down_seconds), risk.detection.source),
        ("waiting for machines", format_seconds(risk.spent.wait_seconds), "spot capacity"),
        ("saving", format_seconds(risk.spent.save_seconds), f"{format_seconds(risk.save_seconds)} each"),
        ("useful share", f"{100 * risk.useful_share:.1f} %", "work over paid time"),
    ]
    if spares is not None:
        worth = "pay for themselves" if spares.worth.pays else "do not pay for themselves"
        rows.append(("spare nodes", str(spares.nodes), f"{worth}; best: {spares.best}"))
    for row in rows:
        table.add_row(*map(Text, row))
    return [*blocks, table]


def _interval_of(risk: StageRisk) -> str:
    return "" if risk.interval_units is None else f"{risk.interval_units:,} steps or batches"


def _groups(stage: StagePlan) -> list[RenderableType]:
    """Return the division of work, where not all accelerators do the same."""
    option = stage.option
    host = f"; {format_bytes(option.host_bytes)} per accelerator wait in host memory" if option.host_bytes else ""
    if not option.groups:
        return [Text(f"Placement: {option.placement}{host}.")] if option.placement and host else []
    title = f"Placement: {option.placement}, {100 * option.idle_share:.0f} % of the paid time idle{host}"
    table = _titled(title, "Group", "Roles", "Hardware", "Layout", "Peak", "Busy")
    for group in option.groups:
        peak = f"{format_bytes(group.peak.total_bytes)} of {format_bytes(group.capacity_bytes)}"
        hardware = f"{group.num_accelerators} x {group.hardware}"
        cells = (group.name, ", ".join(group.roles), hardware, group.layout_label, peak, f"{group.busy_share:.0%}")
        table.add_row(*map(Text, cells))
    return [table]


def _money_table(stage: StagePlan, plan: Plan) -> Table:
    """Every line of the stage in the project's cost; machines and storage where there is none."""
    table = _titled("Cost", "Part", "p10", "p50", "p90", "Formula")
    if plan.cost is not None and stage.compute_usd is not None:
        for line in (line for line in plan.cost.lines if line.stage == stage.name):
            table.add_row(Text(line.bucket), *_quantiles(line.usd), Text(line.formula))
        return table
    hours = stage.option.overhead.billed_seconds / 3600
    formulas = {
        "machines": f"{max(1, stage.option.num_accelerators)} x {hours:,.3g} billed hours x price",
        "storage": f"{format_bytes(stage.storage_bytes)}, results kept for 30 days",
    }
    for name, money in (("machines", stage.compute_usd), ("storage", stage.storage_usd)):
        table.add_row(name, *_quantiles(money), formulas[name])
    return table


def _quantiles(money: MicroUsd | None) -> list[str]:
    return [format_usd(None if money is None else getattr(money, name) / 1e6) for name in QUANTILES]


def _options(stage: StagePlan) -> list[RenderableType]:
    """Near-tied layouts on the chosen machines, and options that nothing beats or that cost as much as the chosen."""
    blocks: list[RenderableType] = []
    tied = [item for item in stage.option.tied_layouts if item.label != stage.option.layout.label]
    if tied:
        table = _titled("As good on the same machines", "Layout", "Work", "Peak")
        for item in tied:
            table.add_row(
                Text(item.label), format_seconds(item.seconds), format_bytes(item.peak_bytes * stage.peak_range.margin)
            )
        blocks.append(table)
    front, alike = pareto(stage.options), near_tied(stage.options, stage.option)
    marked = [o for o in stage.options if o is stage.option or any(o is one for one in (*front, *alike))]
    if len(marked) > 1:
        blocks.append(_front_table(stage, marked, front, alike))
    return blocks


def _front_table(stage: StagePlan, marked: list[Option], front: tuple[Option, ...], alike: tuple[Option, ...]) -> Table:
    title = "Options that nothing beats in time, money and headroom, or that cost as much within the estimate"
    table = _titled(title, "Option", "Layout", "Time p50-p90", "Cost p50", "Full", "")
    for option in sorted(marked, key=lambda item: (item.seconds.p50, item.label, item.layout_label)):
        words = ["chosen"] if option is stage.option else []
        words += ["not beaten"] if any(option is one for one in front) else []
        words += ["costs as much"] if any(option is one for one in alike) else []
        cost = format_usd(None if option.usd is None else option.usd.p50)
        cells = (option.label, layout(option), seconds_range(option.seconds), cost, f"{full_share(option):.0%}")
        table.add_row(*map(Text, (*cells, ", ".join(words))))
    return table


def _rejected_table(stage: StagePlan) -> Table:
    table = _titled("Not taken", "Option", "Reason")
    for item in stage.rejected:
        table.add_row(item.option, item.reason)
    return table


def _assumption_table(plan: Plan) -> Table:
    table = _titled("Assumptions of the plan", "Name", "Value", "Source", "As of")
    for item in plan.assumptions:
        number = f"{item.value:,.6g}" if isinstance(item.value, float) else str(item.value)
        value = "unknown" if item.value is None else number
        table.add_row(item.name, value, item.source, item.as_of)
    return table

"""A plan as terminal tables."""

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from charter.estimate.terms import Interval, Term
from charter.plan.plan import Plan
from charter.plan.stage_plan import MicroUsd, StagePlan
from charter.units import GIB, format_bytes, format_count, format_seconds, format_usd

VERDICT_STYLE = {"ok": "green", "p90 over": "yellow", "over": "red", "unpriced": "dim"}


def plan_table(plan: Plan) -> RenderableType:
    """The stages, the totals and what decides them."""
    table = Table(box=box.SIMPLE_HEAD, title=f"Plan of {plan.name}", title_justify="left", show_footer=False)
    for header in ("Stage", "Hardware", "Layout"):
        table.add_column(header, no_wrap=header == "Stage")
    for header in ("Peak GiB", "Time p50-p90", "GPU-h", "Cost p50-p90"):
        table.add_column(header, justify="right", no_wrap=True)
    for stage in plan.stages:
        table.add_row(*_cells(stage))
    table.add_section()
    table.add_row(
        "total",
        "",
        "",
        "",
        _range_of_seconds(plan.seconds),
        _hours(plan.gpu_hours.p50),
        _range_of_usd(plan.usd),
        style="bold",
    )
    return Group(table, *_notes(plan))


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
        f"Time: {format_seconds(option.overhead.wall_seconds)} at the median; p10-p90 {format_seconds(seconds.p10)} to"
        f" {format_seconds(seconds.p90)}"
    )
    return Group(
        head,
        _terms("Workload", stage.workload_terms),
        _terms(memory, peak.terms),
        Text(f"Width of the memory: {stage.peak_range.source}.", style="dim"),
        _terms(time, _time_terms(stage)),
        Text(f"Width of the time: {stage.time_source}.", style="dim"),
        _terms("Around the accelerators: memory, cores, network of a node; disk of the stage", stage.node.terms),
        _money_table(stage),
        _rejected_table(stage),
        _assumption_table(plan),
    )


def _cells(stage: StagePlan) -> tuple[str, ...]:
    option = stage.option
    share = option.peak.total_bytes / option.capacity_bytes
    peak = f"{_gib(option.peak.total_bytes)}/{_gib(option.capacity_bytes)} {share:.0%}"
    return (
        stage.name,
        _hardware(stage),
        option.layout_label,
        peak,
        _range_of_seconds(option.seconds),
        _hours(stage.gpu_hours.p50),
        _range_of_usd(stage.usd),
    )


def _hardware(stage: StagePlan) -> str:
    """`16 x H100-SXM-80GB aws spot`: accelerators in all, provider, market."""
    option = stage.option
    if option.place.is_cpu:
        return f"cpu {option.place.infra}"
    market = "" if option.price.market == "on_demand" else f" {option.price.market}"
    return f"{option.num_accelerators} x {option.place.accelerator.name} {option.place.infra}{market}"


def _gib(num_bytes: float) -> str:
    value = num_bytes / GIB
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _hours(value: float) -> str:
    return "-" if value == 0 else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _range_of_seconds(interval: Interval) -> str:
    """Both ends in the unit of the upper one, so that they can be compared at a glance."""
    unit, size = next((u, s) for u, s in _UNITS if interval.p90 >= 2 * s or s == 1.0)
    low, high = interval.p50 / size, interval.p90 / size
    return f"{low:.0f}-{high:.0f} {unit}" if low >= 100 else f"{low:.1f}-{high:.1f} {unit}"


_UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))


def _range_of_usd(money: MicroUsd | None) -> str:
    if money is None:
        return "unpriced"
    values = money.to_json()
    return f"{format_usd(values['p50'])}-{format_usd(values['p90'])}"


def _notes(plan: Plan) -> list[Text]:
    notes = [
        Text(f"Storage: {format_bytes(plan.storage_bytes)} of checkpoints, weights and records{_storage_usd(plan)}.")
    ]
    line = plan.timeline()
    notes.append(Text(f"The run waits for: {' > '.join(line.critical_path)}; longest is {_longest(plan)}."))
    if plan.budget_usd is not None and plan.budget_verdict is not None:
        notes.append(_verdict("Budget", format_usd(plan.budget_usd), plan.budget_verdict))
    if plan.deadline_seconds is not None and plan.deadline_verdict is not None:
        notes.append(_verdict("Deadline", format_seconds(plan.deadline_seconds), plan.deadline_verdict))
    notes += [Text(f"Prices: {text}.") for text in _price_dates(plan)]
    notes += _why_not(plan)
    notes.append(
        Text(f"Next: charter plan --explain {_slowest(plan).name} · charter plan --json · charter run", style="dim")
    )
    return notes


def _storage_usd(plan: Plan) -> str:
    parts = [stage.storage_usd.p50 for stage in plan.stages if stage.storage_usd is not None]
    return f", {format_usd(sum(parts) / 1e6)}" if parts and sum(parts) else ""


def _slowest(plan: Plan) -> StagePlan:
    return max(plan.stages, key=lambda stage: stage.option.seconds.p50)


def _longest(plan: Plan) -> str:
    stage = _slowest(plan)
    phases: dict[str, float] = {}
    for term in stage.option.time_terms:
        phases[term.part] = phases.get(term.part, 0.0) + term.value
    if not phases:
        return stage.name
    name = max(phases, key=lambda key: phases[key])
    return f"{stage.name}, {phases[name] / sum(phases.values()):.0%} of it in {name!r}"


def _verdict(what: str, limit: str, verdict: str) -> Text:
    said = {
        "ok": "kept, at p90 too",
        "p90 over": "kept at p50, exceeded at p90",
        "over": "exceeded already at p50",
        "unpriced": "cannot be checked: a stage has no price",
    }[verdict]
    return Text.assemble(f"{what} {limit}: ", (said, VERDICT_STYLE[verdict]), ".")


def _price_dates(plan: Plan) -> list[str]:
    found = {
        f"{stage.option.place.label} {stage.option.price.market} "
        f"{format_usd(stage.option.price.usd_per_hour)} per accelerator-hour, as of {stage.option.price.as_of or 'now'}"
        for stage in plan.stages
        if stage.option.price.usd_per_hour is not None
    }
    return sorted(found) or ["none known for this machine; set resources.price to see a cost"]


def _why_not(plan: Plan) -> list[Text]:
    stage = _slowest(plan)
    if not stage.rejected:
        return []
    first = stage.rejected[0]
    return [Text(f"Why not {first.option} for {stage.name}? {first.reason}.")]


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
            f"a failure every {_mean(risk.mean_between_failures_seconds)}",
            source="Daly 2006, expected time (resilience/expected_time.py)",
        ),
        Term(name="start", part="risk", value=risk.start_seconds, unit="seconds", formula="", source="assumption"),
    )
    return (*option.time_terms, *extra)


def _mean(seconds: float) -> str:
    return "never" if seconds == float("inf") else format_seconds(seconds)


def _terms(title: str, terms: tuple[Term, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("Term")
    table.add_column("Value", justify="right", no_wrap=True)
    table.add_column("Formula")
    table.add_column("Source", style="dim")
    for term in terms:
        table.add_row(term.name, _value(term), term.formula, term.source)
    return table


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


def _money_table(stage: StagePlan) -> Table:
    table = Table(title="Cost", title_justify="left", box=box.SIMPLE_HEAD)
    for header in ("Part", "p10", "p50", "p90", "Formula"):
        table.add_column(header)
    hours = stage.option.overhead.billed_seconds / 3600
    formulas = {
        "machines": f"{max(1, stage.option.num_accelerators)} x {hours:,.3g} billed hours x price",
        "storage": f"{format_bytes(stage.storage_bytes)}, results kept for 30 days",
    }
    for name, money in (("machines", stage.compute_usd), ("storage", stage.storage_usd)):
        values = [format_usd(None if money is None else getattr(money, q) / 1e6) for q in ("p10", "p50", "p90")]
        table.add_row(name, *values, formulas[name])
    return table


def _rejected_table(stage: StagePlan) -> Table:
    table = Table(title="Not taken", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("Option")
    table.add_column("Reason")
    for item in stage.rejected:
        table.add_row(item.option, item.reason)
    return table


def _assumption_table(plan: Plan) -> Table:
    table = Table(title="Assumptions of the plan", title_justify="left", box=box.SIMPLE_HEAD)
    for header in ("Name", "Value", "Source", "As of"):
        table.add_column(header)
    for item in plan.assumptions:
        table.add_row(item.name, str(item.value), item.source, item.as_of)
    return table

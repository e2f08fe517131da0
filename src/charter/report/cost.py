"""The cost of a run: what was spent for what and what its bytes cost, beside the plan. Pure but for the reading."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from charter.cost.advice import Advice, Use, advice
from charter.cost.forecast import Forecast, forecast
from charter.ledger import Attempt, Ledger
from charter.ledger.account import COUNTERS, Accounted, Totals
from charter.ledger.call import CallSums
from charter.ledger.charge_rows import StoredBill
from charter.ledger.focus import Account, ApiUsage, Row, rows_of_attempts, rows_of_other, rows_of_usage
from charter.ledger.store import has_ledger, ledger_place
from charter.ledger.stored import (
    OtherCharge,
    StoredSample,
    by_place,
    byte_milliseconds,
    charges_by_month,
    gib_months,
    micro_usd_of,
    steps,
)
from charter.ledger.sums import Sums
from charter.report.overview import Overview, StageView, lost, spent_on_calls
from charter.report.plan_cells import Amount
from charter.report.read import read_run
from charter.run.budget import BudgetLine, Spending, budget_lines, read_plan, read_spending, stages_so_far, steps_now
from charter.run.call_costs import billed_to
from charter.run.graph import Pipeline, build_pipeline
from charter.run.paths import run_dir
from charter.run.staleness import assess
from charter.spec.project import Project
from charter.spec.stage import TRAINS
from charter.tracking import meter_rows, summarise
from charter.units import GB, MICRO_USD_PER_USD, format_bytes, format_moment, format_usd


@dataclass(frozen=True, kw_only=True)
class StoredPlace:
    """One place: what was metered from its first sample to its last, and what it holds since."""

    place: str
    provider: str
    bytes_now: int
    """By the last sample."""
    gib_months: float
    micro_usd: int | None
    """None while no sample has a price."""
    usd_per_month: float | None
    """What the bytes of the last sample cost per month."""
    sent_bytes: int
    samples: int
    first_at: float
    last_at: float
    since_gib_months: float
    """From the last sample to now, if nothing has changed: in no sum, since nobody has looked."""
    price_source: str
    price_as_of: str


def stored_places(samples: Iterable[StoredSample], *, now: float) -> tuple[StoredPlace, ...]:
    """By place; `now` is unix time. What a project had there under an earlier name is its own, and not there twice."""
    each = [_place(series, now_milliseconds=round(now * 1000)) for series in by_place(samples).values()]
    places: dict[str, StoredPlace] = {}
    for item in sorted(each, key=lambda item: item.last_at):
        before = places.get(item.place)
        places[item.place] = item if before is None else _gone_on(before, item)
    return tuple(places[name] for name in sorted(places))


def _gone_on(before: StoredPlace, now: StoredPlace) -> StoredPlace:
    priced = [item.micro_usd for item in (before, now) if item.micro_usd is not None]
    return replace(
        now,
        gib_months=before.gib_months + now.gib_months,
        micro_usd=sum(priced) if priced else None,
        sent_bytes=before.sent_bytes + now.sent_bytes,
        samples=before.samples + now.samples,
        first_at=min(before.first_at, now.first_at),
    )


def storage_json(places: Iterable[StoredPlace], plan: Mapping[str, Any] | None) -> dict[str, Any]:
    """The `storage` of `charter cost report --json`: metered beside planned; `usd` is null where no price is known."""
    listed = list(places)
    priced = [place.micro_usd for place in listed if place.micro_usd is not None]
    return {
        "planned_usd": planned_usd(plan, "storage"),
        "metered_usd": sum(priced) / MICRO_USD_PER_USD if priced else None,
        "metered_micro_usd": sum(priced) if priced else None,
        "metered_gib_months": sum(place.gib_months for place in listed),
        "planned_transfer_usd": planned_usd(plan, "transfer"),
        "sent_bytes": sum(place.sent_bytes for place in listed),
        "places": [{**asdict(place), "usd": _usd(place.micro_usd)} for place in listed],
    }


def planned_usd(plan: Mapping[str, Any] | None, part: str) -> float | None:
    """Return the planned `storage` or `transfer` of all stages; None where a stage has no price, or without a plan."""
    stages = (plan or {}).get("stages") or ()
    amounts = [((stage.get("breakdown") or {}).get("usd") or {}).get(part) for stage in stages]
    priced = [float(amount) for amount in amounts if amount is not None]
    return sum(priced) if priced and len(priced) == len(amounts) else None


def print_storage(places: tuple[StoredPlace, ...], plan: Mapping[str, Any] | None, console: Console) -> None:
    """A table of the places, and a line that compares them with the plan."""
    if not places:
        return
    table = titled_table("Storage", "Place", right=("Holds", "GiB-months", "Cost", "Sent", "Metered until"))
    for place in places:
        table.add_row(
            Text(place.place),
            format_bytes(place.bytes_now),
            f"{place.gib_months:.3g}",
            format_usd(_usd(place.micro_usd)),
            format_bytes(place.sent_bytes) if place.sent_bytes else "",
            format_moment(place.last_at),
        )
    console.print(table)
    content = storage_json(places, plan)
    planned = content["planned_usd"]
    said = "" if planned is None else f", planned {format_usd(planned)} with what is kept afterwards"
    console.print(f"Stored so far: {format_usd(content['metered_usd'])}{said}", highlight=False)
    for place in places:
        if place.usd_per_month:
            text = f"{place.place} costs {format_usd(place.usd_per_month)} a month as it is"
            console.print(Text(text), highlight=False)
    console.print()


def _place(series: tuple[StoredSample, ...], *, now_milliseconds: int) -> StoredPlace:
    ordered = steps(series)
    first, last = ordered[0], ordered[-1]
    until, price = last.at_milliseconds, last.price_micro_usd_per_gb_month
    is_priced = any(sample.price_micro_usd_per_gb_month is not None for sample in ordered)
    since = byte_milliseconds([last], since=until, until=max(until, now_milliseconds))
    return StoredPlace(
        place=last.place,
        provider=last.provider,
        bytes_now=last.bytes,
        gib_months=gib_months(byte_milliseconds(ordered, since=first.at_milliseconds, until=until)),
        micro_usd=micro_usd_of(ordered) if is_priced else None,
        usd_per_month=None if price is None else price * last.bytes / GB / MICRO_USD_PER_USD,
        sent_bytes=sum(sample.sent_bytes for sample in series),
        samples=len(series),
        first_at=first.at_milliseconds / 1000,
        last_at=until / 1000,
        since_gib_months=gib_months(since),
        price_source=last.price_source,
        price_as_of=last.price_as_of,
    )


def _usd(micro_usd: int | None) -> float | None:
    return None if micro_usd is None else micro_usd / MICRO_USD_PER_USD


def titled_table(title: str, *left: str, right: Iterable[str] = ()) -> Table:
    """Return a table without lines under a bold title: columns of words, then columns of figures."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", overflow="fold")
    return table


GROUPS = ("stage", "owner", "accelerator", "market", "day")
"""What the report divides the cost by, beside tags."""


@dataclass(frozen=True, kw_only=True)
class CostFacts:
    """A run's money, as sums."""

    project: Project
    spending: Spending = field(default_factory=Spending)
    groups: Mapping[str, tuple[Sums, ...]] = field(default_factory=dict)
    """By `stage`, `owner`, `accelerator`, `market`, `day` and `tag:NAME` for every tag of the project."""
    left: Forecast = field(default_factory=Forecast)
    lines: tuple[BudgetLine, ...] = ()
    bills: tuple[StoredBill, ...] = ()
    newest: Mapping[str, Attempt] = field(default_factory=dict)
    """By stage, its newest attempt."""
    stored: tuple[StoredPlace, ...] = ()
    fees: tuple[OtherCharge, ...] = ()
    """What nothing has measured: reserved terms, licences, credits."""
    plan: Mapping[str, Any] | None = None
    """The JSON of `plan.json`."""


def read_costs(project: Project, root: Path, *, with_groups: bool = True) -> CostFacts:
    """Read the sums of a run; empty ones without a ledger. The time does not grow with the number of attempts."""
    place = ledger_place(run_dir(root.resolve()), project.storage.ledger)
    if not has_ledger(place):
        return CostFacts(project=project)
    names = (*GROUPS, *(f"tag:{name}" for name in sorted(project.tags))) if with_groups else ()
    with Ledger.open(place, create=False) as ledger:
        spending = read_spending(ledger, project, now=time.time())
        groups = {name: ledger.sums(run=project.run_in_ledger, by=(name,)) for name in names}
        bills = ledger.bills()
        fees = ledger.other_charges(run=project.run_in_ledger)
        samples = ledger.stored(run=project.run_in_ledger) if with_groups else ()
        newest = {
            item.attempt.stage: item.attempt
            for name in project.pipeline
            for item in ledger.recent(run=project.run_in_ledger, stage=name, limit=1)
        }
    pipeline = build_pipeline(project, root)
    signs = {attempt.stage: attempt.last_heartbeat for attempt in spending.running}
    states = {name: assess(it, pipeline.root, last_sign=signs.get(name)) for name, it in pipeline.stages.items()}
    done = {name for name, state in states.items() if state.done}
    running = {name for name, state in states.items() if state.state == "running"}
    plan = read_plan(pipeline.root)
    left = forecast(stages_so_far(plan, steps_now(pipeline, done=done, running=running), spending))
    return CostFacts(
        project=project,
        spending=spending,
        groups=groups,
        left=left,
        lines=budget_lines(project, spending, left, running=running),
        bills=bills,
        newest=newest,
        stored=stored_places(samples, now=time.time()),
        fees=fees,
        plan=plan,
    )


def read_advice(facts: CostFacts, root: Path) -> tuple[Advice, ...]:
    """Return advice that would make the run cheaper, the largest saving first; reads the samples of its stages."""
    pipeline = build_pipeline(facts.project, root)
    uses = (use for name in pipeline.stages if (use := _use(facts, pipeline, name)) is not None)
    items = [item for use in uses for item in advice(use)]
    return tuple(sorted(items, key=lambda item: -(item.saving_usd or 0.0)))


def _use(facts: CostFacts, pipeline: Pipeline, name: str) -> Use | None:
    """Return the machines that a stage has held, by its sums and its samples; None for one that has not run."""
    part = facts.spending.by_stage.get(name)
    if part is None or not part.totals.attempts:
        return None
    stage, totals = pipeline.stages[name], part.totals
    seen = summarise(meter_rows(stage.directory), idle_below=facts.project.idle.utilisation)
    peak, size = seen.gpu_memory_peak_bytes, seen.gpu_memory_bytes
    priced = bool(totals.priced_attempts)
    left = facts.left.stages.get(name)
    newest = facts.newest.get(name)
    return Use(
        stage=name,
        accelerator=newest.accelerator if newest else ", ".join(seen.gpu_names),
        count=newest.count if newest else max(1, seen.gpus),
        market=newest.market if newest else "",
        seconds=seen.seconds,
        usd=part.usd if priced else None,
        activity=seen.gpu_activity,
        memory_peak_share=None if peak is None or not size else peak / size,
        idle_usd=totals.idle_micro_usd / MICRO_USD_PER_USD if priced else None,
        lost_usd=(part.waste_micro_usd - totals.idle_micro_usd) / MICRO_USD_PER_USD if priced else None,
        checkpoints=stage.spec.kind in TRAINS,
        remaining_usd=left.usd.p50 if left is not None and left.usd is not None else 0.0,
    )


SCHEMA = "charter.cost/1"


def cost_json(view: Overview, accounted: tuple[Accounted, ...], usage: tuple[ApiUsage, ...] = ()) -> dict[str, Any]:
    """Return the JSON of `charter cost report --json`.

    `seconds` and `usd` are medians where they are estimates, with `_p10` and `_p90` beside them. `usd` is null
    where no price is known. The whole `milliseconds` and `micro_usd` of attempts and of calls add up to those of
    their stage, and those of stages to the totals, exactly. Calls that may or may not have been billed are not in
    them: the bill lies between `usd` and `usd_most`.
    """
    return {
        "schema": SCHEMA,
        "run": view.project,
        "state": view.state,
        "phase": view.phase.value,
        "currency": "USD",
        "wall_seconds": view.wall_seconds,
        "planned": view.plan.to_json(),
        "actual": _actual(view.totals, view.actual, view.calls),
        "forecast": view.forecast.to_json(),
        "budget": budget_json(view),
        "stages": [_stage(stage) for stage in view.stages],
        "attempts": [_attempt(item) for item in accounted],
        "calls": [_route(item) for item in usage],
    }


def budget_json(view: Overview) -> dict[str, Any] | None:
    """The budget's limit against what is spent and forecast; None without a budget."""
    limit = view.budget_limit_usd
    if limit is None:
        return None
    used, expected, high = view.actual.usd, view.forecast.p50.usd, view.forecast.p90.usd
    return {
        "limit_usd": limit,
        "spent_usd": used,
        "spent_usd_most": view.most_usd,
        "forecast_usd": expected,
        "forecast_usd_p90": high,
        "state": budget_state(limit, view.most_usd, expected),
    }


def budget_state(limit_usd: float, spent_usd: float | None, forecast_usd: float | None) -> str:
    """`ok`, `warn` (80 % spent, or the median forecast is over), `exceeded`, or `unpriced`.

    >>> budget_state(100, 20, 60), budget_state(100, 20, 120), budget_state(100, 101, 101)
    ('ok', 'warn', 'exceeded')
    """
    if spent_usd is None and forecast_usd is None:
        return "unpriced"
    if (spent_usd or 0) > limit_usd:
        return "exceeded"
    return "warn" if (spent_usd or 0) >= 0.8 * limit_usd or (forecast_usd or 0) > limit_usd else "ok"


def unit_costs(totals: Totals, actual: Amount) -> dict[str, dict[str, float | int | None]]:
    """Cost and time per unit that was kept, for the counters that counted anything.

    Redone tokens or episodes are in the cost but not in the count: waste makes a unit dearer.
    """
    costs: dict[str, dict[str, float | int | None]] = {}
    for name in COUNTERS:
        count = getattr(totals, f"useful_{name}")
        if count:
            usd = None if actual.usd is None or not totals.fully_priced else actual.usd / count
            costs[name] = {
                "count": count,
                "usd_each": usd,
                "usd_per_million": None if usd is None else usd * 1e6,
                "seconds_each": actual.seconds / count,
            }
    return costs


def _actual(totals: Totals, actual: Amount, calls: CallSums) -> dict[str, Any]:
    unpriced = totals.milliseconds - totals.priced_milliseconds
    most = None if actual.micro_usd is None else actual.micro_usd + calls.unknown_micro_usd
    return {
        **actual.to_json(),
        "usd_most": None if most is None else most / 1_000_000,
        "micro_usd_most": most,
        "calls": calls_json(calls),
        "attempts": totals.attempts,
        "accelerator_seconds": totals.billed_unit_milliseconds / 1000,
        "useful_seconds": totals.useful_milliseconds / 1000,
        "unpriced_seconds": unpriced / 1000,
        "lost_to_kills": lost(totals, "kills").to_json(),
        "lost_to_failures": lost(totals, "failures").to_json(),
    }


def _stage(stage: StageView) -> dict[str, Any]:
    return {
        "name": stage.name,
        "kind": stage.kind,
        "state": stage.state,
        "phase": stage.phase.value,
        "step": stage.step,
        "target_step": stage.target_step,
        "planned": stage.plan.to_json() if stage.plan else None,
        "actual": _actual(stage.totals, stage.actual, stage.calls),
        "forecast": stage.forecast.to_json(),
        "units": unit_costs(stage.totals, stage.actual),
        "samples": stage.samples.to_json(),
        "ratio": {"seconds": stage.time_ratio, "usd": stage.cost_ratio},
    }


def calls_json(calls: CallSums) -> dict[str, Any]:
    """Counts of calls, their tokens by kind, and their money: what is settled and what may come on top."""
    return {
        **asdict(calls),
        "settled_usd": calls.settled_micro_usd / 1_000_000,
        "unknown_usd": calls.unknown_micro_usd / 1_000_000,
        **spent_on_calls(calls).to_json(),
    }


def _route(item: ApiUsage) -> dict[str, Any]:
    route = item.route
    return {
        "stage": item.stage,
        "fingerprint": item.fingerprint,
        "endpoint": route.endpoint,
        "model": route.model,
        "first_at": route.first_at,
        "last_at": route.last_at,
        **calls_json(route.sums),
    }


def _attempt(item: Accounted) -> dict[str, Any]:
    attempt = item.attempt
    amount = Amount(milliseconds=attempt.duration_milliseconds, micro_usd=item.cost_micro_usd)
    wasted = Amount(milliseconds=item.lost_milliseconds, micro_usd=item.lost_micro_usd)
    plain = (
        "stage", "kind", "number", "fingerprint", "accelerator", "count", "infra", "market", "started_at",
        "ended_at", "outcome", "first_step", "last_step", "tokens", "pairs", "episodes", "records",
        "price_source", "price_as_of", "clock", "host", "note",
    )  # fmt: skip
    price = attempt.price_micro_usd_per_hour
    return {
        "id": attempt.attempt_id,
        **{name: getattr(attempt, name) for name in plain},
        "imported": attempt.is_imported,
        "price_usd_per_hour": None if price is None else price / 1_000_000,
        **amount.to_json(),
        "lost": wasted.to_json(),
    }


def focus_dataset(project: Project | None, root: Path) -> list[Row]:
    """The rows in the order of the ledger. Raises UsageError where there is no run, DataError where one is damaged.

    Without a project (its file is gone, or no longer loads) the run's own files say what they can.
    """
    run = read_run(root, with_metrics=False, check_calls=True)
    account = Account(identifier=run.project)
    place = ledger_place(run_dir(root), project.storage.ledger if project else None)
    billed: dict[int, tuple[str, Decimal]] = {}
    stored: tuple[OtherCharge, ...] = ()
    if has_ledger(place):
        with Ledger.open(place, create=False) as ledger:
            mine = project.run_in_ledger if project else None
            billed, stored = ledger.billed(run=mine), tuple(charges_by_month(ledger.stored(run=mine)))
    return [
        *rows_of_attempts(run.accounted, account, billed=billed),
        *rows_of_usage(billed_to(project, run.usage) if project else run.usage, account),
        *rows_of_other((*run.fees, *stored), account),
    ]

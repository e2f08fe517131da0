"""The cost report as one JSON object: planned, actual, forecast, budget, by stage and by attempt."""

from dataclasses import asdict
from typing import Any

from charter.ledger.account import COUNTERS, Accounted, Totals
from charter.ledger.call import CallSums
from charter.ledger.focus import ApiUsage
from charter.report.amounts import Amount
from charter.report.overview import Overview, StageView, lost, spent_on_calls

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

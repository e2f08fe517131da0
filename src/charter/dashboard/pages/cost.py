"""The cost of a run: past, now, forecast."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from charter.dashboard.page import Context, Page, PageValues
from charter.dashboard.snapshot import CostGroup, Snapshot, StageNow
from charter.dashboard.view.run_parts import Eta, eta_of
from charter.dashboard.view.run_view import Money, money_of
from charter.ledger.attempt import Attempt
from charter.ledger.sums import Sums

JOULES_PER_KWH = 3.6e6
OF_NO_STAGE = "(no stage)"
"""What no stage alone has caused: storage, fees."""


@dataclass(frozen=True, kw_only=True)
class Split:
    """Cost of one stage, owner, tag or accelerator, and its parts, which add up to it."""

    name: str
    colour: int
    kept: float
    """What was paid for work that was kept."""
    lost: float
    """Lost to kills, preemption and failures."""
    idle: float
    """Allocated, and nothing was done."""
    calls: float
    """Paid to servers of models."""
    other: float
    """Storage, transfer, fees."""
    accelerator_seconds: float
    attempts: int

    @property
    def whole(self) -> float:
        """All of it."""
        return self.kept + self.lost + self.idle + self.calls + self.other


@dataclass(frozen=True, kw_only=True)
class Left:
    """Time and money that one stage is still expected to take."""

    name: str
    state: str
    phase: str
    basis: str
    p50_usd: float | None
    p90_usd: float | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class CostView:
    """The whole page."""

    unit: str
    """`usd`, or `seconds` where nothing has a price."""
    money: Money
    stages: tuple[Split, ...]
    accelerators: tuple[Split, ...]
    owners: tuple[Split, ...]
    tags: tuple[Split, ...]
    whole: Split
    running: tuple[Attempt, ...]
    left: tuple[Left, ...]
    forecast_p10: float | None
    forecast_p50: float | None
    forecast_p90: float | None
    eta: Eta
    energy_kwh: float | None
    """What was metered; not power supplies, fans, the building."""

    @property
    def used_columns(self) -> tuple[tuple[str, str], ...]:
        """The parts of spending, beside kept work, that there are any of."""
        names = (("lost", "Lost"), ("idle", "Idle"), ("calls", "Calls"), ("other", "Other"))
        return tuple((key, title) for key, title in names if getattr(self.whole, key))


def cost_view(snapshot: Snapshot) -> CostView:
    """The cost page of a project."""
    ledger, eta = snapshot.ledger, eta_of(snapshot)
    money = money_of(snapshot, eta)
    is_work_priced = (
        ledger.whole.totals.priced_attempts or not ledger.whole.totals.attempts or ledger.whole.calls.requests
    )
    unit = "usd" if money.spent_usd is not None and is_work_priced else "seconds"
    names = [stage.name for stage in snapshot.stages]
    others = [name for name in ledger.by_stage if name not in names]
    stages = tuple(
        _split(name or OF_NO_STAGE, i % 12, ledger.stage(name), unit) for i, name in enumerate([*names, *others])
    )
    left, spent = eta.left.usd, money.spent_usd
    return CostView(
        unit=unit,
        money=money,
        stages=tuple(split for split in stages if split.whole),
        accelerators=_splits(ledger.by_accelerator, unit),
        owners=_splits(ledger.by_owner, unit),
        tags=_splits(ledger.by_tag, unit),
        whole=_split("all", 0, ledger.whole, unit),
        running=ledger.running,
        left=tuple(_left(stage, eta) for stage in snapshot.stages if stage.state != "done"),
        forecast_p10=spent if left is None else (spent or 0.0) + left.p10,
        forecast_p50=money.forecast_usd,
        forecast_p90=spent if left is None else (spent or 0.0) + left.p90,
        eta=eta,
        energy_kwh=ledger.whole.totals.energy_joules / JOULES_PER_KWH if ledger.whole.totals.energy_joules else None,
    )


def burn_chart(snapshot: Snapshot, view: CostView) -> dict[str, Any]:
    """Money over time: what was spent, the forecast with its band, the limit. Seconds since the first spending."""
    spend = snapshot.ledger.spend
    if not spend:
        return {"points": []}
    start = spend[0][0]
    points = [[moment - start, micro / 1e6] for moment, micro in spend]
    now = max(points[-1][0], snapshot.read_at - start if view.running else points[-1][0])
    spent = view.money.spent_usd or 0.0
    points.append([now, spent])
    eta = view.eta.run_seconds
    ends = None
    if view.left and view.forecast_p50 is not None and eta:
        ends = {
            "at": now + eta, "p10": view.forecast_p10, "p50": view.forecast_p50, "p90": view.forecast_p90,
        }  # fmt: skip
    return {
        "points": points,
        "now": now,
        "spent": spent,
        "end": ends,
        "limit": snapshot.budget_limit_usd,
        "start": start,
    }


def _splits(groups: Iterable[CostGroup], unit: str) -> tuple[Split, ...]:
    return tuple(_split(group.name, index % 12, group.sums, unit) for index, group in enumerate(groups))


def _split(name: str, colour: int, sums: Sums, unit: str) -> Split:
    totals = sums.totals
    if unit == "usd":
        total, idle = totals.micro_usd / 1e6, totals.idle_micro_usd / 1e6
        lost = (totals.lost_to_kills_micro_usd + totals.lost_to_failures_micro_usd) / 1e6
        calls, other = sums.calls.settled_micro_usd / 1e6, sums.other_micro_usd / 1e6
    else:
        total, idle = totals.milliseconds / 1e3, totals.idle_milliseconds / 1e3
        lost = (totals.lost_to_kills_milliseconds + totals.lost_to_failures_milliseconds) / 1e3
        calls = other = 0.0
    return Split(
        name=name,
        colour=colour,
        kept=total - lost - idle,
        lost=lost,
        idle=idle,
        calls=calls,
        other=other,
        accelerator_seconds=totals.billed_unit_milliseconds / 1e3,
        attempts=totals.attempts,
    )


def _left(stage: StageNow, eta: Eta) -> Left:
    rest = eta.left.stages[stage.name]
    return Left(
        name=stage.name,
        state=stage.state,
        phase=stage.phase.value,
        basis=rest.basis,
        p50_usd=rest.usd.p50 if rest.usd else None,
        p90_usd=rest.usd.p90 if rest.usd else None,
        seconds=eta.stage_seconds(stage.name),
    )


def build_cost(context: Context) -> PageValues:
    """The cost page."""
    project = context.project
    view = cost_view(project)
    return PageValues(title=f"Cost, {project.name}", model=view, charts={"burn": burn_chart(project, view)})


COST = Page(name="cost", path="/p/{project}/cost", template="cost.html", build=build_cost, label="Cost")

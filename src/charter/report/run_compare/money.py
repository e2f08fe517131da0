"""Time, money and waste of several runs, in all and by stage, beside the first. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from charter.ledger.account import Totals
from charter.report.amounts import Amount, ratio
from charter.report.overview import StageView, lost
from charter.report.run_compare.curves import stage_groups
from charter.report.run_compare.read import Side


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Time and money of one run, or of one of its stages."""

    name: str
    state: str
    attempts: int
    seconds: float
    usd: float | None
    planned_seconds: float | None
    planned_usd: float | None
    lost_seconds: float
    """To kills and failed attempts."""
    lost_usd: float | None
    calls: int
    """To servers."""
    seconds_ratio: float | None = None
    """To the first run; None for the first, and where the first has none."""
    usd_ratio: float | None = None

    @property
    def kept_share(self) -> float | None:
        """The share of the time that was not lost."""
        return 1 - self.lost_seconds / self.seconds if self.seconds else None


def totals(sides: Sequence[Side]) -> tuple[Spent, ...]:
    """Every run in all."""
    return _beside(
        [
            _spent(
                side.label,
                side.view.state,
                side.view.totals,
                side.view.actual,
                side.view.plan.p50,
                side.view.calls.requests,
            )
            for side in sides
        ]
    )


def stage_spending(sides: Sequence[Side]) -> tuple[tuple[Spent | None, ...], ...]:
    """Stages that answer each other, one row each."""
    views = [{stage.name: stage for stage in side.view.stages} for side in sides]
    spending = []
    for group in stage_groups(sides):
        row = [None if name is None else _of_stage(view[name]) for view, name in zip(views, group, strict=True)]
        spending.append(_row(row))
    return tuple(spending)


def _of_stage(stage: StageView) -> Spent:
    plan = stage.plan.p50 if stage.plan else Amount(milliseconds=0, micro_usd=None)
    return _spent(stage.name, stage.state, stage.totals, stage.actual, plan, stage.calls.requests)


def _spent(name: str, state: str, totals: Totals, actual: Amount, plan: Amount, calls: int) -> Spent:
    wasted = lost(totals, "kills") + lost(totals, "failures")
    return Spent(
        name=name,
        state=state,
        attempts=totals.attempts,
        seconds=actual.seconds,
        usd=actual.usd,
        planned_seconds=plan.seconds or None,
        planned_usd=plan.usd,
        lost_seconds=wasted.seconds,
        lost_usd=wasted.usd,
        calls=calls,
    )


def _beside(row: Sequence[Spent]) -> tuple[Spent, ...]:
    return tuple(item for item in _row(row) if item is not None)


def _row(row: Sequence[Spent | None]) -> tuple[Spent | None, ...]:
    first = row[0]
    return tuple(
        item
        if item is None or first is None or index == 0
        else replace(item, seconds_ratio=ratio(item.seconds, first.seconds), usd_ratio=ratio(item.usd, first.usd))
        for index, item in enumerate(row)
    )

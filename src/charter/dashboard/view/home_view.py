"""The list of projects. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from charter.artifacts.stage_state import Phase
from charter.dashboard.snapshot import Snapshot, State, tone_of
from charter.dashboard.view.eta import eta_of
from charter.dashboard.view.run_view import Money, money_of, run_share

_ORDER = ("running", "failed", "waiting", "interrupted", "pending", "done")


@dataclass(frozen=True, kw_only=True)
class ProjectRow:
    """One project."""

    key: str
    name: str
    label: str
    owner: str | None
    tags: tuple[tuple[str, str], ...]
    phase: Phase
    state: State
    done: int
    stages: int
    share: float
    money: Money
    eta_seconds: float | None
    last_at: float | None
    running: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HomeView:
    """All of them."""

    rows: tuple[ProjectRow, ...]
    running: int
    per_hour_usd: float
    spent_usd: float
    needs_somebody: int
    """Failed, or waiting for approval."""


def home_view(snapshots: Sequence[Snapshot]) -> HomeView:
    """Projects, what runs first, then what needs somebody."""
    rows = sorted(map(_row, snapshots), key=lambda row: (_ORDER.index(row.state), -(row.last_at or 0)))
    return HomeView(
        rows=tuple(rows),
        running=sum(row.state == "running" for row in rows),
        per_hour_usd=sum(row.money.per_hour_usd or 0.0 for row in rows),
        spent_usd=sum(row.money.spent_usd or 0.0 for row in rows),
        needs_somebody=sum(row.state in ("failed", "waiting") for row in rows),
    )


def _row(snapshot: Snapshot) -> ProjectRow:
    state, eta = tone_of(snapshot.phase), eta_of(snapshot)
    return ProjectRow(
        key=snapshot.key,
        name=snapshot.name,
        label=snapshot.label,
        owner=snapshot.owner,
        tags=tuple(snapshot.tags.items()),
        phase=snapshot.phase,
        state=state,
        done=sum(stage.state == "done" for stage in snapshot.stages),
        stages=len(snapshot.stages),
        share=run_share(snapshot),
        money=money_of(snapshot, eta),
        eta_seconds=eta.run_seconds if state == "running" else None,
        last_at=float(snapshot.events[-1]["time"]) if snapshot.events else None,
        running=tuple(stage.name for stage in snapshot.stages if stage.state == "running"),
        problems=snapshot.problems,
    )

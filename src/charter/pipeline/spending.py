"""What a run has spent, by all that a budget may be for: a few sums, read at once."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from charter.cost.forecast import StageSoFar
from charter.estimate.terms import Interval
from charter.ledger.attempt import Attempt
from charter.ledger.reading import LedgerReading
from charter.ledger.sums import Sums, total_of
from charter.spec.project import Project
from charter.units import MICRO_USD_PER_USD

TAG = "tag:"


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Sums of a run, and of all runs of the owner and the tags that have a limit."""

    by_fingerprint: Mapping[tuple[str, str], Sums] = field(default_factory=dict)
    """By stage and fingerprint."""
    by_owner: Mapping[str, Sums] = field(default_factory=dict)
    """Over all runs in the ledger, within the budget's period."""
    by_tag: Mapping[str, Sums] = field(default_factory=dict)
    """The same by `name=value`, for tags that have a limit."""
    running: tuple[Attempt, ...] = ()
    """Of this run."""

    @property
    def total(self) -> Sums:
        """The whole run."""
        return total_of(self.by_fingerprint.values())

    @property
    def by_stage(self) -> dict[str, Sums]:
        """The run's stages, with what earlier versions of them have cost."""
        found: dict[str, Sums] = {}
        for (stage, _), part in self.by_fingerprint.items():
            found[stage] = found.get(stage, Sums()) + part
        return found

    @property
    def usd_per_hour(self) -> float:
        """What the running attempts cost per hour."""
        prices = (attempt.count * (attempt.price_micro_usd_per_hour or 0) for attempt in self.running)
        return sum(prices) / MICRO_USD_PER_USD


def read_spending(ledger: LedgerReading, project: Project, *, now: float) -> Spending:
    """Read the sums that the file's budget needs; takes milliseconds, however long the ledger is."""
    by_stage = ledger.sums(run=project.name, by=("stage", "fingerprint"))
    budget = project.budget
    since = first_of_month(now) if budget is not None and budget.period == "month" else None
    owners = ledger.sums(by=("owner",), since=since) if budget is not None and budget.owners else ()
    names = sorted({tag.partition("=")[0] for tag in budget.tags}) if budget is not None else []
    tags = {}
    for name in names:
        for part in ledger.sums(by=(f"{TAG}{name}",), since=since):
            tags[f"{name}={part.key[f'{TAG}{name}']}"] = part
    return Spending(
        by_fingerprint={(part.key["stage"], part.key["fingerprint"]): part for part in by_stage},
        by_owner={part.key["owner"]: part for part in owners},
        by_tag=tags,
        running=ledger.running(run=project.name),
    )


def first_of_month(unix_seconds: float) -> str:
    """The first UTC day of a moment's month.

    >>> first_of_month(86_400.0 * 40)
    '1970-02-01'
    """
    return datetime.fromtimestamp(unix_seconds, tz=UTC).date().replace(day=1).isoformat()


@dataclass(frozen=True, kw_only=True)
class StageStep:
    """How far a stage is."""

    name: str
    kind: str
    fingerprint: str
    done: bool = False
    step: int = 0
    target_step: int | None = None
    paced_steps: int = 0
    """Steps that were timed from one to the next, and their time."""
    paced_seconds: float = 0.0


def stages_so_far(
    plan: Mapping[str, Any] | None, steps: Iterable[StageStep], spending: Spending
) -> tuple[StageSoFar, ...]:
    """Plan (the JSON of `plan.json`), progress and sums put together, for a forecast."""
    planned = {str(stage["name"]): stage for stage in (plan or {}).get("stages", ())}
    found = []
    for stage in steps:
        in_plan = planned.get(stage.name, {})
        part = spending.by_fingerprint.get((stage.name, stage.fingerprint), Sums())
        lost_usd = part.totals.lost_to_kills_micro_usd + part.totals.lost_to_failures_micro_usd
        found.append(
            StageSoFar(
                name=stage.name,
                kind=stage.kind,
                planned_seconds=_interval(in_plan.get("seconds")),
                planned_usd=_interval(in_plan.get("usd")),
                done=stage.done,
                step=stage.step,
                target_step=stage.target_step,
                kept_seconds=part.totals.useful_milliseconds / 1000,
                calls_usd=part.calls.most_micro_usd / MICRO_USD_PER_USD,
                paced_steps=stage.paced_steps,
                paced_seconds=stage.paced_seconds,
                kept_usd=(part.most_micro_usd - lost_usd) / MICRO_USD_PER_USD if part.is_priced else None,
            )
        )
    return tuple(found)


def _interval(quantiles: Mapping[str, float | None] | None) -> Interval | None:
    p10, p50, p90 = ((quantiles or {}).get(name) for name in ("p10", "p50", "p90"))
    return None if p10 is None or p50 is None or p90 is None else Interval(p10=p10, p50=p50, p90=p90)

"""Cost of the run against its limits: told as it grows, held and stopped where the file asks for it."""

import calendar
import json
import shlex
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from charter.artifacts import durable
from charter.artifacts.stage_state import checkpoint_step, read_progress, step_so_far, whole_number
from charter.cost.advice import BudgetState, budget_verdict
from charter.cost.forecast import Forecast, StageSoFar, forecast, paced, planned_start_seconds
from charter.errors import BudgetError, DataError
from charter.launch.machine import CPU
from charter.ledger import Ledger
from charter.ledger.attempt import Attempt, tags_text
from charter.ledger.reading import LedgerReading
from charter.ledger.store import SpendingClaims
from charter.ledger.sums import TAG, Claim, Sums, total_of
from charter.physics.terms import Interval
from charter.run.events import Events
from charter.run.graph import Pipeline, PlannedStage
from charter.run.paths import run_dir
from charter.run.planned import plan_of_this_schema
from charter.run.served import CallAllowances, Room, loads_weights
from charter.spec.project import Project
from charter.spec.sections import Budget
from charter.tracking.run_facts import PLAN_FILE
from charter.units import MICRO_USD_PER_USD, SECONDS_PER_HOUR, format_usd


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
    machine_usd_per_hour: float | None = None
    """Price of the machine that attempts share which are no jobs of a scheduler."""

    @property
    def total(self) -> Sums:
        """The whole run."""
        return total_of(self.by_fingerprint.values())

    @property
    def by_stage(self) -> dict[str, Sums]:
        """The run's stages, with what earlier versions of them have cost."""
        sums: dict[str, Sums] = {}
        for (stage, _), part in self.by_fingerprint.items():
            sums[stage] = sums.get(stage, Sums()) + part
        return sums

    @property
    def usd_per_hour(self) -> float:
        """Return the cost of the running attempts per hour."""
        return self.usd_per_hour_of({attempt.stage for attempt in self.running})

    def usd_per_hour_of(self, stages: Collection[str]) -> float:
        """Return the cost per hour of the running attempts at some stages."""
        return running_usd_per_hour(self.running, stages, machine_usd_per_hour=self.machine_usd_per_hour) or 0.0


def running_usd_per_hour(
    running: Collection[Attempt], stages: Collection[str], *, machine_usd_per_hour: float | None
) -> float | None:
    """Return the present cost per hour of attempts at some stages; None where none of them has a price.

    Those that share the processors of the run's machine cost its price in equal parts; jobs of a scheduler, and stages
    on accelerators of their own, what each of them does.
    """
    sharing = sum(not attempt.is_job and attempt.accelerator == CPU for attempt in running)
    prices = []
    for attempt in running:
        price = attempt.price_micro_usd_per_hour
        if attempt.stage not in stages or price is None:
            continue
        usd = price / MICRO_USD_PER_USD
        if not attempt.is_job and attempt.accelerator == CPU and machine_usd_per_hour is not None:
            usd = machine_usd_per_hour / sharing
        prices.append(attempt.count * usd)
    return sum(prices) if prices else None


def read_spending(ledger: LedgerReading, project: Project, *, now: float) -> Spending:
    """Read the sums that the file's budget needs; takes milliseconds, however long the ledger is."""
    by_stage = ledger.sums(run=project.run_in_ledger, by=("stage", "fingerprint"))
    budget = project.budget
    since, until = month_of(now) if budget is not None and budget.period == "month" else (None, None)
    owners = ledger.sums(by=("owner",), since=since, until=until) if budget is not None and budget.owners else ()
    names = sorted({tag.partition("=")[0] for tag in budget.tags}) if budget is not None else []
    tags = {}
    for name in names:
        for part in ledger.sums(by=(f"{TAG}{name}",), since=since, until=until):
            tags[f"{name}={part.key[f'{TAG}{name}']}"] = part
    return Spending(
        by_fingerprint={(part.key["stage"], part.key["fingerprint"]): part for part in by_stage},
        by_owner={part.key["owner"]: part for part in owners},
        by_tag=tags,
        running=ledger.running(run=project.run_in_ledger),
        machine_usd_per_hour=project.resources.price,
    )


def month_of(unix_seconds: float) -> tuple[str, str]:
    """The first and the last UTC day of a moment's month: a fee may be for days to come.

    >>> month_of(86_400.0 * 40)
    ('1970-02-01', '1970-02-28')
    """
    day = datetime.fromtimestamp(unix_seconds, tz=UTC).date()
    last = calendar.monthrange(day.year, day.month)[1]
    return day.replace(day=1).isoformat(), day.replace(day=last).isoformat()


@dataclass(frozen=True, kw_only=True)
class StageStep:
    """Progress of a stage."""

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
    """Plan (the JSON of `plan.json`), progress and sums of all stages put together, for a forecast."""
    planned = {str(stage["name"]): stage for stage in (plan or {}).get("stages", ())}
    nothing = Sums()
    return tuple(
        stage_so_far(
            stage,
            planned.get(stage.name, {}),
            spending.by_fingerprint.get((stage.name, stage.fingerprint), nothing),
        )
        for stage in steps
    )


def stage_so_far(stage: StageStep, in_plan: Mapping[str, Any], part: Sums) -> StageSoFar:
    """One stage as a forecast takes it; `part` has the sums under its present fingerprint and under no other."""
    lost_usd = part.totals.lost_to_kills_micro_usd + part.totals.lost_to_failures_micro_usd
    return StageSoFar(
        name=stage.name,
        kind=stage.kind,
        planned_seconds=planned_interval(in_plan, "seconds"),
        planned_usd=planned_interval(in_plan, "usd"),
        planned_start_seconds=planned_start_seconds(in_plan),
        done=stage.done,
        step=stage.step,
        target_step=stage.target_step,
        kept_seconds=part.totals.useful_milliseconds / 1000,
        calls_usd=part.calls.most_micro_usd / MICRO_USD_PER_USD,
        paced_steps=stage.paced_steps,
        paced_seconds=stage.paced_seconds,
        kept_usd=(part.most_micro_usd - lost_usd) / MICRO_USD_PER_USD if part.is_priced else None,
    )


def planned_interval(in_plan: Mapping[str, Any], what: str) -> Interval | None:
    """`seconds` or `usd` of a stage as the plan has it; None where it has none."""
    interval = in_plan.get(what)
    if not isinstance(interval, Mapping) or not isinstance(interval.get("p50"), int | float):
        return None
    middle = float(interval["p50"])
    ends = [float(interval[name]) if isinstance(interval.get(name), int | float) else middle for name in ("p10", "p90")]
    return Interval(p10=ends[0], p50=middle, p90=ends[1])


WARM_UP_STEPS = 20
"""Steps of an attempt before its pace may hold or stop a run (judgement): the first ones fill caches and compile."""
Scope = Literal["project", "stage", "owner", "tag"]
ON_FORECAST = {
    "warn": BudgetState.WARN,
    "hold": BudgetState.HOLD,
    "checkpoint_and_stop": BudgetState.STOP,
}


@dataclass(frozen=True, kw_only=True)
class BudgetLine:
    """One limit."""

    scope: Scope
    name: str
    limit_usd: float
    spent_usd: float
    """With the most that calls of which nobody knows may have cost."""
    settled_usd: float
    """Without them: what it has cost for sure."""
    forecast_p10_usd: float
    forecast_p50_usd: float
    forecast_p90_usd: float
    """Of this run's remaining part; what other runs of an owner or a tag will still spend is not known."""
    rests_on: str
    """What the forecast follows from, stage by stage."""
    state: BudgetState
    reason: str
    passed_share: float | None
    """The largest of 50, 80 and 90 % that is spent."""
    usd_per_hour: float
    """What is running under this limit costs."""

    @property
    def share(self) -> float:
        """Spent over limit."""
        return self.spent_usd / self.limit_usd

    @property
    def title(self) -> str:
        """Return the object of the limit, in words."""
        return self.name if self.scope == "project" else f"{self.scope} {self.name}"

    @property
    def seconds_left(self) -> float | None:
        """Until the limit is reached at what is spent per hour now; None when nothing runs."""
        left = max(0.0, self.limit_usd - self.spent_usd)
        return left / self.usd_per_hour * SECONDS_PER_HOUR if self.usd_per_hour > 0 else None

    def sentence(self) -> str:
        """Return its state, in a line."""
        spent = f"{self.title} has cost {self.spent_words} of {format_usd(self.limit_usd)}"
        low, high = (f"{100 * usd / self.limit_usd:.0f}" for usd in (self.settled_usd, self.spent_usd))
        shares = high if low == high else f"{low} to {high}"
        return f"{spent} ({shares} %), forecast {self.forecast_words}: {self.reason}"

    @property
    def spent_words(self) -> str:
        """Return what it has cost; with both ends where calls are in flight, or may have been billed."""
        settled, most = format_usd(self.settled_usd), format_usd(self.spent_usd)
        return most if settled == most else f"{settled}, and at most {most} with calls that are not settled,"

    @property
    def forecast_words(self) -> str:
        """The forecast with both ends of its interval, and what it follows from."""
        low, high = format_usd(self.forecast_p10_usd), format_usd(self.forecast_p90_usd)
        ends = "" if low == high else f"{low} to {high}"
        why = "; ".join(part for part in (ends, self.rests_on) if part)
        return format_usd(self.forecast_p50_usd) + (f" ({why})" if why else "")

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            **asdict(self),
            "state": STATE_NAMES[self.state],
            "share": self.share,
            "seconds_left": self.seconds_left,
        }


STATE_NAMES = {BudgetState.OK: "ok", BudgetState.WARN: "warn", BudgetState.HOLD: "hold", BudgetState.STOP: "stop"}
"""Short names, for JSON and tables."""


def budget_lines(
    project: Project, spending: Spending, left: Forecast, *, running: Collection[str] = ()
) -> tuple[BudgetLine, ...]:
    """The limits of the file, each with its state; none without a budget.

    `left` is what is still to come, `running` the stages that run now. A limit of another owner or tag than this
    project's is shown too, but what this run will still spend is not part of its forecast.
    """
    if project.budget is None:
        return ()
    names = set(left.stages)
    line = _Lines(budget=project.budget, spending=spending, left=left, running=set(running))
    lines = [line.of("project", project.name, project.budget.limit, spending.total, names)]
    by_stage = spending.by_stage
    for name, limit in project.budget.stages.items():
        lines.append(line.of("stage", name, limit, by_stage.get(name, Sums()), {name}))
    for name, limit in project.budget.owners.items():
        part = spending.by_owner.get(name, Sums())
        lines.append(line.of("owner", name, limit, part, names if name == project.owner else set()))
    own = set(_pairs(project.tags))
    for name, limit in project.budget.tags.items():
        part = spending.by_tag.get(name, Sums())
        lines.append(line.of("tag", name, limit, part, names if name in own else set()))
    return tuple(lines)


def binding(project: Project, lines: Collection[BudgetLine]) -> tuple[BudgetLine, ...]:
    """The limits that this project spends under: not those of other owners and tags."""
    own = {("project", project.name), *(("tag", pair) for pair in _pairs(project.tags))}
    if project.owner is not None:
        own.add(("owner", project.owner))
    return tuple(line for line in lines if line.scope == "stage" or (line.scope, line.name) in own)


def _pairs(tags: Mapping[str, str]) -> Iterator[str]:
    return (f"{name}={value}" for name, value in tags.items())


@dataclass(frozen=True, kw_only=True)
class _Lines:
    budget: Budget
    spending: Spending
    left: Forecast
    running: set[str]

    def of(self, scope: Scope, name: str, limit: float, part: Sums, stages: set[str]) -> BudgetLine:
        """Return the line of one limit."""
        left = self.left.usd_of(sorted(stages))
        verdict = budget_verdict(
            limit_usd=limit,
            spent_usd=part.most_micro_usd / MICRO_USD_PER_USD,
            remaining_p10_usd=left.p10,
            remaining_p50_usd=left.p50,
            remaining_p90_usd=left.p90,
            running_p10_usd=self.left.usd_of(sorted(stages & self.running)).p10,
            on_forecast=ON_FORECAST[self.budget.on_forecast],
            warmed_up=self._warmed_up(stages),
            unsettled_usd=max(0.0, part.most_micro_usd / MICRO_USD_PER_USD - part.usd),
        )
        state = verdict.state
        if self.budget.on_exceed == "warn" and state in (BudgetState.HOLD, BudgetState.STOP):
            state = BudgetState.WARN
        return BudgetLine(
            scope=scope,
            name=name,
            limit_usd=limit,
            spent_usd=verdict.spent_usd,
            settled_usd=part.usd,
            forecast_p10_usd=verdict.forecast_p10_usd,
            forecast_p50_usd=verdict.forecast_p50_usd,
            forecast_p90_usd=verdict.forecast_p90_usd,
            rests_on=self.left.words(stages),
            state=state,
            reason=verdict.reason,
            passed_share=verdict.passed_share,
            usd_per_hour=self.spending.usd_per_hour_of(stages),
        )

    def _warmed_up(self, stages: set[str]) -> bool:
        """Return True if a forecast may act: an attempt that runs has made some steps itself.

        What an earlier attempt has measured does not stop the next one before it could measure. To start nothing
        new, a stage that is done will do as well.
        """
        mine = [attempt for attempt in self.spending.running if attempt.stage in stages]
        if any(attempt.last_step - attempt.first_step >= WARM_UP_STEPS for attempt in mine):
            return True
        done = any(stage.basis == "done" for stage in self.left.stages.values() if stage.name in stages)
        return done and self.budget.on_forecast == "hold"


NO_PRICE = "resources.price is not set"


def budget_error(line: BudgetLine) -> BudgetError:
    """The error that ends a run at a limit."""
    where = limit_key(line)
    if line.share < 1:
        said = (
            f"{line.title} has cost {line.spent_words.removesuffix(',')}, and is expected to cost "
            f"{line.forecast_words}, "
            f"over its limit of {format_usd(line.limit_usd)}"
        )
        mend = f"raise {where}, or set budget.on_forecast: warn"
    else:
        limit = format_usd(line.limit_usd)
        said = f"{line.title} has cost {line.spent_words.removesuffix(',')}, over its limit of {limit}"
        if line.settled_usd < line.limit_usd:
            said = f"{line.title} may have cost more than its limit of {limit}: {line.spent_words.removesuffix(',')}"
        mend = f"raise {where}, or set budget.on_exceed: warn"
    of = "" if line.scope == "project" else f" --of {shlex.quote(where)}"
    return BudgetError(f"{said}\n  everything done so far is kept; {mend}, and run again: charter cost raise USD{of}")


def room_of(line: BudgetLine, others: Collection[Claim]) -> Room:
    """Return what a limit leaves for the calls of this run beside those of others."""
    left = int((line.limit_usd - line.spent_usd) * MICRO_USD_PER_USD)
    limit = limit_key(line)
    if line.scope in ("project", "stage"):
        return Room(limit=limit, left_micro_usd=left, stage=line.name if line.scope == "stage" else None)
    under = [
        claim
        for claim in others
        if line.name in ([claim.owner] if line.scope == "owner" else list(_pairs(json.loads(claim.tags))))
    ]
    return Room(
        limit=limit,
        left_micro_usd=left,
        elsewhere_micro_usd=sum(claim.micro_usd for claim in under),
        runs=1 + len(under),
    )


def limit_key(line: BudgetLine) -> str:
    """Return the name of a limit in charter.yaml."""
    return "budget.limit" if line.scope == "project" else f"budget.{line.scope}s.{line.name}"


class BudgetWatch:
    """The budget of a run while it lasts: looked at with every heartbeat."""

    def __init__(self, pipeline: Pipeline, events: Events) -> None:
        self._pipeline = pipeline
        self._events = events
        self._plan: Mapping[str, Any] | None = None
        self._told: dict[tuple[str, str], tuple[float, BudgetState]] = {}
        self._held: dict[tuple[str, str], BudgetLine] = {}
        self._allowances = CallAllowances(pipeline.project)
        self._has_claimed = False
        self.spent = Sums()
        """Of the run, as of the last look: running attempts count up to their last heartbeat."""

    def start(self, ledger: Ledger, *, done: Collection[str]) -> None:
        """Refuse to start when a limit is passed already; say when there is nothing to go by."""
        project = self._pipeline.project
        self._plan = read_plan(self._pipeline.root)
        if project.budget is None:
            return
        if project.resources.price is None and (message := _unwatched(self._pipeline)):
            self._events.emit("budget_unpriced", message=message)
        if (error := self.look(ledger, running=(), done=done)) is not None:
            raise error

    def look(self, ledger: Ledger, *, running: Collection[str], done: Collection[str]) -> BudgetError | None:
        """Tell what is new; the error when a limit asks to stop."""
        project = self._pipeline.project
        if project.budget is None:
            self.spent = ledger.total(run=project.run_in_ledger)
            return None
        now = time.time()
        with ledger.claims(run=project.name, now=now) as claims:
            # Sums after claims: what another run has spent meanwhile then counts twice, and not never.
            spending = read_spending(ledger, project, now=now)
            lines = binding(project, lines_now(self._pipeline, self._plan, spending, running=running, done=done))
            self._share(lines, spending, running, claims)
        self._allowances.write()
        self.spent = spending.total
        stop = None
        self._held.clear()
        for line in lines:
            self._tell(line)
            if line.state is BudgetState.HOLD:
                self._held[line.scope, line.name] = line
            if line.state is BudgetState.STOP and not _is_over(line, done):
                stop = stop or line
        return None if stop is None else budget_error(stop)

    def before(self, stage: PlannedStage, ledger: Ledger, *, running: Collection[str], done: Collection[str]) -> bool:
        """Say how much the calls of a stage may cost, before it starts; False where it has to wait for what runs."""
        self._allowances.open(stage, bounded=self._pipeline.project.budget is not None)
        self.look(ledger, running=running, done=done)
        return not self.holds(stage.name)

    def _share(
        self, lines: Collection[BudgetLine], spending: Spending, running: Collection[str], claims: SpendingClaims
    ) -> None:
        """Decide what the calls of every stage may cost, and claim it before any of them may spend it."""
        project = self._pipeline.project
        stops = project.budget is not None and project.budget.on_exceed != "warn"
        spent = {stage: part.calls.most_micro_usd for stage, part in spending.by_fingerprint.items()}
        if claims.of_others is None:
            self._allowances.wait(spent)
            return
        rooms = [room_of(line, claims.of_others) for line in lines] if stops else None
        left = self._allowances.share(rooms, spent, running)
        self._has_claimed = left is not None
        claims.put(
            Claim(run=project.name, owner=project.owner or "", tags=tags_text(project.tags), micro_usd=left or 0),
            is_asking=self._has_claimed,
        )

    def end(self, ledger: Ledger) -> None:
        """Let go of what this run could still have spent."""
        if self._has_claimed:
            run = self._pipeline.project.name
            with suppress(DataError), ledger.claims(run=run, now=time.time()) as claims:
                claims.put(Claim(run=run), is_asking=False)

    def holds(self, stage: str) -> bool:
        """Return True if a budget lets this stage wait."""
        return any(scope != "stage" or name == stage for scope, name in self._held)

    def standstill(self, ledger: Ledger, *, done: Collection[str]) -> BudgetError | None:
        """The error when nothing runs any more and a budget still holds the rest."""
        if not self._held:
            return None
        over = self.look(ledger, running=(), done=done)
        return over or (budget_error(next(iter(self._held.values()))) if self._held else None)

    def _tell(self, line: BudgetLine) -> None:
        """One event for each share that is passed and each new state."""
        share, state = self._told.get((line.scope, line.name), (0.0, BudgetState.OK))
        passed = max(line.passed_share or 0.0, 1.0 if line.share >= 1 else 0.0)
        if passed > share or (line.state is not state and line.state is not BudgetState.OK):
            self._events.emit(
                "budget_hold" if line.state is BudgetState.HOLD else "budget_warning",
                message=line.sentence(),
                scope=line.scope,
                name=line.name,
                state=STATE_NAMES[line.state],
                share=passed,
                spent_usd=line.spent_usd,
                limit_usd=line.limit_usd,
                forecast_usd=line.forecast_p50_usd,
            )
        self._told[line.scope, line.name] = (max(passed, share), line.state)


def lines_now(
    pipeline: Pipeline,
    plan: Mapping[str, Any] | None,
    spending: Spending,
    *,
    running: Iterable[str],
    done: Collection[str],
) -> tuple[BudgetLine, ...]:
    """All limits, with a forecast from the plan and from how far the stages' own files say they are."""
    running = set(running)
    left = forecast(stages_so_far(plan, steps_now(pipeline, done=done, running=running), spending))
    return budget_lines(pipeline.project, spending, left, running=running)


def steps_now(pipeline: Pipeline, *, done: Collection[str], running: Collection[str]) -> tuple[StageStep, ...]:
    """Return the progress of every stage: by its last report while it runs, else by its newest checkpoint."""
    steps = []
    for name, stage in pipeline.stages.items():
        progress = read_progress(stage.directory)
        paced_steps, paced_seconds = paced(progress)
        if name in done:
            progress = {}
        target = whole_number(progress.get("target_step"))
        step = step_so_far(progress, is_running=name in running, checkpoint=checkpoint_step(stage.directory))
        steps.append(
            StageStep(
                name=name,
                kind=stage.spec.kind,
                fingerprint=stage.asked_fingerprint,
                done=name in done,
                step=step if target else 0,
                target_step=target or None,
                paced_steps=paced_steps,
                paced_seconds=paced_seconds,
            )
        )
    return tuple(steps)


def read_plan(root: Path) -> Mapping[str, Any] | None:
    """The plan that the run has kept, if any."""
    try:
        document = durable.read_json(run_dir(root) / PLAN_FILE)
    except DataError:
        return None
    return plan_of_this_schema(document)


def _is_over(line: BudgetLine, done: Collection[str]) -> bool:
    """A stage that is finished cannot be stopped, whatever it has cost."""
    return line.scope == "stage" and line.name in done


def _unwatched(pipeline: Pipeline) -> str:
    """Return what of a run no budget can watch without a price of the machines; empty where calls are all its money."""
    project = pipeline.project
    if not any(serving.is_used and serving.token_prices for serving in project.serving.values()):
        return f"the budget cannot be watched: {NO_PRICE}"
    if not any(loads_weights(project, stage) for stage in pipeline.stages.values()):
        return ""
    return f"the budget is watched for calls to servers; machines have no price: {NO_PRICE}"

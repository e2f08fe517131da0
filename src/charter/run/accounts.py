"""Accounts of a run against those of others: bills of providers, their logs of calls, records of schedulers."""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

from charter.artifacts.job_files import JobFiles, NodeRecord, Submission, numbers, read_submission, write_submission
from charter.artifacts.stage_state import checkpoint_step
from charter.errors import CharterError, DataError, UsageError
from charter.launch.scheduler import JobAttempt, Scheduler
from charter.ledger import CallBooks, Ledger, Outcome
from charter.ledger.attempt import Attempt
from charter.ledger.bill import Bill, BillFinding, compare_bill, read_bill
from charter.ledger.call import Call, CallSums
from charter.ledger.calls import CALLS_FILE
from charter.ledger.focus import ApiUsage, usage_sums
from charter.ledger.rebuilding import booked_as, rebuilt_attempts
from charter.ledger.reconcile import BilledRow, Price, Reconciled, reconcile
from charter.ledger.store import ledger_place
from charter.run.attempt import is_finished, price_micro_usd_per_hour
from charter.run.call_costs import record_calls
from charter.run.graph import PlannedStage
from charter.run.paths import hold_of, run_dir, stages_dir
from charter.spec.project import BATCHES, Project, Serving


@dataclass(frozen=True, kw_only=True)
class BillImported:
    """Outcome of a bill's import."""

    bill: Bill
    findings: tuple[BillFinding, ...]
    stored: bool
    """False with `--dry-run`, and for a file that is in the ledger already."""

    @property
    def ledger_usd(self) -> Decimal:
        """Return the ledger's sum for this run, in usd."""
        return sum((item.ledger_usd or Decimal(0) for item in self.findings), Decimal(0))

    @property
    def agrees(self) -> bool:
        """Return True if every line and every attempt is equal to the second and the cent."""
        return all(item.kind == "equal" for item in self.findings)


def import_bill(
    project: Project, root: Path, path: Path, *, dry_run: bool = False, providers: Sequence[str] = ()
) -> BillImported:
    """Compare a bill with the attempts of a run, and keep both; what the ledger says of itself stays as it is.

    `providers` narrows the ledger down to attempts on these: a bill of one provider says nothing of another's.
    """
    bill = read_bill(path)
    place = ledger_place(run_dir(root.resolve()), project.storage.ledger)
    with Ledger.open(place, create=False, check_whole=True) as ledger:
        accounted = [
            item
            for item in ledger.accounted(run=project.run_in_ledger)
            if item.attempt.outcome != "running" and (not providers or item.attempt.infra in providers)
        ]
        findings = compare_bill(bill.lines, accounted)
        stored = not dry_run and ledger.record_bill(bill, findings, run=project.name, at=time.time())
    return BillImported(bill=bill, findings=findings, stored=stored)


@dataclass(frozen=True, kw_only=True)
class BillReconciled:
    """A run's calls to some servers, compared with the log of who runs them."""

    endpoints: tuple[str, ...]
    before: CallSums
    after: CallSums
    found: Reconciled


def reconcile_run(
    project: Project, root: Path, rows: Sequence[BilledRow], *, source: str, endpoints: Sequence[str], dry_run: bool
) -> BillReconciled:
    """Compare the calls to `endpoints` (all that were called when empty) with a log that should have all of them.

    Nobody may be calling meanwhile, so the run's lock is held.
    """
    where = run_dir(root.resolve())
    with hold_of(where), ExitStack() as stack:
        places: list[str | Path] = [*_files(root)] if project.storage.ledger is None else [project.storage.ledger]
        books = [stack.enter_context(CallBooks.open(place)) for place in places]
        run = project.run_in_ledger
        before = _usage(books, run)
        chosen = _chosen(before, endpoints)
        by_call: dict[str, tuple[CallBooks, int]] = {}
        ids = {row.request_id for row in rows}
        compared = reconcile(
            _calls(books, run, chosen, by_call), rows, price=price_by_address(project), at=time.time(), source=source
        )
        if not ids & by_call.keys():
            raise UsageError(
                f"none of the {len(rows)} requests in {source} is a call of this run to {', '.join(chosen)}\n"
                "  give the log of the provider that was called, with the request ids that Charter sent (X-Request-Id)"
            )
        if compared.unpriced:
            raise UsageError(
                f"{compared.unpriced} requests in {source} have tokens but no cost, and charter.yaml has no price for "
                "their server\n  give serving.NAME.usd_per_million_input_tokens and _output_tokens, or a log with costs"
            )
        if not dry_run:
            _correct(compared, by_call)
            with Ledger.open(ledger_place(where, project.storage.ledger)) as ledger:
                ledger.record_usage(_usage(books, run))
        return BillReconciled(
            endpoints=chosen, before=_sums(before, chosen), after=_sums(_usage(books, run), chosen), found=compared
        )


def _files(root: Path) -> Iterator[Path]:
    yield from sorted(stages_dir(root.resolve()).glob(f"*/{CALLS_FILE}"))


def _usage(books: Iterable[CallBooks], run: str | None) -> tuple[ApiUsage, ...]:
    return tuple(item for book in books for item in book.usage(run=run))


def _sums(usage: Iterable[ApiUsage], endpoints: Sequence[str]) -> CallSums:
    return usage_sums(item for item in usage if item.route.endpoint in endpoints)


def _chosen(usage: Sequence[ApiUsage], endpoints: Sequence[str]) -> tuple[str, ...]:
    called = sorted({item.route.endpoint for item in usage})
    if not called:
        raise UsageError("this run has called no server, so there is nothing to reconcile")
    if unknown := [name for name in endpoints if name not in called]:
        raise UsageError(f"this run has not called {unknown[0]}; it has called {', '.join(called)}")
    if not endpoints and len(called) > 1:
        raise UsageError(
            f"this run has called {len(called)} servers: {', '.join(called)}\n"
            "  say with --endpoint (repeatable) whose log it is: what a log lacks counts as not billed"
        )
    return tuple(endpoints) or tuple(called)


def _calls(
    books: Sequence[CallBooks], run: str | None, endpoints: Sequence[str], by_call: dict[str, tuple[CallBooks, int]]
) -> Iterator[Call]:
    for book in books:
        for scope, call in book.calls(run=run):
            if call.endpoint in endpoints:
                by_call[call.call_id] = (book, scope)
                yield call


def _correct(compared: Reconciled, by_call: dict[str, tuple[CallBooks, int]]) -> None:
    for book in {id(item[0]): item[0] for item in by_call.values()}.values():
        mine = [
            (by_call[call.call_id][1], call, settlement)
            for call, settlement in compared.corrections
            if by_call[call.call_id][0] is book
        ]
        if mine:
            book.correct(mine)


def price_by_address(project: Project) -> Price:
    """The price of tokens at each of a project's servers, in micro-USD; at a batch interface its share."""
    servings = {
        address.rstrip("/"): serving
        for serving in project.serving.values()
        for address in (serving.endpoint, *serving.also_endpoints)
        if address is not None
    }

    def price(endpoint: str, prompt: int, cached: int, completion: int) -> Decimal | None:
        address = endpoint.rstrip("/")
        serving, share = servings.get(address), Decimal(1)
        if serving is None and (serving := servings.get(address.removesuffix(BATCHES))) is not None:
            share = Decimal(str(serving.batch_price))
        full = None if serving is None else _micro_usd(serving, prompt, cached, completion)
        return None if full is None else share * full

    return price


def _micro_usd(serving: Serving, prompt: int, cached: int, completion: int) -> Decimal | None:
    """Tokens by kind times their prices; x USD per million tokens is x micro-USD per token."""
    fresh, out = serving.usd_per_million_input_tokens, serving.usd_per_million_output_tokens
    if fresh is None or out is None:
        return None
    again = serving.cached_input_usd_per_million_tokens
    kinds = ((prompt - cached, fresh), (cached, fresh if again is None else again), (completion, out))
    return sum((count * Decimal(str(price)) for count, price in kinds), Decimal(0))


LATE_SECONDS = 30.0
"""A scheduler's records come later than the end of a job (`sacct`): for so long a run waits for them."""
AGAIN_SECONDS = 5.0
"""Between two questions about the same job."""
AT_END_SECONDS = LATE_SECONDS + AGAIN_SECONDS
"""At the end of a run; what is still missing then is read by the next one."""


def start_key(job_id: str, *, shard: int | None = None, restart: int = 0) -> str:
    """Return the ledger's name of one start of a job.

    >>> start_key("12"), start_key("12", shard=3, restart=1)
    ('12', '12_3+1')
    """
    task = "" if shard is None else f"_{shard}"
    return f"{job_id}{task}{f'+{restart}' if restart else ''}"


class SchedulerRecords:
    """Settles the attempts of ended jobs with their scheduler."""

    def __init__(
        self,
        ledger: Ledger,
        project: Project,
        scheduler: Scheduler,
        *,
        is_live: Callable[[str], bool] = lambda job_id: False,
    ) -> None:
        self._ledger, self._project, self._scheduler = ledger, project, scheduler
        self._goes_on = is_live
        self._pending: dict[Path, tuple[PlannedStage, float]] = {}
        self._next_try: dict[Path, float] = {}

    def find(self, stages: Iterable[PlannedStage], *, live: Iterable[Path]) -> None:
        """Take up the jobs that an earlier run has left unsettled, but not those that still run."""
        skipped = set(live)
        for stage in stages:
            for number in numbers(stage.directory):
                files = JobFiles(stage.directory, number)
                if files.directory not in skipped:
                    self.add(stage, number)

    def add(self, stage: PlannedStage, number: int) -> None:
        """A job has ended."""
        files = JobFiles(stage.directory, number)
        submission = read_submission(files)
        if submission is not None and not submission.ended and submission.scheduler == self._scheduler.name:
            self._pending[files.directory] = (stage, time.monotonic())

    def ended(self, stage: PlannedStage) -> None:
        """The last job of a stage has ended, or was started again by its scheduler: then nothing is written yet."""
        self.add(stage, max(numbers(stage.directory), default=0))

    def settle(self, *, now_or_never: bool = False) -> None:
        """Settle what the scheduler has records of by now; each job is asked about now and then only."""
        now = time.monotonic()
        for directory, (stage, since) in [*self._pending.items()]:
            if not now_or_never and now < self._next_try.get(directory, 0.0):
                continue
            self._next_try[directory] = now + AGAIN_SECONDS
            files = JobFiles(stage.directory, int(directory.name))
            late = time.monotonic() - since > LATE_SECONDS
            if self._settle(stage, files, late=late):
                del self._pending[directory]

    def finish(self, seconds: float = AT_END_SECONDS) -> None:
        """Wait a little for records that are late."""
        deadline = time.monotonic() + seconds
        self.settle(now_or_never=True)
        while self._pending and time.monotonic() < deadline:
            time.sleep(1.0)
            self.settle(now_or_never=True)

    def _settle(self, stage: PlannedStage, files: JobFiles, *, late: bool) -> bool:
        """Settle one job; whether that is done."""
        submission = read_submission(files)
        if submission is None:
            return True
        try:
            job_id = submission.job_id or self._scheduler.find(submission.name)
            starts = self._scheduler.attempts(job_id) if job_id is not None else ()
        except CharterError:
            return False
        if job_id is None:
            job_id, starts = submission.name, ()
        starts = _own_starts(submission, starts)
        if self._goes_on(job_id):  # its scheduler has started it again; its starts are read when it has ended
            return False
        if not late and (any(start.ended_at is None for start in starts) or _lacks_tasks(submission, starts)):
            return False
        starts = starts or tuple(starts_of_agents(files, submission, job_id))
        if not starts and not late:
            return False
        self._write(stage, submission, job_id, [start for start in starts if start.ended_at is not None])
        write_submission(files, replace(submission, job_id=job_id, ended=True))
        return True

    def _write(self, stage: PlannedStage, submission: Submission, job_id: str, starts: Sequence[JobAttempt]) -> None:
        rows = {row.job_id: row for row in self._rows(stage, submission, job_id)}
        if any(row.outcome == "running" for row in rows.values()):
            return
        of_array = _told_as(rows[job_id], starts) if job_id in rows else None
        for start in starts:
            key = start_key(job_id, shard=start.shard, restart=start.restart)
            row = rows.get(job_id if start is of_array else key)
            attempt_id = row.attempt_id if row else self._insert(stage, submission, start, key)
            self._ledger.settle(
                attempt_id,
                started_at=start.started_at,
                duration_milliseconds=round((start.seconds or 0.0) * 1000),
                job_id=key,
                nodes=",".join(start.nodes) or None,
            )

    def _rows(self, stage: PlannedStage, submission: Submission, job_id: str) -> Iterator[Attempt]:
        for row in self._ledger.attempts(run=self._project.run_in_ledger, stage=stage.name):
            if row.infra != submission.scheduler or row.started_at < _earliest(submission):
                continue
            if row.job_id is not None and (row.job_id == job_id or row.job_id.startswith((f"{job_id}_", f"{job_id}+"))):
                yield row

    def _insert(self, stage: PlannedStage, submission: Submission, start: JobAttempt, key: str) -> int:
        """A start that nobody here has seen, or a task of an array."""
        step = checkpoint_step(stage.directory)
        attempt_id = begin_job_attempt(
            self._ledger,
            self._project,
            stage,
            submission=submission,
            first_step=0 if start.shard is None else step,
            at=start.started_at,
            key=key,
            shard=shard_of(submission, start.shard),
            host=start.nodes[0] if start.nodes else "",
        )
        outcome: Outcome = Outcome.DONE if _went_well(start) else Outcome.KILLED
        note = "" if outcome == "done" else f"{submission.scheduler} says {start.state}"
        self._ledger.end(attempt_id, at=start.ended_at or start.started_at, outcome=outcome, note=note)
        return attempt_id


CLOCKS_SECONDS = 300.0
"""By so much may the clocks of a cluster's machines differ."""


def _earliest(submission: Submission) -> float:
    """Return when a start of a job may have begun: what is older is of another job that once had its number.

    Numbers come back where a scheduler was set up anew, and two schedulers may give the same one.
    """
    return submission.submitted_at - CLOCKS_SECONDS


def _own_starts(submission: Submission, starts: Sequence[JobAttempt]) -> tuple[JobAttempt, ...]:
    """Leave out starts of an earlier job with the same number, which its scheduler has counted along."""
    earlier = Counter(start.shard for start in starts if start.started_at < _earliest(submission))
    own = (start for start in starts if start.started_at >= _earliest(submission))
    return tuple(replace(start, restart=start.restart - earlier[start.shard]) for start in own)


def _lacks_tasks(submission: Submission, starts: Sequence[JobAttempt]) -> bool:
    """Return True if a scheduler that has records of some tasks of an array has none of others yet."""
    recorded_shards = {start.shard for start in starts}
    return bool(starts) and not recorded_shards.issuperset(range(len(submission.shards)))


def _went_well(start: JobAttempt) -> bool:
    return start.state.upper().startswith(("COMPLETED", "DONE", "SUCCEEDED"))


def _told_as(row: Attempt, starts: Sequence[JobAttempt]) -> JobAttempt | None:
    """Of an array, the start that its one line stands for while it runs: the first that ended as the line says."""
    tasks = [start for start in starts if start.shard is not None]
    return next((start for start in tasks if _went_well(start) == (row.outcome == "done")), next(iter(tasks), None))


def begin_job_attempt(
    ledger: Ledger,
    project: Project,
    stage: PlannedStage,
    *,
    submission: Submission,
    first_step: int,
    at: float,
    key: str,
    host: str,
    monotonic: float | None = None,
    shard: int | None = None,
    nodes: str | None = None,
    pid: int = 0,
) -> int:
    """Write the start of a job into the ledger; it is priced by the accelerator, or by the node where there is none."""
    price = price_micro_usd_per_hour(project)
    return ledger.begin(
        run=project.name,
        stage=stage.name,
        kind=stage.spec.kind,
        fingerprint=stage.asked_fingerprint,
        at=at,
        monotonic=monotonic,
        accelerator=submission.accelerator or "cpu",
        count=submission.count,
        infra=submission.scheduler,
        market=submission.market,
        first_step=first_step,
        price_micro_usd_per_hour=price,
        price_source=None if price is None else "resources.price in charter.yaml",
        host=host,
        pid=pid,
        job_id=key,
        nodes=nodes,
        owner=project.owner,
        tags=project.tags,
        shard=shard,
    )


def shard_of(submission: Submission, task: int | None) -> int | None:
    """The shard that a task of an array makes."""
    return None if task is None or task >= len(submission.shards) else submission.shards[task]


def starts_of_agents(files: JobFiles, submission: Submission, job_id: str) -> Iterator[JobAttempt]:
    """Every start by the records that the agents have left, for schedulers that keep none."""
    starts: dict[tuple[int | None, int], list[NodeRecord]] = {}
    for record in files.nodes():
        shard = record.place if submission.shards else None
        starts.setdefault((shard, record.restart), []).append(record)
    for (shard, restart), records in starts.items():
        ended = [record.ended_at for record in records if record.ended_at is not None]
        good = all(record.exit_code == 0 for record in records)
        yield JobAttempt(
            job_id=job_id,
            shard=shard,
            restart=restart,
            state="COMPLETED" if good else "ENDED",
            started_at=min(record.started_at for record in records),
            ended_at=max(ended) if ended else None,
            nodes=tuple(dict.fromkeys(record.node_name for record in records)),
            accelerators=submission.count if submission.accelerator else 0,
            cpus=0,
        )


def rebuild_ledger(project: Project, root: Path, stages: Iterable[PlannedStage]) -> tuple[str, ...]:
    """Write what a lost or emptied ledger had of finished stages anew; the names of these stages.

    Their time and money are in their directories, calls in their own books. Sums are compared with their rows before
    anything is added, and made anew where they are not theirs. Call it only while holding the run's lock.

    A ledger on a server has what was booked before a project was renamed, or copied, under its earlier name; it is not
    lost, and counts once for its owner and its tags.
    """
    finished = {stage.name: (stage, attempts) for stage in stages if (attempts := _kept_attempts(project, stage))}
    if not finished:
        return ()
    with Ledger.open(ledger_place(run_dir(root.resolve()), project.storage.ledger)) as ledger:
        counts = ledger.attempt_counts(run=project.run_in_ledger)
        lost = {name: item for name, item in finished.items() if (name, item[0].asked_fingerprint) not in counts}
        lost = {name: item for name, item in lost.items() if not _is_booked_elsewhere(ledger, project, item[0])}
        if not lost:
            return ()
        try:
            ledger.check_sums()
        except DataError:
            ledger.rebuild_sums()
        for _, attempts in lost.values():
            for attempt in attempts:
                _write_anew(ledger, attempt)
        record_calls(ledger, project, (stage for stage, _ in lost.values()))
    return tuple(lost)


def _is_booked_elsewhere(ledger: Ledger, project: Project, stage: PlannedStage) -> bool:
    """Return True if a ledger has a finished stage under another name than its project's."""
    run = booked_as(stage.directory)
    if run in (None, project.name):
        return False
    return (stage.name, stage.asked_fingerprint) in ledger.attempt_counts(run=run)


def _kept_attempts(project: Project, stage: PlannedStage) -> tuple[Attempt, ...]:
    return rebuilt_attempts(
        stage.directory,
        run=project.name,
        stage=stage.name,
        kind=stage.spec.kind,
        fingerprint=stage.asked_fingerprint,
        owner=project.owner,
        tags=project.tags,
    )


def _write_anew(ledger: Ledger, attempt: Attempt) -> None:
    number = ledger.begin(
        run=attempt.run,
        stage=attempt.stage,
        kind=attempt.kind,
        fingerprint=attempt.fingerprint,
        at=attempt.started_at,
        accelerator=attempt.accelerator,
        infra=attempt.infra,
        market=attempt.market,
        price_micro_usd_per_hour=attempt.price_micro_usd_per_hour,
        price_source=attempt.price_source,
        owner=attempt.owner,
        tags=json.loads(attempt.tags),
    )
    ended_at = attempt.started_at + attempt.duration_milliseconds / 1000
    ledger.end(number, at=ended_at, outcome=Outcome(attempt.outcome), note=attempt.note)


def end_finished(
    ledger: Ledger, stages: Iterable[PlannedStage], *, run: str | None, keep_jobs: Collection[str]
) -> None:
    """End, as done, the attempts that have finished their stages; not those of `keep_jobs`, which are gone on with."""
    running = [row for row in ledger.running(run=run) if row.job_id is not None and row.job_id not in keep_jobs]
    by_stage = {stage.name: stage for stage in stages} if running else {}
    for row in running:
        stage = by_stage.get(row.stage)
        good_end = None if stage is None else _good_end(stage)
        if stage is not None and good_end is not None and good_end[0] == row.job_id and is_finished(stage):
            step = checkpoint_step(stage.directory)
            ledger.end(row.attempt_id, at=good_end[1], outcome=Outcome.DONE, kept_step=step)


def end_dropped(ledger: Ledger, stage: PlannedStage, *, run: str | None) -> None:
    """End what the ledger has as running of a stage that no job works on any more."""
    end_finished(ledger, [stage], run=run, keep_jobs=())
    for row in ledger.running(run=run):
        if row.stage == stage.name and row.job_id is not None:
            ledger.end(row.attempt_id, at=time.time(), outcome=Outcome.KILLED, note="its job was ended for another one")


def _good_end(stage: PlannedStage) -> tuple[str, float] | None:
    """The ledger's name for the last start of the last job, and its end; None unless all its agents ended well.

    Tasks of an array are started again one by one: of each the last start counts.
    """
    submissions = numbers(stage.directory)
    files = JobFiles(stage.directory, submissions[-1]) if submissions else None
    submission = read_submission(files) if files else None
    if files is None or submission is None or submission.job_id is None:
        return None
    records = [*files.nodes()]
    latest = max((record.restart for record in records), default=0)
    if submission.shards:
        last = [*{record.place: record for record in sorted(records, key=lambda found: found.restart)}.values()]
    else:
        last = [record for record in records if record.restart == latest]
    ends = [record.ended_at for record in last if record.ended_at is not None and record.exit_code == 0]
    if not ends or len(ends) < len(last):
        return None
    return start_key(submission.job_id, restart=0 if submission.shards else latest), max(ends)

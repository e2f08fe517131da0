"""One start of a job, watched: what its agents write decides, and the scheduler's word where they cannot write.

The jobs of a run that a scheduler has now, asked about together and not too often.
"""

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from charter.artifacts.job_files import Control, JobFiles, NodeRecord, Submission
from charter.artifacts.stage_process import INTERRUPTED_EXIT, PEER_EXIT
from charter.errors import CharterError
from charter.launch.agent import CHECKS_FAILED_EXIT
from charter.launch.launcher import JobStart
from charter.launch.node_checks import FORGET_SILENCE_SECONDS, unfit_nodes
from charter.launch.scheduler import Cause, JobState, Scheduler
from charter.resilience.failures import SILENT_SECONDS

LEAST_LOOK_SECONDS, LONGEST_LOOK_SECONDS = 1.0, 15.0
"""Between two questions to a scheduler: what agents write into the job's files is seen sooner."""
HURRIED_LOOK_SECONDS = 0.5
"""Where its word decides what happens next."""
SLOWER = 1.3
LOST_SECONDS = 60.0
"""A job that its scheduler has not known for so long is lost."""


@dataclass(kw_only=True)
class LiveJob:
    """One job that has not ended, as far as is known."""

    files: JobFiles
    stage_dir: Path
    submission: Submission
    job_id: str
    restart: int = 0
    """The start that is watched."""
    state: JobState = field(default_factory=lambda: JobState(phase="queued"))
    answered: int = 0
    """How often its scheduler has been asked about it with success."""
    unknown_since: float | None = None
    goes_on: bool = False
    """Nobody watches it: its scheduler has started it again, or the supervisor that did has died."""


class JobTable:
    """All of them, and how they stand."""

    def __init__(self, scheduler: Scheduler, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._scheduler, self._clock = scheduler, clock
        self._jobs: dict[Path, LiveJob] = {}
        self._looked_at, self._every = float("-inf"), LEAST_LOOK_SECONDS
        self.trouble = ""
        """What the scheduler said when it could not be asked; a job is never taken for lost because of it."""

    def add(self, job: LiveJob) -> None:
        """Watch a job."""
        self._jobs[job.stage_dir] = job
        self._every = LEAST_LOOK_SECONDS

    def get(self, stage_dir: Path) -> LiveJob | None:
        """The job of a stage."""
        return self._jobs.get(stage_dir)

    def remove(self, job: LiveJob) -> None:
        """Watch it no more."""
        if self._jobs.get(job.stage_dir) is job:
            del self._jobs[job.stage_dir]

    def all(self) -> list[LiveJob]:
        """All of them."""
        return list(self._jobs.values())

    def look(self, *, hurried: bool = False) -> None:
        """Ask the scheduler how they stand, if it is time."""
        now = self._clock()
        if not self._jobs or now - self._looked_at < (HURRIED_LOOK_SECONDS if hurried else self._every):
            return
        self._looked_at = now
        jobs = {job.job_id: job for job in self._jobs.values()}
        try:
            states = self._scheduler.poll([*jobs])
        except CharterError as error:
            self.trouble = str(error)
            self._every = min(LONGEST_LOOK_SECONDS, self._every * 2)
            return
        self.trouble = ""
        changed = False
        for number, job in jobs.items():
            changed |= _take(job, states.get(number, JobState(phase="unknown")), now)
        self._every = LEAST_LOOK_SECONDS if changed else min(LONGEST_LOOK_SECONDS, self._every * SLOWER)


def _take(job: LiveJob, state: JobState, now: float) -> bool:
    """Take in what the scheduler says of one job; whether it says something new."""
    job.answered += 1
    if state.phase == "unknown":
        job.unknown_since = now if job.unknown_since is None else job.unknown_since
        if now - job.unknown_since < LOST_SECONDS:
            return False
        state = JobState(phase="ended", cause="node_lost", reason="the scheduler does not know the job any more")
    else:
        job.unknown_since = None
    changed, job.state = state != job.state, state
    return changed


LOOK_SECONDS = 0.2
"""How often the files of a job of few nodes are looked at."""
WORD_SECONDS = 20.0
"""How long the scheduler's word for an ending is waited for, where the agents cannot know it."""
FILES_SECONDS = 3.0
"""How long after the scheduler says that a job has ended its files are waited for: a shared disk may be late."""
LOST = -int(signal.SIGKILL)


class JobHandle:
    """A job of one or more nodes, from its submission, or from the scheduler's own restart of it, to its end."""

    def __init__(
        self,
        live: LiveJob,
        table: JobTable,
        scheduler: Scheduler,
        *,
        leave_out: Callable[..., None] = lambda nodes, **until: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`leave_out` takes the nodes that failed their checks or fell silent, and why."""
        self._leave_out = leave_out
        self._live, self._table, self._scheduler, self._clock = live, table, scheduler, clock
        self._restart = live.restart
        self._records: dict[int, NodeRecord] = {}
        self._next_look = float("-inf")
        self._exit: int | None = None
        self.failed_rank = 0
        self.cause: Cause = ""
        self._control = Control()
        self._ended_at: float | None = None
        """When it was first seen that the start is over."""
        self._succeeded_at: float | None = None
        """When the next start was first seen to write."""
        self._answers_then = 0
        self._failed_at: float | None = None
        self._beaten: dict[int, tuple[int, float]] = {}
        """The last count of beats of each place, and when it was first read."""
        self._lost: dict[int, str] = {}
        """Places whose agents fell silent, and the scheduler's names of their nodes."""
        self._refused_at: int | None = None
        """Answers of the scheduler when it could not be told to end the job; None where it need not be told again."""
        self.note = ""

    @property
    def pid(self) -> int | None:
        """Of rank 0, on its node."""
        first = self._first
        return first.first_pid or None if first else None

    @property
    def processes(self) -> int:
        """Of the whole stage."""
        return self._live.submission.processes

    @property
    def job(self) -> JobStart | None:
        """Return the start of the job, for the ledger."""
        first = self._first
        if first is None:
            return None
        submission = self._live.submission
        return JobStart(
            scheduler=submission.scheduler,
            job_id=self._live.job_id,
            restart=self._restart,
            nodes=tuple(
                dict.fromkeys(self._live.state.nodes or [record.node_name for record in self._records.values()])
            ),
            accelerator=submission.accelerator,
            count=submission.count,
            market=submission.market,
            started_at=min(record.started_at for record in self._records.values()),
            busy_seconds=self._busy_seconds(),
        )

    @property
    def where(self) -> str:
        """The scheduler and its number of the job."""
        return f"{self._live.submission.scheduler} job {self._live.job_id}"

    @property
    def waits(self) -> bool:
        """Return True if no process of it has started yet."""
        return self._exit is None and not any(record.first_pid for record in self._records.values())

    @property
    def watched(self) -> Sequence[int]:
        """All its processes."""
        return range(self.processes)

    def poll(self) -> int | None:
        """Look at the files, and at the scheduler now and then."""
        now = self._clock()
        if self._exit is None and now >= self._next_look:
            self._next_look = now + self._look_seconds()
            self._table.look(hurried=self._ended_at is not None or self._control.kill)
            if self._refused_at is not None:
                self._cancel()
            self._read(now)
            self._decide(now)
        return self._exit

    def stop(self) -> None:
        """Ask the agents; a job that still waits is taken out of the queue."""
        self._ask(replace(self._control, stop=True))
        if self.waits:
            self._cancel()

    def kill(self) -> None:
        """End the job."""
        if not self._control.kill:
            self._ask(replace(self._control, kill=True))
            if not self._cancel() and self.waits:
                # Nobody can take it out of the queue now: its launcher tries once more at the end of the run.
                self._exit, self.cause = LOST, "cancelled"

    def dump_stacks(self) -> None:
        """Let every process print where it is."""
        self._ask(replace(self._control, dumps=self._control.dumps + 1))

    @property
    def _first(self) -> NodeRecord | None:
        return next((record for record in self._records.values() if record.first_rank == 0 and record.first_pid), None)

    def _cancel(self) -> bool:
        """Return True once the scheduler has been told to end the job; one that is away is told later."""
        if self._refused_at == self._live.answered:
            return False
        try:
            self._scheduler.cancel(self._live.job_id)
        except CharterError as error:
            self._table.trouble, self._refused_at = str(error), self._live.answered
            return False
        self._refused_at = None
        return True

    def _ask(self, control: Control) -> None:
        if control != self._control:
            self._control = control
            self._live.files.ask(control)

    def _look_seconds(self) -> float:
        return LOOK_SECONDS

    def _busy_seconds(self) -> float | None:
        return None

    def _read(self, now: float) -> None:
        """Take in what the agents of this start have written; all of it counts as read at one time."""
        for place in range(self._live.submission.nodes + self._spares()):
            last = self._records.get(place)
            if last is None or last.ended_at is None:
                record = self._live.files.read_node(self._restart, place)
                if record is not None:
                    self._records[place] = record
                    if self._beaten.get(place, (-1, now))[0] != record.beats:
                        self._beaten[place] = record.beats, now

    def _spares(self) -> int:
        return self._live.submission.spares

    def _decide(self, now: float) -> None:
        state, records = self._live.state, [*self._records.values()]
        if state.restarts > self._restart:
            self._end_by_restart(now, records)
            return
        if self._live.files.node(self._restart + 1, 0).exists():
            self._end_by_successor(now, records)
            return
        agents_ended = len(records) >= self._live.submission.nodes and all(it.ended_at is not None for it in records)
        if self._lost:
            self._end_without_lost(now, records)
            return
        if not agents_ended and state.phase != "ended":
            self._give_failed_start_up(now)
            self._give_silent_nodes_up(now)
            return
        self._ended_at = now if self._ended_at is None else self._ended_at
        waited = now - self._ended_at
        code = self._code(records)
        if agents_ended and self._is_own(code, records):
            self._end(code or 0, self._own_cause(records))
        elif state.phase == "ended" and (agents_ended or waited > FILES_SECONDS):
            self._end(self._code_of_engine(records), state.cause)
        elif waited > WORD_SECONDS:
            self._end(LOST if code is None else code, "preempted" if _stopped(records, "signal") else "")

    def _end_by_restart(self, now: float, records: list[NodeRecord]) -> None:
        """Its scheduler has started it again, and may hear only a moment later from its own records why."""
        self._ended_at = now if self._ended_at is None else self._ended_at
        if self._live.state.cause or now - self._ended_at > WORD_SECONDS:
            without_word: Cause = "preempted" if _stopped(records, "signal") else "node_lost"
            self._end(self._code(records) or LOST, self._live.state.cause or without_word, goes_on=True)

    def _end_by_successor(self, now: float, records: list[NodeRecord]) -> None:
        """The next start writes already: its scheduler is asked why, since its last answer may be older than that."""
        if self._succeeded_at is None:
            self._succeeded_at, self._answers_then = now, self._live.answered
            self._ended_at = self._ended_at or now
        answered = self._live.answered > self._answers_then + 1 and now - self._succeeded_at > FILES_SECONDS
        if answered or now - self._succeeded_at > WORD_SECONDS:
            # A scheduler that does not count this start has no word for why it came: its cause is of something else.
            stopped = _stopped(records, "signal")
            code = self._code(records) if stopped else None
            self._end(code or LOST, "preempted" if stopped else "node_lost", goes_on=True)

    def _is_own(self, code: int | None, records: list[NodeRecord]) -> bool:
        """Return True if the agents know why they ended, so that the scheduler need not be asked."""
        if code == INTERRUPTED_EXIT:
            return self._control.stop or _stopped(records, "time_limit")
        return code is not None and 0 <= code <= CHECKS_FAILED_EXIT and code != PEER_EXIT

    def _own_cause(self, records: list[NodeRecord]) -> Cause:
        stopped_by_limit = not self._control.stop and _stopped(records, "time_limit")
        return "time_limit" if stopped_by_limit else "cancelled" if self._control.kill else ""

    def _code(self, records: list[NodeRecord]) -> int | None:
        """The exit code by the agents: of the first failure anywhere; None while one of them has not ended."""
        failure = self._live.files.failure(self._restart)
        if failure is not None:
            self.failed_rank = failure.rank
            return failure.exit_code
        if not records or any(record.exit_code is None for record in records):
            return None
        bad = next((record for record in records if record.exit_code), None)
        if bad is None:
            return 0
        self.failed_rank, self.note = bad.failed_rank, bad.note
        return bad.exit_code

    def _code_of_engine(self, records: list[NodeRecord]) -> int:
        """The exit code where agents could not say all: a stop counts as that, whatever ended it in the end."""
        code = self._code(records)
        if code is not None:
            return code
        state = self._live.state
        if self._control.stop and not records:
            return INTERRUPTED_EXIT
        return LOST if records or not state.exit_code else state.exit_code

    def _give_silent_nodes_up(self, now: float) -> None:
        """End a job of which a node has fallen silent while another has not; later jobs leave the silent one out.

        Where all are silent, the shared disk is late or this process stood still: nothing is known of any of them.
        """
        silences = self._silences(now)
        if silences and min(silences.values()) <= SILENT_SECONDS / 2:
            self._lose(place for place, seconds in silences.items() if seconds > SILENT_SECONDS)
        if self._lost:
            # Agents that are there end by themselves and say so; a scheduler might kill them before they have.
            self._ask(replace(self._control, kill=True))

    def _silences(self, now: float) -> dict[int, float]:
        """Return the seconds since the last beat of each agent whose processes run."""
        beating = [place for place, it in self._records.items() if it.first_pid and it.ended_at is None and it.beats]
        return {place: now - self._beaten[place][1] for place in beating}

    def _lose(self, places: Iterable[int]) -> None:
        for place in places:
            self._lost[place] = self._records[place].node_name

    def _end_without_lost(self, now: float, records: list[NodeRecord]) -> None:
        """End as soon as the other nodes' agents have; a scheduler can wait minutes for the lost one's word.

        What still runs on a lost node cannot publish: the next start has a later term.
        """
        self._ended_at = now if self._ended_at is None else self._ended_at
        left = [it for it in records if it.place not in self._lost and it.ended_at is None]
        if (not left or now - self._ended_at > WORD_SECONDS) and self._cancel():
            self._end(LOST, "node_lost")

    def _give_failed_start_up(self, now: float) -> None:
        """End a job of which one node has failed and another says nothing, though its scheduler thinks that it runs."""
        failed = self._live.submission.nodes > 1 and self._live.files.failed(self._restart).exists()
        if failed and self._failed_at is None:
            self._failed_at = now
        if self._failed_at is not None and now - self._failed_at > WORD_SECONDS:
            self._lose(place for place, seconds in self._silences(now).items() if seconds > SILENT_SECONDS)
            if not self._lost:
                self.kill()

    def _end(self, code: int, cause: Cause, *, goes_on: bool = False) -> None:
        start = f"{self._live.submission.token}-{self._restart}"
        silent = {node: f"fell silent in stage {self._live.stage_dir.name}" for node in self._lost.values()}
        self._leave_out(unfit_nodes(self._live.stage_dir, start))
        if silent:
            self._leave_out(silent, seconds=FORGET_SILENCE_SECONDS)
        if code == CHECKS_FAILED_EXIT or silent:
            code, cause = LOST, "node_lost"
            self.note = "; ".join(f"{node} {why}" for node, why in silent.items()) or self.note
        self._exit, self.cause = code, cause
        self.note = self.note or self._live.state.reason
        if goes_on:
            self._live.goes_on, self._live.restart = True, max(self._live.state.restarts, self._restart + 1)
        else:
            self._table.remove(self._live)


def _stopped(records: Sequence[NodeRecord], by: str) -> bool:
    return any(record.stopped_by == by for record in records)

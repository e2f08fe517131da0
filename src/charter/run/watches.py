"""Watches of a supervisor while a run lasts: stages that hang, machines that do nothing, bytes that are kept.

Hangs: no sign of life for much longer than a stage's own pace explains. Time is counted by looks of the supervisor,
each worth two seconds at most: while the machine sleeps, or the supervisor is frozen with its stages, none passes.

Allocations that do nothing are noticed, told, and given back where the file asks for it.

What a run keeps goes into the ledger: its directory is looked at when a run starts and ends, when a stage has ended,
and now and then in between, since checkpoints come and go; the place of copies after copies were made or removed.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from charter.artifacts.group import Sign, read_sign
from charter.artifacts.lease import host_id
from charter.artifacts.stage_dir import METRICS
from charter.artifacts.store.maintenance import bytes_below, place_name
from charter.artifacts.store.place import BUCKET
from charter.artifacts.store.s3 import own_endpoint
from charter.cost.advice import Evidence, IdleVerdict, idle_verdict
from charter.errors import CharterError, InterruptedRunError
from charter.launch.launcher import StageHandle
from charter.ledger import Ledger
from charter.ledger.attempt import Reached, tags_text
from charter.ledger.store import has_ledger, ledger_place
from charter.ledger.stored import RUN_DIRECTORY, StoredSample
from charter.plan.storage import place_price
from charter.run.events import Events
from charter.run.graph import PlannedStage
from charter.run.paths import run_dir
from charter.spec.project import Project
from charter.spec.sections import IdlePolicy
from charter.spec.stage import TRAINS
from charter.spec.stage_base import Stage
from charter.tracking import MeterRow, MeterSummary, meter_rows, summarise
from charter.units import format_seconds

LOOK_EVERY_SECONDS = 0.25
LONGEST_LOOK_SECONDS = 2.0
SECONDS_PER_PROCESS = 0.01
START_SECONDS = 600.0
"""Loading, compiling and the first step, saving and publishing may take so long without a sign of life."""
LEAST_SECONDS = 60.0
"""A stage of quick steps is given at least so long."""
GAPS = 10.0
"""A sign is overdue after so many times the longest time between two signs so far."""
PARTS_BEFORE_PACE = 2
"""The second beginning of a step says that the first step is done; before that there is no pace."""


@dataclass(frozen=True, kw_only=True)
class Hang:
    """A stage that gave no sign of life for too long."""

    rank: int
    silent_seconds: float
    deadline_seconds: float
    what: str
    """What that process was at, by its last sign."""

    def words(self, processes: int) -> str:
        """Return the hang in words."""
        who = f"process {self.rank} of {processes}" if processes > 1 else "its process"
        at = f" (last at {self.what})" if self.what else ""
        return (
            f"hung: {who} gave no sign of life for {self.silent_seconds:.3g} s{at}, allowed are "
            f"{self.deadline_seconds:.3g} s (hang_timeout); where it stood is in the logs of its processes"
        )


@dataclass
class _Rank:
    """Last sign of life of one process."""

    sign: tuple[Sign | None, int]
    changed_at: float
    worked: bool = False


class HangWatch:
    """Watches the processes of one attempt."""

    def __init__(
        self,
        *,
        limit_seconds: float | None,
        least_seconds: float = LEAST_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        """Allow `start_seconds` until the first step is done, and while the stage saves or publishes."""
        self._limit_seconds = limit_seconds
        self._start_seconds = start_seconds
        self._least_seconds = least_seconds
        self._clock = 0.0
        self._looked_at: float | None = None
        self._longest_gap = 0.0
        self._ranks: dict[int, _Rank] = {}

    @classmethod
    def of(cls, spec: Stage) -> "HangWatch":
        """Return the watch of a stage."""
        # An answer of a judge may be long in coming, and a stage that asks for one has no steps to go by.
        least = LEAST_SECONDS if spec.kind in TRAINS else START_SECONDS
        start = max(START_SECONDS, spec.silent_seconds)
        return cls(limit_seconds=spec.hang_timeout, least_seconds=least, start_seconds=start)

    def is_due(self, now: float, processes: int = 1) -> bool:
        """Return True if it is time to look again; `now` is monotonic. Many processes are looked at less often."""
        every = min(LONGEST_LOOK_SECONDS, max(LOOK_EVERY_SECONDS, SECONDS_PER_PROCESS * processes))
        return self._looked_at is None or now - self._looked_at >= every

    def look(self, now: float, signs: Mapping[int, tuple[Sign | None, int]]) -> Hang | None:
        """Take in the last sign of every process, and say whether one is overdue."""
        if not signs:
            self._looked_at = None
            return None
        if self._looked_at is not None:
            self._clock += min(max(0.0, now - self._looked_at), LONGEST_LOOK_SECONDS)
        self._looked_at = now
        for rank, sign in signs.items():
            self._take(rank, sign)
        deadline = self.deadline_seconds
        started = {rank: state for rank, state in self._ranks.items() if rank == 0 or state.sign[0] is not None}
        watched = {rank: state for rank, state in started.items() if rank in signs}
        if not watched:
            return None
        rank, state = min(watched.items(), key=lambda item: item[1].changed_at)
        silent = self._clock - state.changed_at
        if silent <= deadline:
            return None
        what = state.sign[0].what if state.sign[0] else ""
        return Hang(rank=rank, silent_seconds=silent, deadline_seconds=deadline, what=what)

    @property
    def deadline_seconds(self) -> float:
        """Return the seconds for which the stage may be silent now; processes wait for the slowest of them."""
        signs = [state.sign[0] for state in self._ranks.values()]
        has_pace = any(sign is not None and sign.parts >= PARTS_BEFORE_PACE for sign in signs)
        slow = not has_pace or any(sign is not None and sign.is_slow for sign in signs)
        own = self._limit_seconds or max(self._least_seconds, GAPS * self._longest_gap)
        return max(self._start_seconds, own) if slow else own

    def _take(self, rank: int, sign: tuple[Sign | None, int]) -> None:
        state = self._ranks.setdefault(rank, _Rank(sign=sign, changed_at=self._clock))
        if sign == state.sign:
            return
        works = sign[0] is not None and not sign[0].is_slow
        if works and state.worked:
            self._longest_gap = max(self._longest_gap, self._clock - state.changed_at)
        state.sign, state.changed_at, state.worked = sign, self._clock, works


def read_signs(stage_dir: Path, ranks: Iterable[int]) -> dict[int, tuple[Sign | None, int]]:
    """The last signs of life of processes of a stage; a line of metrics is one of rank 0."""
    try:
        metrics = (stage_dir / METRICS).stat().st_size
    except OSError:
        metrics = 0
    return {rank: (read_sign(stage_dir, rank), metrics if rank == 0 else 0) for rank in ranks}


def oom_kills(root: Path = Path("/")) -> int:
    """Return the number of processes killed for memory in this process's control group (v2 or v1).

    The group's counter also has the victims that it lost when the whole machine ran out. Where no group counts, it is
    the machine's counter.
    """
    for path in _counters(root):
        try:
            lines = path.read_text(encoding="ascii", errors="replace").split("\n")
        except OSError:
            continue
        for name, _, count in (line.partition(" ") for line in lines):
            if name == "oom_kill" and count.strip().isdecimal():
                return int(count)
    return 0


def _counters(root: Path) -> Iterator[Path]:
    """The files to look into, the nearest first; a container often sees its own group as the root."""
    mounts = {"": "sys/fs/cgroup", "memory": "sys/fs/cgroup/memory"}
    names = {"": "memory.events", "memory": "memory.oom_control"}
    for kind in ("", "memory"):
        if group := _group(root, kind):
            yield root / mounts[kind] / group.lstrip("/") / names[kind]
        yield root / mounts[kind] / names[kind]
    yield root / "proc/vmstat"


def _group(root: Path, kind: str) -> str:
    """This process's control group of one kind (`/proc/self/cgroup`: number, kinds, path)."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    entries = (line.split(":", 2) for line in lines if line.count(":") >= 2)
    return next((path for _, kinds, path in entries if kind in kinds.split(",") and (kind or not kinds)), "")


SECONDS_BETWEEN_LOOKS = 15.0
"""Samples are read again no sooner: reading those of days takes a while, and nothing changes faster."""
Rows = Callable[[Path, float], Iterable[MeterRow]]
"""The samples of a stage's directory since a time (Unix)."""


def rows_since(stage_dir: Path, since: float) -> tuple[MeterRow, ...]:
    """The samples as the sampler has written them."""
    return meter_rows(stage_dir, since=since)


@dataclass(kw_only=True)
class IdleClock:
    """Clock of one attempt's idle time. Times are Unix seconds, since samples are."""

    policy: IdlePolicy
    stage_dir: Path
    started_at: float
    rows: Rows = rows_since
    verdict: IdleVerdict = field(default_factory=lambda: IdleVerdict(idle=False, reason="it has just begun"))
    _progress: Mapping[str, Any] = field(default_factory=dict)
    _grew_at: float | None = None
    _looked_at: float = float("-inf")
    _ended_idle_seconds: float = 0.0

    def look(self, progress: Mapping[str, Any], *, now: float) -> IdleVerdict:
        """Decide anew from what the stage says of itself, and from samples once it says nothing new for the window."""
        since = self.started_at if self._grew_at is None else self._grew_at
        counted = {"step": progress.get("step"), "counters": progress.get("counters")}
        if progress and counted != self._progress:
            if self.verdict.idle:
                self._ended_idle_seconds += max(0.0, now - since)
            self._progress, self._grew_at, self._looked_at = counted, now, float("-inf")
            self.verdict = IdleVerdict(idle=False, reason="it makes progress")
        elif now - since >= self.policy.window and now - self._looked_at >= SECONDS_BETWEEN_LOOKS:
            self._looked_at = now
            seen = summarise(self.rows(self.stage_dir, max(since, now - self.policy.window)))
            self.verdict = idle_verdict(
                evidence(seen, seconds_without_progress=now - since),
                window_seconds=self.policy.window,
                busy_share=self.policy.utilisation,
            )
        return self.verdict

    def idle_seconds(self, now: float) -> float:
        """All time until now in which nothing was done; the window before it was noticed counts."""
        since = self.started_at if self._grew_at is None else self._grew_at
        return self._ended_idle_seconds + (max(0.0, now - since) if self.verdict.idle else 0.0)

    def metered(self, now: float) -> Reached:
        """Return the ledger's figures of an attempt that ends now: energy and idle time, as far as anybody looked."""
        seen = summarise(row for row in self.rows(self.stage_dir, self.started_at) if row.time <= now + 1)
        figures: Reached = {}
        if seen.samples:
            figures["idle_milliseconds"] = round(self.idle_seconds(now) * 1000)
        if seen.energy_joules is not None:
            figures["energy_joules"] = round(seen.energy_joules)
            figures["energy_source"] = ", ".join(seen.energy_sources)
        return figures


def evidence(seen: MeterSummary, *, seconds_without_progress: float) -> Evidence:
    """Samples of a window as evidence; no samples are no evidence."""
    return Evidence(
        seconds_without_progress=seconds_without_progress,
        gpu_activity=seen.gpu_activity,
        no_process=None if not seen.samples else seen.no_process_seconds >= seen.seconds > 0,
    )


def idle_words(stage: str, verdict: IdleVerdict, *, idle_seconds: float, usd_per_hour: float | None) -> str:
    """Return the message about an idle stage, with its cost."""
    cost = "" if usd_per_hour is None else f"; it costs ${usd_per_hour:,.2f} per hour"
    return f"stage {stage} is idle: {verdict.reason} (idle for {format_seconds(idle_seconds)}{cost})"


class Watched(Protocol):
    """Running attempt, as its idle clock sees it."""

    idle: IdleClock
    ledger_id: int | None

    @property
    def stage(self) -> PlannedStage:
        """Its stage."""

    @property
    def handle(self) -> StageHandle:
        """Its processes."""

    def progress(self) -> dict[str, Any]:
        """Return its last reported progress."""


class IdleWatch:
    """The running stages of a run: idle ones are told once, and given up where the file says `release`."""

    def __init__(self, policy: IdlePolicy, events: Events) -> None:
        self._policy = policy
        self._events = events
        self._told: set[int | None] = set()

    def look(self, active: Iterable["Watched"], *, usd_per_hour: float | None) -> InterruptedRunError | None:
        """Look at every running stage; the error when one is to be released."""
        released = None
        for attempt in active:
            if attempt.handle.waits:
                continue
            now = time.time()
            verdict = attempt.idle.look(attempt.progress(), now=now)
            if not verdict.idle:
                self._told.discard(attempt.ledger_id)
            elif attempt.ledger_id not in self._told:
                self._told.add(attempt.ledger_id)
                seconds = attempt.idle.idle_seconds(now)
                message = idle_words(attempt.stage.name, verdict, idle_seconds=seconds, usd_per_hour=usd_per_hour)
                self._events.emit("stage_idle", stage=attempt.stage.name, message=message, idle_seconds=seconds)
                if self._policy.action == "release":
                    released = InterruptedRunError(
                        f"{message}\n  it is stopped and its machines are given back, as idle.action: release asks; "
                        "the same command continues from its last checkpoint"
                    )
        return released


SECONDS_BETWEEN_SAMPLES = 60.0
SHARE_OF_TIME = 0.01
"""That looking at a directory of very many files may take."""
SMALL_BYTES, SMALL_SHARE = 2**20, 0.001
"""Logs and the ledger grow all the time; a change below these is left to the next sample that has another reason."""
ENDED = frozenset({"stage_done", "stage_failed", "stage_interrupted", "stage_restart"})
"""Events after which a stage's directory holds something else."""


class StorageMeter:
    """Samples of one run, from one process; without a ledger it does nothing."""

    def __init__(self, project: Project, root: Path, ledger: Ledger | None = None) -> None:
        self._project, self._root = project, root.resolve()
        self._ledger = ledger
        self._last_bytes = 0
        self._sent_bytes: dict[str, int] = {}
        self._next_look = 0.0

    @contextmanager
    def into(self, ledger: Ledger) -> Iterator[None]:
        """Sample into a ledger from now on, and at both ends of the context.

        Copies that are made after it are sampled too, as long as the ledger is open.
        """
        self._ledger = ledger
        self.directory("run_started")
        try:
            yield
        except BaseException:
            with suppress(CharterError):  # why the run stopped is more to the point
                self.directory("run_ended")
            raise
        else:
            self.directory("run_ended")

    def listen(self, event: Mapping[str, Any]) -> None:
        """Sample when a stage has ended."""
        if event["event"] in ENDED:
            self.directory(str(event["event"]))

    def look(self) -> None:
        """Sample when it is time to: as often as is right for how long it takes."""
        if time.monotonic() >= self._next_look:
            self.directory("running", only_large_changes=True)

    def directory(self, why: str, *, only_large_changes: bool = False) -> None:
        """Record the bytes that the run's directory holds now."""
        if self._ledger is None:
            return
        started = time.monotonic()
        artifacts = self._project.storage.artifacts
        without = None if artifacts is None else Path(place_name(artifacts, root=self._root))
        num_bytes = bytes_below(run_dir(self._root), without=without)
        took = time.monotonic() - started
        self._next_look = time.monotonic() + max(SECONDS_BETWEEN_SAMPLES, took / SHARE_OF_TIME)
        last_bytes = self._last_bytes
        if not only_large_changes or abs(num_bytes - last_bytes) >= max(SMALL_BYTES, SMALL_SHARE * last_bytes):
            self._record(RUN_DIRECTORY, num_bytes, why=why)
            self._last_bytes = num_bytes

    def copies(self, num_bytes: int, sent_bytes: int, *, where: str | None = None, why: str = "copied") -> None:
        """Record the bytes that a place of copies holds now, and those that this process has sent there in all."""
        if self._ledger is None:
            return
        place = place_name(where or self._project.storage.artifacts or "", root=self._root)
        new_bytes = sent_bytes - self._sent_bytes.get(place, 0)
        self._record(place, num_bytes, sent_bytes=new_bytes, why=why)
        self._sent_bytes[place] = sent_bytes

    def _record(self, place: str, num_bytes: int, *, why: str, sent_bytes: int = 0) -> None:
        if self._ledger is None:
            return
        bucket = place if place.startswith(BUCKET) else None
        price = place_price(bucket, infra=self._project.resources.infra, own_endpoint=own_endpoint())
        sample = StoredSample(
            run=self._project.name,
            place=place,
            at_milliseconds=time.time_ns() // 1_000_000,
            bytes=num_bytes,
            sent_bytes=sent_bytes,
            why=why,
            host=host_id().partition("/")[0],
            provider=price.provider,
            price_micro_usd_per_gb_month=price.micro_usd_per_gb_month,
            price_source=price.source,
            price_as_of=price.as_of,
            owner=self._project.owner or "",
            tags=tags_text(self._project.tags),
        )
        self._ledger.record_stored([sample])


def sample_now(
    project: Project,
    root: Path,
    why: str,
    tell: Callable[[str], None],
    place: str | None = None,
    held_bytes: int = 0,
    sent_bytes: int = 0,
) -> None:
    """Sample the run's directory and a place of copies for a command, where the project has a ledger.

    What keeps it from that is only told: the command has done what it was asked for.
    """
    where = ledger_place(run_dir(root.resolve()), project.storage.ledger)
    try:
        if has_ledger(where):
            with Ledger.open(where, create=False) as ledger:
                meter = StorageMeter(project, root, ledger)
                meter.directory(why)
                if place is not None:
                    meter.copies(held_bytes, sent_bytes, where=place, why=why)
    except CharterError as error:
        tell(f"what is stored now could not be written into the ledger: {error}")

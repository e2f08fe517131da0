"""Reads a project into a snapshot: again only when a file has changed, and never twice at once."""

import hashlib
import json
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

from charter.artifacts.checkpoints import STATE, positions_in
from charter.artifacts.group import FAILURE, LOG
from charter.artifacts.job import JOB_FILE
from charter.artifacts.lease import LEASE, read_holder
from charter.artifacts.record import RECORD_FILE
from charter.artifacts.stage_dir import PROGRESS
from charter.artifacts.stage_state import Phase, StageState, budget_holds, read_stage, stage_state
from charter.artifacts.whole_dir import MANIFEST
from charter.dashboard.snapshot import CostGroup, Json, JsonFiles, LedgerNow, Snapshot, StageNow, Stamp, stamp_of
from charter.errors import CharterError, UsageError
from charter.ledger import Accounted, Ledger
from charter.ledger.place import NoLedgerError, is_server
from charter.ledger.store import LEDGER_FILE, has_ledger, ledger_place
from charter.ledger.sums import Sums, total_of
from charter.run.approval import APPROVALS
from charter.run.events import last_events
from charter.run.graph import ACCEPTED_FILE, Pipeline, PlannedStage, build_pipeline, hashes_of
from charter.run.paths import RUN, TAGS_FILE, own_tags, run_dir, stages_dir
from charter.run.planned import plan_of_this_schema
from charter.run.staleness import states_of
from charter.spec import PROJECT_FILE
from charter.spec.load import BUDGET_FILE
from charter.spec.project import Project
from charter.tracking.base import IMPORTED_METRICS, METRICS
from charter.tracking.progress import EVENTS_FILE
from charter.tracking.run_facts import PLAN_FILE
from charter.units import format_moment

DEEPEST = 4
"""Levels below a given directory; projects lie beside each other, not far down."""
MOST = 2000
_PASSED = frozenset({"node_modules", "__pycache__", "site-packages", RUN, "stages", "outputs"})


@dataclass(frozen=True, kw_only=True)
class ProjectDirectory:
    """A project directory."""

    key: str
    """Names it in addresses: its directory's name, and a mark that tells equal names apart."""
    root: Path
    label: str
    """Its path as a reader knows it: below the directory that was given."""


def check_roots(roots: Iterable[Path]) -> None:
    """UsageError for a directory that is not there."""
    for root in roots:
        if not root.is_dir():
            raise UsageError(f"there is no directory {root}; give directories that hold projects")


def find_projects(roots: Iterable[Path]) -> tuple[ProjectDirectory, ...]:
    """Every project below the directories, in the order of their paths; each once."""
    projects: dict[Path, ProjectDirectory] = {}
    for root in roots:
        resolved = root.resolve()
        for path in _walk(resolved, DEEPEST):
            if path not in projects and len(projects) < MOST:
                label = resolved.name if path == resolved else str(path.relative_to(resolved))
                projects[path] = ProjectDirectory(key=key_of(path), root=path, label=label)
    return tuple(sorted(projects.values(), key=lambda item: (item.label, item.key)))


def key_of(root: Path) -> str:
    """The key of a project directory; it holds nothing that has a meaning in a path or an address.

    >>> key_of(Path("/home/me/Harmless 8B"))
    'harmless-8b-426849'
    """
    mark = hashlib.sha256(str(root).encode("utf-8", "surrogateescape")).hexdigest()[:6]
    words = re.sub(r"[^a-z0-9]+", "-", root.name.lower()).strip("-")[:40]
    return f"{words or 'project'}-{mark}"


def _walk(directory: Path, levels: int) -> Iterable[Path]:
    if (directory / PROJECT_FILE).is_file() or (directory / RUN / EVENTS_FILE).is_file():
        yield directory
        return
    if not levels:
        return
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _PASSED or not entry.is_dir(follow_symlinks=False):
            continue
        yield from _walk(Path(entry.path), levels - 1)


RECENT = 300
"""Attempts that a snapshot holds one by one, for an exact curve of spending; of a run with more it holds sums."""
OF_STAGE = 25
BY = ("stage", "fingerprint", "accelerator", "owner", "tags", "outcome", "day")
SECONDS_PER_DAY = 86_400


class LedgerPlace(TypedDict):
    """Location of a project's ledger, and the run in it."""

    run_dir: Path
    run: str | None
    server: str | None


def read_ledger(run_dir: Path, *, run: str | None, server: str | None) -> LedgerNow:
    """The sums of one run; empty without a ledger, and with the reason in words when it cannot be read."""
    place = ledger_place(run_dir, server)
    if not has_ledger(place):
        return LedgerNow()
    only = run if server else None
    try:
        with Ledger.open(place, create=False) as ledger:
            parts, running = ledger.sums(by=BY, run=only), ledger.running(run=only)
            total = total_of(parts)
            recent = ledger.recent(run=only, limit=RECENT) if total.totals.attempts <= RECENT else ()
    except NoLedgerError:
        return LedgerNow()  # on a server: nothing has run yet
    except CharterError as error:
        return LedgerNow(problem=f"the ledger could not be read: {error}")
    outcomes: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    by_fingerprint: dict[tuple[str, str], Sums] = defaultdict(Sums)
    for part in parts:
        by_fingerprint[part.key["stage"], part.key["fingerprint"]] += part
        if part.totals.attempts:
            outcomes[part.key["stage"]][part.key["outcome"]] += part.totals.attempts
    return LedgerNow(
        whole=total,
        by_stage=_by(parts, "stage"),
        by_fingerprint=dict(by_fingerprint),
        by_accelerator=_groups(parts, "accelerator"),
        by_owner=_groups(parts, "owner"),
        by_tag=_tags(parts),
        outcomes={stage: dict(counts) for stage, counts in outcomes.items()},
        running=running,
        recent=recent,
        spend=exact_spend(recent) if recent else daily_spend(_by(parts, "day")),
    )


def read_attempts(run_dir: Path, *, run: str | None, server: str | None, stage: str) -> tuple[Accounted, ...]:
    """The last attempts at one stage, oldest first; none when there is no ledger."""
    place = ledger_place(run_dir, server)
    if not has_ledger(place):
        return ()
    with Ledger.open(place, create=False) as ledger:
        return ledger.recent(run=run if server else None, stage=stage, limit=OF_STAGE)


def exact_spend(accounted: Iterable[Accounted]) -> tuple[tuple[float, int], ...]:
    """Spending over time, each attempt evenly over its duration: unix seconds and micro-USD, never falling."""
    rates: dict[float, float] = defaultdict(float)
    for item in accounted:
        cost, seconds = item.cost_micro_usd, item.attempt.seconds
        if cost and seconds > 0:
            rates[item.attempt.started_at] += cost / seconds
            rates[item.attempt.started_at + seconds] -= cost / seconds
    points: list[tuple[float, int]] = []
    rate = spent = before = 0.0
    for moment in sorted(rates):
        spent += rate * (moment - before) if points else 0.0
        points.append((moment, round(spent)))
        rate, before = rate + rates[moment], moment
    return tuple(points)


def daily_spend(days: dict[str, Sums]) -> tuple[tuple[float, int], ...]:
    """The same from sums by UTC day: a point at the end of each day, and one at the beginning of the first."""
    priced = sorted(day for day, part in days.items() if day and part.micro_usd)
    if not priced:
        return ()
    points, spent = [(_midnight(priced[0]), 0)], 0
    for day in priced:
        spent += days[day].micro_usd
        points.append((_midnight(day) + SECONDS_PER_DAY, spent))
    return tuple(points)


def _midnight(day: str) -> float:
    return datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()


def _by(parts: Iterable[Sums], name: str) -> dict[str, Sums]:
    sums: dict[str, Sums] = {}
    for part in parts:
        key = part.key[name]
        sums[key] = sums.get(key, Sums()) + part
    return sums


def _groups(parts: Iterable[Sums], name: str) -> tuple[CostGroup, ...]:
    """Sums by one dimension, without what has no value there."""
    return _sorted([CostGroup(name=key, sums=sums) for key, sums in _by(parts, name).items() if key])


def _tags(parts: Iterable[Sums]) -> tuple[CostGroup, ...]:
    """Every `tag: value`; what has several tags counts under each."""
    by_tag: dict[str, Sums] = {}
    for part in parts:
        for key, value in json.loads(part.key["tags"] or "{}").items():
            name = f"{key}: {value}"
            by_tag[name] = by_tag.get(name, Sums()) + part
    return _sorted([CostGroup(name=name, sums=sums) for name, sums in by_tag.items()])


def _sorted(groups: Sequence[CostGroup]) -> tuple[CostGroup, ...]:
    return tuple(sorted(groups, key=lambda group: (-group.sums.micro_usd, -group.sums.totals.milliseconds, group.name)))


@dataclass(frozen=True, kw_only=True)
class Looked:
    """Evidence for the states of stages that stands beside their directories."""

    root: Path
    ledger: LedgerNow
    planned: Mapping[str, Json]
    now: float
    holds: Mapping[str, str] = field(default_factory=dict)
    """Why a budget holds stages, by name; under "" what holds all."""

    @property
    def signs(self) -> dict[str, float]:
        """Newest heartbeat of running attempts by stage."""
        newest: dict[str, float] = {}
        for attempt in self.ledger.running:
            newest[attempt.stage] = max(attempt.last_heartbeat, newest.get(attempt.stage, 0.0))
        return newest


def planned_stages(plan: Json | None) -> dict[str, Json]:
    """The stages of a plan by name."""
    stages = (plan or {}).get("stages")
    return {str(item["name"]): item for item in stages if "name" in item} if isinstance(stages, list) else {}


def stages_of(pipeline: Pipeline, looked: Looked, files: JsonFiles) -> tuple[StageNow, ...]:
    """Return every stage of the file, in execution order."""
    states = states_of(pipeline, proof="sizes", signs=looked.signs, holds=looked.holds, read=files.read, now=looked.now)
    return tuple(_stage(pipeline.stages[name], state, looked, files) for name, state in states.items())


def left_stages(looked: Looked, files: JsonFiles) -> tuple[StageNow, ...]:
    """The stages that a run has left, where there is no file that says which there are: the newest of each name."""
    newest: dict[str, Path] = {}
    directory = stages_dir(looked.root)
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        name = path.name.rpartition("-")[0]
        if name and (path / JOB_FILE).exists():
            other = newest.get(name)
            if other is None or _started(path) > _started(other):
                newest[name] = path
    stages = []
    for name, path in sorted(newest.items(), key=lambda item: _started(item[1])):
        job = files.read(path / JOB_FILE)
        inputs = [item for items in (job.get("inputs") or {}).values() for item in items if isinstance(item, dict)]
        reads = tuple(dict.fromkeys(str(item.get("name")) for item in inputs if item.get("source") == "stage"))
        fingerprint = str(job.get("fingerprint", ""))
        kind = str(job.get("kind", ""))
        stages.append(
            _left(name, kind, path, fingerprint, looked, files, inputs=tuple(name for name in reads if name in newest))
        )
    return tuple(stages)


def _started(path: Path) -> int:
    return (stamp_of(path / JOB_FILE) or (0, 0, 0))[0]


def _stage(stage: PlannedStage, state: StageState, looked: Looked, files: JsonFiles) -> StageNow:
    has_files = any((stage.directory / name).exists() for name in (JOB_FILE, IMPORTED_METRICS))
    return _shown(
        stage.name, stage.spec.kind, stage.fingerprint, state, stage.directory if has_files else None, looked, files,
        inputs=stage.stage_inputs, outside=stage.outside_inputs, needs_approval=stage.spec.needs_approval,
    )  # fmt: skip


def _left(
    name: str,
    kind: str,
    directory: Path,
    fingerprint: str,
    looked: Looked,
    files: JsonFiles,
    *,
    inputs: tuple[str, ...],
) -> StageNow:
    evidence = read_stage(directory, proof="sizes", read=files.read, now=looked.now)
    now_state = stage_state(replace(evidence, last_sign=looked.signs.get(name)), now=looked.now)
    return _shown(name, kind, fingerprint, now_state, directory, looked, files, inputs=inputs)


def _shown(
    name: str,
    kind: str,
    fingerprint: str,
    found: StageState,
    directory: Path | None,
    looked: Looked,
    files: JsonFiles,
    *,
    inputs: tuple[str, ...],
    outside: tuple[str, ...] = (),
    needs_approval: bool = False,
) -> StageNow:
    progress = files.read(directory / PROGRESS) if directory else {}
    return StageNow(
        name=name,
        kind=kind,
        phase=found.phase,
        why="" if found.phase is Phase.RUNNING else found.why,
        step=found.step,
        target_step=found.target_step,
        unit=str(progress.get("unit") or "step"),
        inputs=inputs,
        outside_inputs=outside,
        needs_approval=needs_approval,
        directory=directory,
        fingerprint=fingerprint,
        progress=progress,
        failure=found.why if found.phase is Phase.FAILED else "",
        checkpoint_at=_saved_at(directory) if directory else None,
        updated_at=_number(progress.get("updated_at")),
        outputs=len(found.outputs),
        planned=looked.planned.get(name, {}),
    )


def _saved_at(directory: Path) -> float | None:
    positions = positions_in(directory / STATE)
    stamp = stamp_of(directory / STATE / positions[-1].directory / MANIFEST) if positions else None
    return None if stamp is None else stamp[0] / 1e9


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


LOOK_SECONDS = 0.5
"""Files are looked at so often at most, however many browsers ask."""
INLINE_SECONDS = 0.1
"""A reading that takes longer is done beside the request, which gets the snapshot before it; so is one that asks a
server, which may hang."""
REST_SHARE = 4
"""A slow reading is followed by so many times its length without one."""
PIPELINE_SECONDS = 30.0
"""How long fingerprints hold without a look at the inputs' content."""
SERVER_SECONDS = 5.0
"""How often a ledger on a server is asked: it has no file to look at."""
_STAGE_FILES = (
    PROGRESS, RECORD_FILE, FAILURE, LEASE, LOG, METRICS, IMPORTED_METRICS, STATE, JOB_FILE,
)  # fmt: skip


class ProjectReader:
    """One project, as last read."""

    def __init__(self, found: ProjectDirectory) -> None:
        self.found = found
        self.files = JsonFiles()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._latest: Snapshot | None = None
        self._looked_at = self._read_until = float("-inf")
        self._took = 0.0
        self._hashes = hashes_of(found.root)
        self._pipeline: tuple[object, float, Pipeline | None, str] | None = None
        self._project: tuple[object, Project | None, str] | None = None
        self._attempts: dict[str, tuple[str, tuple[Accounted, ...]]] = {}
        self._asking = threading.Lock()

    @property
    def is_read(self) -> bool:
        """Return True if there is a snapshot already: the first one takes as long as reading the project does."""
        return self._latest is not None

    def snapshot(self, *, wait: bool = False) -> Snapshot:
        """The project now, at most a moment old; `wait` reads it at once if anything has changed."""
        latest = self._latest
        now = time.monotonic()
        if latest is not None and not wait and now - self._looked_at < LOOK_SECONDS:
            return latest
        self._looked_at = now
        version = self._version()
        if latest is not None and latest.version == version:
            return latest
        if latest is None or wait or (self._took < INLINE_SECONDS and not self._asks_server()):
            return self._read(version)
        if now >= self._read_until and not self._reading.locked():
            threading.Thread(target=self._read, args=(version,), daemon=True).start()
        return latest

    def _read(self, version: str) -> Snapshot:
        with self._reading:
            if self._latest is not None and self._latest.version == version:
                return self._latest
            start = time.monotonic()
            snapshot = self._fresh(version)
            self._took = time.monotonic() - start
            self._read_until = time.monotonic() + REST_SHARE * self._took
            self._latest = snapshot
            return snapshot

    def _fresh(self, version: str) -> Snapshot:
        root, now = self.found.root, time.time()
        project, problem = self._load()
        problems = [problem] if problem else []
        where = run_dir(root)
        ledger = self._ledger(project, now)
        plan = plan_of_this_schema(self.files.read(where / PLAN_FILE) or None)
        events = last_events(where / EVENTS_FILE)
        tags = own_tags(self.files.read(where / TAGS_FILE))
        looked = Looked(root=root, ledger=ledger, planned=planned_stages(plan), now=now, holds=budget_holds(events))
        stages = self._stages(project, looked, problems)
        if ledger.problem:
            problems += [ledger.problem, _as_of(ledger)]
        return Snapshot(
            key=self.found.key,
            label=self.found.label,
            root=root,
            name=project.name if project else (ledger.recent[-1].attempt.run if ledger.recent else root.name),
            version=version,
            read_at=now,
            stages=stages,
            ledger=ledger,
            plan=plan,
            events=events,
            owner=project.owner if project else None,
            tags={**(project.tags if project else {}), **tags},
            own_tags=tuple(tags),
            budget_limit_usd=project.budget.limit if project and project.budget else None,
            sweeps=tuple(project.sweeps) if project else (),
            on_exceed=project.budget.on_exceed if project and project.budget else "",
            deadline_seconds=project.deadline if project else None,
            max_parallel_stages=max(1, project.resources.max_parallel_stages) if project else 1,
            machine_usd_per_hour=project.resources.price if project else None,
            problems=tuple(problems),
        )

    def _stages(self, project: Project | None, looked: Looked, problems: list[str]) -> tuple[StageNow, ...]:
        if project is not None:
            pipeline, problem = self._pipeline_of(project)
            if pipeline is not None:
                try:
                    return stages_of(pipeline, looked, self.files)
                except (CharterError, OSError) as error:
                    problem = f"the stages could not be read: {error}"
            problems.append(problem)
        return left_stages(looked, self.files)

    def project(self) -> tuple[Project | None, str]:
        """Return the project of `charter.yaml`, or None and the reason."""
        return self._load()

    def attempts(self, stage: str) -> tuple[Accounted, ...]:
        """The last attempts at one stage, oldest first, read once for a snapshot; as last read where that cannot be."""
        snapshot = self.snapshot()
        with self._asking:
            version, rows = self._attempts.get(stage, ("", ()))
            if version != snapshot.version and not snapshot.ledger.problem:
                with suppress(CharterError):  # the next snapshot says what is wrong
                    rows = read_attempts(**self._ledger_of(self._load()[0]), stage=stage)
                self._attempts[stage] = (snapshot.version, rows)
            return rows

    def _ledger(self, project: Project | None, now: float) -> LedgerNow:
        """The ledger as it is now; as it was last read, and why, where it cannot be read."""
        ledger = read_ledger(**self._ledger_of(project))
        if not ledger.problem:
            return replace(ledger, read_at=now)
        return replace(self._latest.ledger if self._latest else ledger, problem=ledger.problem)

    def _asks_server(self) -> bool:
        project, _ = self._load()
        return project is not None and project.storage.ledger is not None and is_server(project.storage.ledger)

    def _ledger_of(self, project: Project | None) -> LedgerPlace:
        if project is None:
            return {"run_dir": run_dir(self.found.root), "run": None, "server": None}
        return {"run_dir": run_dir(self.found.root), "run": project.name, "server": project.storage.ledger}

    def _load(self) -> tuple[Project | None, str]:
        from charter.engines.project import load_project

        path = self.found.root / PROJECT_FILE
        stamp = (stamp_of(path), stamp_of(run_dir(self.found.root) / BUDGET_FILE))
        if self._project is not None and self._project[0] == stamp:
            return self._project[1], self._project[2]
        project: Project | None = None
        problem = ""
        if stamp[0] is None:
            problem = f"there is no {PROJECT_FILE} here any more: what the run has left is shown"
        else:
            try:
                project = load_project(path, env=dict(os.environ))
            except CharterError as error:
                problem = f"{PROJECT_FILE} does not load; what the run has left is shown\n{error}"
        self._project = (stamp, project, problem)
        return project, problem

    def _pipeline_of(self, project: Project) -> tuple[Pipeline | None, str]:
        root = self.found.root
        stamp = (stamp_of(root / PROJECT_FILE), stamp_of(run_dir(root) / ACCEPTED_FILE))
        cached = self._pipeline
        if cached is not None and cached[0] == stamp and time.monotonic() - cached[1] < PIPELINE_SECONDS:
            return cached[2], cached[3]
        try:
            pipeline: Pipeline | None = build_pipeline(project, root, hashes=self._hashes)
            problem = ""
        except (CharterError, OSError) as error:
            pipeline, problem = None, f"the pipeline could not be resolved; what the run has left is shown\n{error}"
        self._pipeline = (stamp, time.monotonic(), pipeline, problem)
        return pipeline, problem

    def _version(self) -> str:
        """A hash over the stamps of all files that a snapshot is made from."""
        root, where = self.found.root, run_dir(self.found.root)
        seen: list[object] = [stamp_of(root / PROJECT_FILE)]
        for name in (ACCEPTED_FILE, APPROVALS, PLAN_FILE, EVENTS_FILE, LEDGER_FILE, TAGS_FILE):
            seen.append(stamp_of(where / name))
        seen.append(_log_stamp(where / f"{LEDGER_FILE}-wal"))
        try:
            directories = sorted(entry.path for entry in os.scandir(stages_dir(root)))
        except OSError:
            directories = []
        for directory in directories:
            seen += [stamp_of(os.path.join(directory, name)) for name in _STAGE_FILES]
            holder = read_holder(Path(directory) / LEASE) if os.path.exists(os.path.join(directory, LEASE)) else None
            seen.append(holder is not None and holder.is_alive)
        if self._asks_server():
            seen.append(int(time.time() / SERVER_SECONDS))
        return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


def _as_of(ledger: LedgerNow) -> str:
    if not ledger.read_at:
        return "what was attempted and spent is not known, and shown as nothing"
    moment = format_moment(ledger.read_at, to="second")
    return f"what was attempted and spent is shown as it was last read, at {moment}"


def _log_stamp(path: Path) -> Stamp | None:
    """The stamp of a write-ahead log that holds something: reading a ledger makes an empty one for a moment."""
    stamp = stamp_of(path)
    return stamp if stamp is not None and stamp[1] else None

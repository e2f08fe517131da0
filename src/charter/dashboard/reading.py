"""Reads a project into a snapshot: again only when a file has changed, and never twice at once."""

import hashlib
import os
import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from charter.artifacts.lease import LEASE, read_holder
from charter.artifacts.stage_state import budget_holds
from charter.dashboard.discovery import FILE, Found
from charter.dashboard.reading_ledger import LedgerPlace, read_attempts, read_ledger
from charter.dashboard.reading_stages import Looked, left_stages, planned_stages, stages_of
from charter.dashboard.snapshot import LedgerNow, Snapshot, StageNow
from charter.dashboard.stamped import JsonFiles, Stamp, stamp_of
from charter.errors import CharterError
from charter.ledger import Accounted
from charter.ledger.place import is_server
from charter.ledger.store import LEDGER_FILE
from charter.run.approval import APPROVALS
from charter.run.events import EVENTS_FILE, last_events
from charter.run.graph import ACCEPTED_FILE, Pipeline, build_pipeline
from charter.run.paths import run_dir, stages_dir
from charter.run.planned import PLAN_FILE
from charter.spec.project import Project
from charter.tracking.jsonl import IMPORTED_METRICS, METRICS

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
    "progress.json", "record.json", "failure.json", LEASE, "log.txt", METRICS, IMPORTED_METRICS, "state", "job.json",
)  # fmt: skip


class ProjectReader:
    """One project, as last read."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.files = JsonFiles()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._latest: Snapshot | None = None
        self._looked_at = self._read_until = float("-inf")
        self._took = 0.0
        self._pipeline: tuple[object, float, Pipeline | None, str] | None = None
        self._project: tuple[object, Project | None, str] | None = None
        self._attempts: dict[str, tuple[str, tuple[Accounted, ...]]] = {}
        self._asking = threading.Lock()

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
            found = self._fresh(version)
            self._took = time.monotonic() - start
            self._read_until = time.monotonic() + REST_SHARE * self._took
            self._latest = found
            return found

    def _fresh(self, version: str) -> Snapshot:
        root, now = self.found.root, time.time()
        project, problem = self._load()
        problems = [problem] if problem else []
        where = run_dir(root)
        ledger = self._ledger(project, now)
        plan = self.files.read(where / PLAN_FILE) or None
        events = last_events(where / EVENTS_FILE)
        looked = Looked(root=root, ledger=ledger, planned=planned_stages(plan), now=now, holds=budget_holds(events))
        stages = self._stages(project, looked, problems)
        if ledger.problem:
            problems += [ledger.problem, _as_of(ledger)]
        return Snapshot(
            key=self.found.key,
            label=self.found.label,
            root=root,
            name=project.name if project else _left_name(ledger, root),
            version=version,
            read_at=now,
            stages=stages,
            ledger=ledger,
            plan=plan,
            events=events,
            owner=project.owner if project else None,
            tags=dict(project.tags) if project else {},
            budget_limit_usd=project.budget.limit if project and project.budget else None,
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
        """What `charter.yaml` says, or none and why."""
        return self._load()

    def attempts(self, stage: str) -> tuple[Accounted, ...]:
        """The last attempts at one stage, oldest first, read once for a snapshot; as last read where that cannot be."""
        snapshot = self.snapshot()
        with self._asking:
            version, found = self._attempts.get(stage, ("", ()))
            if version != snapshot.version and not snapshot.ledger.problem:
                with suppress(CharterError):  # the next snapshot says what is wrong
                    found = read_attempts(**self._ledger_of(self._load()[0]), stage=stage)
                self._attempts[stage] = (snapshot.version, found)
            return found

    def _ledger(self, project: Project | None, now: float) -> LedgerNow:
        """The ledger as it is now; as it was last read, and why, where it cannot be read."""
        found = read_ledger(**self._ledger_of(project))
        if not found.problem:
            return replace(found, read_at=now)
        return replace(self._latest.ledger if self._latest else found, problem=found.problem)

    def _asks_server(self) -> bool:
        project, _ = self._load()
        return project is not None and project.storage.ledger is not None and is_server(project.storage.ledger)

    def _ledger_of(self, project: Project | None) -> LedgerPlace:
        if project is None:
            return {"run_dir": run_dir(self.found.root), "run": None, "server": None}
        return {"run_dir": run_dir(self.found.root), "run": project.name, "server": project.storage.ledger}

    def _load(self) -> tuple[Project | None, str]:
        from charter.spec.load import load_project

        path = self.found.root / FILE
        stamp = stamp_of(path)
        if self._project is not None and self._project[0] == stamp:
            return self._project[1], self._project[2]
        found: Project | None = None
        problem = ""
        if stamp is None:
            problem = f"there is no {FILE} here any more: what the run has left is shown"
        else:
            try:
                found = load_project(path, env=dict(os.environ))
            except CharterError as error:
                problem = f"{FILE} does not load; what the run has left is shown\n{error}"
        self._project = (stamp, found, problem)
        return found, problem

    def _pipeline_of(self, project: Project) -> tuple[Pipeline | None, str]:
        root = self.found.root
        stamp = (stamp_of(root / FILE), stamp_of(run_dir(root) / ACCEPTED_FILE))
        known = self._pipeline
        if known is not None and known[0] == stamp and time.monotonic() - known[1] < PIPELINE_SECONDS:
            return known[2], known[3]
        try:
            found: Pipeline | None = build_pipeline(project, root)
            problem = ""
        except (CharterError, OSError) as error:
            found, problem = None, f"the pipeline could not be resolved; what the run has left is shown\n{error}"
        self._pipeline = (stamp, time.monotonic(), found, problem)
        return found, problem

    def _version(self) -> str:
        """A hash over the stamps of all files that a snapshot is made from."""
        root, where = self.found.root, run_dir(self.found.root)
        seen: list[object] = [stamp_of(root / FILE)]
        for name in (ACCEPTED_FILE, APPROVALS, PLAN_FILE, EVENTS_FILE, LEDGER_FILE):
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
    moment = datetime.fromtimestamp(ledger.read_at, tz=UTC)
    return f"what was attempted and spent is shown as it was last read, at {moment:%Y-%m-%d %H:%M:%S}"


def _left_name(ledger: LedgerNow, root: Path) -> str:
    return ledger.recent[-1].attempt.run if ledger.recent else root.name


def _log_stamp(path: Path) -> Stamp | None:
    """The stamp of a write-ahead log that holds something: reading a ledger makes an empty one for a moment."""
    found = stamp_of(path)
    return found if found is not None and found[1] else None

"""Tells one tracker what it has not been told yet: runs, rows, files, states; what was told is written down first.

The tracker's numbers of runs and the place in every journal are durable before and after each step, and every call of a
`Destination` may be repeated. So a kill at any moment loses nothing, and tells nothing twice.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.fingerprint import sha256_file
from charter.tracking.base import Destination, RunFacts
from charter.tracking.journal import JournalPosition, count_rows, delivered_path, health_of, journal_path, read_rows
from charter.tracking.progress import RunProgress, Standing
from charter.tracking.run_facts import (
    Followed,
    attachments,
    digest,
    plan_of,
    point_facts,
    read_followed,
    run_facts,
    stage_facts,
    sweep_facts,
    sweep_key,
)

ROWS_PER_BATCH = 200
PIPELINE = ""
"""The key of the pipeline itself beside those of its stages."""


@dataclass(kw_only=True)
class Told:
    """Rows and files that a tracker has received, of the pipeline or of one stage."""

    id: str | None = None
    facts: str = ""
    """Digest of what described it last."""
    state: str = ""
    rows: int = 0
    at_bytes: int = 0
    sure: int = 0
    """Rows that the tracker had when its run was last ended in good order."""
    files: dict[str, str] = field(default_factory=dict)
    """Name -> SHA-256."""


class Delivery:
    """Brings one tracker up to date."""

    def __init__(self, run_dir: Path, tracker: str, destination: Destination, followed: Followed) -> None:
        self._run_dir, self._tracker, self._destination = run_dir, tracker, destination
        self._followed = followed
        self._weights = bool(followed.trackers.get(tracker, {}).get("weights", False))
        self._told = read_told(run_dir, tracker)
        self._progress = RunProgress(run_dir=run_dir)
        self._opened: set[str] = set()
        self._hashes: dict[Path, tuple[int, int, str]] = {}

    def deliver(self, *, stop: Callable[[], bool] = lambda: False) -> bool:
        """Tell everything that is there now, unless `stop` says so between two calls; True when all of it was told."""
        try:
            return self._deliver(stop)
        except BaseException:
            self._opened.clear()  # what the tracker has is asked again
            raise

    def _deliver(self, stop: Callable[[], bool]) -> bool:
        self._progress.look()
        progress = self._progress
        if not progress.run.attempts:
            return True
        pipeline = run_facts(self._followed, started_at=progress.run.started_at)
        self._open(PIPELINE, _with_tags(pipeline, progress.run), parent=None)
        if not self._tell_sweeps(stop):
            return False
        for directory, standing in progress.stages.items():
            if stop():
                return False
            self._tell_stage(directory, standing, stop)
        if stop():
            return False
        for name, path in plan_of(self._run_dir):
            self._attach(PIPELINE, name, path)
        self._set_state(PIPELINE, progress.run)
        return True

    def _tell_sweeps(self, stop: Callable[[], bool]) -> bool:
        """Tell sweeps and their points, which have no rows; False where `stop` said so."""
        for name, standing in self._progress.sweeps().items():
            if stop():
                return False
            facts = sweep_facts(self._followed, name, started_at=standing.started_at)
            self._open(sweep_key(name), _with_tags(facts, standing), parent=self._told[PIPELINE].id)
            self._set_state(sweep_key(name), standing)
        for point, standing in self._progress.points.values():
            if stop():
                return False
            facts = point_facts(self._followed, point, started_at=standing.started_at)
            self._open(point.key, _with_tags(facts, standing), parent=self._told[sweep_key(point.sweep)].id)
            self._set_state(point.key, standing)
        return True

    def waiting_rows(self) -> int:
        """Rows of all journals that the tracker has not been told."""
        return waiting_rows(self._run_dir, self._told)

    def _tell_stage(self, directory: Path, standing: Standing, stop: Callable[[], bool]) -> None:
        point = self._progress.first_point.get(directory)
        facts = stage_facts(self._followed, directory, started_at=standing.started_at, point=point)
        if facts is None:
            return
        self._open(directory.name, _with_tags(facts, standing), parent=self._told[point.key if point else PIPELINE].id)
        while not stop() and self._log(directory.name):
            pass
        if stop():
            return
        if standing.state == "finished":
            for name, path in attachments(self._run_dir, directory, weights=self._weights):
                self._attach(directory.name, name, path)
        self._set_state(directory.name, standing)

    def _open(self, key: str, facts: RunFacts, *, parent: str | None) -> None:
        delivered = self._told.setdefault(key, Told())
        if key not in self._opened:
            delivered.id = self._destination.open_run(facts, parent=parent, known=delivered.id)
            lost_from = self._destination.rows_lost_from(delivered.id, told=delivered.rows, sure=delivered.sure)
            if lost_from is not None:
                delivered = self._go_back(key, lost_from)
            self._opened.add(key)
            self._save()
        if delivered.facts != (now := digest(asdict(facts))):
            assert delivered.id is not None
            self._destination.describe(delivered.id, facts)
            delivered.facts = now
            self._save(changed=delivered)

    def _go_back(self, key: str, rows: int) -> Told:
        """Tell again what died with the process that was to send it."""
        _, place = read_rows(journal_path(self._run_dir, key), JournalPosition(), most=rows)
        before = self._told[key]
        self._told[key] = Told(id=before.id, rows=place.rows, at_bytes=place.at_bytes, sure=min(rows, before.sure))
        return self._told[key]

    def _log(self, key: str) -> bool:
        """Tell one batch; False when there is no more."""
        delivered = self._told[key]
        start = JournalPosition(rows=delivered.rows, at_bytes=delivered.at_bytes)
        rows, end = read_rows(journal_path(self._run_dir, key), start, most=ROWS_PER_BATCH)
        if not rows:
            return False
        assert delivered.id is not None
        self._destination.log(delivered.id, rows)
        delivered.rows, delivered.at_bytes = end.rows, end.at_bytes
        self._save(changed=delivered)
        return True

    def _attach(self, key: str, name: str, path: Path) -> None:
        delivered = self._told[key]
        digest = self._hash(path)
        if delivered.files.get(name) == digest:
            return
        assert delivered.id is not None
        self._destination.attach(delivered.id, name, path)
        delivered.files[name] = digest
        self._save(changed=delivered)

    def _hash(self, path: Path) -> str:
        """The SHA-256 of a file, which is read again only when it has changed."""
        facts = path.stat()
        cached = self._hashes.get(path)
        if cached is None or cached[:2] != (facts.st_size, facts.st_mtime_ns):
            cached = self._hashes[path] = (facts.st_size, facts.st_mtime_ns, sha256_file(path))
        return cached[2]

    def _set_state(self, key: str, standing: Standing) -> None:
        delivered = self._told[key]
        if delivered.state == standing.state:
            return
        assert delivered.id is not None
        self._destination.set_state(delivered.id, standing.state, ended_at=standing.ended_at)
        delivered.state = standing.state
        delivered.sure = delivered.rows if standing.state != "running" else delivered.sure
        self._save()

    def _save(self, *, changed: Told | None = None) -> None:
        """Write down what was told; a run that was told something after its end is told that it has ended once more.

        The last rows of a stage may be collected after its end was told: a tracker may only send them with another.
        """
        if changed is not None and changed.state != "running":
            changed.state = ""
        content = {key: asdict(delivered) for key, delivered in self._told.items()}
        durable.write_json(delivered_path(self._run_dir, self._tracker), content)


def read_told(run_dir: Path, tracker: str) -> dict[str, Told]:
    """Read the deliveries to a tracker; empty where nothing was delivered yet."""
    path = delivered_path(run_dir, tracker)
    content: Mapping[str, Mapping[str, Any]] = durable.read_json(path) if path.exists() else {}
    return {key: Told(**entry) for key, entry in content.items()}


def waiting_rows(run_dir: Path, delivered: Mapping[str, Told]) -> int:
    """Rows of all journals of a run that a tracker has not been told."""
    journals = sorted(journal_path(run_dir, "x").parent.glob("*.jsonl"))
    nothing = Told()
    return sum(max(0, count_rows(path) - delivered.get(path.stem, nothing).rows) for path in journals)


def _with_tags(facts: RunFacts, standing: Standing) -> RunFacts:
    return replace(facts, tags={**facts.tags, **standing.tags()})


def backoff_seconds(failures: int) -> float:
    """The pause after so many failures in a row: it doubles from a second, up to a minute.

    >>> [backoff_seconds(count) for count in (1, 2, 3, 10)]
    [1.0, 2.0, 4.0, 60.0]
    """
    return min(60.0, 2.0 ** min(failures - 1, 30))


# -------- Delivery status of every tracker of a run, from the files of the run.


@dataclass(frozen=True, kw_only=True)
class TrackerStatus:
    """One tracker of a run."""

    tracker: str
    told_rows: int
    waiting_rows: int
    is_closed: bool
    """Whether the tracker knows how every stage and the run are."""
    failures: int
    """Tries in a row that went wrong, up to now."""
    message: str | None
    """What went wrong last."""
    run: str | None
    """The tracker's number of the pipeline."""

    @property
    def is_up_to_date(self) -> bool:
        """Return True if the tracker has received everything that is there."""
        return self.waiting_rows == 0 and self.is_closed


def status_of_trackers(run_dir: Path) -> tuple[TrackerStatus, ...]:
    """All trackers that the last run named; empty where none was."""
    followed = read_followed(run_dir)
    if followed is None:
        return ()
    progress = RunProgress(run_dir=run_dir)
    progress.look()
    stages = {path.name: standing for path, standing in progress.stages.items()}
    wanted = {PIPELINE: progress.run, **progress.swept(), **stages}
    statuses = []
    for tracker in followed.trackers:
        deliveries, health = read_told(run_dir, tracker), health_of(run_dir, tracker)
        statuses.append(
            TrackerStatus(
                tracker=tracker,
                told_rows=sum(item.rows for item in deliveries.values()),
                waiting_rows=waiting_rows(run_dir, deliveries),
                is_closed=all(
                    key in deliveries and deliveries[key].state == standing.state for key, standing in wanted.items()
                ),
                failures=int(health.get("failures", 0)),
                message=health.get("message"),
                run=deliveries[PIPELINE].id if PIPELINE in deliveries else None,
            )
        )
    return tuple(statuses)

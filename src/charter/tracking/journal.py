"""The journal of a stage: every row that trackers are told, once, in an order that never changes.

Stages may be killed, their metrics cut and written again; whoever collects them puts each result here once, with the
place in its source where it came from. So what one tracker has been told is a single number, and telling it again from
any row gives the same rows.
"""

import hashlib
import json
import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from charter.artifacts import durable
from charter.artifacts.durable import object_in
from charter.artifacts.stage_dir import METRICS
from charter.errors import DataError, UsageError
from charter.metering.row import METER_GLOB, MeterRow, row_of
from charter.tracking.base import MetricRow, metric_point

REMEMBERED_STEPS = 20_000
"""Steps whose results are compared when they come again; farther back, the same result is taken for granted."""


@dataclass(kw_only=True)
class SourcePosition:
    """Position up to which one file of a stage has been collected."""

    end_bytes: int = 0
    digest: str = ""
    """Of the last line that was collected, which ends there: a cut file is known by it."""
    rows: int = 0
    high_step: int = -1
    results: OrderedDict[int, str] = field(default_factory=OrderedDict)
    """By step: a digest of what it gave."""


class Journal:
    """Appends rows; one process at a time, under the lock of whoever collects."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows = 0
        self.sources: dict[str, SourcePosition] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._recover()

    def source(self, name: str) -> SourcePosition:
        """Return the position up to which a source has been collected."""
        return self.sources.setdefault(name, SourcePosition())

    def append(self, source: str, end_bytes: int, line: bytes, values: Mapping[str, float], **row: Any) -> None:
        """Add the row that a line of a source gave; `end_bytes` is where the line ends there."""
        entry = {"source": source, "end": end_bytes, "digest": digest_of(line), **row, "values": dict(values)}
        durable.append_line(self._path, entry)
        self._take(entry)

    def skip(self, source: str, end_bytes: int, line: bytes) -> None:
        """Go past a line that gives no row."""
        collected = self.source(source)
        collected.end_bytes, collected.digest = end_bytes, digest_of(line)

    def knows(self, source: str, step: int, values: Mapping[str, float]) -> bool:
        """Return True if a step is there with this result, so that doing it again has told nothing new."""
        results = self.source(source).results
        if step in results:
            return results[step] == result_digest(values)
        return bool(results) and step < next(iter(results))

    def _take(self, entry: Mapping[str, Any]) -> None:
        self.rows += 1
        source = self.source(entry["source"])
        source.end_bytes, source.digest = entry["end"], entry["digest"]
        source.rows += 1
        source.high_step = max(source.high_step, entry["step"])
        source.results[entry["step"]] = result_digest(entry["values"])
        while len(source.results) > REMEMBERED_STEPS:
            source.results.popitem(last=False)

    def _recover(self) -> None:
        """Cut a line that a kill tore, and read how far every source is."""
        if not self._path.exists():
            return
        intact_bytes = 0
        with self._path.open("rb") as file:
            for line in file:
                entry = _entry(line)
                if entry is None:
                    break
                intact_bytes += len(line)
                self._take(entry)
        if intact_bytes < self._path.stat().st_size:
            durable.truncate(self._path, intact_bytes)


@dataclass(frozen=True, kw_only=True)
class JournalPosition:
    """A place in a journal: so many rows lie before it."""

    rows: int = 0
    at_bytes: int = 0


def read_rows(path: Path, start: JournalPosition, *, most: int) -> tuple[tuple[MetricRow, ...], JournalPosition]:
    """At most so many whole rows from a place on, and the place behind them."""
    rows: list[MetricRow] = []
    end = start
    try:
        with path.open("rb") as file:
            file.seek(start.at_bytes)
            for line in file:
                entry = _entry(line)
                if entry is None or len(rows) == most:
                    break
                rows.append(_row(end.rows, entry))
                end = JournalPosition(rows=end.rows + 1, at_bytes=end.at_bytes + len(line))
    except FileNotFoundError:
        pass
    return tuple(rows), end


def count_rows(path: Path) -> int:
    """Count the complete rows of a journal."""
    try:
        with path.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    except FileNotFoundError:
        return 0


def digest_of(line: bytes) -> str:
    """A short name of a line's content."""
    return hashlib.blake2b(line, digest_size=8).hexdigest()


def result_digest(values: Mapping[str, float]) -> str:
    """A short name of what a step computed, without what only the clock decides."""
    computed = {name: value for name, value in values.items() if not depends_on_clock(name)}
    return digest_of(json.dumps(computed, sort_keys=True).encode())


def depends_on_clock(name: str) -> bool:
    """Return True if a figure is another one each time the same step is done.

    >>> [depends_on_clock(name) for name in ("loss", "tokens_per_second", "seconds_save", "peak_bytes")]
    [False, True, True, True]
    """
    return name.startswith(("seconds", "actual_over_planned")) or name.endswith(("_per_second", "_bytes", "mfu"))


def _entry(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    entry = object_in(line)
    return entry if entry is not None and "values" in entry else None


def _row(number: int, entry: Mapping[str, Any]) -> MetricRow:
    return MetricRow(
        number=number,
        step=entry["step"],
        time=entry["time"],
        values=entry["values"],
        machine=entry.get("machine", False),
        again=entry.get("again", False),
    )


def lines_after(path: Path, source: SourcePosition) -> Iterator[tuple[int, bytes]]:
    """Whole new lines of a source, each with its end; from the beginning when the file was cut since."""
    try:
        with path.open("rb") as file:
            at = source.end_bytes if _is_as_left(file, source) else 0
            file.seek(at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                at += len(line)
                yield at, line
    except FileNotFoundError:
        return


def _is_as_left(file: Any, source: SourcePosition) -> bool:
    """Return True if the last line that was collected still stands where it stood."""
    if not source.end_bytes:
        return True
    size = file.seek(0, 2)
    if size < source.end_bytes:
        return False
    back = min(source.end_bytes, 1 << 16)
    file.seek(source.end_bytes - back)
    before = file.read(back)
    last = before[before.rfind(b"\n", 0, len(before) - 1) + 1 :]
    return digest_of(last) == source.digest


TRACKING = "tracking"
FACTS, LIVE, LOCK, PROMETHEUS = "run.json", "live.json", ".lock", "prometheus.json"


def tracking_dir(run_dir: Path) -> Path:
    """The directory of tracking of a run."""
    return run_dir / TRACKING


def facts_path(run_dir: Path) -> Path:
    """Return the path of the run's facts, for those who tell trackers of it."""
    return tracking_dir(run_dir) / FACTS


def live_path(run_dir: Path) -> Path:
    """Return the path of the supervisor's live facts while a run lasts: the amount spent."""
    return tracking_dir(run_dir) / LIVE


def journal_path(run_dir: Path, stage_dir_name: str) -> Path:
    """The journal of one stage: its rows in the order in which they came."""
    return tracking_dir(run_dir) / "rows" / f"{stage_dir_name}.jsonl"


def delivered_path(run_dir: Path, tracker: str) -> Path:
    """Return the path of the deliveries to one tracker."""
    return tracking_dir(run_dir) / f"{tracker}.json"


def health_path(run_dir: Path, tracker: str) -> Path:
    """Return the path of the health of the delivery to one tracker; nothing depends on it."""
    return tracking_dir(run_dir) / f"{tracker}.health.json"


def health_of(run_dir: Path, tracker: str) -> dict[str, Any]:
    """Read the health of the latest delivery to a tracker; empty where nobody has tried."""
    try:
        health: dict[str, Any] = durable.read_json(health_path(run_dir, tracker))
    except DataError:
        return {}
    return health


def log_path(run_dir: Path, tracker: str) -> Path:
    """Return the path of the log of a tracker's library."""
    return tracking_dir(run_dir) / f"{tracker}.log"


def card_path(run_dir: Path, stage_dir_name: str) -> Path:
    """The model card of a finished stage."""
    return tracking_dir(run_dir) / "cards" / f"{stage_dir_name}.md"


STEP, TIME = "step", "time"


class Collector:
    """Keeps the journals of one run; only its holder writes them."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._journals: dict[Path, Journal] = {}
        self._seen: dict[Path, tuple[int, int]] = {}
        """By source: size and time of change at the last look; what did not change is not opened."""

    def collect(self, stage_dirs: Iterable[Path]) -> int:
        """Take in what is new; returns the number of new rows."""
        return sum(self._collect_stage(directory) for directory in stage_dirs)

    def _collect_stage(self, directory: Path) -> int:
        changed = [path for path in (directory / METRICS, *sorted(directory.glob(METER_GLOB))) if self._changed(path)]
        if not changed:
            return 0
        journal = self._journals.get(directory)
        if journal is None:
            journal = self._journals[directory] = Journal(journal_path(self._run_dir, directory.name))
        before = journal.rows
        for path in changed:
            (_collect_metrics if path.name == METRICS else _collect_samples)(journal, path)
        return journal.rows - before

    def _changed(self, path: Path) -> bool:
        try:
            status = path.stat()
        except FileNotFoundError:
            return False
        now = (status.st_size, status.st_mtime_ns)
        changed = self._seen.get(path) != now
        self._seen[path] = now
        return changed


def _collect_metrics(journal: Journal, path: Path) -> None:
    """A step that is there with the same result was only done again after a kill: it is told once."""
    for end_bytes, line in lines_after(path, journal.source(path.name)):
        point = metric_point(line)
        if point is None or journal.knows(path.name, point.step, point.values):
            journal.skip(path.name, end_bytes, line)
            continue
        marks = {"again": True} if point.step <= journal.source(path.name).high_step else {}
        journal.append(path.name, end_bytes, line, point.values, step=point.step, time=point.time or 0.0, **marks)


def _collect_samples(journal: Journal, path: Path) -> None:
    for end_bytes, line in lines_after(path, journal.source(path.name)):
        row = row_of(line)
        if row is None:
            journal.skip(path.name, end_bytes, line)
            continue
        number = journal.source(path.name).rows
        journal.append(path.name, end_bytes, line, machine_values(row), step=number, time=row.time, machine=True)


def machine_values(row: MeterRow) -> dict[str, float]:
    """A sample as values with names, `system/NODE/...`; what is unknown has none."""
    head = f"system/{row.node}"
    values: dict[str, float | None] = {
        f"{head}/processes": row.processes,
        f"{head}/job_cpu_cores": row.cpu_seconds / row.interval_seconds if row.interval_seconds > 0 else None,
        f"{head}/job_resident_bytes": row.resident_bytes,
        f"{head}/node_cpu_share": row.node_cpu_share,
        f"{head}/node_memory_used_bytes": row.node_memory_used_bytes,
        **{f"{head}/{name}_per_second": value for name, value in _rates(row).items()},
    }
    for gpu in row.gpus or ():
        name = f"{head}/gpu_{gpu.index}"
        values |= {
            f"{name}_sm_activity": gpu.sm_activity,
            f"{name}_utilisation": gpu.utilisation,
            f"{name}_memory_used_bytes": gpu.memory_used_bytes,
            f"{name}_power_watts": gpu.power_watts,
            f"{name}_temperature_celsius": gpu.temperature_celsius,
        }
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


def _rates(row: MeterRow) -> dict[str, float]:
    if row.interval_seconds <= 0:
        return {}
    totals = {
        "job_read_bytes": row.read_bytes,
        "job_written_bytes": row.written_bytes,
        "node_received_bytes": row.node_received_bytes,
        "node_sent_bytes": row.node_sent_bytes,
    }
    return {name: value / row.interval_seconds for name, value in totals.items()}


class TrackingLock:
    """Held from `__enter__` on; waits for another holder so long, then refuses."""

    def __init__(self, run_dir: Path, *, of: str = "follower", wait_seconds: float = 0.0) -> None:
        """`of`: the tracker that is told; the collection itself unless given."""
        from filelock import FileLock

        tracking_dir(run_dir).mkdir(parents=True, exist_ok=True)
        self._run_dir, self._wait_seconds = run_dir, wait_seconds
        self._lock = FileLock(tracking_dir(run_dir) / f".{of}{LOCK}", is_singleton=False, thread_local=False)

    def __enter__(self) -> "TrackingLock":
        from filelock import Timeout

        started = time.monotonic()
        try:
            self._lock.acquire(timeout=self._wait_seconds, poll_interval=0.05)
        except Timeout:
            raise UsageError(
                f"{self._run_dir} is being followed by a run or by another `charter status track sync` "
                f"(waited {time.monotonic() - started:.0f} s); let it end, it delivers by itself"
            ) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._lock.release()

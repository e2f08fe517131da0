"""Puts what stages write, metrics and samples of machines, into their journals."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from charter.artifacts.stage_dir import METRICS
from charter.tracking.journal import Journal, lines_after
from charter.tracking.metering.row import METER_GLOB, MeterRow, row_of
from charter.tracking.places import journal_path

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
            found = path.stat()
        except FileNotFoundError:
            return False
        now = (found.st_size, found.st_mtime_ns)
        changed = self._seen.get(path) != now
        self._seen[path] = now
        return changed


def _collect_metrics(journal: Journal, path: Path) -> None:
    """A step that is there with the same result was only done again after a kill: it is told once."""
    for end_bytes, line in lines_after(path, journal.source(path.name)):
        point = _point(line)
        if point is None or journal.knows(path.name, point[0], point[2]):
            journal.skip(path.name, end_bytes, line)
            continue
        step, at, values = point
        marks = {"again": True} if step <= journal.source(path.name).high_step else {}
        journal.append(path.name, end_bytes, line, values, step=step, time=at, **marks)


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


def _point(line: bytes) -> tuple[int, float, Mapping[str, float]] | None:
    """Step, time and finite values of a line of metrics."""
    try:
        content: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(content, dict) or not isinstance(content.get(STEP), int):
        return None
    values = {
        name: float(value)
        for name, value in content.items()
        if name not in (STEP, TIME) and isinstance(value, int | float) and math.isfinite(value)
    }
    return content[STEP], float(content.get(TIME) or 0.0), values

"""All projects that this dashboard shows."""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from charter.dashboard.discovery import find_projects
from charter.dashboard.line_files import LineFile, MetricFiles
from charter.dashboard.reading import ProjectReader
from charter.dashboard.settings import Settings
from charter.dashboard.stamped import Stamp, stamp_of
from charter.dashboard.view.curves import Curve, PhaseShare, curves_of, phases_of
from charter.dashboard.work.pool import Workers
from charter.metering.row import METER_GLOB, MeterRow, row_of

Drawn = tuple[tuple[Curve, ...], tuple[PhaseShare, ...]]


class Curves:
    """Curves of a stage's page, from its metrics."""

    def __init__(self, metrics: MetricFiles, most: int = 64) -> None:
        self._metrics = metrics
        self._most = most
        self._kept: OrderedDict[Path, tuple[Stamp | None, Drawn]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, path: Path) -> Drawn:
        """The curves and the phases of the metrics in a file."""
        with self._lock:
            stamp = stamp_of(path)
            cached = self._kept.get(path)
            if cached is not None and cached[0] == stamp:
                self._kept.move_to_end(path)
                return cached[1]
            steps = self._metrics.steps(path)
            drawn = curves_of(steps), phases_of(steps)
            self._kept[path] = (stamp, drawn)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return drawn


MOST_ROWS = 20_000
"""Samples of one node that are kept: two days at one each 10 s."""


@dataclass
class _Node:
    file: LineFile
    rows: list[MeterRow] = field(default_factory=list)


class MeterFiles:
    """The samples of stages, kept as far as they were read; the least used stages are forgotten."""

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self._kept: OrderedDict[Path, dict[Path, _Node]] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, stage_dir: Path) -> tuple[MeterRow, ...]:
        """The samples of all nodes of a stage in the order of time; of a long run the last."""
        with self._lock:
            nodes = self._kept.pop(stage_dir, None) or {}
            self._kept[stage_dir] = nodes
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            for path in stage_dir.glob(METER_GLOB):
                node = nodes.setdefault(path, _Node(file=LineFile(path)))
                for line in node.file.new_lines(node.rows.clear):
                    if (row := row_of(line)) is not None:
                        node.rows.append(row)
                del node.rows[:-MOST_ROWS]
            return tuple(sorted((row for node in nodes.values() for row in node.rows), key=lambda row: row.time))


DISCOVERY_SECONDS = 10.0


class ProjectSite:
    """Finds projects again from time to time, and keeps one reader for each."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = MetricFiles()
        self.curves = Curves(self.metrics)
        self.meters = MeterFiles()
        self.work = Workers()
        self._readers: dict[str, ProjectReader] = {}
        self._found_at = float("-inf")
        self._lock = threading.Lock()

    def readers(self) -> tuple[ProjectReader, ...]:
        """The readers of all projects, in the order of their labels."""
        with self._lock:
            if time.monotonic() - self._found_at > DISCOVERY_SECONDS:
                projects = find_projects(self.settings.roots)
                self._readers = {item.key: self._readers.get(item.key) or ProjectReader(item) for item in projects}
                self._found_at = time.monotonic()
            return tuple(self._readers.values())

    def reader(self, key: str) -> ProjectReader | None:
        """The reader of one project; a key is looked up, never made into a path."""
        return next((reader for reader in self.readers() if reader.found.key == key), None)

    def version(self, reader: ProjectReader | None) -> str:
        """Return a value that changes whenever a project has changed, or any of them."""
        readers = (reader,) if reader else self.readers()
        return "/".join(item.snapshot().version for item in readers)

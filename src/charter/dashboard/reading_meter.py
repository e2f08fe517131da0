"""What was metered on the machines of a stage, read from where the last look ended."""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from charter.dashboard.line_files import LineFile
from charter.metering.row import METER_GLOB, MeterRow, row_of

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

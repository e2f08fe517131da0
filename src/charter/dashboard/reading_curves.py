"""Curves of stages, made again only when their metrics have grown."""

import threading
from collections import OrderedDict
from pathlib import Path

from charter.dashboard.line_files import MetricFiles
from charter.dashboard.stamped import Stamp, stamp_of
from charter.dashboard.view.curves import Curve, Phase, curves_of, phases_of

Drawn = tuple[tuple[Curve, ...], tuple[Phase, ...]]


class Curves:
    """What a stage's page draws of its metrics."""

    def __init__(self, metrics: MetricFiles, most: int = 64) -> None:
        self._metrics = metrics
        self._most = most
        self._kept: OrderedDict[Path, tuple[Stamp | None, Drawn]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, path: Path) -> Drawn:
        """The curves and the phases of the metrics in a file."""
        with self._lock:
            stamp = stamp_of(path)
            kept = self._kept.get(path)
            if kept is not None and kept[0] == stamp:
                self._kept.move_to_end(path)
                return kept[1]
            steps = self._metrics.steps(path)
            drawn = curves_of(steps), phases_of(steps)
            self._kept[path] = (stamp, drawn)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return drawn

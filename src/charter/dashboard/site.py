"""All projects that this dashboard shows."""

import threading
import time

from charter.dashboard.discovery import find_projects
from charter.dashboard.line_files import MetricFiles
from charter.dashboard.reading import ProjectReader
from charter.dashboard.reading_curves import Curves
from charter.dashboard.reading_meter import MeterFiles
from charter.dashboard.settings import Settings
from charter.dashboard.work.pool import Workers

DISCOVERY_SECONDS = 10.0


class Site:
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
                found = find_projects(self.settings.roots)
                self._readers = {item.key: self._readers.get(item.key) or ProjectReader(item) for item in found}
                self._found_at = time.monotonic()
            return tuple(self._readers.values())

    def reader(self, key: str) -> ProjectReader | None:
        """The reader of one project; a key is looked up, never made into a path."""
        return next((reader for reader in self.readers() if reader.found.key == key), None)

    def version(self, reader: ProjectReader | None) -> str:
        """What changes whenever a project has changed, or any of them."""
        readers = (reader,) if reader else self.readers()
        return "/".join(item.snapshot().version for item in readers)

"""SHA-256 of input files, remembered by size and modification time so that large ones are read once."""

from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.file_facts import sha256_file
from charter.errors import DataError


class FileHashes:
    """A cache on disk; losing it costs time only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, list[str | int]] = {}
        self._changed = False
        if path is not None and path.exists():
            try:
                content = durable.read_json(path)
            except DataError:
                content = {}
            self._known = content if isinstance(content, dict) else {}

    def sha256(self, path: Path) -> str:
        """The SHA-256 of a file's content."""
        found = path.stat()
        stamp: list[str | int] = [found.st_size, found.st_mtime_ns, found.st_ino]
        known = self._known.get(str(path))
        if known is not None and known[:3] == stamp:
            return str(known[3])
        digest = sha256_file(path)
        self._known[str(path)] = [*stamp, digest]
        self._changed = True
        return digest

    def save(self) -> None:
        """Write the cache if it has grown."""
        if self._changed and self._path is not None and self._path.parent.is_dir():
            durable.write_hint(self._path, self._known)
            self._changed = False

"""JSON files read again only when they have changed."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from charter.errors import loads_json

Stamp = tuple[int, int, int]


def stamp_of(path: Path | str) -> Stamp | None:
    """Return the stamp that tells one state of a file from another; None when there is no such file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class JsonFiles:
    """Contents of JSON files, cached by their stamps."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Stamp, Mapping[str, Any]]] = {}
        self._lock = threading.Lock()

    def read(self, path: Path) -> Mapping[str, Any]:
        """The object in a file; empty when there is none, or when it is no JSON object (it may be half-written)."""
        stamp = stamp_of(path)
        if stamp is None:
            return {}
        with self._lock:
            cached = self._known.get(path)
        if cached is not None and cached[0] == stamp:
            return cached[1]
        try:
            content: Any = loads_json(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        mapping: Mapping[str, Any] = content if isinstance(content, dict) else {}
        with self._lock:
            self._known[path] = (stamp, mapping)
        return mapping

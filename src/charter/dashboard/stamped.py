"""JSON files read again only when they have changed."""

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Stamp = tuple[int, int, int]


def stamp_of(path: Path | str) -> Stamp | None:
    """What tells one state of a file from another; None when there is no such file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class JsonFiles:
    """What JSON files hold, by their stamps."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Stamp, Mapping[str, Any]]] = {}
        self._lock = threading.Lock()

    def read(self, path: Path) -> Mapping[str, Any]:
        """The object in a file; empty when there is none, or when it is no JSON object (it may be half-written)."""
        stamp = stamp_of(path)
        if stamp is None:
            return {}
        with self._lock:
            known = self._known.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            content: Any = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        found: Mapping[str, Any] = content if isinstance(content, dict) else {}
        with self._lock:
            self._known[path] = (stamp, found)
        return found

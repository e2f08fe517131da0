"""A directory tree that the process may read and not write."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534


@contextlib.contextmanager
def open_directory() -> Iterator[Path]:
    """Yield a directory that everybody reaches: pytest's own are closed to others whenever a session of it begins."""
    with tempfile.TemporaryDirectory(prefix="charter-open-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@contextlib.contextmanager
def read_only(root: Path) -> Iterator[None]:
    """Let this process only read a tree in an open directory: root, who may write everywhere, is somebody else."""
    paths = [root, *root.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        for path in paths:
            path.chmod(0o755)

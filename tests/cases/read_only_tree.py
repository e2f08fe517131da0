"""A directory tree that the process may read and not write."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

NOBODY = 65534


@contextlib.contextmanager
def read_only(root: Path) -> Iterator[None]:
    """Let this process only read a tree: root, who may write everywhere, is somebody else meanwhile."""
    paths = [root, *root.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for path in root.parents:
        if path.stat().st_uid == os.getuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o011)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        for path in paths:
            path.chmod(0o755)

"""Room on a file system: asked for before a write, and said plainly when it has run out."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from charter.artifacts.file_facts import files_under
from charter.errors import DataError
from charter.units import format_bytes

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def require_free(path: Path, needed_bytes: int) -> None:
    """Refuse to start a write that the file system has no room for."""
    if needed_bytes > free_bytes(path):
        raise _disk_full(path, needed_bytes)


def free_bytes(path: Path) -> int:
    """Free bytes of the file system that holds (or will hold) a path."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def is_disk_full(error: BaseException) -> bool:
    """Whether an exception, or what caused it, says that the disk is full; libraries hide it in a message."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in FULL:
            return True
        if "No space left on device" in str(seen) or "(os error 28)" in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


@contextmanager
def disk_full_is_said(path: Path, *, needed_bytes: int, clean: Path | None = None) -> Iterator[None]:
    """Remove `clean` when anything fails; a full disk becomes a DataError that says what is needed and free."""
    try:
        yield
    except Exception as error:
        written_bytes = _size_of(clean)
        if clean is not None:
            shutil.rmtree(clean, ignore_errors=True) if clean.is_dir() else clean.unlink(missing_ok=True)
        if is_disk_full(error):
            raise _disk_full(path, max(needed_bytes, written_bytes)) from error
        raise


def _size_of(path: Path | None) -> int:
    """Bytes in a file or below a directory, which another process of the stage may be removing at the same time."""
    if path is None:
        return 0
    try:
        names = files_under(path) if path.is_dir() else [""]
    except FileNotFoundError:
        return 0
    found = 0
    for name in names:
        with suppress(FileNotFoundError):
            found += (path / name).stat().st_size
    return found


def _disk_full(path: Path, needed_bytes: int) -> DataError:
    return DataError(
        f"disk full: {path} needs {format_bytes(needed_bytes)} or more, "
        f"{format_bytes(free_bytes(path))} are free\n"
        "  what was there before is intact; free some space and run the same command again"
    )

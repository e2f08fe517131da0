"""Size and SHA-256 of files."""

import errno
import hashlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from charter.errors import DataError
from charter.units import format_bytes

_BLOCK_BYTES = 1 << 20
_HASHERS = 4


@dataclass(frozen=True, kw_only=True)
class FileFact:
    """Size and SHA-256 of one file."""

    bytes: int
    sha256: str


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def fact_of_chunks(chunks: Iterable[bytes]) -> FileFact:
    """Size and SHA-256 of bytes that come in parts."""
    digest, size_bytes = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size_bytes += len(chunk)
    return FileFact(bytes=size_bytes, sha256=digest.hexdigest())


def check_chunks(name: str, chunks: Iterable[bytes], expected: FileFact) -> None:
    """Raise a DataError that names what is read when it has not this size and hash."""
    if (fact := fact_of_chunks(chunks)) != expected:
        raise DataError(
            f"{name} has {fact.bytes} bytes with sha256 {fact.sha256[:12]}..., where {expected.bytes} with "
            f"{expected.sha256[:12]}... are recorded"
        )


def facts_of(paths: Sequence[Path]) -> list[FileFact]:
    """Size and SHA-256 of files, several hashed at once."""
    with ThreadPoolExecutor(max_workers=min(len(paths), _HASHERS) or 1) as pool:
        return list(pool.map(lambda path: FileFact(bytes=path.stat().st_size, sha256=sha256_file(path)), paths))


def files_under(root: Path) -> list[str]:
    """Relative paths of all files below a directory, sorted, with `/`."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


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
    """Return True if an exception, or its cause, says that the disk is full; libraries hide it in a message."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in FULL:
            return True
        if "No space left on device" in str(cause) or "(os error 28)" in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
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
    size = 0
    for name in names:
        with suppress(FileNotFoundError):
            size += (path / name).stat().st_size
    return size


def _disk_full(path: Path, needed_bytes: int) -> DataError:
    return DataError(
        f"disk full: {path} needs {format_bytes(needed_bytes)} or more, "
        f"{format_bytes(free_bytes(path))} are free\n"
        "  what was there before is intact; free some space and run the same command again"
    )

"""The one place where Charter writes what must survive a crash.

A file or directory appears under its name only when it is complete: written under a temporary name in the
same directory, flushed to disk (fsync), hashed, renamed, and the rename flushed too. Every step is a counted
durable action (`faults`), so that a test can crash between any two of them.
"""

import errno
import functools
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts import faults
from charter.errors import DataError
from charter.units import format_bytes

TEMPORARY, DISCARDED, MANIFEST = ".tmp-", ".gc-", "manifest.json"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
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


def write_file(path: Path, data: bytes | str) -> None:
    """Replace a file durably: readers see the old content or the new, never a part."""
    content = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{uuid.uuid4().hex[:8]}")
    with _disk_full_is_said(path, needed_bytes=len(content), clean=temporary):
        with faults.durable_action(f"write {path.name}"):
            _write_synced(temporary, content)
        _rename_synced(temporary, path)


def write_json(path: Path, value: object) -> None:
    """Replace a JSON file durably; keys sorted, not-a-number refused."""
    write_file(path, json_text(value))


def json_text(value: object) -> str:
    """JSON as Charter writes it: sorted keys, two spaces, a final newline."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"


def write_hint(path: Path, value: object) -> None:
    """Replace a JSON file that nothing depends on (progress): whole or old, but not flushed.

    A full disk is ignored.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    try:
        temporary.write_text(json.dumps(value), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        temporary.unlink(missing_ok=True)


def append_line(path: Path, value: object, *, sync: bool = False) -> None:
    """Add one JSON line with a single write, so that a crash can tear at most the last line."""
    line = (json.dumps(value, ensure_ascii=False) + "\n").encode()
    with _disk_full_is_said(path, needed_bytes=len(line)), faults.durable_action(f"append {path.name}"):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            written = os.write(descriptor, line)
            if written != len(line):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def publish_dir(
    target: Path,
    write: Callable[[Path], None],
    *,
    manifest: Callable[[Mapping[str, FileFact]], str] | None = None,
    expected_bytes: int = 0,
) -> dict[str, FileFact]:
    """Make a directory appear complete: `write` fills a temporary one, which is flushed, hashed and renamed.

    With `manifest`, the text that it makes of the files is added as `manifest.json`. `expected_bytes` (the size of
    the last one, say) is checked against the free space before anything is written. The target must not
    exist.
    """
    temporary = begin_dir(target, expected_bytes=expected_bytes)
    with removed_on_error(target, temporary, needed_bytes=expected_bytes):
        with faults.durable_action(f"fill {target.name}"):
            write(temporary)
        facts = settle(temporary, files_under(temporary))
        finish_dir(temporary, target, facts, manifest=None if manifest is None else manifest(facts))
    return facts


def begin_dir(target: Path, *, expected_bytes: int = 0) -> Path:
    """An empty temporary directory beside `target`, when there is room for what is expected."""
    target.parent.mkdir(parents=True, exist_ok=True)
    require_free(target, expected_bytes)
    temporary = target.with_name(f"{TEMPORARY}{target.name}-{uuid.uuid4().hex[:8]}")
    with (
        removed_on_error(target, temporary, needed_bytes=expected_bytes),
        faults.durable_action(f"make {target.name}"),
    ):
        temporary.mkdir()
    return temporary


def settle(directory: Path, relatives: Iterable[str]) -> dict[str, FileFact]:
    """Flush written files below a directory and say what each holds."""
    names = list(relatives)
    for relative in names:
        _flush(directory / relative)
    return dict(zip(names, facts_of([directory / relative for relative in names]), strict=True))


def facts_of(paths: Sequence[Path]) -> list[FileFact]:
    """Size and SHA-256 of files, several hashed at once."""
    with ThreadPoolExecutor(max_workers=min(len(paths), _HASHERS) or 1) as pool:
        return list(pool.map(lambda path: FileFact(bytes=path.stat().st_size, sha256=sha256_file(path)), paths))


def finish_dir(temporary: Path, target: Path, facts: Mapping[str, FileFact], *, manifest: str | None) -> None:
    """Add the manifest, flush the directories, and let the whole appear under its name."""
    if manifest is not None:
        with faults.durable_action(f"manifest {target.name}"):
            _write_synced(temporary / MANIFEST, manifest.encode())
    for directory in sorted({(temporary / relative).parent for relative in facts} | {temporary}):
        sync_dir(directory)
    _rename_synced(temporary, target)


@contextmanager
def removed_on_error(target: Path, temporary: Path, *, needed_bytes: int = 0) -> Iterator[None]:
    """Remove the temporary directory when anything fails; a full disk becomes a DataError that says what is needed."""
    with _disk_full_is_said(target, needed_bytes=needed_bytes, clean=temporary):
        yield


def files_under(root: Path) -> list[str]:
    """Relative paths of all files below a directory, sorted, with `/`."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def move(source: Path, target: Path) -> None:
    """Rename durably."""
    _rename_synced(source, target)


def move_aside(path: Path, word: str) -> Path:
    """Rename a broken or outdated thing to a free name beside it (`outputs.damaged-1`).

    Nothing is deleted.
    """
    number = 1
    while (target := path.with_name(f"{path.name}.{word}-{number}")).exists():
        number += 1
    move(path, target)
    return target


def discard_dir(path: Path) -> None:
    """Remove a directory in two steps; a crash between them leaves a name that is swept later."""
    doomed = path.with_name(f"{DISCARDED}{path.name}-{uuid.uuid4().hex[:8]}")
    _rename_synced(path, doomed)
    with faults.durable_action(f"remove {path.name}"):
        shutil.rmtree(doomed, ignore_errors=True)


def sweep(directory: Path) -> None:
    """Remove what crashes left half-written or half-removed in a directory that nobody else writes to."""
    if not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        if path.name.startswith((TEMPORARY, DISCARDED)):
            with faults.durable_action(f"sweep {path.name}"):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def truncate(path: Path, size_bytes: int) -> None:
    """Cut a file durably."""
    with faults.durable_action(f"truncate {path.name}"):
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, size_bytes)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_dir(directory: Path) -> None:
    """Flush a directory's entries."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
        if isinstance(seen, OSError) and seen.errno in _FULL:
            return True
        if "No space left on device" in str(seen) or "(os error 28)" in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush(path: Path) -> None:
    """Flush one written file and give it the usual permissions."""
    with faults.durable_action(f"sync {path.name}"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fchmod(descriptor, 0o666 & ~_umask())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _rename_synced(source: Path, target: Path) -> None:
    with faults.durable_action(f"rename {target.name}"):
        os.rename(source, target)
        sync_dir(target.parent)


@functools.cache
def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current


@contextmanager
def _disk_full_is_said(path: Path, *, needed_bytes: int, clean: Path | None = None) -> Iterator[None]:
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
    if path is None or not path.exists():
        return 0
    return sum((path / name).stat().st_size for name in files_under(path)) if path.is_dir() else path.stat().st_size


def _disk_full(path: Path, needed_bytes: int) -> DataError:
    return DataError(
        f"disk full: {path} needs {format_bytes(needed_bytes)} or more, "
        f"{format_bytes(free_bytes(path))} are free\n"
        "  what was there before is intact; free some space and run the same command again"
    )


def read_json(path: Path) -> Any:
    """The content of a JSON file; a DataError that names it when it is missing, torn or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} is not valid JSON ({error}); Charter writes it in one piece, so it was damaged from outside"
        ) from None

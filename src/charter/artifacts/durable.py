"""The one place where Charter writes what must survive a crash.

A file or directory appears under its name only when it is complete: written under a temporary name in the
same directory, flushed to disk (fsync), hashed, renamed, and the rename flushed too. Every step is a counted
durable action (`faults`), so that a test can crash between any two of them.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from charter.artifacts import faults, fence
from charter.artifacts.fingerprint import FULL, FileFact, check_chunks, disk_full_is_said
from charter.artifacts.group import GROUP
from charter.errors import DataError, loads_json

TEMPORARY, DISCARDED = ".tmp-", ".gc-"
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EMLINK)
"""What a file system without hard links answers; there two writers of one name are not told apart."""


def temporary_beside(path: Path) -> Path:
    """Return a new name for what is being written, which bears the start of the stage that this process belongs to."""
    return path.with_name(f"{TEMPORARY}{path.name}-{os.environ.get(GROUP, '')}-{uuid.uuid4().hex[:8]}")


def write_file(path: Path, data: bytes | str) -> None:
    """Replace a file durably: readers see the old content or the new, never a part."""
    content = data.encode() if isinstance(data, str) else data
    temporary = temporary_beside(path)
    with disk_full_is_said(path, needed_bytes=len(content), clean=temporary):
        with faults.durable_action(f"write {path.name}", writes=temporary):
            write_synced(temporary, content)
        move(temporary, path)


def write_new(path: Path, content: bytes) -> bool:
    """Write a file durably where none is; False, and nothing is changed, where one is. Of several only one succeeds."""
    temporary = temporary_beside(path)
    with disk_full_is_said(path, needed_bytes=len(content), clean=temporary):
        with faults.durable_action(f"write {path.name}", writes=temporary):
            write_synced(temporary, content)
        with faults.durable_action(f"link {path.name}"), fence.publishing(path):
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if path.exists():
                    return False
                os.rename(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            sync_dir(path.parent)
    return True


def write_chunks(path: Path, chunks: Iterable[bytes], expected: FileFact) -> None:
    """Replace a file durably by what is read from elsewhere, when it has this size and hash; a DataError if not."""
    temporary = temporary_beside(path)
    with disk_full_is_said(path, needed_bytes=expected.bytes, clean=temporary):
        with faults.durable_action(f"copy {path.name}", writes=temporary):
            check_chunks(path.name, _written(temporary, chunks), expected)
        move(temporary, path)


def write_json(path: Path, value: object) -> None:
    """Replace a JSON file durably; keys sorted, not-a-number refused."""
    write_file(path, json_text(value))


def json_text(value: object) -> str:
    """JSON as Charter writes it: sorted keys, two spaces, a final newline."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"


def read_json(path: Path) -> Any:
    """The content of a JSON file; a DataError that names it when it is missing, torn or not JSON."""
    try:
        return loads_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(
            f"{path} is not valid JSON ({error}); Charter writes it in one piece, so it was damaged from outside"
        ) from None


def write_hint(path: Path, value: object) -> None:
    """Replace a JSON file that nothing depends on (progress): complete or old, but not flushed.

    A full disk is ignored, and so is one that may only be read.
    """
    temporary = temporary_beside(path)
    try:
        temporary.write_text(json.dumps(value), encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        if error.errno not in (*FULL, errno.EROFS, errno.EACCES):
            raise
        with contextlib.suppress(OSError):
            temporary.unlink()


def append_line(path: Path, value: object, *, sync: bool = False) -> None:
    """Add one JSON line with a single write, so that a crash can tear at most the last line."""
    append_lines(path, [value], sync=sync)


def append_lines(path: Path, values: Iterable[object], *, sync: bool = False) -> None:
    """Add JSON lines with a single write: a process that is killed has written all of them or none."""
    fence.check(path)
    lines = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values).encode()
    with (
        disk_full_is_said(path, needed_bytes=len(lines)),
        faults.durable_action(f"append {path.name}", writes=path),
    ):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            written = os.write(descriptor, lines)
            if written != len(lines):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def object_in(line: bytes | str) -> dict[str, Any] | None:
    """Return the JSON object of a line; None for a line that is torn, as by a kill, or holds something else.

    >>> object_in(b'{"step": 1}'), object_in('{"st'), object_in("[1]")
    ({'step': 1}, None, None)
    """
    try:
        value = loads_json(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def objects_in(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects in a file of JSON lines, without what a kill tore; none where there is no file to read."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        yield from (value for line in file if (value := object_in(line)) is not None)


def make_dir(path: Path) -> None:
    """Make a directory and what is missing above it, durably; one that is there is left as it is."""
    if path.is_dir():
        return
    make_dir(path.parent)
    path.mkdir(exist_ok=True)
    sync_dir(path.parent)


def move(source: Path, target: Path) -> None:
    """Rename durably; refused when another process has taken over a directory that this one held."""
    with faults.durable_action(f"rename {target.name}"), fence.publishing(target):
        os.rename(source, target)
        sync_dir(target.parent)


ASIDE = re.compile(r".+\.(damaged|undone)-[1-9]\d*")
"""Names of what `move_aside` has renamed."""


def move_aside(path: Path, word: str) -> Path:
    """Rename a broken or outdated thing to a free name beside it (`outputs.damaged-1`).

    Nothing is deleted.
    """
    number = 1
    while (target := path.with_name(f"{path.name}.{word}-{number}")).exists():
        number += 1
    move(path, target)
    return target


def remove_file(path: Path) -> None:
    """Remove a file durably; one that is not there is no error."""
    fence.check(path)
    with faults.durable_action(f"remove {path.name}"):
        path.unlink(missing_ok=True)
        sync_dir(path.parent)


def discard_dir(path: Path) -> None:
    """Remove a directory in two steps; a crash between them leaves a name that is swept later."""
    doomed = path.with_name(f"{DISCARDED}{path.name}-{uuid.uuid4().hex[:8]}")
    move(path, doomed)
    with faults.durable_action(f"remove {path.name}", removes=doomed):
        shutil.rmtree(doomed, ignore_errors=True)


def sweep(directory: Path) -> None:
    """Remove what crashes left half-written or half-removed.

    Processes of this very start may be writing already, before the first one has come to this: theirs stays.
    """
    if not directory.is_dir():
        return
    fence.check(directory)
    ours = f"-{os.environ[GROUP]}-" if GROUP in os.environ else None
    for path in sorted(directory.iterdir()):
        if path.name.startswith((TEMPORARY, DISCARDED)) and (ours is None or ours not in path.name):
            with faults.durable_action(f"sweep {path.name}", removes=path):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def truncate(path: Path, size_bytes: int) -> None:
    """Cut a file durably."""
    fence.check(path)
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


def write_synced(path: Path, content: bytes) -> None:
    """Write a file under its own name and flush it; for what appears by a rename later."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _written(path: Path, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Write what comes by, and flush it."""
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            yield chunk
        file.flush()
        os.fsync(file.fileno())

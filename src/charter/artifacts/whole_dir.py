"""Directories that appear under their name only when they are complete.

Filled under a temporary name beside it, every file flushed and hashed, the manifest written last, every directory
flushed, then renamed: so whatever a crash leaves of the temporary one, nobody takes it for the whole.
"""

import functools
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from charter.artifacts import faults
from charter.artifacts.disk_space import disk_full_is_said, require_free
from charter.artifacts.durable import TEMPORARY, make_dir, move, sync_dir, write_synced
from charter.artifacts.file_facts import FileFact, facts_of, files_under

MANIFEST = "manifest.json"


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
        with faults.durable_action(f"fill {target.name}", writes=temporary):
            write(temporary)
        facts = settle(temporary, files_under(temporary))
        finish_dir(temporary, target, facts, manifest=None if manifest is None else manifest(facts))
    return facts


def begin_dir(target: Path, *, expected_bytes: int = 0) -> Path:
    """An empty temporary directory beside `target`, when there is room for what is expected."""
    make_dir(target.parent)
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


def finish_dir(temporary: Path, target: Path, facts: Mapping[str, FileFact], *, manifest: str | None) -> None:
    """Add the manifest, flush the directories, and let the whole appear under its name."""
    if manifest is not None:
        with faults.durable_action(f"manifest {target.name}", writes=temporary / MANIFEST):
            write_synced(temporary / MANIFEST, manifest.encode())
    for directory in sorted({(temporary / relative).parent for relative in facts} | {temporary}):
        sync_dir(directory)
    move(temporary, target)


@contextmanager
def removed_on_error(target: Path, temporary: Path, *, needed_bytes: int = 0) -> Iterator[None]:
    """Remove the temporary directory when anything fails; a full disk becomes a DataError that says what is needed."""
    with disk_full_is_said(target, needed_bytes=needed_bytes, clean=temporary):
        yield


def _flush(path: Path) -> None:
    """Flush one written file and give it the usual permissions."""
    with faults.durable_action(f"sync {path.name}", writes=path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fchmod(descriptor, 0o666 & ~_umask())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@functools.cache
def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current

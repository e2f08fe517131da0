"""Directories that appear under their name only when they are complete, and names in them that cannot leave them.

Filled under a temporary name beside it, every file flushed and hashed, the manifest written last, every directory
flushed, then renamed: so whatever a crash leaves of the temporary one, nobody takes it for the whole.

Names of files that others wrote (manifests, records, stores) are taken only when they mean the same file for every
reader: plain components separated by `/`, nothing that some system decodes, normalises, follows or reserves. So no name
can leave the directory, whatever its author wanted.
"""

import functools
import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from charter.artifacts import durable, faults
from charter.artifacts.durable import make_dir, move, sync_dir, temporary_beside, write_synced
from charter.artifacts.fingerprint import FileFact, disk_full_is_said, facts_of, files_under, require_free
from charter.errors import DataError, UsageError, loads_json

MOST_COMPONENT_BYTES = 255
"""NAME_MAX of Linux file systems (limits.h)."""
MOST_PATH_BYTES = 1024
"""The longest key of an object in S3 (Amazon S3 user guide, "Naming Amazon S3 objects")."""
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(\..*)?")
"""Names of devices in every directory of Windows (Microsoft, "Naming files, paths, and namespaces")."""
_ENCODED = re.compile(r"(?i)%u[0-9a-f]{4}")
"""Not of any standard, but decoded by old servers all the same."""
_MOST_SHOWN = 80


def wrong_name(relative: str) -> str | None:
    """Return the reason in words why a relative name is refused; None when it is plain.

    >>> wrong_name("model/config.json"), wrong_name("../config.json")
    (None, 'a component is empty, `.` or `..`')
    """
    try:
        encoded = relative.encode()
    except UnicodeEncodeError:
        return "it is not text"
    if not relative:
        return "it is empty"
    if len(encoded) > MOST_PATH_BYTES or any(len(part.encode()) > MOST_COMPONENT_BYTES for part in relative.split("/")):
        return "it is too long"
    if any(unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Co", "Cn") for character in relative):
        return "it has characters that are not printed"
    if "\\" in relative or ":" in relative:
        return "it has a backslash or a colon"
    if unquote(relative) != relative or _ENCODED.search(relative):
        return "it is percent-encoded"
    if unicodedata.normalize("NFKC", relative) != unicodedata.normalize("NFC", relative):
        return "it has characters that some systems turn into others"
    return next((wrong for part in relative.split("/") if (wrong := _wrong_component(part))), None)


def below(root: Path, relative: str) -> Path:
    """The path of a name below a directory; a DataError when it is not plain or leads through a symbolic link."""
    if (wrong := wrong_name(relative)) is not None:
        raise DataError(f"{_shown(relative)} is refused as the name of a file below {root}: {wrong}")
    path = root
    for part in relative.split("/"):
        path = path / part
        if path.is_symlink():
            raise DataError(f"{_shown(relative)} is refused as the name of a file below {root}: {part} is a link")
    return path


def open_below(root: Path, relative: str) -> BinaryIO:
    """Open a regular file below a directory for reading: no symbolic link is followed, no device opened.

    FileNotFoundError when it is not there.
    """
    below(root, relative)
    *parents, name = relative.split("/")
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parents:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            os.close(directory)
            directory = inner
        # Without O_NONBLOCK, opening a named pipe would wait for its writer.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{root / relative} cannot be read: {error.strerror}") from None
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DataError(f"{root / relative} is not a regular file")
    return os.fdopen(descriptor, "rb")


def _wrong_component(part: str) -> str | None:
    if part in ("", ".", ".."):
        return "a component is empty, `.` or `..`"
    if part != part.strip() or part.endswith("."):
        return "a component begins or ends with a space, or ends with a dot"
    return "a component is the name of a device" if _RESERVED.fullmatch(part) else None


def _shown(relative: str) -> str:
    text = ascii(relative)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


MANIFEST = "manifest.json"


def check_target(target: Path) -> None:
    """Refuse a directory that exists."""
    if target.exists():
        raise UsageError(f"{target} exists already; give a directory that does not")


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
    temporary = temporary_beside(target)
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


SEAL = "sha256"


def sealed_text(content: Mapping[str, Any]) -> str:
    """The text of a sealed file."""
    bare = {key: value for key, value in content.items() if key != SEAL}
    return durable.json_text({**bare, SEAL: _hash(bare)})


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a sealed file durably."""
    durable.write_file(path, sealed_text(content))


def read_sealed(path: Path) -> dict[str, Any]:
    """The content of a sealed file, without the seal; a DataError when a single bit of it has changed."""
    content = durable.read_json(path)
    if (wrong := broken_seal(path, content)) is not None:
        raise DataError(f"{path} {wrong}; it was damaged or edited")
    return {key: value for key, value in content.items() if key != SEAL}


def checked_text(name: str, content: bytes) -> dict[str, Any]:
    """The content of a sealed text that lies elsewhere, without the seal; a DataError when one bit has changed."""
    try:
        plain = loads_json(content.decode())
        intact = isinstance(plain, dict) and plain.get(SEAL) == _hash({k: v for k, v in plain.items() if k != SEAL})
        intact = intact and durable.json_text(plain).encode() == content
    except (ValueError, RecursionError):
        intact = False
    if not intact:
        raise DataError(f"{name} does not have its recorded sha256; it was damaged or edited")
    return {key: value for key, value in plain.items() if key != SEAL}


def broken_seal(path: Path, content: object) -> str | None:
    """Return in words the fault of a sealed file that holds `content`; None when it is as it was written."""
    if not isinstance(content, dict) or SEAL not in content:
        return "has no sha256 of its own content"
    if content[SEAL] != _hash({key: value for key, value in content.items() if key != SEAL}):
        return "does not have its recorded sha256"
    if path.read_bytes() != durable.json_text(content).encode():
        return "is not written as Charter writes it"
    return None


def _hash(bare: Mapping[str, Any]) -> str:
    return hashlib.sha256(durable.json_text(bare).encode()).hexdigest()

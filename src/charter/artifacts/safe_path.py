"""Names of files that others wrote (manifests, records, stores), made into paths below a directory, or refused.

A name is taken only when it means the same file for every reader: plain components separated by `/`, nothing that some
system decodes, normalises, follows or reserves. So no name can leave the directory, whatever its author wanted.
"""

import os
import re
import stat
import unicodedata
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from charter.errors import DataError

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

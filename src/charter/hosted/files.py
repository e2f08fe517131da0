"""Files of an engine: given a second name by hard links where the file system has them, moved aside, read as a log."""

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from charter.artifacts.file_facts import files_under

Read = TypeVar("Read")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV)


def link_tree(source: Path, target: Path, *, without: tuple[str, ...] = ()) -> None:
    """Give every file below a directory a second name below another one; `without` are names at its top."""
    for relative in files_under(source):
        if relative not in without:
            link_file(source / relative, target / relative)


def link_file(source: Path, target: Path) -> None:
    """Give one file a second name, or copy it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)


def move_to(directory: Path, path: Path) -> None:
    """Move a directory below another one, whose other content is removed."""
    directory.mkdir(exist_ok=True)
    for older in list(directory.iterdir()):
        shutil.rmtree(older, ignore_errors=True)
    path.rename(directory / path.name)


def read_log(log: Path, read: Callable[[Iterable[str]], Iterator[Read]]) -> Iterator[Read]:
    """Yield what `read` makes of the lines of a log; nothing where there is no log yet."""
    try:
        with log.open(encoding="utf-8", errors="replace") as lines:
            yield from read(lines)
    except OSError:
        return

"""How many bytes a project holds: in a place, and in its directory of a run."""

import os
from contextlib import suppress
from pathlib import Path

from charter.artifacts.store.copy import COPIES, SUMMARY, Copies
from charter.artifacts.store.place import BUCKET, Kept, PlaceError
from charter.errors import DataError

Named = dict[str, int]
"""Hash -> bytes of the objects that a list names."""


class HeldByLists:
    """What the lists of a project name in a place. A list that was read and has not changed is not read again.

    An object that several lists name is held once. What no list names any more is not counted, although it lies there
    until `charter ckpt gc` removes it: whose it was is not known in a place that several projects share.
    """

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._known: dict[Kept, Named] = {}

    def bytes(self) -> int:
        """Of the lists, and of the objects that they name. One listing, and the lists that are new."""
        lists = self._copies.lists()
        self._known = {item: self._known.get(item) or self._named(item) for item in lists}
        objects = {sha256: size for named in self._known.values() for sha256, size in named.items()}
        return sum(item.bytes for item in lists) + sum(objects.values())

    def _named(self, item: Kept) -> Named:
        group, _, file = item.key.removeprefix(f"{COPIES}/").partition("/")[2].partition("/")
        if file == SUMMARY:
            return {}
        try:
            copy = self._copies.read(group, file.removesuffix(".json"))
        except PlaceError:
            raise
        except DataError:
            return {}  # `charter ckpt scrub` tells of it
        return {} if copy is None else {fact.sha256: fact.bytes for fact in copy.files.values()}


def place_name(where: str, *, root: Path) -> str:
    """One name for a place, however it was written.

    >>> place_name("s3://bucket/path/", root=Path("/x"))
    's3://bucket/path'
    """
    return where.rstrip("/") if where.startswith(BUCKET) else str((root / Path(where).expanduser()).resolve())


def bytes_below(directory: Path, *, without: Path | None = None) -> int:
    """Bytes of all files below a directory but those below `without`; a file with several names counts once.

    What comes and goes meanwhile may be missed, or count with the size of one moment.
    """
    seen: set[tuple[int, int]] = set()
    found, directories = 0, [str(directory)]
    while directories:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(directories.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if without is None or Path(entry.path) != without:
                        directories.append(entry.path)
                    continue
                with suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    is_new = facts.st_nlink == 1 or (facts.st_dev, facts.st_ino) not in seen
                    found += facts.st_size if is_new else 0
                    seen.add((facts.st_dev, facts.st_ino))
    return found

"""A place that keeps named bytes: a directory on another disk, or a bucket. Nothing here knows what they mean."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from charter.artifacts import durable
from charter.artifacts.fingerprint import FileFact
from charter.artifacts.whole_dir import below, open_below
from charter.errors import DataError

BUCKET = "s3://"
Tags = Mapping[str, str]
NO_TAGS: Tags = MappingProxyType({})
READ_BYTES = 8 << 20
"""Bytes asked for at once: large enough that a store's latency, tens of milliseconds, does not count."""


class PlaceError(DataError):
    """A place did not do what it was asked; the same may go well later."""


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """One thing that a place lists."""

    key: str
    bytes: int
    written_at: float
    """By the place's own clock, seconds since 1970."""


class CopyLocation(Protocol):
    """Place of objects, as the store needs it. Keys are plain relative names with `/`; a directory keeps no tags."""

    @property
    def where(self) -> str:
        """As the user gave it."""

    def put(self, key: str, content: bytes, *, tags: Tags = NO_TAGS) -> None:
        """Keep bytes under a key, in one piece, in place of what was there."""

    def put_new(self, key: str, content: bytes, *, tags: Tags = NO_TAGS) -> bool:
        """Keep bytes where nothing is; False when there is something. A place may be unable to exclude a race."""

    def upload(self, key: str, path: Path, fact: FileFact, *, tags: Tags = NO_TAGS) -> None:
        """Keep a file under a key, in one piece; a DataError when file or copy is not as `fact` says."""

    def get(self, key: str) -> bytes | None:
        """The bytes of a key; None when there is nothing."""

    def chunks(self, key: str) -> Iterator[bytes]:
        """The bytes of a key in parts; FileNotFoundError when there is nothing."""

    def size(self, key: str) -> int | None:
        """Return the number of bytes of a key; None when there is nothing."""

    def listed(self, prefix: str) -> list[StoredObject]:
        """List the objects below a prefix. It may lag behind: no conclusion is drawn from what it lacks."""

    def remove(self, key: str) -> None:
        """Forget a key; one that is not there is no error."""

    def now(self) -> float:
        """The place's own clock, seconds since 1970."""

    def unfinished(self) -> list[StoredObject]:
        """List the remains of uploads that crashed; they cost room and nobody sees them."""

    def abandon(self, left: StoredObject) -> None:
        """Remove what one crashed upload has left."""


class LocalPlace:
    """A directory; every file in it appears whole."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def where(self) -> str:
        """The directory."""
        return str(self._root)

    def put(self, key: str, content: bytes, *, tags: Tags = NO_TAGS) -> None:
        """See `CopyLocation`."""
        with _said(self.where):
            path = self._made(key)
            durable.write_file(path, content)

    def put_new(self, key: str, content: bytes, *, tags: Tags = NO_TAGS) -> bool:
        """See `CopyLocation`; here the file system excludes races, by a link that fails where the name is taken."""
        with _said(self.where):
            return durable.write_new(self._made(key), content)

    def upload(self, key: str, path: Path, fact: FileFact, *, tags: Tags = NO_TAGS) -> None:
        """See `CopyLocation`."""
        with _said(self.where):
            durable.write_chunks(self._made(key), _blocks(path.parent, path.name), fact)

    def get(self, key: str) -> bytes | None:
        """See `CopyLocation`."""
        try:
            return b"".join(self.chunks(key))
        except FileNotFoundError:
            return None

    def chunks(self, key: str) -> Iterator[bytes]:
        """See `CopyLocation`."""
        if not below(self._root, key).is_file():
            raise FileNotFoundError(key)
        with _said(self.where):
            yield from _blocks(self._root, key)

    def size(self, key: str) -> int | None:
        """See `CopyLocation`."""
        with _said(self.where):
            path = below(self._root, key)
            return path.stat().st_size if path.is_file() else None

    def listed(self, prefix: str) -> list[StoredObject]:
        """See `CopyLocation`."""
        return [item for item in self._files(prefix) if durable.TEMPORARY not in item.key]

    def remove(self, key: str) -> None:
        """See `CopyLocation`."""
        path = below(self._root, key)
        with _said(self.where):
            if path.exists():
                durable.remove_file(path)

    def now(self) -> float:
        """See `CopyLocation`: the time that a file touched now has."""
        with _said(self.where):
            durable.make_dir(self._root)
            probe = self._root / f"{durable.TEMPORARY}clock-{os.getpid()}"
            probe.touch()
            try:
                return probe.stat().st_mtime
            finally:
                probe.unlink()

    def unfinished(self) -> list[StoredObject]:
        """See `CopyLocation`."""
        return [item for item in self._files("") if durable.TEMPORARY in item.key]

    def abandon(self, left: StoredObject) -> None:
        """See `CopyLocation`."""
        (self._root / left.key).unlink(missing_ok=True)

    def _made(self, key: str) -> Path:
        path = below(self._root, key)
        durable.make_dir(path.parent)
        return path

    def _files(self, prefix: str) -> list[StoredObject]:
        top = self._root / prefix
        with _said(self.where):
            paths = sorted(path for path in top.rglob("*") if path.is_file() and not path.is_symlink())
            return [
                StoredObject(
                    key=path.relative_to(self._root).as_posix(),
                    bytes=path.stat().st_size,
                    written_at=path.stat().st_mtime,
                )
                for path in paths
            ]


def _blocks(root: Path, relative: str) -> Iterator[bytes]:
    with open_below(root, relative) as file:
        while block := file.read(READ_BYTES):
            yield block


@contextmanager
def _said(where: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PlaceError(f"{where} cannot be used now: {error.strerror or error}") from error

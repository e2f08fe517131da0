"""A place that keeps named bytes: a directory on another disk, or a bucket. Nothing here knows what they mean."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from charter.artifacts.file_facts import FileFact
from charter.errors import DataError

BUCKET = "s3://"
Tags = Mapping[str, str]
NO_TAGS: Tags = MappingProxyType({})
READ_BYTES = 8 << 20
"""Bytes asked for at once: large enough that a store's latency, tens of milliseconds, does not count."""


class PlaceError(DataError):
    """A place did not do what it was asked; the same may go well later."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """One thing that a place lists."""

    key: str
    bytes: int
    written_at: float
    """By the place's own clock, seconds since 1970."""


class Place(Protocol):
    """What the store needs of a place. Keys are plain relative names with `/`; a directory keeps no tags."""

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
        """How many bytes a key has; None when there is nothing."""

    def listed(self, prefix: str) -> list[Kept]:
        """What is below a prefix. It may lag behind: no conclusion is drawn from what it lacks."""

    def remove(self, key: str) -> None:
        """Forget a key; one that is not there is no error."""

    def now(self) -> float:
        """The place's own clock, seconds since 1970."""

    def unfinished(self) -> list[Kept]:
        """What uploads that crashed have left; it costs room and is seen by nobody."""

    def abandon(self, left: Kept) -> None:
        """Remove what one crashed upload has left."""

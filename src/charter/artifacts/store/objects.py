"""Content by its hash: an object is named by the SHA-256 of its bytes, so it never changes and is kept once."""

from collections.abc import Iterator
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.file_facts import FileFact, check_chunks, fact_of_chunks
from charter.artifacts.store.place import NO_TAGS, Kept, Place, PlaceError, Tags
from charter.errors import DataError

OBJECTS = "objects"


def object_key(sha256: str) -> str:
    """Where an object lies.

    >>> object_key("ab" + "0" * 62)[:14]
    'objects/ab/ab0'
    """
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise DataError(f"{sha256[:80]!r} is not a sha256")
    return f"{OBJECTS}/{sha256[:2]}/{sha256}"


class Objects:
    """The objects in a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.sent_bytes = 0
        """Of what this process has put there, whole; counted when it is there."""

    def add(self, path: Path, fact: FileFact, *, tags: Tags = NO_TAGS) -> None:
        """Keep a file that is as `fact` says; refused when it is not, so damage never spreads."""
        if not self.has(fact):
            self.repair(path, fact, tags=tags)

    def add_content(self, content: bytes, *, tags: Tags = NO_TAGS) -> None:
        """Keep bytes."""
        fact = fact_of_chunks([content])
        if not self.has(fact):
            self.place.put(object_key(fact.sha256), content, tags=tags)
            self.sent_bytes += fact.bytes

    def has(self, fact: FileFact) -> bool:
        """Whether an object of that name and size is there; its content is not read."""
        return self.place.size(object_key(fact.sha256)) == fact.bytes

    def bring(self, fact: FileFact, target: Path) -> None:
        """Write an object's content to a file; a DataError, and no file, when it is not what its name says."""
        try:
            durable.write_chunks(target, self.place.chunks(object_key(fact.sha256)), fact)
        except FileNotFoundError:
            raise DataError(f"{self._name(fact)} is missing; it was to become {target}") from None

    def content(self, fact: FileFact) -> bytes:
        """The bytes of a small object, verified."""
        if (content := self.place.get(object_key(fact.sha256))) is None:
            raise DataError(f"{self._name(fact)} is missing")
        check_chunks(self._name(fact), [content], fact)
        return content

    def damage(self, fact: FileFact) -> str | None:
        """What is wrong with an object, in words, after reading all of it; None when nothing is."""
        try:
            check_chunks(self._name(fact), self.place.chunks(object_key(fact.sha256)), fact)
        except FileNotFoundError:
            return f"{self._name(fact)} is missing"
        except PlaceError:
            raise
        except DataError as error:
            return str(error)
        return None

    def repair(self, path: Path, fact: FileFact, *, tags: Tags = NO_TAGS) -> None:
        """Put a good file in place of an object that is damaged."""
        self.place.upload(object_key(fact.sha256), path, fact, tags=tags)
        self.sent_bytes += fact.bytes

    def listed(self) -> Iterator[Kept]:
        """What objects a listing shows."""
        yield from self.place.listed(f"{OBJECTS}/")

    def _name(self, fact: FileFact) -> str:
        return f"{self.place.where}/{object_key(fact.sha256)}"

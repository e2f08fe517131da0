"""Opening of a place by the text that names it."""

from collections.abc import Callable
from pathlib import Path

from charter.artifacts.store.place import BUCKET, LocalPlace, Place
from charter.errors import UsageError


def open_place(where: str, *, root: Path, tell: Callable[[str], None] = lambda _: None) -> Place:
    """The place that `storage.artifacts` names: `s3://bucket/path`, or a directory, relative to the project's.

    `tell` hears of what a place does not do, and copies can do without.
    """
    if where.startswith(BUCKET):
        from charter.artifacts.store.s3 import S3Place

        return S3Place(where, tell=tell)
    if "://" in where:
        raise UsageError(f"{where} is not a place Charter can keep copies in; give a directory or s3://bucket/path")
    return LocalPlace((root / Path(where).expanduser()).resolve())

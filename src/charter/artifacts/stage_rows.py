"""The rows that a stage reads for one of its roles, over all its data sets."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from charter.artifacts.job import Job
from charter.data.rows import SkippedRows
from charter.spec.project import DataSpec

Made = TypeVar("Made")
Reader = Callable[[Path, DataSpec | None, SkippedRows | None], Iterable[Made]]
"""`read_pairs`, `each_text` and their like, of `data/dataset`."""


def each_stage_row(job: Job, role: str, read: Reader[Made], skipped: SkippedRows) -> Iterator[Made]:
    """Yield the values that `read` makes of every data set of a role, one by one; bad rows are counted in `skipped`."""
    for item in job.inputs.get(role, ()):
        yield from read(item.location(), item.data, skipped)


def stage_rows(job: Job, role: str, read: Reader[Made]) -> tuple[list[Made], SkippedRows]:
    """All rows of a role, and what was left out: for the log `skipped.lines()`, for reports `skipped.metrics()`."""
    skipped = SkippedRows()
    return list(each_stage_row(job, role, read, skipped)), skipped

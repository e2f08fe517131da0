"""The rows that a data set selects from its files, and what becomes of those that cannot be read."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from charter.errors import DataError
from charter.spec.arrow_rows import read_arrow, read_parquet
from charter.spec.checks import parse_part
from charter.spec.data_files import find_files
from charter.spec.data_row import Bad, BadRowError, Row, SkippedRows
from charter.spec.jsonl import read_jsonl
from charter.spec.project import DataSpec
from charter.spec.rows import part_of
from charter.spec.webdataset import read_shard

Made = TypeVar("Made")
_READERS = {"jsonl": read_jsonl, "parquet": read_parquet, "hf": read_arrow, "webdataset": read_shard}


def each_row(
    path: Path, spec: DataSpec | None, skipped: SkippedRows | None, make: Callable[[Row], Iterable[Made]]
) -> Iterator[Made]:
    """What is made of every selected row; a row of which nothing can be made is bad, and not all may be."""
    spec = spec or DataSpec(path=str(path))
    skipped = SkippedRows() if skipped is None else skipped
    before, made = skipped.count, 0
    for row in selected_rows(path, spec, skipped):
        try:
            found = list(make(row))
        except BadRowError as error:
            skipped.take(error, spec.on_bad_row)
            continue
        made += 1
        yield from found
    if not made:
        first = "".join(f"; the first: {reason}" for reason in skipped.reasons[before : before + 1])
        raise DataError(f"{path}: none of its {skipped.count - before} rows can be read{first}")


def selected_rows(path: Path, spec: DataSpec | None = None, skipped: SkippedRows | None = None) -> Iterator[Row]:
    """The rows that a data set selects from its files, in their order; refuses to select none."""
    spec = spec or DataSpec(path=str(path))
    skipped = SkippedRows() if skipped is None else skipped
    part, parts = (1, 1) if spec.part is None else parse_part(spec.part)
    before, seen, taken = skipped.count, 0, 0
    for row in _all_rows(path, spec, lambda error: skipped.take(error, spec.on_bad_row)):
        seen += 1
        try:
            wanted = parts == 1 or part_of(row, parts) == part
        except BadRowError as error:
            skipped.take(error, spec.on_bad_row)
            continue
        if wanted:
            taken += 1
            yield row
        if taken == spec.limit:
            return
    if taken or skipped.count > before:
        return
    if not seen:
        raise DataError(f"{path} holds no rows; it needs at least one JSON object per line")
    raise DataError(f"part {spec.part} of {path} holds none of its {seen} rows; use fewer parts")


def _all_rows(path: Path, spec: DataSpec, bad: Bad) -> Iterator[Row]:
    """The rows of all files of a data set, numbered on from file to file."""
    found = find_files(path, spec.format)
    before = 0
    for file in found.files:
        for row in _READERS[found.format](file, bad, before=before):
            yield row
            before = row.number

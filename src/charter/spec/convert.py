"""A whole file of rows in another layout or format, as JSONL or Parquet in TRL's formats."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from charter.errors import MissingExtraError, UsageError
from charter.spec.arrow_rows import PIP_COMMAND
from charter.spec.data_row import BadRowError, Row, SkippedRows, is_unicode
from charter.spec.foreign_rows import dropped_fields, native_row
from charter.spec.project import DataSpec
from charter.spec.rows import row_kind
from charter.spec.selection import each_row

JSONL_SUFFIXES, PARQUET_SUFFIX = (".jsonl", ".ndjson"), ".parquet"
ROWS_PER_GROUP = 10_000
"""Rows of a Parquet row group, which are held at once: some 20 MB."""


@dataclass
class Converted:
    """What became of the rows."""

    kinds: Counter[str] = field(default_factory=Counter)
    changed: int = 0
    """Rows that were in another layout."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Fields that have no place in the new row, by the number of rows that had them."""
    skipped: SkippedRows = field(default_factory=SkippedRows)

    @property
    def rows(self) -> int:
        """Rows that were written."""
        return sum(self.kinds.values())


class Conversion:
    """The rows of a data set in one of TRL's formats, as often as they are asked for."""

    def __init__(self, source: Path, spec: DataSpec) -> None:
        self._source, self._spec = source, spec
        self.made = Converted()
        """What became of the rows when they were last gone through."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows, one after the other."""
        self.made = Converted()
        return each_row(self._source, self._spec, self.made.skipped, self._convert)

    def _convert(self, row: Row) -> list[dict[str, Any]]:
        value = native_row(row)
        kind = row_kind(Row(where=row.where, number=row.number, value=value))
        _check_json(row, value)
        self.made.kinds[kind] += 1
        self.made.changed += value is not row.value
        self.made.dropped.update(dropped_fields(row.value, value))
        return [value]


def write_rows(rows: Callable[[], Iterable[Mapping[str, Any]]], target: Path, temporary: Path) -> None:
    """Write rows in the format that the name of `target` says, to `temporary`; `rows` may be asked for them twice."""
    if target.suffix in JSONL_SUFFIXES:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows())
    elif target.suffix == PARQUET_SUFFIX:
        _write_parquet(rows, temporary)
    else:
        raise UsageError(f"{target}: the name must end in .jsonl or .parquet, which says the format")
    with temporary.open("rb") as file:
        os.fsync(file.fileno())


def _check_json(row: Row, value: Mapping[str, Any]) -> None:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadRowError(f"{row.where}: cannot be written as JSON: {error}") from None
    if not is_unicode(text):
        row.refuse("holds half of a surrogate pair, which is not a character")


def _write_parquet(rows: Callable[[], Iterable[Mapping[str, Any]]], path: Path) -> None:
    """Twice over the rows: for the columns that all of them need, since Arrow drops others in silence; and to write."""
    schema = parquet_schema(rows())
    write_parquet(rows(), path, schema)


def parquet_schema(rows: Iterable[Mapping[str, Any]]) -> Any:
    """The Arrow schema that holds every row, so that shards of one data set have the same columns."""
    arrow = _pyarrow("pyarrow")
    with _one_type_per_field(arrow):
        schemas = [_table(arrow, group).schema for group in _groups(rows)]
        return arrow.unify_schemas(schemas, promote_options="permissive")


def write_parquet(rows: Iterable[Mapping[str, Any]], path: Path, schema: Any) -> None:
    """Write rows to a Parquet file of that schema."""
    arrow, parquet = _pyarrow("pyarrow"), _pyarrow("pyarrow.parquet")
    with _one_type_per_field(arrow), parquet.ParquetWriter(path, schema) as writer:
        for group in _groups(rows):
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))


@contextmanager
def _one_type_per_field(arrow: Any) -> Iterator[None]:
    """What Arrow says of rows that do not fit together, as an error that says what would work."""
    try:
        yield
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, arrow.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"the rows do not have one type per field, as Parquet needs: {reason}; convert to .jsonl instead"
        ) from None


def _groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    found = iter(rows)
    while group := list(islice(found, ROWS_PER_GROUP)):
        yield group


def _table(arrow: Any, group: Sequence[Mapping[str, Any]]) -> Any:
    """A table with every field of any row; `from_pylist` takes those of the first row alone."""
    names = dict.fromkeys(name for row in group for name in row)
    return arrow.Table.from_pylist([{name: row.get(name) for name in names} for row in group])


def _pyarrow(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"writing Parquet needs {error.name}: {PIP_COMMAND}; .jsonl needs nothing") from None

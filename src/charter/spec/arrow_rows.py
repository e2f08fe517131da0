"""Rows of Parquet files and of the Arrow files that Hugging Face `datasets` writes, by pyarrow alone."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from charter.errors import DataError, MissingExtraError
from charter.spec.data_row import Bad, BadRowError, Row

PIP_COMMAND = 'pip install "charter-plan[data]"'
TURN_FIELDS = ("messages", "prompt", "completion", "chosen", "rejected")
BATCH_ROWS = 512


def read_parquet(path: Path, bad: Bad, *, before: int = 0) -> Iterator[Row]:
    """The rows of a Parquet file, a row group at a time; `before` rows were read from other files."""
    yield from _rows(_batches(path, _parquet_batches), f"{path}: row group", before, bad)


def read_arrow(path: Path, bad: Bad, *, before: int = 0) -> Iterator[Row]:
    """The rows of one Arrow file, as a stream (what `datasets` writes) or a file; `before` as for Parquet."""
    yield from _rows(_batches(path, _arrow_batches), f"{path}: record batch", before, bad)


def _parquet_batches(path: Path) -> Iterator[tuple[int, Any]]:
    with _pyarrow(path, "pyarrow.parquet").ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=[group]):
                yield group, batch


def _arrow_batches(path: Path) -> Iterator[tuple[int, Any]]:
    arrow = _pyarrow(path, "pyarrow")
    with arrow.memory_map(str(path)) as source:
        if source.read(6) == b"ARROW1":
            reader = arrow.ipc.open_file(source)
            batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        else:
            source.seek(0)
            batches = iter(arrow.ipc.open_stream(source))
        for index, batch in enumerate(batches):
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield index, batch.slice(start, BATCH_ROWS)


def _batches(path: Path, read: Any) -> Iterator[tuple[int, Any]]:
    """What a reader of pyarrow gives; what is wrong with the file as a whole is said with its name."""
    arrow = _pyarrow(path, "pyarrow")
    try:
        yield from read(path)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}; copy or write it again") from None


def _rows(batches: Iterator[tuple[int, Any]], prefix: str, before: int, bad: Bad) -> Iterator[Row]:
    part, start = -1, 0
    for index, batch in batches:
        if index != part:
            part, start = index, 0
        for offset, value in enumerate(_values(batch)):
            where = f"{prefix} {index}, row {start + offset}"
            if isinstance(value, Exception):
                bad(BadRowError(f"{where}: a value cannot be read: {value}"))
            else:
                yield Row(where=where, number=before + offset + 1, value=_plain(value))
        start += batch.num_rows
        before += batch.num_rows


def _values(batch: Any) -> list[dict[str, Any] | Exception]:
    """The rows of a batch; where one holds what Python cannot (text that is not UTF-8), its error in its place."""
    try:
        found: list[dict[str, Any] | Exception] = batch.to_pylist()
        return found
    except (ValueError, OverflowError) as error:
        if batch.num_rows == 1:
            return [error]
    return [value for offset in range(batch.num_rows) for value in _values(batch.slice(offset, 1))]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """One row as JSON would say it: null columns are absent, a struct of lists is a list of turns."""
    return {key: _turns(key, value) for key, value in row.items() if value is not None}


def _turns(key: str, value: Any) -> Any:
    """Turns as a list of objects; `datasets` stores a `Sequence` of structs as one struct of lists."""
    if key not in TURN_FIELDS or not isinstance(value, dict) or not value:
        return value
    columns = list(value.values())
    if not all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns):
        return value
    return [dict(zip(value, turn, strict=True)) for turn in zip(*columns, strict=True)]


def _pyarrow(path: Path, module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"reading {path} needs {error.name}: {PIP_COMMAND}") from None

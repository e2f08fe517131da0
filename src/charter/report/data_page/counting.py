"""Going through a data set: once whole, as a stage would read it, or a sample of a large file at once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from charter.data.dataset import selected_rows
from charter.data.formats import find_files
from charter.data.rows import BadRowError, Row, SkippedRows, parse_object, part_of
from charter.errors import loads_json
from charter.report.data_page.tally import DataSummary, RecordTally, summary_of
from charter.spec.checks import parse_part
from charter.spec.project import DataSpec

SAMPLE_ROWS = 2000
LARGE_BYTES = 8 * 1024 * 1024
"""A smaller file is counted whole in about a second."""
TELL_EVERY = 2000
LONGEST_LINE_BYTES = 4 * 1024 * 1024


class _Bad(SkippedRows):
    """Takes every bad row, whatever the data set's policy."""

    def take(self, error: BadRowError, policy: Literal["fail", "skip"]) -> None:
        super().take(error, "skip")


def count_rows(
    path: Path, spec: DataSpec | None = None, *, tell: Callable[[int], None] = lambda _: None
) -> DataSummary:
    """Every row that a data set selects; `tell` hears how many so far. DataError for a file that is none."""
    tally, bad = RecordTally(), _Bad()
    for number, row in enumerate(selected_rows(path, spec, bad), start=1):
        try:
            tally.add(row)
        except BadRowError as error:
            bad.take(error, "skip")
        if number % TELL_EVERY == 0:
            tell(number)
    return summary_of(tally, size_bytes=size_of(path, spec), bad=bad.count, bad_reasons=bad.reasons)


def count_set_aside(path: Path) -> DataSummary:
    """Count the reasons for which rows were set aside, of a stage's `set_aside.jsonl`."""
    tally = RecordTally()
    with path.open("rb") as lines:
        for line in lines:
            try:
                value = loads_json(line)
            except ValueError:
                continue
            tally.add_set_aside(value if isinstance(value, dict) else {})
    return summary_of(tally, size_bytes=path.stat().st_size)


def sample_rows(path: Path, spec: DataSpec | None = None) -> DataSummary | None:
    """Rows at places spread evenly over one large JSONL file; None where the whole is soon counted, or cannot be.

    Longer rows are likelier to be before a place, so that the row after it is taken: with lengths that do not hang on
    those of the neighbour this is unbiased. The number of rows is the size over the mean length of a row.
    """
    data_files = find_files(path, "auto" if spec is None else spec.format)
    file = data_files.files[0]
    if data_files.format != "jsonl" or len(data_files.files) > 1 or file.stat().st_size < LARGE_BYTES:
        return None
    if spec is not None and spec.limit is not None:
        return None
    part, parts = (1, 1) if spec is None or spec.part is None else parse_part(spec.part)
    tally, bad, read_bytes, seen = RecordTally(), _Bad(), 0, 0
    for row, length in _rows_at(file, bad):
        seen += 1
        read_bytes += length
        try:
            if parts == 1 or part_of(row, parts) == part:
                tally.add(row)
        except BadRowError as error:
            bad.take(error, "skip")
    if not tally.rows:
        return None
    rows = file.stat().st_size / (read_bytes / seen) * tally.rows / seen
    return summary_of(tally, size_bytes=file.stat().st_size, sample_of=round(rows), bad_reasons=bad.reasons)


def _rows_at(file: Path, bad: SkippedRows) -> Iterator[tuple[Row, int]]:
    size = file.stat().st_size
    with file.open("rb") as lines:
        for index in range(SAMPLE_ROWS):
            lines.seek(index * size // SAMPLE_ROWS)
            if index:
                lines.readline(LONGEST_LINE_BYTES)
            at, line = lines.tell(), lines.readline(LONGEST_LINE_BYTES)
            where = f"{file}: byte {at}"
            try:
                value = parse_object(line.decode("utf-8"), where) if line.strip() else None
            except UnicodeDecodeError:
                continue
            except BadRowError as error:
                bad.take(error, "skip")
                continue
            if value is not None:
                yield Row(where=where, number=at + 1, value=value), len(line)


def size_of(path: Path, spec: DataSpec | None = None) -> int:
    """Bytes of all files of a data set."""
    return sum(file.stat().st_size for file in find_files(path, "auto" if spec is None else spec.format).files)

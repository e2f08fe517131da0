"""Records of a JSONL file a page at a time: by the byte that the first one begins at, so that size does not matter."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from charter.errors import loads_json

PAGE_ROWS = 20
LONGEST_BYTES = 512 * 1024
"""A longer record is not shown: a page should not hold megabytes."""
BACK_BYTES = 64 * 1024
CHUNK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class RawRecord:
    """One line: where it begins, and what it holds."""

    offset: int
    length: int
    value: dict[str, Any] | None
    problem: str = ""
    """Why there is no value."""


@dataclass(frozen=True, kw_only=True)
class RecordPage:
    """Records that follow each other, and where the pages around them begin."""

    records: tuple[RawRecord, ...]
    size_bytes: int
    before: int | None
    """Where the page before this one begins; None on the first."""
    after: int | None


def record_page(path: Path, offset: int, rows: int = PAGE_ROWS) -> RecordPage:
    """The records from the first one that begins at `offset` or later."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = _line_start(file, min(max(0, offset), size))
        file.seek(start)
        records = tuple(_records(file, rows))
        end = file.tell()
        before = _back(file, start, rows) if start else None
    return RecordPage(records=records, size_bytes=size, before=before, after=end if end < size else None)


def last_page(path: Path, rows: int = PAGE_ROWS) -> int:
    """Return the position at which the last page begins."""
    size = path.stat().st_size
    with path.open("rb") as file:
        return _back(file, size, rows)


def find_id(path: Path, wanted: str) -> int | None:
    """Return the position of the first record with an id; the file is read once in pieces, and none of it is kept."""
    needles = {json.dumps(wanted, ensure_ascii=flag).encode() for flag in (True, False)}
    needles |= {wanted.encode()} if wanted.isdecimal() else set()
    with path.open("rb") as file:
        for at, line in _lines_with(file, needles):
            if _id_of(line) == wanted:
                return at
    return None


def _lines_with(file: BinaryIO, needles: set[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines that hold one of the texts anywhere, with their places."""
    at, rest = 0, b""
    while chunk := file.read(CHUNK_BYTES):
        complete, newline, tail = (rest + chunk).rpartition(b"\n")
        if newline and any(needle in complete for needle in needles):
            place = at
            for line in complete.split(b"\n"):
                if any(needle in line for needle in needles):
                    yield place, line
                place += len(line) + 1
        at += len(complete) + len(newline)
        rest = tail
    if rest and any(needle in rest for needle in needles):
        yield at, rest


def _id_of(line: bytes) -> str | None:
    try:
        value = loads_json(line)
    except ValueError:
        return None
    row_id = value.get("id") if isinstance(value, dict) else None
    return str(row_id) if isinstance(row_id, str | int) and not isinstance(row_id, bool) else None


def _records(file: BinaryIO, rows: int) -> Iterator[RawRecord]:
    for _ in range(rows):
        at = file.tell()
        line = file.readline(LONGEST_BYTES + 1)
        if not line:
            return
        if len(line) > LONGEST_BYTES and not line.endswith(b"\n"):
            length = len(line) + _skip_line(file)
            yield RawRecord(offset=at, length=length, value=None, problem="too long to be shown here")
            continue
        if line.strip():
            yield _record(at, line)


def _record(at: int, line: bytes) -> RawRecord:
    try:
        value = loads_json(line.decode("utf-8-sig"))
    except ValueError as error:
        return RawRecord(offset=at, length=len(line), value=None, problem=f"not a record: {type(error).__name__}")
    if not isinstance(value, dict):
        return RawRecord(offset=at, length=len(line), value=None, problem="not a JSON object")
    return RawRecord(offset=at, length=len(line), value=value)


def _skip_line(file: BinaryIO) -> int:
    """To the end of the line; how many bytes that were."""
    passed = 0
    while piece := file.readline(CHUNK_BYTES):
        passed += len(piece)
        if piece.endswith(b"\n"):
            break
    return passed


def _line_start(file: BinaryIO, offset: int) -> int:
    """`offset` where a line begins there, else the begin of the next one."""
    if not offset:
        return 0
    file.seek(offset - 1)
    if file.read(1) == b"\n":
        return offset
    _skip_line(file)
    return file.tell()


def _back(file: BinaryIO, offset: int, rows: int) -> int:
    """Return the position of the line that is `rows` lines before the one that begins at `offset`."""
    place, newlines = offset, 0
    while place > 0:
        size = min(BACK_BYTES, place)
        file.seek(place - size)
        chunk = file.read(size)
        for index in range(len(chunk) - 1, -1, -1):
            if chunk[index] == 0x0A and place - size + index != offset - 1:
                newlines += 1
                if newlines == rows:
                    return place - size + index + 1
        place -= size
    return 0

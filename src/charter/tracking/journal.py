"""The journal of a stage: every row that trackers are told, once, in an order that never changes.

Stages may be killed, their metrics cut and written again; whoever collects them puts each result here once, with the
place in its source where it came from. So what one tracker has been told is a single number, and telling it again from
any row gives the same rows.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.tracking.base import Row

REMEMBERED_STEPS = 20_000
"""Steps whose results are compared when they come again; farther back, the same result is taken for granted."""


@dataclass(kw_only=True)
class Source:
    """How far one file of a stage has been collected."""

    end_bytes: int = 0
    digest: str = ""
    """Of the last line that was collected, which ends there: a cut file is known by it."""
    rows: int = 0
    high_step: int = -1
    results: OrderedDict[int, str] = field(default_factory=OrderedDict)
    """By step: a digest of what it gave."""


class Journal:
    """Appends rows; one process at a time, under the lock of whoever collects."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows = 0
        self.sources: dict[str, Source] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._recover()

    def source(self, name: str) -> Source:
        """How far a source has been collected."""
        return self.sources.setdefault(name, Source())

    def append(self, source: str, end_bytes: int, line: bytes, values: Mapping[str, float], **row: Any) -> None:
        """Add the row that a line of a source gave; `end_bytes` is where the line ends there."""
        entry = {"source": source, "end": end_bytes, "digest": digest_of(line), **row, "values": dict(values)}
        durable.append_line(self._path, entry)
        self._take(entry)

    def skip(self, source: str, end_bytes: int, line: bytes) -> None:
        """Go past a line that gives no row."""
        found = self.source(source)
        found.end_bytes, found.digest = end_bytes, digest_of(line)

    def knows(self, source: str, step: int, values: Mapping[str, float]) -> bool:
        """Whether a step is there with this result, so that doing it again has told nothing new."""
        results = self.source(source).results
        if step in results:
            return results[step] == result_digest(values)
        return bool(results) and step < next(iter(results))

    def _take(self, entry: Mapping[str, Any]) -> None:
        self.rows += 1
        source = self.source(entry["source"])
        source.end_bytes, source.digest = entry["end"], entry["digest"]
        source.rows += 1
        source.high_step = max(source.high_step, entry["step"])
        source.results[entry["step"]] = result_digest(entry["values"])
        while len(source.results) > REMEMBERED_STEPS:
            source.results.popitem(last=False)

    def _recover(self) -> None:
        """Cut a line that a kill tore, and read how far every source is."""
        if not self._path.exists():
            return
        whole = 0
        with self._path.open("rb") as file:
            for line in file:
                entry = _entry(line)
                if entry is None:
                    break
                whole += len(line)
                self._take(entry)
        if whole < self._path.stat().st_size:
            durable.truncate(self._path, whole)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place in a journal: so many rows lie before it."""

    rows: int = 0
    at_bytes: int = 0


def read_rows(path: Path, start: Place, *, most: int) -> tuple[tuple[Row, ...], Place]:
    """At most so many whole rows from a place on, and the place behind them."""
    rows: list[Row] = []
    end = start
    try:
        with path.open("rb") as file:
            file.seek(start.at_bytes)
            for line in file:
                entry = _entry(line)
                if entry is None or len(rows) == most:
                    break
                rows.append(_row(end.rows, entry))
                end = Place(rows=end.rows + 1, at_bytes=end.at_bytes + len(line))
    except FileNotFoundError:
        pass
    return tuple(rows), end


def count_rows(path: Path) -> int:
    """How many whole rows a journal has."""
    try:
        with path.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    except FileNotFoundError:
        return 0


def digest_of(line: bytes) -> str:
    """A short name of a line's content."""
    return hashlib.blake2b(line, digest_size=8).hexdigest()


def result_digest(values: Mapping[str, float]) -> str:
    """A short name of what a step computed, without what only the clock decides."""
    computed = {name: value for name, value in values.items() if not depends_on_clock(name)}
    return digest_of(json.dumps(computed, sort_keys=True).encode())


def depends_on_clock(name: str) -> bool:
    """Whether a figure is another one each time the same step is done.

    >>> [depends_on_clock(name) for name in ("loss", "tokens_per_second", "seconds_save", "peak_bytes")]
    [False, True, True, True]
    """
    return name.startswith(("seconds", "actual_over_planned")) or name.endswith(("_per_second", "_bytes", "mfu"))


def _entry(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "values" in entry else None


def _row(number: int, entry: Mapping[str, Any]) -> Row:
    return Row(
        number=number,
        step=entry["step"],
        time=entry["time"],
        values=entry["values"],
        machine=entry.get("machine", False),
        again=entry.get("again", False),
    )


def lines_after(path: Path, source: Source) -> Iterator[tuple[int, bytes]]:
    """Whole new lines of a source, each with its end; from the beginning when the file was cut since."""
    try:
        with path.open("rb") as file:
            at = source.end_bytes if _is_as_left(file, source) else 0
            file.seek(at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                at += len(line)
                yield at, line
    except FileNotFoundError:
        return


def _is_as_left(file: Any, source: Source) -> bool:
    """Whether the last line that was collected still stands where it stood."""
    if not source.end_bytes:
        return True
    size = file.seek(0, 2)
    if size < source.end_bytes:
        return False
    back = min(source.end_bytes, 1 << 16)
    file.seek(source.end_bytes - back)
    before = file.read(back)
    last = before[before.rfind(b"\n", 0, len(before) - 1) + 1 :]
    return digest_of(last) == source.digest

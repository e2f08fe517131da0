"""Faults of a data set before anything is trained on it: rows that cannot be read, or are there twice."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from charter.data.dataset import selected_rows
from charter.data.rows import (
    CRITIQUE_FIELDS,
    BadRowError,
    Row,
    SkippedRows,
    chosen_probability_of,
    critique_of,
    margin_of,
    row_kind,
)
from charter.feedback.prepare_rows import candidate_of, exact_key
from charter.spec.project import DataSpec

WORKED_CRITIQUE = "worked critique"
SHOWN = 20
"""Of each sort of finding; all are counted."""


@dataclass
class FaultCount:
    """One sort of finding: how many, and the first of them."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, what: str) -> None:
        """Count one more."""
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(what)


@dataclass
class _BadRows(SkippedRows):
    """Takes bad rows as they come, and keeps more of their reasons than a stage's log has room for."""

    found: FaultCount = field(default_factory=FaultCount)

    def take(self, error: BadRowError, policy: Literal["fail", "skip"]) -> None:
        super().take(error, "skip")
        self.found.add(str(error))


@dataclass(frozen=True)
class DataCheck:
    """Faults of one data set."""

    path: Path
    rows: int
    """Bad ones too."""
    kinds: Mapping[str, int]
    bad: FaultCount
    blank: FaultCount
    repeated_ids: FaultCount
    duplicates: FaultCount

    @property
    def is_sound(self) -> bool:
        """Return True if every row can be read and has its texts."""
        return not self.bad.count and not self.blank.count

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        sorts = {"bad": self.bad, "blank": self.blank, "repeated_ids": self.repeated_ids, "duplicates": self.duplicates}
        return {
            "schema": "charter.data-check/1",
            "path": str(self.path),
            "rows": self.rows,
            "kinds": dict(self.kinds),
            **{name: {"count": sort.count, "first": sort.first} for name, sort in sorts.items()},
        }


def check_data(path: Path, spec: DataSpec | None = None, *, tell: Callable[[int], None] = lambda _: None) -> DataCheck:
    """Read every row as a stage would; one hash per row is held. `tell` hears of every row."""
    bad = _BadRows()
    kinds: Counter[str] = Counter()
    blank, repeated, duplicates = FaultCount(), FaultCount(), FaultCount()
    ids: dict[str, str] = {}
    texts: dict[bytes, str] = {}
    rows = 0
    for row in selected_rows(path, spec, bad):
        rows += 1
        tell(rows)
        try:
            kind, key = _kind(row), _key(row)
        except BadRowError as error:
            bad.take(error, "skip")
            continue
        kinds[kind] += 1
        if key is None:
            blank.add(f"{row.where}: a text is missing or blank")
            continue
        if "id" in row.value and (first := ids.setdefault(row.id, row.where)) != row.where:
            repeated.add(f"{row.where}: the id {row.id!r} is that of {_place(first)}")
        if (first := texts.setdefault(key, row.where)) != row.where:
            duplicates.add(f"{row.where}: says the same as {_place(first)}")
    return DataCheck(path, kinds.total() + bad.found.count, kinds, bad.found, blank, repeated, duplicates)


def check_lines(found: DataCheck) -> list[str]:
    """The findings for people."""
    rows = f"{found.rows:,} row{'' if found.rows == 1 else 's'}"
    if list(found.kinds.values()) == [found.rows]:
        lines = [f"{found.path}: {rows} of kind {next(iter(found.kinds))}"]
    else:
        kinds = [f"{count:,} of kind {kind}" for kind, count in found.kinds.items()]
        kinds += [f"{found.bad.count:,} bad"] if found.bad.count else []
        lines = [f"{found.path}: {rows}{': ' if kinds else ''}{', '.join(kinds)}"]
    if len(found.kinds) > 1:
        lines.append("  warning: rows of several kinds; a stage reads one of them")
    sorts = (
        ("error", "bad rows", found.bad),
        ("error", "rows with a blank text", found.blank),
        ("warning", "ids that an earlier row has", found.repeated_ids),
        ("warning", "exact duplicates; a `prepare` stage takes them out", found.duplicates),
    )
    for level, words, what in sorts:
        if what.count:
            lines.append(f"  {level}: {what.count:,} {words}")
            lines += [f"    {line}" for line in what.first]
            lines += [f"    and {what.count - len(what.first):,} more"] if what.count > len(what.first) else []
    return lines


def _kind(row: Row) -> str:
    if _is_worked_critique(row):
        return WORKED_CRITIQUE
    kind = row_kind(row)
    if kind == "pair":
        chosen_probability_of(row)
        margin_of(row)
    return kind


def _key(row: Row) -> bytes | None:
    """128 bits of the texts of a row, None when one is missing or blank."""
    if _is_worked_critique(row):
        return exact_key([turn.content for turn in critique_of(row)])
    candidate = candidate_of(row)
    return None if candidate.empty else exact_key(candidate.parts)


def _is_worked_critique(row: Row) -> bool:
    """Return True if a row is an example for critique stages, which has named texts instead of turns."""
    return "messages" not in row.value and all(name in row.value for name in CRITIQUE_FIELDS)


def _place(where: str) -> str:
    """The place of a row without its file: `line 7`."""
    _, _, place = where.rpartition(":")
    return f"line {place}" if place.isdecimal() else place.strip()

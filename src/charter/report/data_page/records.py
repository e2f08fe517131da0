"""Data of a project as pages: its data sets and records, a page of records at a time, one record, the constitution.

A page of a JSONL file begins at the byte of its first record, so that the size of the file does not matter."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from charter.artifacts.durable import object_in
from charter.data.formats import find_files
from charter.errors import DataError, loads_json
from charter.feedback.constitution import Constitution
from charter.spec.project import DataSpec, Project
from charter.spec.stage import references
from charter.spec.stage_base import Stage

RECORDS, SET_ASIDE = "records.jsonl", "set_aside.jsonl"


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """One data set, or the records of one stage."""

    key: str
    """Names it in addresses: `data.pairs`, `stage.label`."""
    name: str
    kind: str
    """`data set`, or the kind of the stage."""
    path: Path
    spec: DataSpec | None
    readers: tuple[str, ...]
    """Stages that read it."""
    aside: Path | None = None
    """What the stage has set aside."""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """What the stage says of its own work: `summary.json`."""
    problem: str = ""
    """Why it cannot be read."""
    note: str = ""

    @property
    def can_be_browsed(self) -> bool:
        """Return True if its records can be shown a page at a time."""
        return not self.problem and self.path.is_file() and self.path.suffix in (".jsonl", ".ndjson", "")


def data_sources(
    project: Project | None, root: Path, stages: Sequence[tuple[str, str, Path | None]], summaries: Mapping[str, Any]
) -> tuple[DataSource, ...]:
    """Data sets of the file in its order, then records of stages: (name, kind, directory) in the order of the run."""
    sources = [] if project is None else list(_data_sets(project, root))
    sources += [
        source for name, kind, path in stages if path for source in _stage_records(name, kind, path, project, summaries)
    ]
    return tuple(sources)


def _data_sets(project: Project, root: Path) -> Iterator[DataSource]:
    for name, spec in project.data.items():
        path = root / spec.path
        readers = tuple(stage for stage, kind in project.pipeline.items() if name in _references(kind))
        yield DataSource(
            key=f"data.{name}",
            name=name,
            kind="data set",
            path=path,
            spec=spec,
            readers=readers,
            problem=_problem(path, spec),
            note=_note(spec),
        )


def _stage_records(
    name: str, kind: str, directory: Path, project: Project | None, summaries: Mapping[str, Any]
) -> Iterator[DataSource]:
    outputs = directory / "outputs"
    path, aside = outputs / RECORDS, outputs / SET_ASIDE
    if not path.is_file():
        return
    readers = (
        () if project is None else tuple(stage for stage, spec in project.pipeline.items() if name in _references(spec))
    )
    yield DataSource(
        key=f"stage.{name}",
        name=name,
        kind=kind,
        path=path,
        spec=None,
        readers=readers,
        aside=aside if aside.is_file() else None,
        summary=summaries.get(name) or {},
        note="records of a stage",
    )


def _references(stage: Stage) -> set[str]:
    """The names of data sets and stages that a stage reads."""
    return {name for names in references(stage).values() for name in names}


def _problem(path: Path, spec: DataSpec) -> str:
    try:
        find_files(path, spec.format)
    except DataError as error:
        return str(error)
    return ""


def _note(spec: DataSpec) -> str:
    parts = [spec.path]
    if spec.part is not None:
        parts.append(f"part {spec.part}")
    if spec.limit is not None:
        parts.append(f"the first {spec.limit:,} rows")
    if spec.column is not None:
        parts.append(f"column {spec.column}")
    return ", ".join(parts)


@dataclass(frozen=True, kw_only=True)
class PrincipleLine:
    """One principle: its wordings, and its use by stage."""

    id: str
    tags: tuple[str, ...]
    critique: str
    revision: str
    compare: str
    weight: float
    wanted_share: float | None
    """Of the weights of all principles; None of one that the constitution does not have (any more)."""
    used: tuple[int, ...]
    """Records by stage, in the order of the stages."""
    share: float | None
    """Of all uses; None without any."""


@dataclass(frozen=True, kw_only=True)
class ConstitutionView:
    """A constitution and its use."""

    name: str
    version: str
    stages: tuple[str, ...]
    """Stages that have said which principles they used."""
    lines: tuple[PrincipleLine, ...]
    uses: int
    unused: tuple[str, ...]


def constitution_view(found: Constitution, uses: Mapping[str, Mapping[str, int]]) -> ConstitutionView:
    """`uses`: by stage, how many records were made under each principle."""
    stages = tuple(uses)
    counts = {item.id: _used(item.id, uses) for item in found.principles}
    strangers = [name for stage in uses.values() for name in stage if name not in counts]
    counts |= {name: _used(name, uses) for name in strangers}
    total, weights = sum(map(sum, counts.values())), sum(item.weight for item in found.principles)
    by_id = {item.id: item for item in found.principles}
    lines = []
    for name, used in counts.items():
        item = by_id.get(name)
        lines.append(
            PrincipleLine(
                id=name,
                tags=item.tags if item else (),
                critique=item.critique if item else "",
                revision=item.revision if item else "",
                compare=item.compare if item else "",
                weight=item.weight if item else 0.0,
                wanted_share=item.weight / weights if item else None,
                used=used,
                share=sum(used) / total if total else None,
            )
        )
    return ConstitutionView(
        name=found.name,
        version=found.version,
        stages=stages,
        lines=tuple(lines),
        uses=total,
        unused=tuple(name for name, used in counts.items() if total and not sum(used)),
    )


def _used(name: str, uses: Mapping[str, Mapping[str, int]]) -> tuple[int, ...]:
    return tuple(stage.get(name, 0) for stage in uses.values())


def uses_of_summary(summary: Mapping[str, object]) -> dict[str, int]:
    """Return the number of uses of each principle, as a label stage's `summary.json` counts them.

    >>> uses_of_summary({"principle/privacy": 6, "ties": 0})
    {'privacy': 6}
    """
    prefix = "principle/"
    return {
        name.removeprefix(prefix): int(count)
        for name, count in summary.items()
        if name.startswith(prefix) and isinstance(count, int | float)
    }


def uses_of_counts(principles: Sequence[Mapping[str, object]]) -> dict[str, int]:
    """The same from the counted records of a stage."""
    return {str(item["name"]): int(str(item["rows"])) for item in principles}


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


LONG_TEXT = 1200
"""Characters of a text that are shown at once; the rest is behind a line to open."""
MOST_TURNS = 60
MOST_TEXT = 60_000
_TEXTS = (
    "prompt", "messages", "completion", "text", "question", "choices", "chosen", "rejected", "init_prompt",
    "init_response", "critic_prompt", "critic_response", "revision_prompt", "revision_response", "reply", "answer",
)  # fmt: skip
"""Fields that hold what was said, in the order of a page."""
_CRITIQUE = ("init_prompt", "init_response", "critic_prompt", "critic_response", "revision_prompt", "revision_response")


@dataclass(frozen=True, kw_only=True)
class ShownTurn:
    """One text with who says it."""

    role: str
    text: str
    rest: str
    """What is behind the line to open."""
    tone: str
    """`chosen`, `rejected` or nothing."""


@dataclass(frozen=True, kw_only=True)
class RecordView:
    """One record."""

    id: str
    offset: int
    turns: tuple[ShownTurn, ...]
    facts: tuple[tuple[str, str], ...]
    """Everything that is no text: label, principle, judge, seed."""
    problem: str


def record_view(raw: RawRecord) -> RecordView:
    """A record's texts and facts."""
    value = raw.value
    if value is None:
        return RecordView(id="", offset=raw.offset, turns=(), facts=(), problem=raw.problem)
    texts = list(_TEXTS)
    if all(name in value for name in _CRITIQUE):
        texts.remove("messages")  # the prompt and the revision, which stand among the six texts
    turns = [turn for name in texts if name in value for turn in _turns(name, value[name])]
    if len(turns) > MOST_TURNS:
        more = len(turns) - MOST_TURNS
        turns = [*turns[:MOST_TURNS], _turn("", f"and {more} more texts", "")]
    facts = tuple((name, _plain(item)) for name, item in value.items() if name not in _TEXTS and name != "id")
    return RecordView(id=_plain(value.get("id", "")), offset=raw.offset, turns=tuple(turns), facts=facts, problem="")


def _turns(field: str, value: Any) -> list[ShownTurn]:
    tone = field if field in ("chosen", "rejected") else ""
    words = field.replace("_", " ")
    if isinstance(value, list):
        return [_of_item(words, item, tone) for item in value]
    return [_turn(words, _plain(value), tone)]


def _of_item(words: str, item: Any, tone: str) -> ShownTurn:
    if isinstance(item, Mapping):
        role = _plain(item.get("role", ""))
        shown = f"{words}: {role}" if tone else role or words
        return _turn(shown, _plain(item.get("content", item)), tone)
    return _turn(words, _plain(item), tone)


def _turn(role: str, text: str, tone: str) -> ShownTurn:
    if len(text) > MOST_TEXT:
        text = f"{text[:MOST_TEXT]} [{len(text) - MOST_TEXT:,} more characters are not shown]"
    return ShownTurn(role=role[:80], text=text[:LONG_TEXT], rest=text[LONG_TEXT:], tone=tone)


def _plain(value: Any) -> str:
    """A value as text; halves of characters and control characters are shown as marks, not sent to a browser."""
    if isinstance(value, str):
        text = value
    elif isinstance(value, float):
        text = f"{value:.6g}"
    elif isinstance(value, Mapping | Sequence):
        text = json.dumps(value, ensure_ascii=False)
    else:
        text = "-" if value is None else str(value)
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(
        letter if letter in "\n\t" or letter.isprintable() or letter == " " else "\N{REPLACEMENT CHARACTER}"
        for letter in clean
    )


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


def last_page(path: Path, rows: int) -> int:
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
    row_id = (object_in(line) or {}).get("id")
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

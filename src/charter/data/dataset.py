"""Data sets as values: conversations, prompts, preference pairs, texts; and what a planner needs to know of them.

Every reader takes the path of a data set (see `data_files`) and the `DataSpec` that selects from it: `part` first,
then `limit`, both in rows and in the order of the files. A row that cannot be read is an error, or with
`on_bad_row: skip` is left out and counted in the `SkippedRows` that the reader is given.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from charter.data.formats import find_files, read_arrow, read_jsonl, read_parquet, read_shard
from charter.data.rows import (
    TEXT_ROLE,
    Bad,
    BadRowError,
    ChoiceQuestion,
    Row,
    RowKind,
    SkippedRows,
    Turn,
    Turns,
    choice_question_of,
    chosen_probability_of,
    conversation_of,
    critique_of,
    margin_of,
    pair_of,
    part_of,
    prompt_of,
    row_kind,
    text_of,
)
from charter.errors import DataError
from charter.spec.checks import parse_part
from charter.spec.project import DataSpec

Made = TypeVar("Made")
_READERS = {"jsonl": read_jsonl, "parquet": read_parquet, "hf": read_arrow, "webdataset": read_shard}


def each_row(
    path: Path, spec: DataSpec | None, skipped: SkippedRows | None, make: Callable[[Row], Iterable[Made]]
) -> Iterator[Made]:
    """Yield the values made of every selected row; a row that gives none is bad, and not all may be."""
    spec = spec or DataSpec(path=str(path))
    skipped = SkippedRows() if skipped is None else skipped
    before, rows_used = skipped.count, 0
    for row in selected_rows(path, spec, skipped):
        try:
            values = list(make(row))
        except BadRowError as error:
            skipped.take(error, spec.on_bad_row)
            continue
        rows_used += 1
        yield from values
    if not rows_used:
        first = "".join(f"; the first: {reason}" for reason in skipped.reasons[before : before + 1])
        raise DataError(f"{path}: none of its {skipped.count - before} rows can be read{first}")


def selected_rows(path: Path, spec: DataSpec | None = None, skipped: SkippedRows | None = None) -> Iterator[Row]:
    """The rows that a data set selects from its files, in their order; refuses to select none."""
    spec = spec or DataSpec(path=str(path))
    skipped = SkippedRows() if skipped is None else skipped
    part, parts = (1, 1) if spec.part is None else parse_part(spec.part)
    before, total, selected = skipped.count, 0, 0
    for row in _all_rows(path, spec, lambda error: skipped.take(error, spec.on_bad_row)):
        total += 1
        try:
            wanted = parts == 1 or part_of(row, parts) == part
        except BadRowError as error:
            skipped.take(error, spec.on_bad_row)
            continue
        if wanted:
            selected += 1
            yield row
        if selected == spec.limit:
            return
    if selected or skipped.count > before:
        return
    if not total:
        raise DataError(f"{path} holds no rows; it needs at least one JSON object per line")
    raise DataError(f"part {spec.part} of {path} holds none of its {total} rows; use fewer parts")


def _all_rows(path: Path, spec: DataSpec, bad: Bad) -> Iterator[Row]:
    """The rows of all files of a data set, numbered on from file to file."""
    matches = find_files(path, spec.format)
    before = 0
    for file in matches.files:
        for row in _READERS[matches.format](file, bad, before=before):
            yield row
            before = row.number


__all__ = [
    "TEXT_ROLE",
    "ChoiceQuestion",
    "Conversation",
    "DataFacts",
    "Pair",
    "Prompt",
    "SkippedRows",
    "Turn",
    "data_facts",
    "each_conversation",
    "each_prompt",
    "each_text",
    "read_conversations",
    "read_critiques",
    "read_pairs",
    "read_prompts",
    "read_questions",
    "selected_rows",
]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation to learn from; plain text is one turn of the role `text`."""

    id: str
    turns: Turns


@dataclass(frozen=True, slots=True)
class Prompt:
    """Turns to be answered; the last one is the user's. Further columns of the row are for rewards."""

    id: str
    turns: Turns
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two answers to one prompt, how probable it is that `chosen` is the better one, and by how much it is."""

    id: str
    prompt: Turns
    chosen: str
    rejected: str
    chosen_probability: float = 1.0
    margin: float = 0.0


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """Size of a data set as the planner sees it; bytes of UTF-8 text, without templates.

    A prompt is what comes before the answer, so a conversation's prompt is all but its last assistant turn. A
    preference row has two answers: the means of responses are over answers, not rows.
    """

    rows: int
    kind: RowKind
    responses: int
    mean_prompt_bytes: float
    max_prompt_bytes: int
    mean_response_bytes: float
    max_response_bytes: int


def read_conversations(
    path: Path, spec: DataSpec | None = None, skipped: SkippedRows | None = None
) -> tuple[Conversation, ...]:
    """Conversations to be imitated: `messages` rows, or preference rows of which the column says which answer.

    With `column: both` a preference row gives two conversations, with ids that end in `/chosen` and `/rejected`.
    """
    return tuple(each_conversation(path, spec, skipped))


def read_prompts(path: Path, spec: DataSpec | None = None, skipped: SkippedRows | None = None) -> tuple[Prompt, ...]:
    """The prompts of any data set that has some; answers are left out."""
    return tuple(each_prompt(path, spec, skipped))


def each_prompt(path: Path, spec: DataSpec | None = None, skipped: SkippedRows | None = None) -> Iterator[Prompt]:
    """Yield the prompts of `read_prompts` one after the other."""
    return each_row(path, spec, skipped, lambda row: [Prompt(row.id, prompt_of(row), _columns(row))])


def read_pairs(path: Path, spec: DataSpec | None = None, skipped: SkippedRows | None = None) -> tuple[Pair, ...]:
    """Preference pairs, with `chosen_probability` and `margin` where the file has them."""
    return tuple(
        each_row(
            path, spec, skipped, lambda row: [Pair(row.id, *pair_of(row), chosen_probability_of(row), margin_of(row))]
        )
    )


def read_critiques(
    path: Path, spec: DataSpec | None = None, skipped: SkippedRows | None = None
) -> tuple[Conversation, ...]:
    """Worked critiques and revisions, each as a conversation of six turns."""
    return tuple(each_row(path, spec, skipped, lambda row: [Conversation(row.id, critique_of(row))]))


def read_questions(
    path: Path, spec: DataSpec | None = None, skipped: SkippedRows | None = None
) -> tuple[ChoiceQuestion, ...]:
    """Multiple-choice questions: `question`, `choices` and which of them is right."""
    return tuple(each_row(path, spec, skipped, lambda row: [choice_question_of(row)]))


def each_conversation(
    path: Path, spec: DataSpec | None = None, skipped: SkippedRows | None = None
) -> Iterator[Conversation]:
    """Yield the conversations of `read_conversations` one after the other, so that a large data set needs no memory."""
    return each_row(path, spec, skipped, lambda row: _conversations(row, spec))


def each_text(path: Path, spec: DataSpec | None = None, skipped: SkippedRows | None = None) -> Iterator[Conversation]:
    """Yield anything that can be read as text, for pretraining; of a pair both answers, unless `column` names one."""
    return each_row(path, spec, skipped, lambda row: _texts(row, spec))


def data_facts(path: Path, spec: DataSpec | None = None) -> DataFacts:
    """Rows and lengths of a data set, read as a stream, so that a large file needs no memory."""
    rows = responses = prompt_bytes = response_bytes = max_prompt = max_response = 0
    kind: RowKind = "text"
    for row_format, prompt, answers in each_row(path, spec, None, lambda row: [(row_kind(row), *_lengths(row, spec))]):
        kind = row_format if rows == 0 else kind
        rows += 1
        prompt_bytes += prompt
        max_prompt = max(max_prompt, prompt)
        responses += len(answers)
        response_bytes += sum(answers)
        max_response = max(max_response, *answers, 0)
    return DataFacts(
        rows=rows,
        kind=kind,
        responses=responses,
        mean_prompt_bytes=prompt_bytes / rows,
        max_prompt_bytes=max_prompt,
        mean_response_bytes=response_bytes / responses if responses else 0.0,
        max_response_bytes=max_response,
    )


_TEXTS = frozenset({"id", "prompt", "messages", "text", "completion", "chosen", "rejected"})
"""Columns that are the conversation itself."""


def _columns(row: Row) -> dict[str, Any]:
    return {name: _sendable(value) for name, value in row.value.items() if name not in _TEXTS}


def _sendable(value: Any) -> Any:
    """A value of a column as the process of a reward gets it, in JSON: a date of a Parquet file as text, no bytes."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [_sendable(item) for item in value]
        case dict():
            return {str(name): _sendable(item) for name, item in value.items()}
        case bytes():
            return None
    return str(value)


def _conversations(row: Row, spec: DataSpec | None) -> list[Conversation]:
    kind = row_kind(row)
    if kind == "pair":
        if spec is None or spec.column is None:
            row.refuse("is a preference pair; say which answer to learn with `column: chosen` (or rejected, both)")
        return _conversations_of_pair(row, spec.column)
    if kind not in ("messages", "completion"):
        row.refuse(f"holds `{kind}` only; a conversation needs `messages`, or a preference pair and `column`")
    _refuse_column(row, spec)
    turns = conversation_of(row)
    if not any(turn.role == "assistant" for turn in turns[1:]):
        row.refuse("the conversation begins with its only assistant turn, so there is no answer to learn from it")
    return [Conversation(row.id, turns)]


def _texts(row: Row, spec: DataSpec | None) -> list[Conversation]:
    kind = row_kind(row)
    if kind == "pair":
        return _conversations_of_pair(row, (spec and spec.column) or "both")
    _refuse_column(row, spec)
    if kind == "text":
        turns = text_of(row)
    else:
        turns = prompt_of(row) if kind in ("prompt", "question") else conversation_of(row)
    return [Conversation(row.id, turns)]


def _refuse_column(row: Row, spec: DataSpec | None) -> None:
    if spec is not None and spec.column is not None:
        row.refuse(f"`column: {spec.column}` chooses an answer of a preference pair, but this row is not one")


def _conversations_of_pair(row: Row, column: str) -> list[Conversation]:
    prompt, chosen, rejected = pair_of(row)
    answers = {"chosen": chosen, "rejected": rejected}
    if column != "both":
        return [Conversation(row.id, (*prompt, Turn("assistant", answers[column])))]
    return [Conversation(f"{row.id}/{name}", (*prompt, Turn("assistant", answer))) for name, answer in answers.items()]


def _lengths(row: Row, spec: DataSpec | None) -> tuple[int, list[int]]:
    """Bytes of the prompt and of each answer of a row."""
    kind = row_kind(row)
    if kind == "pair":
        prompt, chosen, rejected = pair_of(row)
        answers = {"chosen": [chosen], "rejected": [rejected]}.get((spec and spec.column) or "", [chosen, rejected])
        return _bytes_of(prompt), [_size(answer) for answer in answers]
    if kind in ("prompt", "question"):
        return _bytes_of(prompt_of(row)), []
    turns = text_of(row) if kind == "text" else conversation_of(row)
    if turns[-1].role in ("assistant", TEXT_ROLE):
        return _bytes_of(turns[:-1]), [_size(turns[-1].content)]
    return _bytes_of(turns), []


def _bytes_of(turns: Turns) -> int:
    return sum(_size(turn.content) for turn in turns)


def _size(text: str) -> int:
    return len(text.encode())

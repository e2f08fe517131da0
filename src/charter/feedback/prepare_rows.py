"""The rows that a prepare stage looks at: what is written of each, and the texts that it is compared by."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from charter.artifacts.job import JobInput
from charter.errors import DataError
from charter.spec.data_row import BadRowError, Row, SkippedRows, is_unicode
from charter.spec.dataset import Turn, each_conversation
from charter.spec.rows import conversation_of, pair_of, prompt_of, row_kind, text_of
from charter.spec.selection import each_row

_TEXT_FIELDS = ("prompt", "chosen", "rejected", "completion", "text", "messages", "question")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One row before it is known whether it is kept."""

    id: str
    line: str
    """The row as it is written, unchanged, as JSON."""
    prompt: str
    """Every turn before the answers; of plain text all of it."""
    answers: tuple[str, ...]
    opening: str
    """The first turn of the user, by which other conversations may begin too."""
    empty: bool = False
    """One of its texts is missing or blank; it has then no other text here."""

    @property
    def characters(self) -> int:
        """Characters of all its texts."""
        return len(self.prompt) + sum(map(len, self.answers))

    @property
    def parts(self) -> tuple[str, ...]:
        """The texts that two rows are compared by, side by side: of a pair its answers apart from the prompt.

        Other rows are compared as one text.
        """
        return (self.prompt, *self.answers) if len(self.answers) > 1 else ("\n".join((self.prompt, *self.answers)),)


def each_candidate(item: JobInput, skipped: SkippedRows) -> Iterator[Candidate]:
    """The rows of one data set, or of another stage's records, as a stream.

    Where the data set says which answer of a pair counts (`column`), the conversation with that answer is the row.
    """
    path = item.location()
    if item.data is not None and item.data.column is not None:
        for found in each_conversation(path, item.data, skipped):
            messages = [{"role": turn.role, "content": turn.content} for turn in found.turns]
            line = json.dumps({"id": found.id, "messages": messages}, ensure_ascii=False, allow_nan=False)
            yield _of_turns(found.id, line, found.turns)
    else:
        yield from each_row(path, item.data, skipped, lambda row: [candidate_of(row)])


def count_candidates(item: JobInput) -> int:
    """How many rows there are to look at; a row that cannot be read is an error here already."""
    count = sum(1 for _ in each_candidate(item, SkippedRows()))
    if not count:
        raise DataError(f"{item.location()} holds no rows; there is nothing to prepare")
    return count


def candidate_of(row: Row) -> Candidate:
    """A row with the texts that it is judged by; one with a blank text is `empty`, any other fault is a bad row."""
    line = _line_of(row)
    try:
        return _read(row, line)
    except BadRowError:
        if not _has_blank_text(row.value):
            raise
        return Candidate(row.id, line, "", (), "", empty=True)


def _read(row: Row, line: str) -> Candidate:
    match row_kind(row):
        case "pair":
            prompt, chosen, rejected = pair_of(row)
            return Candidate(row.id, line, _joined(prompt), (chosen, rejected), _opening(prompt))
        case "prompt" | "question":
            return _of_turns(row.id, line, prompt_of(row))
        case "text":
            return _of_turns(row.id, line, text_of(row))
        case "messages" if not _has_assistant(row.value["messages"]):
            return _of_turns(row.id, line, prompt_of(row))
    return _of_turns(row.id, line, conversation_of(row))


def _of_turns(id: str, line: str, turns: tuple[Turn, ...]) -> Candidate:
    answered = turns[-1].role == "assistant"
    before = turns[:-1] if answered else turns
    return Candidate(id, line, _joined(before), (turns[-1].content,) if answered else (), _opening(turns))


def _joined(turns: tuple[Turn, ...]) -> str:
    return "\n".join(turn.content for turn in turns)


def _opening(turns: tuple[Turn, ...]) -> str:
    return next((turn.content for turn in turns if turn.role == "user"), turns[0].content if turns else "")


def _has_assistant(found: Any) -> bool:
    turns = found if isinstance(found, list) else []
    return any(isinstance(turn, dict) and turn.get("role") == "assistant" for turn in turns)


def _has_blank_text(value: dict[str, Any]) -> bool:
    """Whether one of the texts of a row, or of its turns, is missing or blank."""
    for name in _TEXT_FIELDS:
        found = value.get(name, ...)
        turns = found if isinstance(found, list) else [{"content": found}]
        texts = [turn.get("content") for turn in turns if isinstance(turn, dict)]
        if found == [] or any(text is None or (isinstance(text, str) and not text.strip()) for text in texts):
            return True
    return False


def _line_of(row: Row) -> str:
    """A row as one line of JSON; what JSON or UTF-8 cannot say (1e400, a date, half a character) is a bad row."""
    try:
        line = json.dumps(row.value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        row.refuse(f"cannot be written as JSON: {error}")
    if not is_unicode(line):
        row.refuse("holds half of a surrogate pair, which is not a character")
    return line

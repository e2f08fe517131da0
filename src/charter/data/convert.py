"""A whole file of rows in another layout or format, as JSONL or Parquet in TRL's formats."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from charter.data.dataset import each_row
from charter.data.rows import BadRowError, Row, SkippedRows, json_kind, json_line, row_kind
from charter.errors import UsageError, needing
from charter.spec.project import DataSpec

Turn = dict[str, str]
KEPT = ("id", "chosen_probability", "margin")
"""Fields that a row keeps beside its texts; the others are dropped and counted."""
_HUMAN_TURNS = re.compile(r"(?:^|\n\n)(Human|Assistant|System): ?")
_MARKED_TURNS = re.compile(r"<extra_id_[01]>(System|User|Assistant)\n")
_ROLES: Mapping[str, str] = {
    "human": "user",
    "user": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "system": "system",
}
"""Names of roles elsewhere, in lower case."""


def native_row(row: Row) -> dict[str, Any]:
    """A row of any of these layouts in one of TRL's formats."""
    value = row.value
    for fields, convert in _LAYOUTS.items():
        if all(name in value for name in fields) and (converted := convert(row)) is not None:
            return {**{name: value[name] for name in KEPT if name in value}, **converted}
    row_kind(row)
    return value


def dropped_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Fields of a row that its converted form no longer has, whose content went nowhere."""
    return [] if after is before else [name for name in before if name not in after and name not in _CONSUMED]


def _hh_pair(row: Row) -> dict[str, Any] | None:
    """Two conversations that differ in their last turn."""
    if not (_is_human_text(row.value["chosen"]) and _is_human_text(row.value["rejected"])):
        return None
    chosen, rejected = (_human_turns(row, row.value[name]) for name in ("chosen", "rejected"))
    if chosen[:-1] != rejected[:-1] or not chosen[:-1]:
        row.refuse("`chosen` and `rejected` differ before their last turn, so there is no common prompt")
    if chosen[-1]["role"] != "assistant" or rejected[-1]["role"] != "assistant":
        row.refuse("`chosen` and `rejected` must end with a turn of the assistant")
    return {"prompt": chosen[:-1], "chosen": chosen[-1:], "rejected": rejected[-1:]}


def _hh_transcript(row: Row) -> dict[str, Any] | None:
    if not _is_human_text(row.value["transcript"]):
        return None
    return {"messages": _human_turns(row, row.value["transcript"])}


def _hh_prompt(row: Row) -> dict[str, Any] | None:
    """A prompt as text that ends in `Assistant:`, alone or with plain answers."""
    value = row.value
    if not _is_human_text(value["prompt"]):
        return None
    pair: dict[str, Any] = {"prompt": _asked(row, _human_turns(row, value["prompt"]))}
    for name in ("chosen", "rejected", "completion"):
        if name in value:
            pair[name] = _assistant(_text_of(row, name).strip())
    return pair


def _conversations(row: Row) -> dict[str, Any]:
    turns: list[Turn] = []
    if isinstance(row.value.get("system"), str) and row.value["system"].strip():
        turns.append({"role": "system", "content": row.value["system"].strip()})
    messages = row.value["conversations"]
    if not isinstance(messages, list) or not messages:
        row.refuse(f"`conversations` must be a list of turns, found {json_kind(messages)}")
    for index, item in enumerate(messages):
        if not isinstance(item, dict) or not isinstance(item.get("value"), str):
            row.refuse(f"`conversations[{index}]` must be a turn like {{from, value}}, found {json_kind(item)}")
        turns.append({"role": _role(row, str(item.get("from"))), "content": item["value"].strip()})
    return {"messages": turns}


def _responses(row: Row) -> dict[str, Any]:
    chosen, rejected = (_text_of(row, name) for name in ("chosen_response", "rejected_response"))
    prompt = _asked(row, _marked_turns(row, _text_of(row, "prompt")))
    return {"prompt": prompt, "chosen": _assistant(_bare(chosen)), "rejected": _assistant(_bare(rejected))}


def _input_output(row: Row) -> dict[str, Any]:
    prompt = _asked(row, _marked_turns(row, _text_of(row, "input")))
    return {"messages": [*prompt, {"role": "assistant", "content": _bare(_text_of(row, "output"))}]}


_LAYOUTS: Mapping[tuple[str, ...], Callable[[Row], dict[str, Any] | None]] = {
    ("conversations",): _conversations,
    ("prompt", "chosen_response", "rejected_response"): _responses,
    ("input", "output"): _input_output,
    ("transcript",): _hh_transcript,
    ("prompt",): _hh_prompt,
    ("chosen", "rejected"): _hh_pair,
}
_CONSUMED = frozenset({name for fields in _LAYOUTS for name in fields} | {"system", "completion"})


def _is_human_text(value: Any) -> bool:
    return isinstance(value, str) and _HUMAN_TURNS.match(value.lstrip(" ")) is not None


def _human_turns(row: Row, text: str) -> list[Turn]:
    """The turns of a text in which each begins with `Human:` or `Assistant:` after a blank line."""
    return _split(row, _HUMAN_TURNS, text.lstrip(" "))


def _marked_turns(row: Row, text: str) -> list[Turn]:
    """The turns of a text with the marks of NeMo's chat template; without any, it is one turn of the user."""
    if _MARKED_TURNS.search(text) is None:
        return [{"role": "user", "content": text.strip()}]
    return _split(row, _MARKED_TURNS, text)


def _split(row: Row, pattern: re.Pattern[str], text: str) -> list[Turn]:
    pieces = pattern.split(text)
    if pieces[0].strip():
        row.refuse("the conversation begins before its first turn is named")
    named = zip(pieces[1::2], pieces[2::2], strict=True)
    turns = [{"role": _role(row, name), "content": content.strip()} for name, content in named]
    rest = [turn for turn in turns[:-1] if turn["content"] or turn["role"] != "system"]
    if any(not turn["content"] for turn in rest):
        row.refuse("a turn of the conversation is empty")
    return [*rest, *turns[-1:]]


def _asked(row: Row, turns: list[Turn]) -> list[Turn]:
    """Turns up to the last one of the user: the empty `Assistant:` that they end in is left out."""
    prompt = turns[:-1] if turns[-1]["role"] == "assistant" and not turns[-1]["content"] else turns
    if not prompt or prompt[-1]["role"] != "user" or not prompt[-1]["content"]:
        row.refuse("the prompt must end with a turn of the user")
    return prompt


def _role(row: Row, name: str) -> str:
    if name.lower() not in _ROLES:
        row.refuse(f"the role {name[:40]!r} is not known; known: {', '.join(_ROLES)}")
    return _ROLES[name.lower()]


def _text_of(row: Row, name: str) -> str:
    text = row.value[name]
    if not isinstance(text, str) or not text.strip():
        raise BadRowError(f"{row.where}: `{name}` must be a text that is not empty, found {json_kind(text)}")
    return text


def _assistant(text: str) -> list[Turn]:
    return [{"role": "assistant", "content": text}]


def _bare(text: str) -> str:
    """An answer without the mark of the turn that would come next."""
    return re.sub(r"\s*<extra_id_1>\s*$", "", text).strip()


JSONL_SUFFIXES, PARQUET_SUFFIX = (".jsonl", ".ndjson"), ".parquet"
ROWS_PER_GROUP = 10_000
"""Rows of a Parquet row group, which are held at once: some 20 MB."""


@dataclass
class Converted:
    """Counts of converted rows and of those left out."""

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
        json_line(row, value)
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
    """Return Arrow's refusal of rows that do not fit together as an error that says what would work."""
    try:
        yield
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, arrow.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"the rows do not have one type per field, as Parquet needs: {reason}; convert to .jsonl instead"
        ) from None


def _groups(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    remaining_rows = iter(rows)
    while group := list(islice(remaining_rows, ROWS_PER_GROUP)):
        yield group


def _table(arrow: Any, group: Sequence[Mapping[str, Any]]) -> Any:
    """A table with every field of any row; `from_pylist` takes those of the first row alone."""
    names = dict.fromkeys(name for row in group for name in row)
    return arrow.Table.from_pylist([{name: row.get(name) for name in names} for row in group])


def _pyarrow(module: str) -> Any:
    with needing("writing Parquet needs pyarrow", "data", otherwise="; .jsonl needs nothing"):
        return import_module(module)

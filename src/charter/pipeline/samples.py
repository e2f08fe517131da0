"""A few records of what a stage reads, drawn from the whole file, for a person to look at."""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from charter.artifacts.draws import draw_seed
from charter.artifacts.job import JobInput
from charter.pipeline.graph import PlannedStage
from charter.spec.data_row import SkippedRows
from charter.spec.selection import selected_rows
from charter.spec.stage import DATA, MODEL
from charter.spec.stage_kinds import STAGE_KINDS

_SHOWN = (
    ("prompt", "prompt"),
    ("init_prompt", "prompt"),
    ("messages", "conversation"),
    ("text", "text"),
    ("init_response", "answer"),
    ("critic_prompt", "critique asked"),
    ("critic_response", "critique"),
    ("revision_response", "revision"),
    ("completion", "answer"),
    ("chosen", "chosen"),
    ("rejected", "rejected"),
    ("chosen_probability", "probability of chosen"),
    ("principle", "principle"),
    ("principles", "principles"),
    ("round", "round"),
)
"""Fields of records that are shown, in this order, and what they are called."""
_REPEATED_BY = {"messages": "revision_response", "principle": "principles"}
"""Field -> another one that says the same and more."""


@dataclass(frozen=True)
class Sample:
    """One record: its id and the fields that are shown, as text."""

    id: str
    fields: Mapping[str, str]


@dataclass(frozen=True)
class Sampled:
    """The samples of one input of a stage."""

    name: str
    role: str
    rows: int
    samples: tuple[Sample, ...]


def samples_of(stage: PlannedStage, count: int, *, seed: int) -> list[Sampled]:
    """Samples of all records and data that a stage reads; models have none.

    Which rows are drawn depends on the seed and the stage's fingerprint alone, so that two people see the same.
    """
    return [
        _sampled(item, count, draw_seed(seed, "approval", stage.asked_fingerprint, role, item.name))
        for role, item in _readable(stage)
    ]


def _readable(stage: PlannedStage) -> Iterator[tuple[str, JobInput]]:
    for role, items in stage.inputs.items():
        if stage.spec.REFERENCES.get(role) != DATA:
            continue
        for item in items:
            if item.stage_kind is None or STAGE_KINDS[item.stage_kind].MAKES != MODEL:
                yield role, item


def _sampled(item: JobInput, count: int, seed: int) -> Sampled:
    rows = 0

    def drawn() -> Iterator[tuple[int, int, Sample]]:
        nonlocal rows
        for row in selected_rows(item.location(), item.data, SkippedRows()):
            rows += 1
            yield draw_seed(seed, row.number), row.number, Sample(row.id, shown_fields(row.value))

    chosen = heapq.nsmallest(count, drawn(), key=lambda found: found[:2])
    samples = tuple(sample for _, _, sample in sorted(chosen, key=lambda found: found[1]))
    return Sampled(item.name, item.role, rows, samples)


def shown_fields(row: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a record that a person judges it by.

    >>> shown_fields({"id": "1", "prompt": "hi", "chosen": [{"role": "assistant", "content": "hello"}], "round": 2})
    {'prompt': 'hi', 'chosen': 'hello', 'round': '2'}
    """
    found: dict[str, str] = {}
    for field, title in _SHOWN:
        if field in row and row[field] not in (None, "", []) and _REPEATED_BY.get(field) not in row:
            found.setdefault(title, _text(row[field]))
    return found


def _text(value: Any) -> str:
    match value:
        case float():
            return f"{value:.3f}"
        case [{"content": str(only)}]:
            return only
        case [*items]:
            return "\n".join(_turn(item) for item in items)
    return str(value)


def _turn(item: Any) -> str:
    if isinstance(item, dict) and isinstance(item.get("content"), str):
        return f"{item.get('role', '')}: {item['content']}"
    return str(item)


def visible(text: str, limit: int) -> str:
    """Text of a model as it may be shown on a terminal: no control characters, nothing that turns the direction, and
    not more than `limit` characters of it.

    >>> visible("a\\x1b[31mred\\u202e!", 100)
    'a\\\\x1b[31mred\\\\u202e!'
    >>> visible("abcdef", 4)
    'abcd ... (2 more characters)'
    """
    left = len(text) - limit
    safe = "".join(character if _is_plain(character) else _escaped(character) for character in text[:limit])
    return safe + (f" ... ({left} more characters)" if left > 0 else "")


def _is_plain(character: str) -> bool:
    return character.isprintable() or character in "\n\u3000\u00a0"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()

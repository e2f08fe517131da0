"""Batches of records as files: the unit that survives a crash, made and redone alone, by whichever process.

A file appears whole, under a name that says which batch of which work it is (its number, and a key made of the stage's
fingerprint and the ids of its items). Its first line holds the SHA-256 of everything in it. One that does not verify is
set aside and made again; the others are not touched.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.errors import DataError, loads_json

BATCHES = "batches"
SCHEMA = "charter.batch/1"
Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class BatchFacts:
    """Facts in the first line of a batch's file."""

    number: int
    key: str
    records: int
    set_aside: int
    tokens: int
    totals: Mapping[str, float]


def batch_key(fingerprint: str, number: int, ids: Sequence[str]) -> str:
    """Return the SHA-256 (16 hex digits) of the stage's fingerprint, the batch's number and its items' ids.

    >>> batch_key("f", 1, ["a", "b"]) == batch_key("f", 1, ["ab"])
    False
    """
    text = json.dumps([fingerprint, number, list(ids)], ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class BatchFiles:
    """The finished batches of one stage directory."""

    def __init__(self, stage_dir: Path) -> None:
        self.directory = stage_dir / BATCHES

    def path_of(self, number: int, key: str) -> Path:
        """Return the path of a batch."""
        return self.directory / f"{number:08d}-{key}.jsonl"

    def has(self, number: int, key: str) -> bool:
        """Return True if a batch is there; `read` verifies it."""
        return self.path_of(number, key).exists()

    def names(self) -> set[str]:
        """The names of all files that are there."""
        try:
            return set(os.listdir(self.directory))
        except FileNotFoundError:
            return set()

    def write(
        self,
        number: int,
        key: str,
        *,
        records: Sequence[Record],
        set_aside: Sequence[Record],
        totals: Mapping[str, float],
        tokens: int,
    ) -> None:
        """Publish a batch: it is on disk when this returns."""
        durable.make_dir(self.directory)
        head = {
            "schema": SCHEMA,
            "number": number,
            "key": key,
            "records": len(records),
            "set_aside": len(set_aside),
            "tokens": tokens,
            "totals": dict(totals),
        }
        body = "".join(_line(row) for row in (*records, *set_aside))
        head["sha256"] = _digest(head, body)
        durable.write_file(self.path_of(number, key), _line(head) + body)

    def verified(self, number: int, key: str) -> BatchFacts | None:
        """Return the facts of a batch, None when it is not there; one that does not verify is set aside and logged."""
        path = self.path_of(number, key)
        if not path.exists():
            return None
        try:
            facts, _ = _read(path)
        except DataError as error:
            aside = durable.move_aside(path, "damaged")
            print(f"{error}; kept as {aside.name}, the batch is made again", flush=True)
            return None
        return facts

    def rows(self, number: int, key: str) -> tuple[list[str], list[str]]:
        """The lines of a batch's records and of what it set aside; a DataError when it does not verify."""
        facts, lines = _read(self.path_of(number, key))
        return lines[: facts.records], lines[facts.records :]

    def sweep(self) -> None:
        """Remove what crashes left half-written; for one process, before others write."""
        durable.sweep(self.directory)


def finished_batches(stage_dir: Path) -> int:
    """Count the batches that have a file; they are not verified here."""
    return sum(1 for _ in batch_paths(stage_dir))


def batch_paths(stage_dir: Path) -> Iterator[Path]:
    """The files of finished batches, in order."""
    yield from sorted((stage_dir / BATCHES).glob("[0-9]*-*.jsonl"))


def damage(path: Path) -> str | None:
    """Return the damage of a batch's file, or None."""
    try:
        _read(path)
    except DataError as error:
        return str(error)
    return None


def _read(path: Path) -> tuple[BatchFacts, list[str]]:
    try:
        text = path.read_text(encoding="utf-8")
        first, _, body = text.partition("\n")
        head = loads_json(first)
        claimed = head.pop("sha256")
        facts = BatchFacts(**{name: head[name] for name in BatchFacts.__dataclass_fields__})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} is not a batch of records: {type(error).__name__}") from None
    if claimed != _digest(head, body) or path.name != f"{facts.number:08d}-{facts.key}.jsonl":
        raise DataError(f"{path} does not have its recorded sha256")
    lines = [line + "\n" for line in body.split("\n")[:-1]]
    if len(lines) != facts.records + facts.set_aside:
        raise DataError(f"{path} holds {len(lines)} rows, recorded {facts.records + facts.set_aside}")
    return facts, lines


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


def _digest(head: Mapping[str, Any], body: str) -> str:
    first = json.dumps(head, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(f"{first}\n{body}".encode()).hexdigest()

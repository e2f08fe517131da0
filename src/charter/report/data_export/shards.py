"""Rows written as JSONL, Parquet, a directory as hubs lay it out, or WebDataset shards with an index for DALI."""

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from charter.data.convert import parquet_schema, write_parquet, write_rows

DataFormat = Literal["jsonl", "parquet", "hf", "webdataset"]
Rows = Callable[[], Iterable[Mapping[str, Any]]]
ROWS_PER_SHARD = 50_000
BLOCK_BYTES = 512
INDEX_VERSION = "v1.2"
"""Of the index that DALI 2.4.0 reads; its own tool, wds2idx, writes it too."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One file in a shard, where its content lies."""

    extension: str
    offset: int
    size: int
    name: str


def write_files(rows: Rows, target: Path, format: DataFormat, *, count: int, per_shard: int = ROWS_PER_SHARD) -> None:
    """Write rows below a directory; `rows` may be asked for them twice. One shard is held in memory at a time."""
    if format == "jsonl":
        write_rows(rows, target / "train.jsonl", target / "train.jsonl")
    elif format == "webdataset":
        for number, some in enumerate(_shards(rows(), per_shard)):
            _write_tar(some, target / f"train-{number:06d}.tar", first=number * per_shard)
    else:
        directory = target / "data" if format == "hf" else target
        directory.mkdir(exist_ok=True)
        schema, shards = parquet_schema(rows()), -(-count // per_shard)
        for number, some in enumerate(_shards(rows(), per_shard)):
            write_parquet(some, directory / f"train-{number:05d}-of-{shards:05d}.parquet", schema)


def _shards(rows: Iterable[Mapping[str, Any]], size: int) -> Iterator[list[Mapping[str, Any]]]:
    remaining = iter(rows)
    while some := list(islice(remaining, size)):
        yield some


def _write_tar(rows: Iterable[Mapping[str, Any]], path: Path, *, first: int) -> None:
    """One shard and its index; members have no owner and no time, so that equal rows are equal bytes."""
    samples: list[list[Member]] = []
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, row in enumerate(rows, start=first):
            samples.append([_add(archive, f"{number:09d}", *item) for item in _contents(row)])
    path.with_suffix(".idx").write_text(index_text(samples), encoding="utf-8")


def _contents(row: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Extension and content: `json` holds the row, but plain text is a member of its own."""
    fields, text = dict(row), None
    if isinstance(row.get("text"), str):
        text = fields.pop("text")
    yield "json", json.dumps(fields, ensure_ascii=False, allow_nan=False).encode()
    if text is not None:
        yield "txt", text.encode()


def _add(archive: tarfile.TarFile, key: str, extension: str, content: bytes) -> Member:
    info = tarfile.TarInfo(f"{key}.{extension}")
    info.size = len(content)
    header = archive.offset
    archive.addfile(info, io.BytesIO(content))
    return Member(extension=extension, offset=header + BLOCK_BYTES, size=len(content), name=info.name)


def index_text(samples: Iterable[Iterable[Member]]) -> str:
    """The index of a shard, one line a sample: extension, offset, size and name of each member."""
    lines = [
        " ".join(f"{item.extension} {item.offset} {item.size} {item.name}" for item in sample) for sample in samples
    ]
    return "\n".join([f"{INDEX_VERSION} {len(lines)}", *lines]) + "\n"

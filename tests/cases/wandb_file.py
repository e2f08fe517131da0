"""What W&B's own files (`run-ID.wandb`) hold: records of its protocol in the framing of LevelDB logs."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER_BYTES, BLOCK_BYTES = 7, 32768
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Any]:
    """Every whole record of a file."""
    from wandb.proto.wandb_internal_pb2 import Record

    for data in _payloads(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        yield record


def history(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows of history by run number, over all files below a directory, in the order of the files' names."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(directory.glob("wandb/offline-run-*/run-*.wandb")):
        run = path.stem.removeprefix("run-")
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                items = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                found.setdefault(run, []).append({**items, "_step": record.history.step.num})
    return found


def runs(directory: Path) -> dict[str, Any]:
    """The description of every run by its number."""
    found = {}
    for path in sorted(directory.glob("wandb/offline-run-*/run-*.wandb")):
        for record in records(path):
            if record.WhichOneof("record_type") == "run":
                found[record.run.run_id] = record.run
    return found


def _payloads(content: bytes) -> Iterator[bytes]:
    assert content[:4] == b":W&B"
    at, parts = HEADER_BYTES, b""
    while at + HEADER_BYTES <= len(content):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEADER_BYTES:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + HEADER_BYTES])
        at += HEADER_BYTES
        if at + length > len(content):
            return
        parts = (b"" if kind in (FULL, FIRST) else parts) + content[at : at + length]
        at += length
        if kind in (FULL, LAST):
            yield parts

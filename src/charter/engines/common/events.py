"""Scalars of TensorBoard's event files, read without it: records, and the few fields of an event that hold them.

Format: tensorflow/core/lib/io/record_writer.h (length, its checksum, data, its checksum) and event.proto (1 wall_time,
2 step, 5 summary), summary.proto (1 value: 1 tag, 2 simple_value), as torch.utils.tensorboard writes `add_scalar`.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_HEADER, _CHECKSUM = struct.Struct("<QI"), 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_VALUE, _TAG, _SIMPLE_VALUE = 1, 1, 2


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """One value of one tag."""

    tag: str
    step: int
    value: float
    time: float


def scalars(directory: Path) -> Iterator[Scalar]:
    """Every scalar below a directory, file by file in the order of their names; a torn end is left out."""
    for path in sorted(directory.glob("**/events.out.tfevents.*")):
        try:
            data = path.read_bytes()
        except OSError:
            continue
        for record in _records(data):
            yield from _scalars(record)


def _records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + _HEADER.size <= len(data):
        length, _ = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + length
        if end + _CHECKSUM > len(data):
            return
        yield data[at + _HEADER.size : end]
        at = end + _CHECKSUM


def _scalars(record: bytes) -> Iterator[Scalar]:
    event = dict(_fields(record))
    summary, time, step = event.get(_SUMMARY), event.get(_WALL_TIME), event.get(_STEP, 0)
    if not isinstance(summary, bytes) or not isinstance(time, bytes) or not isinstance(step, int):
        return
    for number, value in _fields(summary):
        entry = dict(_fields(value)) if number == _VALUE and isinstance(value, bytes) else {}
        tag, simple = entry.get(_TAG), entry.get(_SIMPLE_VALUE)
        if isinstance(tag, bytes) and isinstance(simple, bytes):
            (wall,), (number_32,) = struct.unpack("<d", time), struct.unpack("<f", simple)
            yield Scalar(tag=tag.decode(), step=step, value=number_32, time=wall)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and content of each field: a varint as an integer, everything else as its bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            size, at = _varint(data, at)
        if size is None:
            return
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return value, at

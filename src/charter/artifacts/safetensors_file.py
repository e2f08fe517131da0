"""Tensors of safetensors files, moved to other files byte by byte: no number is interpreted, so none can change.

A safetensors file is 8 bytes (the length of the header, little-endian), a JSON header that gives every tensor's number
format, shape and place, and then the bytes of the tensors.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.errors import DataError

_LENGTH_BYTES = 8
_ALIGNMENT = 8


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """One tensor in a file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Offset of its first byte in the file."""
    size_bytes: int

    def read(self) -> bytes:
        """Its bytes."""
        with self.file.open("rb") as file:
            file.seek(self.start)
            return file.read(self.size_bytes)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            header: dict[str, Any] = json.loads(file.read(length))
        return {
            name: StoredTensor(
                file=path,
                dtype=str(entry["dtype"]),
                shape=tuple(entry["shape"]),
                start=_LENGTH_BYTES + length + entry["data_offsets"][0],
                size_bytes=entry["data_offsets"][1] - entry["data_offsets"][0],
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, OSError, MemoryError) as error:
        raise DataError(f"{path} is not a safetensors file: {error}") from None


def write_tensors(path: Path, tensors: Mapping[str, StoredTensor]) -> None:
    """Write tensors of other files under these names."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in sorted(tensors.items()):
        place = [offset, offset + tensor.size_bytes]
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": place}
        offset = place[1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little"))
        file.write(text)
        for _, tensor in sorted(tensors.items()):
            file.write(tensor.read())


def differing_tensors(left: Sequence[Path], right: Sequence[Path]) -> list[str]:
    """The names of tensors that both sets of files have and whose bytes, shapes or number formats differ."""
    here = {name: tensor for path in left for name, tensor in read_header(path).items()}
    there = {name: tensor for path in right for name, tensor in read_header(path).items()}
    return [
        name
        for name in sorted(here.keys() & there.keys())
        if (here[name].dtype, here[name].shape) != (there[name].dtype, there[name].shape)
        or here[name].read() != there[name].read()
    ]

"""Tensors of safetensors files, moved to other files byte by byte: no number is interpreted, so none can change.

A safetensors file is 8 bytes (the length of the header, little-endian), a JSON header that gives every tensor's number
format, shape and place, and then the bytes of the tensors.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts.whole_dir import wrong_name
from charter.errors import DataError, loads_json

_LENGTH_BYTES = 8
_ALIGNMENT = 8
_MOST_HEADER_BYTES = 100_000_000
"""The limit of the format (safetensors README, "Format")."""
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64,
}  # fmt: skip
"""Bits of one number of each format (safetensors, `Dtype`)."""


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
    """The tensors of a file by name; a DataError when the header is not one that fits the file exactly."""
    try:
        size_bytes = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if not 2 <= length <= min(_MOST_HEADER_BYTES, size_bytes - _LENGTH_BYTES):
                raise ValueError(f"a header of {length} bytes in a file of {size_bytes}")
            header: dict[str, Any] = loads_json(file.read(length).decode(), object_pairs_hook=_without_repeats)
        start = _LENGTH_BYTES + length
        tensors = {name: _tensor(path, start, entry) for name, entry in header.items() if name != "__metadata__"}
        _check_places(tensors.values(), start, size_bytes)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, MemoryError, RecursionError) as error:
        raise DataError(f"{path} is not a safetensors file: {error}") from None
    return tensors


def _tensor(path: Path, start: int, entry: Mapping[str, Any]) -> StoredTensor:
    shape, (begin, end) = entry["shape"], entry["data_offsets"]
    if any(type(number) is not int or number < 0 for number in (*shape, begin, end)):
        raise ValueError(f"sizes must be whole numbers, found {[*shape, begin, end]}")
    if math.prod(shape) * _BITS[entry["dtype"]] != (end - begin) * 8:
        raise ValueError(f"{entry['dtype']} of shape {shape} does not take {end - begin} bytes")
    return StoredTensor(
        file=path, dtype=entry["dtype"], shape=tuple(shape), start=start + begin, size_bytes=end - begin
    )


def _check_places(tensors: Iterable[StoredTensor], start: int, size_bytes: int) -> None:
    """The tensors follow each other without a gap or an overlap, and fill the file."""
    for tensor in sorted(tensors, key=lambda item: (item.start, item.size_bytes)):
        if tensor.start != start:
            raise ValueError(f"a tensor begins at byte {tensor.start}, where {start} is next")
        start += tensor.size_bytes
    if start != size_bytes:
        raise ValueError(f"its tensors end at byte {start} of {size_bytes}")


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name appears twice")
    return dict(pairs)


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


PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz", ".h5", ".msgpack")
"""Endings of files that the usual loaders unpickle, or that other frameworks' loaders read."""


def check_weight_files(directory: Path) -> None:
    """Raise a DataError for headers that do not fit, names that lead elsewhere, and where there are pickles only."""
    for index in sorted(directory.glob("*.safetensors.index.json")):
        _check_index(directory, index)
    stored = sorted(directory.glob("*.safetensors"))
    for path in stored:
        read_header(path)
    pickles = sorted(path.name for path in directory.iterdir() if path.suffix in PICKLES)
    if pickles and not stored:
        raise DataError(
            f"{directory} has weights in {pickles[0]}, which may run code when it is read, and no safetensors file\n"
            "  save them with save_pretrained(..., safe_serialization=True), or take the safetensors files of the model"
        )


def _check_index(directory: Path, index: Path) -> None:
    """The files that an index names lie in the directory."""
    try:
        names = set(loads_json(index.read_text(encoding="utf-8"))["weight_map"].values())
        for name in sorted(names):
            plain = wrong_name(name) is None and "/" not in name and name.endswith(".safetensors")
            if not plain or not (directory / name).is_file():
                raise DataError(f"{index} names {name[:80]!r}, which is no safetensors file beside it")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{index} is not an index of weights: {type(error).__name__}") from None

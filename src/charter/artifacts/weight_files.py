"""The weights of a model's directory, looked at before a library opens them: safetensors files that fit, no pickles.

A pickle runs code when it is read. Weights that lie beside a configuration as pickles are therefore refused, however
they were meant; every tool that writes them can write safetensors as well.
"""

import json
from pathlib import Path

from charter.artifacts.safe_path import wrong_name
from charter.artifacts.safetensors_file import read_header
from charter.errors import DataError

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
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        for name in sorted(names):
            plain = wrong_name(name) is None and "/" not in name and name.endswith(".safetensors")
            if not plain or not (directory / name).is_file():
                raise DataError(f"{index} names {name[:80]!r}, which is no safetensors file beside it")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{index} is not an index of weights: {type(error).__name__}") from None

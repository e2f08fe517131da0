"""Which files a data set's path names, and in which format they are.

A path is a file, a directory, or a pattern in its last part: `shard-{000..127}.tar`, `train-*.parquet`.
"""

import difflib
import fnmatch
import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from charter.errors import DataError

Format = Literal["jsonl", "parquet", "hf", "webdataset"]
SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "hf",
    ".tar": "webdataset",
    ".tgz": "webdataset",
    ".tar.gz": "webdataset",
}
MOST_SHARDS = 100_000
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*,[^{}]*)\}")
_SHARD_NUMBER = re.compile(r"[-_]?\d+(-of-\d+)?")


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """The files of a data set in the order they are read, all in one format."""

    format: Format
    root: Path
    """What the names of several files are relative to."""
    files: tuple[Path, ...]

    single: bool = False
    """Whether the path names one file itself, whose name then says nothing about the rows."""

    @property
    def names(self) -> tuple[str, ...]:
        """The files relative to the root, with `/`."""
        return tuple(file.relative_to(self.root).as_posix() for file in self.files)


def is_there(path: Path) -> bool:
    """Whether a data set's path names anything that exists; a pattern, whether one file of it does."""
    return path.exists() or (_is_pattern(path) and any(item.exists() for item in _matches(path)))


def find_files(path: Path, written: str = "auto") -> DataFiles:
    """The files that `path` names; `written` is the data set's `format`, of which `auto` asks the files."""
    if path.is_file():
        return DataFiles(format=_format(path, written), root=path.parent, files=(path,), single=True)
    if path.is_dir():
        return _of_directory(path, written)
    if not _is_pattern(path):
        raise DataError(f"{path} does not exist; {_what_would_work(path)}")
    files = tuple(_matches(path))
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        some = f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''} is missing" if missing else "no file"
        raise DataError(f"{path}: {some} in {path.parent}; correct the pattern, or put the shards there")
    formats = {_format(file, written) for file in files}
    if len(formats) > 1:
        raise DataError(f"{path} names files of several formats ({', '.join(sorted(formats))}); name one kind")
    return DataFiles(format=formats.pop(), root=path.parent, files=files)


def _format(file: Path, written: str) -> Format:
    """The format of one file; without a known suffix it is taken for JSONL."""
    by_name = next((SUFFIXES[suffix] for suffix in SUFFIXES if file.name.endswith(suffix)), None)
    if written == "auto":
        return by_name or "jsonl"
    asked = next(item for item in SUFFIXES.values() if item == written)
    if by_name is not None and by_name != asked and not (asked == "hf" and by_name == "parquet"):
        raise DataError(f"{file}: asked to read as {written}, but its name says {by_name}; correct `format` or `path`")
    return by_name if asked == "hf" and by_name == "parquet" else asked


def _of_directory(path: Path, written: str) -> DataFiles:
    if written in ("auto", "hf") and (saved := _saved_dataset(path)) is not None:
        return DataFiles(format="hf", root=saved, files=_arrow_files(saved))
    visible = [file for file in sorted(path.rglob("*")) if file.is_file() and not _is_hidden(file.relative_to(path))]
    kinds: tuple[Format, ...] = ("parquet", "webdataset")
    for kind in kinds:
        files = [file for file in visible if _format(file, "auto") == kind]
        if files and (written in ("auto", kind) or (written == "hf" and kind == "parquet")):
            _refuse_several_splits(path, files)
            return DataFiles(format=kind, root=path, files=tuple(files))
    if written in ("auto", "jsonl"):
        raise DataError(
            f"{path} is a directory; name one JSONL file in it, or give a directory of Parquet files or tar shards, "
            "or one that `save_to_disk` of Hugging Face datasets wrote"
        )
    raise DataError(f"{path} holds nothing to read as {written}; correct `format` or `path`")


def _is_hidden(relative: Path) -> bool:
    return any(part.startswith((".", "_")) for part in relative.parts)


def _refuse_several_splits(path: Path, files: list[Path]) -> None:
    """Hubs keep `train-00000-of-00002.parquet` beside `test-...`: rows of both must not be mixed in silence."""
    groups: set[str] = set()
    for file in files:
        stem, dot, suffix = file.name.partition(".")
        folder = file.parent.relative_to(path).as_posix()
        groups.add(f"{folder}/{_SHARD_NUMBER.sub('', stem)}*{dot}{suffix}".removeprefix("./"))
    if len(groups) > 1:
        shown = ", ".join(sorted(groups))
        raise DataError(f"{path} holds several splits: {shown}; name one, for example as such a pattern")


def _saved_dataset(path: Path) -> Path | None:
    """The directory of one split that `save_to_disk` wrote: the path itself, or the only split below it."""
    if (path / "state.json").is_file():
        return path
    if not (path / "dataset_dict.json").is_file():
        return None
    splits = _json_of(path / "dataset_dict.json").get("splits", [])
    if not isinstance(splits, list) or not all(isinstance(name, str) for name in splits):
        raise DataError(f"{path / 'dataset_dict.json'} does not list its splits; save the data set again")
    if len(splits) != 1:
        raise DataError(
            f"{path} holds several splits: {', '.join(splits)}; give the path of one, like {path / 'train'}"
        )
    return path / str(splits[0])


def _arrow_files(saved: Path) -> tuple[Path, ...]:
    """The Arrow files of a saved split in the order that its `state.json` gives."""
    state = _json_of(saved / "state.json")
    if state.get("_indices_data_files"):
        raise DataError(f"{saved} holds a selection by indices; call `flatten_indices()` before `save_to_disk`")
    entries = state.get("_data_files")
    listed = entries if isinstance(entries, list) else []
    names = [item.get("filename") if isinstance(item, dict) else None for item in listed]
    if not names or not all(isinstance(name, str) and name == Path(name).name for name in names):
        raise DataError(f"{saved / 'state.json'} names no data files of its own directory; save the data set again")
    files = tuple(saved / str(name) for name in names)
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} is missing, though state.json beside it names it; copy the whole directory")
    return files


def _json_of(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


def _is_pattern(path: Path) -> bool:
    return "*" in path.name or _BRACES.search(path.name) is not None


def _matches(path: Path) -> Iterator[Path]:
    """The files of a pattern: braces in their order, and `*` over what is there, by name."""
    for name in _expanded(path.name):
        if "*" not in name:
            yield path.with_name(name)
        elif path.parent.is_dir():
            yield from sorted(item for item in path.parent.iterdir() if fnmatch.fnmatchcase(item.name, name))


def _expanded(name: str) -> list[str]:
    """The names that braces stand for.

    >>> _expanded("{a,b}-{08..10}.tar")
    ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar', 'b-09.tar', 'b-10.tar']
    """
    found = list(_BRACES.finditer(name))
    choices = [_choices(item) for item in found]
    if math.prod(len(choice) for choice in choices) > MOST_SHARDS:
        raise DataError(f"{name} names more than {MOST_SHARDS} files; name a directory, or use `*`")
    ends = [0, *(item.end() for item in found)]
    between = [name[end : item.start()] for end, item in zip(ends, found, strict=False)]
    return [
        "".join(text for pair in zip(between, chosen, strict=True) for text in pair) + name[ends[-1] :]
        for chosen in itertools.product(*choices)
    ]


def _choices(braces: re.Match[str]) -> list[str]:
    first, last, listed = braces.groups()
    if listed is not None:
        return [item.strip() for item in listed.split(",")]
    numbers = range(int(first), int(last) + 1)
    if not 0 < len(numbers) <= MOST_SHARDS:
        raise DataError(f"{braces[0]} counts {max(len(numbers), 0)} shards; 1 to {MOST_SHARDS} can be named")
    return [f"{number:0{len(first)}d}" for number in numbers]


def _what_would_work(path: Path) -> str:
    if not path.parent.is_dir():
        return f"its directory {path.parent} does not exist either; correct `path` (relative to charter.yaml)"
    names = [item.name for item in path.parent.iterdir() if item.name.endswith(tuple(SUFFIXES))]
    near = difflib.get_close_matches(path.name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    hint = f"there are {', '.join(sorted(names)[:5])}" if names else "put the JSONL file there"
    return f"{hint}, or correct `path` (relative to charter.yaml)"

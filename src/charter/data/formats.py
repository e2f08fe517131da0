"""Files of data sets: which a path names, in which format, and how their rows are read."""

import difflib
import fnmatch
import itertools
import math
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from charter.data.rows import Bad, BadRowError, Row, parse_json, parse_object
from charter.errors import DataError, loads_json, needing

TURN_FIELDS = ("messages", "prompt", "completion", "chosen", "rejected")
BATCH_ROWS = 512


def read_parquet(path: Path, bad: Bad, *, before: int = 0) -> Iterator[Row]:
    """The rows of a Parquet file, a row group at a time; `before` rows were read from other files."""
    yield from _rows(_batches(path, _parquet_batches), f"{path}: row group", before, bad)


def read_arrow(path: Path, bad: Bad, *, before: int = 0) -> Iterator[Row]:
    """The rows of one Arrow file, as a stream (what `datasets` writes) or a file; `before` as for Parquet."""
    yield from _rows(_batches(path, _arrow_batches), f"{path}: record batch", before, bad)


def _parquet_batches(path: Path) -> Iterator[tuple[int, Any]]:
    with _pyarrow(path, "pyarrow.parquet").ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=[group]):
                yield group, batch


def _arrow_batches(path: Path) -> Iterator[tuple[int, Any]]:
    arrow = _pyarrow(path, "pyarrow")
    with arrow.memory_map(str(path)) as source:
        if source.read(6) == b"ARROW1":
            reader = arrow.ipc.open_file(source)
            batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        else:
            source.seek(0)
            batches = iter(arrow.ipc.open_stream(source))
        for index, batch in enumerate(batches):
            for start in range(0, batch.num_rows, BATCH_ROWS):
                yield index, batch.slice(start, BATCH_ROWS)


def _batches(path: Path, read: Any) -> Iterator[tuple[int, Any]]:
    """Yield the batches of a reader of pyarrow; a fault of the file as a whole is raised with its name."""
    arrow = _pyarrow(path, "pyarrow")
    try:
        yield from read(path)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {str(error).splitlines()[0]}; copy or write it again") from None


def _rows(batches: Iterator[tuple[int, Any]], prefix: str, before: int, bad: Bad) -> Iterator[Row]:
    part, start = -1, 0
    for index, batch in batches:
        if index != part:
            part, start = index, 0
        for offset, value in enumerate(_values(batch)):
            where = f"{prefix} {index}, row {start + offset}"
            if isinstance(value, Exception):
                bad(BadRowError(f"{where}: a value cannot be read: {value}"))
            else:
                yield Row(where=where, number=before + offset + 1, value=_plain(value))
        start += batch.num_rows
        before += batch.num_rows


def _values(batch: Any) -> list[dict[str, Any] | Exception]:
    """The rows of a batch; where one holds what Python cannot (text that is not UTF-8), its error in its place."""
    try:
        values: list[dict[str, Any] | Exception] = batch.to_pylist()
        return values
    except (ValueError, OverflowError) as error:
        if batch.num_rows == 1:
            return [error]
    return [value for offset in range(batch.num_rows) for value in _values(batch.slice(offset, 1))]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """One row as JSON would say it: null columns are absent, a struct of lists is a list of turns."""
    return {key: _turns(key, value) for key, value in row.items() if value is not None}


def _turns(key: str, value: Any) -> Any:
    """Turns as a list of objects; `datasets` stores a `Sequence` of structs as one struct of lists."""
    if key not in TURN_FIELDS or not isinstance(value, dict) or not value:
        return value
    columns = list(value.values())
    if not all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns):
        return value
    return [dict(zip(value, turn, strict=True)) for turn in zip(*columns, strict=True)]


def _pyarrow(path: Path, module: str) -> Any:
    with needing(f"reading {path} needs pyarrow", "data"):
        return import_module(module)


UNPACKED_BY = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd"}
"""By the last suffix of a compressed file: the command that unpacks it."""


def read_jsonl(path: Path, bad: Bad, *, before: int = 0) -> Iterator[Row]:
    """The objects of a JSONL file, one per line; blank lines are skipped, `before` lines were read from other files."""
    if (unpack := UNPACKED_BY.get(path.suffix)) is not None:
        raise DataError(
            f"{path} is compressed; unpack it (`{unpack} {path.name}`), and name the file without {path.suffix}"
        )
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                where = f"{path}:{number}"
                try:
                    text = _decode(where, number, line)
                    value = parse_object(text, where) if text.strip() else None
                except BadRowError as error:
                    bad(error)
                    continue
                if value is not None:
                    yield Row(where=where, number=before + number, value=value)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


def _decode(where: str, number: int, line: bytes) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text (byte {error.start + 1} of the line is 0x{line[error.start]:02x})"
        raise BadRowError(f"{where}: {message}; save the file as UTF-8") from None


class _Member(tarfile.TarInfo):
    """A member of an archive that ends as archives do; `tarfile` takes a damaged header for the end."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Member":
        """The next member, or an error where the archive is cut short or damaged."""
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"no end of archive at byte {tarfile_.offset}, {error}") from None


def read_shard(path: Path, bad: Bad, *, before: int = 0) -> Iterator[Row]:
    """The samples of one shard in the order of its members; `before` samples were read from other shards."""
    number = before
    try:
        with tarfile.open(path, mode="r|*", tarinfo=_Member) as archive:
            for key, fields in _samples(archive):
                number += 1
                where = f"{path}: sample {key}"
                try:
                    yield Row(where=where, number=number, value=_value(key, fields, path))
                except BadRowError as error:
                    bad(error)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read as a tar file: {error}; copy or write it again") from None


def _samples(archive: tarfile.TarFile) -> Iterator[tuple[str, list[tuple[str, bytes | None]]]]:
    """Key and members of each sample: the extension of a member, and its content (None for what is no file)."""
    current: str | None = None
    fields: list[tuple[str, bytes | None]] = []
    for member in archive:
        folder, slash, name = member.name.rpartition("/")
        stem, dot, extension = name.partition(".")
        key = folder + slash + stem
        if member.isdir() or not stem or not dot:
            continue
        if key != current:
            if current is not None:
                yield current, fields
            current, fields = key, []
        if extension.lower().rpartition(".")[2] in ("json", "txt"):
            fields.append((extension, _content(archive, member)))
    if current is not None:
        yield current, fields


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | None:
    """The bytes of a member; a link or a device has none of its own."""
    opened = archive.extractfile(member) if member.isreg() else None
    return None if opened is None else opened.read()


def _value(key: str, fields: list[tuple[str, bytes | None]], path: Path) -> dict[str, Any]:
    """The row of a sample: its objects and its single fields together, each given once."""
    if not fields:
        raise BadRowError(f"{path}: sample {key} has no .json and no .txt member")
    value: dict[str, Any] = {}
    for extension, content in fields:
        where = f"{path}: member {key}.{extension}"
        if content is None:
            raise BadRowError(f"{where}: is a link or a device, not a file")
        for name, item in _fields(extension, content, where).items():
            if name in value:
                raise BadRowError(f"{where}: gives the field `{name}` a second time")
            value[name] = item
    return {"id": key, **value}


def _fields(extension: str, content: bytes, where: str) -> dict[str, Any]:
    """Return the fields of one member: all fields of an object, or the one that it is named after."""
    name, _, kind = extension.rpartition(".")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRowError(f"{where}: not UTF-8 text (byte {error.start + 1})") from None
    if kind.lower() == "txt":
        return {name or "text": text}
    return {name: parse_json(text, where)} if name else parse_object(text, where)


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
class DatasetFiles:
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
    """Return True if a data set's path names a file that exists; for a pattern, if one file of it does."""
    return path.exists() or (_is_pattern(path) and any(item.exists() for item in _matches(path)))


def find_files(path: Path, written: str = "auto") -> DatasetFiles:
    """The files that `path` names; `written` is the data set's `format`, of which `auto` asks the files."""
    if path.is_file():
        return DatasetFiles(format=_format(path, written), root=path.parent, files=(path,), single=True)
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
    return DatasetFiles(format=formats.pop(), root=path.parent, files=files)


def _format(file: Path, written: str) -> Format:
    """The format of one file; without a known suffix it is taken for JSONL."""
    by_name = next((SUFFIXES[suffix] for suffix in SUFFIXES if file.name.endswith(suffix)), None)
    if written == "auto":
        return by_name or "jsonl"
    declared = next(item for item in SUFFIXES.values() if item == written)
    if by_name is not None and by_name != declared and not (declared == "hf" and by_name == "parquet"):
        raise DataError(f"{file}: asked to read as {written}, but its name says {by_name}; correct `format` or `path`")
    return by_name if declared == "hf" and by_name == "parquet" else declared


def _of_directory(path: Path, written: str) -> DatasetFiles:
    if written in ("auto", "hf") and (saved := _saved_dataset(path)) is not None:
        return DatasetFiles(format="hf", root=saved, files=_arrow_files(saved))
    visible = [file for file in sorted(path.rglob("*")) if file.is_file() and not _is_hidden(file.relative_to(path))]
    kinds: tuple[Format, ...] = ("parquet", "webdataset")
    for kind in kinds:
        files = [file for file in visible if _format(file, "auto") == kind]
        if files and (written in ("auto", kind) or (written == "hf" and kind == "parquet")):
            _refuse_several_splits(path, files)
            return DatasetFiles(format=kind, root=path, files=tuple(files))
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
        document = loads_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    return document if isinstance(document, dict) else {}


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
    braces = list(_BRACES.finditer(name))
    choices = [_choices(item) for item in braces]
    if math.prod(len(choice) for choice in choices) > MOST_SHARDS:
        raise DataError(f"{name} names more than {MOST_SHARDS} files; name a directory, or use `*`")
    ends = [0, *(item.end() for item in braces)]
    between = [name[end : item.start()] for end, item in zip(ends, braces, strict=False)]
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

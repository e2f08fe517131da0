"""WebDataset shards: tar files whose members with the same name up to the first dot are one sample.

`.json` holds fields of the row, `.txt` its `text`; `.chosen.txt` or `.messages.json` hold one field by its name.
Other members (images, numbers) are passed over. Members are read in place: nothing is ever extracted.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from charter.errors import DataError
from charter.spec.data_row import Bad, BadRowError, Row, parse_json, parse_object


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
        for name, found in _fields(extension, content, where).items():
            if name in value:
                raise BadRowError(f"{where}: gives the field `{name}` a second time")
            value[name] = found
    return {"id": key, **value}


def _fields(extension: str, content: bytes, where: str) -> dict[str, Any]:
    """What one member says: all fields of an object, or the one that it is named after."""
    name, _, kind = extension.rpartition(".")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRowError(f"{where}: not UTF-8 text (byte {error.start + 1})") from None
    if kind.lower() == "txt":
        return {name or "text": text}
    return {name: parse_json(text, where)} if name else parse_object(text, where)

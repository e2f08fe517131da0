"""Versions of data sets: a hash tree that is the same on every machine, and the files by which DVC knows it."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.fingerprint import FileFact, facts_of
from charter.artifacts.whole_dir import wrong_name
from charter.errors import DataError, UsageError


@dataclass(frozen=True, kw_only=True)
class DataVersion:
    """The version of a file or a directory."""

    sha256: str
    files: dict[str, FileFact]
    """By relative name; a single file has the name of itself."""
    is_directory: bool

    @property
    def bytes(self) -> int:
        """Total size of the files."""
        return sum(fact.bytes for fact in self.files.values())


def version_of(path: Path) -> DataVersion:
    """The version of what lies at a path now."""
    names = data_names(path)
    if not path.is_dir():
        (fact,) = facts_of([path])
        return DataVersion(sha256=fact.sha256, files={path.name: fact}, is_directory=False)
    files = dict(zip(names, facts_of([path / name for name in names]), strict=True))
    leaves = [[name, fact.bytes, fact.sha256] for name, fact in files.items()]
    text = json.dumps(leaves, ensure_ascii=False, separators=(",", ":"))
    return DataVersion(sha256=hashlib.sha256(text.encode()).hexdigest(), files=files, is_directory=True)


def data_names(path: Path) -> list[str]:
    """The names of the files below a directory, sorted by their bytes; of a file its own name."""
    if not path.exists():
        raise UsageError(f"{path} does not exist; give a file or a directory")
    if not path.is_dir():
        return [path.name]
    names = []
    for item in path.rglob("*"):
        relative = item.relative_to(path).as_posix()
        if item.is_symlink() or not (item.is_dir() or item.is_file()):
            raise DataError(f"{item} is a link or a device, which has no version; put the file itself there")
        if (wrong := wrong_name(relative)) is not None:
            raise DataError(f"{relative!a} below {path} cannot be versioned: {wrong}")
        if item.is_file():
            names.append(relative)
    return sorted(names, key=lambda name: name.encode())


POINTER, DIRECTORY = ".dvc", ".dir"
CACHE = ".dvc/cache/files/md5"
"""Where DVC 3 keeps content below a repository's root."""
_READ_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class DvcFact:
    """Hashes of a path as DVC names it."""

    md5: str
    """With `.dir` for a directory."""
    size: int
    listing: str | None = None
    """The list of a directory's files, as DVC keeps it; None for a file."""
    leaves: Mapping[str, str]
    """Relative name -> MD5; a single file has its own name."""

    def entry(self) -> dict[str, Any]:
        """The fields that DVC writes of it."""
        counted = {} if self.listing is None else {"nfiles": len(self.leaves)}
        return {"hash": "md5", "md5": self.md5, "size": self.size, **counted}


def dvc_fact(path: Path) -> DvcFact:
    """Hash a file or a directory as DVC does."""
    names = data_names(path)
    files = {name: path / name if path.is_dir() else path for name in names}
    leaves = {name: _md5(file) for name, file in files.items()}
    size = sum(file.stat().st_size for file in files.values())
    if not path.is_dir():
        return DvcFact(md5=leaves[path.name], size=size, leaves=leaves)
    rows = [{"md5": leaves[name], "relpath": name} for name in sorted(names, key=lambda name: name.split("/"))]
    listing = json.dumps(rows)
    md5 = hashlib.md5(listing.encode(), usedforsecurity=False).hexdigest() + DIRECTORY
    return DvcFact(md5=md5, size=size, listing=listing, leaves=leaves)


def write_pointer(path: Path) -> Path:
    """Write `PATH.dvc` beside a file or directory, and keep its content in DVC's cache where there is one."""
    fact = dvc_fact(path)
    pointer = path.with_name(path.name + POINTER)
    durable.write_file(pointer, _yaml({"outs": [{**_pointer_order(fact), "path": path.name}]}))
    if (cache := _cache_of(path)) is not None:
        fill_cache(cache, path, fact)
    return pointer


def pointer_damage(pointer: Path) -> str | None:
    """Return in words the difference between a pointer and the files beside it; None when there is none."""
    outs = read_yaml(pointer).get("outs")
    if not isinstance(outs, list) or not outs or not all(isinstance(item, dict) for item in outs):
        raise DataError(f"{pointer} is not a pointer of DVC: it has no list `outs`")
    for item in outs:
        name, md5 = str(item.get("path")), item.get("md5")
        if (wrong := wrong_name(name)) is not None:
            raise DataError(f"{pointer} names {ascii(name)[:80]}, which is refused: {wrong}")
        if not isinstance(md5, str):
            raise DataError(f"{pointer} gives no md5 of {name}; other hashes of DVC are not read")
        path = pointer.parent / name
        if not path.exists():
            return f"{path} is not here; `dvc pull {pointer.name}` brings it"
        if (actual := dvc_fact(path).md5) != md5:
            return f"{path} has md5 {actual}, recorded {md5}"
    return None


def fill_cache(cache: Path, path: Path, fact: DvcFact) -> None:
    """Keep the content of a file or directory under its MD5, so that `dvc push` finds it."""
    for name, md5 in fact.leaves.items():
        source, target = path / name if path.is_dir() else path, cache / md5[:2] / md5[2:]
        if target.exists():
            continue
        durable.make_dir(target.parent)
        (source_fact,) = facts_of([source])
        durable.write_chunks(target, _blocks(source), source_fact)
    if fact.listing is not None:
        target = cache / fact.md5[:2] / fact.md5[2:]
        durable.make_dir(target.parent)
        durable.write_file(target, fact.listing)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file of DVC; empty when it is not there, a DataError when it is no mapping."""
    import yaml

    if not path.exists():
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path} is not valid YAML: {type(error).__name__}") from None
    if content is not None and not isinstance(content, dict):
        raise DataError(f"{path} holds no mapping, as files of DVC do")
    return content or {}


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    """Write a YAML file of DVC, in the order given."""
    durable.write_file(path, _yaml(content))


def _pointer_order(fact: DvcFact) -> dict[str, Any]:
    entry = fact.entry()
    return {key: entry[key] for key in ("md5", "size", "nfiles", "hash") if key in entry}


def _cache_of(path: Path) -> Path | None:
    """The cache of the DVC repository that a path lies in."""
    parents = path.resolve().parents
    return next((parent / CACHE for parent in parents if (parent / ".dvc" / "config").exists()), None)


def _yaml(content: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    for block in _blocks(path):
        digest.update(block)
    return digest.hexdigest()


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            yield block

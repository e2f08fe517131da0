"""Which version of a data set this is: a hash tree over a file or a directory, the same on every machine.

A leaf is the SHA-256 of a file's content. A directory's is the SHA-256 of its sorted list of names, sizes and leaves,
so it does not hang on times, owners or the order in which a file system lists names. Links, and names that another
system would read otherwise, are refused, since they would not come back as they are.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from charter.artifacts.file_facts import FileFact, facts_of
from charter.artifacts.safe_path import wrong_name
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
        """What the files hold together."""
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

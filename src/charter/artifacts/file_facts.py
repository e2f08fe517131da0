"""What files hold: their size and SHA-256."""

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from charter.errors import DataError

_BLOCK_BYTES = 1 << 20
_HASHERS = 4


@dataclass(frozen=True, kw_only=True)
class FileFact:
    """Size and SHA-256 of one file."""

    bytes: int
    sha256: str


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def fact_of_chunks(chunks: Iterable[bytes]) -> FileFact:
    """Size and SHA-256 of bytes that come in parts."""
    digest, size_bytes = hashlib.sha256(), 0
    for chunk in chunks:
        digest.update(chunk)
        size_bytes += len(chunk)
    return FileFact(bytes=size_bytes, sha256=digest.hexdigest())


def check_chunks(name: str, chunks: Iterable[bytes], expected: FileFact) -> None:
    """Raise a DataError that names what is read when it has not this size and hash."""
    if (found := fact_of_chunks(chunks)) != expected:
        raise DataError(
            f"{name} has {found.bytes} bytes with sha256 {found.sha256[:12]}..., where {expected.bytes} with "
            f"{expected.sha256[:12]}... are recorded"
        )


def facts_of(paths: Sequence[Path]) -> list[FileFact]:
    """Size and SHA-256 of files, several hashed at once."""
    with ThreadPoolExecutor(max_workers=min(len(paths), _HASHERS) or 1) as pool:
        return list(pool.map(lambda path: FileFact(bytes=path.stat().st_size, sha256=sha256_file(path)), paths))


def files_under(root: Path) -> list[str]:
    """Relative paths of all files below a directory, sorted, with `/`."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())

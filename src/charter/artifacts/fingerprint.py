"""A stage's identity: a canonical payload, and the SHA-256 of it; size and SHA-256 of files.

What counts is what is computed: the stage's name (its draws are seeded with it), the kind and its revision, the spec
without execution fields, the fingerprints of the inputs, the seed, the constitution. The payload is kept beside the
hash, so that drift can be shown field by field.
"""

import errno
import hashlib
import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from charter.errors import DataError
from charter.spec.quantity import ADDED, is_execution
from charter.spec.stage_base import Stage
from charter.units import format_bytes

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
    if (fact := fact_of_chunks(chunks)) != expected:
        raise DataError(
            f"{name} has {fact.bytes} bytes with sha256 {fact.sha256[:12]}..., where {expected.bytes} with "
            f"{expected.sha256[:12]}... are recorded"
        )


def facts_of(paths: Sequence[Path]) -> list[FileFact]:
    """Size and SHA-256 of files, several hashed at once."""
    with ThreadPoolExecutor(max_workers=min(len(paths), _HASHERS) or 1) as pool:
        return list(pool.map(lambda path: FileFact(bytes=path.stat().st_size, sha256=sha256_file(path)), paths))


def files_under(root: Path) -> list[str]:
    """Relative paths of all files below a directory, sorted, with `/`."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def require_free(path: Path, needed_bytes: int) -> None:
    """Refuse to start a write that the file system has no room for."""
    if needed_bytes > free_bytes(path):
        raise _disk_full(path, needed_bytes)


def free_bytes(path: Path) -> int:
    """Free bytes of the file system that holds (or will hold) a path."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def is_disk_full(error: BaseException) -> bool:
    """Return True if an exception, or its cause, says that the disk is full; libraries hide it in a message."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in FULL:
            return True
        if "No space left on device" in str(cause) or "(os error 28)" in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


@contextmanager
def disk_full_is_said(path: Path, *, needed_bytes: int, clean: Path | None = None) -> Iterator[None]:
    """Remove `clean` when anything fails; a full disk becomes a DataError that says what is needed and free."""
    try:
        yield
    except Exception as error:
        written_bytes = _size_of(clean)
        if clean is not None:
            shutil.rmtree(clean, ignore_errors=True) if clean.is_dir() else clean.unlink(missing_ok=True)
        if is_disk_full(error):
            raise _disk_full(path, max(needed_bytes, written_bytes)) from error
        raise


def _size_of(path: Path | None) -> int:
    """Bytes in a file or below a directory, which another process of the stage may be removing at the same time."""
    if path is None:
        return 0
    try:
        names = files_under(path) if path.is_dir() else [""]
    except FileNotFoundError:
        return 0
    size = 0
    for name in names:
        with suppress(FileNotFoundError):
            size += (path / name).stat().st_size
    return size


def _disk_full(path: Path, needed_bytes: int) -> DataError:
    return DataError(
        f"disk full: {path} needs {format_bytes(needed_bytes)} or more, "
        f"{format_bytes(free_bytes(path))} are free\n"
        "  what was there before is intact; free some space and run the same command again"
    )


SCHEMA = "charter.identity/1"


def canonical(value: object) -> Any:
    """`value` as plain JSON types, the same on every machine; what has no stable form is refused.

    Execution fields are left out; so are fields that are None, and fields marked `added` that equal their
    default, so that a newer Charter with more fields gives the same fingerprint. 1 and 1.0 are the same
    number.

    >>> canonical({"b": (1.0, None), "a": 0.5})
    {'a': 0.5, 'b': [1, None]}
    """
    if isinstance(value, Enum):
        return canonical(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    if isinstance(value, Mapping):
        return _mapping(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: canonical(getattr(value, item.name))
            for item in sorted(fields(value), key=lambda item: item.name)
            if _counts(item, getattr(value, item.name))
        }
    raise DataError(
        f"{value!r} ({type(value).__qualname__}) has no stable form, so it cannot be part of a fingerprint; "
        "use numbers, text, lists, mappings with text keys, or a dataclass of these"
    )


def fingerprint(payload: object) -> str:
    """SHA-256 of the canonical form, in hex."""
    text = json.dumps(canonical(payload), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def stage_identity(
    spec: Stage, *, name: str, inputs: Mapping[str, Sequence[str]], seed: int, constitution: str | None
) -> dict[str, Any]:
    """The payload of a stage: `inputs` holds fingerprints by role, `constitution` a hash or None.

    The stage's own name counts, since its draws are seeded with it. The names of its inputs do not: the
    fields that hold them are replaced by what they name, so that renaming a data set or a model changes
    nothing.
    """
    counted = canonical(spec)
    return {
        "schema": SCHEMA,
        "stage": name,
        "kind": spec.kind,
        "revision": type(spec).REVISION,
        "spec": {field: value for field, value in counted.items() if field not in {*spec.REFERENCES, "kind"}},
        "inputs": {role: list(fingerprints) for role, fingerprints in sorted(inputs.items())},
        "seed": seed,
        "constitution": constitution,
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """List the differences between two payloads: `(path, old, new)`, the path dotted; None stands for absent."""
    return list(_differences("", old, new))


def _differences(path: str, old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        changes: list[tuple[str, Any, Any]] = []
        for key in sorted({*old, *new}):
            changes += _differences(f"{path}.{key}" if path else key, old.get(key), new.get(key))
        return changes
    return [] if old == new else [(path, old, new)]


def describe(path: str, old: Any, new: Any, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """One difference between two identities in words; `names` gives the inputs' names by role.

    >>> describe("spec.learning_rate", 0.0002, 0.0003, {})
    'learning_rate 0.0002 -> 0.0003'
    >>> describe("inputs.data", ["a"], ["b"], {"data": "helpful"})
    'input helpful changed'
    """
    section, _, rest = path.partition(".")
    match section:
        case "spec":
            return f"{rest} {_shown(old)} -> {_shown(new)}"
        case "inputs":
            return _describe_input(rest, old, new, names.get(rest, rest))
        case "revision":
            return f"Charter computes this kind differently (revision {old} -> {new})"
        case "constitution":
            return "the constitution changed"
    return f"{path} {_shown(old)} -> {_shown(new)}"


def _describe_input(role: str, old: Any, new: Any, names: str) -> str:
    if not old:
        return f"input {role} added"
    if not new:
        return f"input {role} removed"
    return f"input {names} changed"


def _shown(value: Any) -> str:
    return "(none)" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _counts(item: "Field[Any]", value: object) -> bool:
    if is_execution(item) or value is None:
        return False
    return not (item.metadata.get(ADDED) and value == _default(item))


def _default(item: "Field[Any]") -> Any:
    return item.default_factory() if item.default_factory is not MISSING else item.default


def _number(value: float) -> int | float:
    if not math.isfinite(value):
        raise DataError(f"{value!r} has no stable form, so it cannot be part of a fingerprint; give a finite number")
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _mapping(value: Mapping[Any, object]) -> dict[str, Any]:
    if wrong := [key for key in value if not isinstance(key, str)]:
        raise DataError(
            f"the key {wrong[0]!r} has no stable form, so it cannot be part of a fingerprint; use text keys"
        )
    return {key: canonical(value[key]) for key in sorted(value)}

"""JSON files that hold the SHA-256 of their own content, so that one flipped bit anywhere in them is noticed."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.errors import DataError

SEAL = "sha256"


def sealed_text(content: Mapping[str, Any]) -> str:
    """The text of a sealed file."""
    bare = {key: value for key, value in content.items() if key != SEAL}
    return durable.json_text({**bare, SEAL: _hash(bare)})


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a sealed file durably."""
    durable.write_file(path, sealed_text(content))


def read_sealed(path: Path) -> dict[str, Any]:
    """The content of a sealed file, without the seal; a DataError when a single bit of it has changed."""
    content = durable.read_json(path)
    if (wrong := broken_seal(path, content)) is not None:
        raise DataError(f"{path} {wrong}; it was damaged or edited")
    return {key: value for key, value in content.items() if key != SEAL}


def checked_text(name: str, content: bytes) -> dict[str, Any]:
    """The content of a sealed text that lies elsewhere, without the seal; a DataError when one bit has changed."""
    try:
        plain = json.loads(content.decode())
        whole = isinstance(plain, dict) and plain.get(SEAL) == _hash({k: v for k, v in plain.items() if k != SEAL})
        whole = whole and durable.json_text(plain).encode() == content
    except (ValueError, RecursionError):
        whole = False
    if not whole:
        raise DataError(f"{name} does not have its recorded sha256; it was damaged or edited")
    return {key: value for key, value in plain.items() if key != SEAL}


def broken_seal(path: Path, content: object) -> str | None:
    """What is wrong with a sealed file that holds `content`, in words; None when it is as it was written."""
    if not isinstance(content, dict) or SEAL not in content:
        return "has no sha256 of its own content"
    if content[SEAL] != _hash({key: value for key, value in content.items() if key != SEAL}):
        return "does not have its recorded sha256"
    if path.read_bytes() != durable.json_text(content).encode():
        return "is not written as Charter writes it"
    return None


def _hash(bare: Mapping[str, Any]) -> str:
    return hashlib.sha256(durable.json_text(bare).encode()).hexdigest()

"""What every place promises, as one check that runs against each kind of them."""

import hashlib

import pytest

from charter.artifacts.fingerprint import FileFact
from charter.errors import DataError


def check_place(place, files) -> None:
    """Put, list, read and remove; whole or not at all."""
    files.mkdir()
    assert (place.get("a/b"), place.size("a/b"), place.listed("a/")) == (None, None, [])
    with pytest.raises(FileNotFoundError):
        list(place.chunks("a/b"))
    place.put("a/b", b"one")
    place.put("a/b", b"two!")
    assert (place.get("a/b"), place.size("a/b")) == (b"two!", 4)
    assert place.put_new("a/c", b"new")
    assert not place.put_new("a/c", b"other")
    assert place.get("a/c") == b"new"
    place.put("empty", b"")
    assert (place.get("empty"), place.size("empty")) == (b"", 0)
    content = bytes(range(256)) * 1000
    (files / "f").write_bytes(content)
    fact = FileFact(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
    place.upload("a/deep/f", files / "f", fact)
    assert b"".join(place.chunks("a/deep/f")) == content
    with pytest.raises(DataError, match="are recorded"):
        place.upload("a/wrong", files / "f", FileFact(bytes=fact.bytes, sha256="0" * 64))
    assert place.size("a/wrong") is None
    with pytest.raises(FileNotFoundError):
        place.upload("a/gone", files / "gone", fact)
    listed = place.listed("a/")
    assert [(item.key, item.bytes) for item in listed] == [("a/b", 4), ("a/c", 3), ("a/deep/f", len(content))]
    assert abs(place.now() - listed[0].written_at) < 60
    for _ in range(2):
        place.remove("a/b")
    assert place.get("a/b") is None
    assert place.unfinished() == []
    for hostile in ("../x", "/etc/passwd", "a//b", "a/%2e%2e/b"):
        with pytest.raises(DataError):
            place.put(hostile, b"")

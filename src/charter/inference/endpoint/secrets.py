"""Keys by reference: a project names where a key is, and only the requests that need it hold its value."""

import os
from pathlib import Path

from charter.errors import UsageError
from charter.redaction import without_values

SHORTEST = 8
"""Characters; a shorter value could not be blotted out of texts without blotting out words."""


class ApiKey:
    """The key that a reference names. Printing, logging or comparing it never shows its value."""

    __slots__ = ("_value", "reference")

    def __init__(self, reference: str, value: str) -> None:
        self.reference = reference
        self._value = value

    def __repr__(self) -> str:
        return f"ApiKey({self.reference!r})"

    def __reduce__(self) -> str:
        raise TypeError("a key is never written anywhere")

    def header(self, *, bare: str | None = None) -> dict[str, str]:
        """The request header that carries it: the bearer's, or one that holds nothing else."""
        return {"Authorization": f"Bearer {self._value}"} if bare is None else {bare: self._value}

    def blotted(self, text: str) -> str:
        """A text without the key."""
        return without_values(text, [self._value])

    def blotted_bytes(self, body: bytes) -> bytes:
        """A reply's body without the key, should a server repeat it."""
        return without_values(body.decode("latin-1"), [self._value]).encode("latin-1")


def read_key(reference: str, *, of: str) -> ApiKey:
    """Look a key up: `env:NAME` in the environment, `file:PATH` in a file. `of` is the model's name, for messages."""
    kind, _, where = reference.partition(":")
    if kind == "env":
        value = os.environ.get(where, "").strip()
        problem = f"the environment variable {where} is not set"
    elif kind == "file":
        path = Path(where).expanduser()
        value = path.read_text(encoding="utf-8", errors="replace").strip() if path.is_file() else ""
        problem = f"the file {where} is not there, or empty"
    else:
        raise UsageError(f"the key of {of} is not given as env:NAME or file:PATH")
    if not value:
        raise UsageError(f"the key of {of} is to be found at {reference}, but {problem}")
    if not (value.isascii() and value.isprintable() and " " not in value):
        raise UsageError(f"what is at {reference} cannot be a key: it has blanks, line ends or letters beyond ASCII")
    if len(value) < SHORTEST:
        raise UsageError(f"what is at {reference} cannot be a key: it has fewer than {SHORTEST} characters")
    return ApiKey(reference, value)

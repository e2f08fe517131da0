"""Secrets by reference: read where they are used, and blotted out of whatever is written down."""

import os
from collections.abc import Iterable
from pathlib import Path

from charter.errors import UsageError
from charter.redaction import without_values

SHORTEST = 4
"""Characters; blotting out shorter ones would blot out words."""


def is_reference(text: str) -> bool:
    """Return True if a text is a reference: `env:NAME` or `file:PATH`."""
    return text.startswith(("env:", "file:")) and "://" not in text


def read_secret(reference: str, *, of: str) -> str:
    """Read the secret that a reference names; `of` says in messages what it is for."""
    kind, _, where = reference.partition(":")
    if kind == "env":
        value, missing = os.environ.get(where, ""), f"the environment variable {where} is not set"
    elif kind == "file":
        path = Path(where).expanduser()
        value = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        missing = f"the file {where} is not there, or empty"
    else:
        raise UsageError(f"{of} is not given as env:NAME or file:PATH")
    if not value.strip():
        raise UsageError(f"{of} is to be found at {reference}, but {missing}")
    return value.strip()


class Secrets:
    """The secrets that one process holds; none of them appears in a text that went through `blotted`."""

    def __init__(self) -> None:
        self._values: set[str] = set()

    def read(self, reference: str, *, of: str) -> str:
        """Look one up, and remember to blot it out."""
        value = read_secret(reference, of=of)
        self.hide((value, *_password_in(value)))
        return value

    def hide(self, values: Iterable[str]) -> None:
        """Blot these out from now on."""
        self._values |= {value for value in values if len(value) >= SHORTEST}

    def blotted(self, text: str) -> str:
        """A text without any of them."""
        return without_values(text, self._values)


def _password_in(address: str) -> tuple[str, ...]:
    """The password of an address, should that be the secret."""
    user = address.partition("://")[2].partition("/")[0].rpartition("@")[0]
    return (user.partition(":")[2],) if ":" in user else ()

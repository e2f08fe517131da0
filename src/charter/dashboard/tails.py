"""Ends of logs, which hold whatever a process prints."""

import re
from dataclasses import dataclass
from pathlib import Path

from charter.redaction import without_shapes
from charter.run.events import end_of_file

LOG_BYTES = 64 * 1024
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""Colours and cursor moves of terminals (ECMA-48)."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What is invisible or turns the direction of text round."""


@dataclass(frozen=True, kw_only=True)
class LogTail:
    """The last lines of a log."""

    lines: tuple[str, ...]
    whole: bool
    """Whether these are all lines."""
    size_bytes: int


def log_tail(path: Path, *, most_bytes: int = LOG_BYTES) -> LogTail:
    """The end of a log as plain lines, from a whole line on; empty where there is no log."""
    try:
        content, size = end_of_file(path, most_bytes)
    except OSError:
        return LogTail(lines=(), whole=True, size_bytes=0)
    complete = len(content) == size
    if not complete:
        content = content.partition(b"\n")[2]
    text = without_shapes(content.decode("utf-8", "replace"))
    return LogTail(lines=tuple(plain(line) for line in text.splitlines()), whole=complete, size_bytes=size)


SEARCHED_BYTES = 32 * 1024**2
MOST_LINES = 500


def log_lines_with(path: Path, text: str, *, most: int = MOST_LINES, searched_bytes: int = SEARCHED_BYTES) -> LogTail:
    """Return the last lines of a log that hold a text, whatever its case, each with its number where that is known."""
    try:
        content, size = end_of_file(path, searched_bytes)
    except OSError:
        return LogTail(lines=(), whole=True, size_bytes=0)
    complete, needle = len(content) == size, text.casefold()
    lines = [plain(line) for line in without_shapes(content.decode("utf-8", "replace")).splitlines()]
    hits = [
        f"{number}: {line}" if complete else line
        for number, line in enumerate(lines, start=1)
        if needle in line.casefold()
    ]
    return LogTail(lines=tuple(hits[-most:]), whole=complete and len(hits) <= most, size_bytes=size)


def plain(line: str) -> str:
    """A line without colours; other control characters are shown, not obeyed; of what `\\r` overwrote the last stays.

    >>> plain("\\x1b[31mred\\x1b[0m 10 %\\r20 %"), plain("a\\x00b")
    ('20 %', 'a\\ufffdb')
    """
    line = _ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2]
    return _CONTROLS.sub("\ufffd", line)

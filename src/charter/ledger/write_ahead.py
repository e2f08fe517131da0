"""Check of a SQLite write-ahead log for lost transactions that were committed.

SQLite reads the log up to the first frame whose checksum is wrong and silently forgets the rest: right for a
transaction that a power cut tore, wrong for a byte that changed in the middle. Here the rest is looked at: where
whole transactions follow the broken frame, they had been committed. Only damage to the very last transaction looks
the same as a torn one, and is taken for one. Format: sqlite.org/fileformat2.html, section 4.
"""

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24
MAGIC_LITTLE, MAGIC_BIG = 0x377F0682, 0x377F0683
"""The second one says that checksums read their words in big-endian order."""
READS = 2
SECONDS_BETWEEN_READS = 0.05
"""A log that is being written changes between reads; a damaged one that nobody writes stays as it is."""


@dataclass(frozen=True, kw_only=True)
class _Frame:
    is_whole: bool
    """Its salts and its checksum are those of this log, as are those of all before it."""
    is_of_this_log: bool
    """Its salts are; others are left from before the log began anew."""
    commits: bool


def has_lost_commits(database: Path) -> bool:
    """Return True if the log beside `database` holds committed transactions that SQLite would not read."""
    path = database.with_name(f"{database.name}-wal")
    before = None
    for _ in range(READS):
        if before is not None:
            time.sleep(SECONDS_BETWEEN_READS)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return False
        if not lost_commits(content):
            return False
        if before is not None and content != before:
            return False
        before = content
    return True


def lost_commits(log: bytes) -> bool:
    """Return True if whole transactions lie behind the first broken frame of a log.

    >>> lost_commits(b""), lost_commits(bytes(5000))
    (False, True)
    """
    if len(log) <= HEADER_BYTES:
        return False
    if struct.unpack(">I", log[:4])[0] not in (MAGIC_LITTLE, MAGIC_BIG):
        return True
    if _checksum(log[:24], (0, 0), _order(log)) != struct.unpack(">2I", log[24:HEADER_BYTES]):
        return True
    behind = [frame for frame in _frames(log) if not frame.is_whole and frame.is_of_this_log]
    return any(frame.commits for frame in behind[:-1])


def _order(log: bytes) -> str:
    return ">" if struct.unpack(">I", log[:4])[0] == MAGIC_BIG else "<"


def _frames(log: bytes) -> Iterator[_Frame]:
    (page_bytes,) = struct.unpack(">I", log[8:12])
    salts, checksum, order = log[16:24], struct.unpack(">2I", log[24:HEADER_BYTES]), _order(log)
    is_whole = True
    for start in range(HEADER_BYTES, len(log) - FRAME_HEADER_BYTES - page_bytes + 1, FRAME_HEADER_BYTES + page_bytes):
        header = log[start : start + FRAME_HEADER_BYTES]
        is_of_this_log = header[8:16] == salts
        if is_whole:
            page = log[start + FRAME_HEADER_BYTES : start + FRAME_HEADER_BYTES + page_bytes]
            checksum = _checksum(header[:8] + page, checksum, order)
            is_whole = is_of_this_log and checksum == struct.unpack(">2I", header[16:24])
        yield _Frame(is_whole=is_whole, is_of_this_log=is_of_this_log, commits=header[4:8] != b"\0\0\0\0")


def _checksum(content: bytes, before: tuple[int, ...], order: str) -> tuple[int, int]:
    first, second = before
    words = iter(struct.unpack(f"{order}{len(content) // 4}I", content))
    for even, odd in zip(words, words, strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second

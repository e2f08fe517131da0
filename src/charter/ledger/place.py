"""Location of a run's ledger, and the tests of its file that need no database.

SQLite reads a write-ahead log up to the first frame whose checksum is wrong and silently forgets the rest: right for a
transaction that a power cut tore, wrong for a byte that changed in the middle. `has_lost_commits` looks at the rest:
where whole transactions follow the broken frame, they had been committed. Only damage to the very last transaction
looks the same as a torn one, and is taken for one. Format: sqlite.org/fileformat2.html, section 4.
"""

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from charter.errors import UsageError

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb", "smb3", "smbfs", "9p", "afs", "lustre", "ceph", "glusterfs", "fuse.sshfs"}
)
"""WAL needs memory shared between all users of the file (sqlite.org/wal.html, section 1)."""
MOUNTINFO = Path("/proc/self/mountinfo")
"""Where Linux lists what is mounted (proc(5))."""


def is_server(where: str | Path) -> bool:
    """Return True if this is the address of a server, not a file.

    >>> is_server("postgresql://db.lab/charter"), is_server("run/ledger.sqlite")
    (True, False)
    """
    return isinstance(where, str) and "://" in where


def is_network_filesystem(directory: Path, *, mountinfo: Path = MOUNTINFO) -> bool:
    """Return True if `directory` is on a network file system; False where the system does not tell."""
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return filesystem_type(directory.resolve(), lines) in NETWORK_FILESYSTEMS


def filesystem_type(directory: Path, mountinfo_lines: list[str]) -> str:
    """Type of the file system that holds `directory`, by the longest mount point above it; "" if none.

    >>> filesystem_type(Path("/data/run"), ["1 0 0:1 / / rw - ext4 a rw", "2 0 0:2 / /data rw - nfs4 b rw"])
    'nfs4'
    """
    best, filesystem = -1, ""
    for line in mountinfo_lines:
        before, _, after = line.partition(" - ")
        columns = before.split(" ")
        if len(columns) < 5 or not after:
            continue
        mount = Path(columns[4].replace("\\040", " "))
        if (directory == mount or mount in directory.parents) and len(mount.parts) >= best:
            best, filesystem = len(mount.parts), after.split(" ")[0]
    return filesystem


LEDGER_FILE = "ledger.sqlite"
CALLS_FILE = "calls.sqlite"
"""In the directory of a stage, unless its calls are recorded on a server."""


def ledger_place(run_dir: Path, server: str | None) -> str | Path:
    """Return the location of a run's ledger: on a server (`storage.ledger`), or a file in its directory."""
    return server or run_dir / LEDGER_FILE


def has_ledger(place: str | Path) -> bool:
    """Return True if there may be a ledger: a server has to be asked, and a file without a byte is none."""
    if is_server(place):
        return True
    path = Path(place)
    return path.exists() and path.stat().st_size > 0


class NoLedgerError(UsageError):
    """There is no ledger yet: no file, or none of its tables on the server."""


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

"""Location of a run's ledger, and the test that there may be one."""

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

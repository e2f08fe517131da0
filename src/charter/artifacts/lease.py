"""Lease of a directory: a lock that the kernel frees with its holder, and a file that names the holder."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from charter.artifacts import durable, fence
from charter.artifacts.fence import LeaseTerm, term_of_process
from charter.artifacts.group import member_path
from charter.errors import DataError, UsageError
from charter.units import format_moment

LEASE = "lease.json"
STALE_AFTER_SECONDS = 30.0
"""A holder on another host that has not touched its lease for so long is taken to be dead."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """One process, named so that a reused pid or a rebooted machine is not mistaken for it."""

    pid: int
    start_ticks: int
    """Start time in clock ticks since boot (/proc/PID/stat, field 22); 0 where the system does not say."""
    host: str
    since: float
    """Unix time."""

    @property
    def is_here(self) -> bool:
        """Return True if it ran on this machine since its last boot."""
        return self.host == host_id()

    @property
    def is_alive(self) -> bool:
        """Return True if that very process still runs on this machine."""
        if not self.is_here:
            return False
        try:
            return start_ticks(self.pid) == self.start_ticks
        except ProcessLookupError:
            return False

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host.split('/')[0]} since {format_moment(self.since, to='second')}"


class Lease:
    """An exclusive hold on a directory, from construction to `release` or to the end of the process.

    The kernel's lock tells processes of one machine apart, the file and its age those of several; and whoever is taken
    for dead by mistake is kept from publishing by the fence. A process that a scheduler started, which names its term,
    does not wait for an earlier start: it takes the next number of the fence, lock or no lock.
    """

    def __init__(self, directory: Path, *, lock_name: str, what: str) -> None:
        from filelock import FileLock, Timeout

        directory.mkdir(parents=True, exist_ok=True)
        self._file = directory / LEASE
        # Not a singleton, and not the thread's own: two leases in one process exclude each other as well.
        self._lock = FileLock(directory / lock_name, timeout=0, is_singleton=False, thread_local=False)
        supersedes = term_of_process() is not None
        try:
            self._lock.acquire()
        except Timeout:
            if not supersedes:
                raise _held(what, read_holder(self._file), directory) from None
        previous = None if supersedes else read_holder(self._file)
        if previous is not None and not previous.is_here and _touched_within(self._file, STALE_AFTER_SECONDS):
            self._lock.release()
            raise _held(what, previous, directory)
        self._fence = _take(directory)

    def touch(self) -> None:
        """Say that the holder lives, for those who see only the file (another host)."""
        with contextlib.suppress(OSError):
            if self._fence.is_ours():
                os.utime(self._file)

    def release(self) -> None:
        """Give the directory back; one that another process has taken over is left to that one."""
        if self._fence.is_ours():
            self._file.unlink(missing_ok=True)
        fence.let_go(self._fence)
        self._lock.release()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.release()


def _take(directory: Path) -> fence.Fence:
    """Write the next number into the fence file, then say who holds the directory."""
    me = asdict(this_process())
    with fence.locked(directory):
        content = fence.next_content(directory, me)
        durable.write_json(directory / fence.FENCE, content)
    fence_held = fence.hold(directory, content)
    durable.write_json(directory / LEASE, me)
    return fence_held


def open_term(directory: Path, submission: int, *, group: str) -> None:
    """Lock all earlier starts of a stage out, before its job is submitted to a scheduler.

    Processes of `group` may publish, and every start of this submission may take the directory.
    """
    with fence.locked(directory):
        content = fence.next_content(directory, asdict(this_process()), term=LeaseTerm(submission, -1))
        durable.write_json(directory / fence.FENCE, {**content, "group": group})


def this_process() -> Holder:
    """This process as a holder."""
    return Holder(pid=os.getpid(), start_ticks=start_ticks(os.getpid()), host=host_id(), since=time.time())


def announce(directory: Path) -> None:
    """Say that this process is about to start one that will take the lease; it holds nothing by that."""
    durable.write_hint(directory / LEASE, asdict(this_process()))


def read_holder(path: Path) -> Holder | None:
    """The holder that a lease file names, None when there is none or it cannot be read."""
    try:
        content: Mapping[str, Any] = durable.read_json(path)
        return Holder(**content)
    except (DataError, TypeError):
        return None


def working_holder(path: Path) -> Holder | None:
    """The holder that a lease file names, None where it has ended; one elsewhere counts while it touches the file.

    A process of before this machine's last boot is one elsewhere that touches nothing.
    """
    holder = read_holder(path)
    if holder is None or holder.is_alive:
        return holder
    try:
        age_seconds = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return None
    return holder if not holder.is_here and age_seconds < STALE_AFTER_SECONDS else None


def stop_orphan(directory: Path, *, wait_seconds: float = 60.0) -> Holder | None:
    """End the processes that still work in a directory whose supervisor is dead.

    Says which one held it, None when there was none.
    """
    holder = read_holder(directory / LEASE)
    named = [holder, *(read_holder(path) for path in sorted(directory.glob("member-*.json")))]
    alive = [process for process in named if process is not None and process.is_alive and process.pid != os.getpid()]
    for process in alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    for process in alive:
        if not ends_within(process, wait_seconds):
            raise DataError(f"{directory} is still held by {process}, which SIGKILL did not end; stop it by hand")
    return alive[0] if alive else None


def ends_within(holder: Holder, seconds: float) -> bool:
    """Wait for a process of this machine to end; whether it did."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not holder.is_alive:
            return True
        time.sleep(0.01)
    return False


def start_ticks(pid: int) -> int:
    """Return the start of a process, in clock ticks since boot.

    Raises ProcessLookupError for a process that has ended.
    """
    if not os.path.isdir("/proc/self"):
        os.kill(pid, 0)
        return 0
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            after_name = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(pid) from None
    if after_name[0] in "ZX":
        raise ProcessLookupError(pid)
    return int(after_name[19])


def host_id() -> str:
    """Host name and boot id: another boot of the same host is another place."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()}/{boot}"


def _touched_within(path: Path, seconds: float) -> bool:
    """Compared with the clock of the file system, not ours: two hosts' clocks may differ. One that is gone was not."""
    probe = path.with_name(f"{durable.TEMPORARY}clock-{os.getpid()}")
    probe.touch()
    try:
        return probe.stat().st_mtime - path.stat().st_mtime < seconds
    except FileNotFoundError:
        return False
    finally:
        probe.unlink()


def _held(what: str, holder: Holder | None, directory: Path) -> UsageError:
    who = str(holder) if holder else "a process that has not said who it is yet"
    return UsageError(
        f"{what} is in use: {directory} is held by {who}\n"
        "  wait for it, watch it with `charter status`, or end it with `charter stop`"
    )


LOOK_EVERY_SECONDS = 0.5


class Membership:
    """Known as a process of a stage, from construction to the end of the context.

    The supervisor ends the others when one process fails, and the kernel ends all when the supervisor does. This
    is for what is left: rank 0 was killed and nobody acts, say because the supervisor is frozen.
    """

    def __init__(self, stage_dir: Path, rank: int, *, die: Callable[[], None] | None = None) -> None:
        self._directory = stage_dir
        self._lease = stage_dir / "lease.json"
        self._file = member_path(stage_dir, rank)
        self._die = die or _kill_self
        self._parent = os.getppid()
        self._over = threading.Event()
        durable.write_hint(self._file, asdict(this_process()))
        self._fence = fence.join(stage_dir)
        threading.Thread(target=self._watch, name="watch rank 0", daemon=True).start()

    def first_is_gone(self) -> bool:
        """Return True if the stage directory's holder, or the parent of this process, has ended without goodbye."""
        holder = read_holder(self._lease)
        gone = holder is not None and holder.is_here and not holder.is_alive
        return os.getppid() != self._parent or (gone and self._is_first(holder))

    def _is_first(self, holder: Holder | None) -> bool:
        """Return True if a holder is rank 0 of this very start: the file of an earlier start says nothing."""
        if term_of_process() is None or holder is None:
            return holder is not None
        content = fence.read_fence(self._directory)
        return self._fence.is_ours() and content.get("pid") == holder.pid

    def _watch(self) -> None:
        misses = 0
        while misses < 2:
            if self._over.wait(LOOK_EVERY_SECONDS):
                return
            misses = misses + 1 if self.first_is_gone() else 0
        self._die()

    def __enter__(self) -> "Membership":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._over.set()
        fence.let_go(self._fence)
        with contextlib.suppress(OSError):
            self._file.unlink()


class ShareLease:
    """The hold of a process that makes its share of records apart: it publishes while its own submission counts."""

    def __init__(self, stage_dir: Path) -> None:
        self._fence = fence.join(stage_dir)
        self._fence.check()

    def __enter__(self) -> "ShareLease":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        fence.let_go(self._fence)


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

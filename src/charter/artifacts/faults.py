"""Faults on request, for tests that crash a real run at a chosen place.

Without these variables nothing happens:

    CHARTER_FAULT_AT=12:before     SIGKILL before (or `after`) durable action 12 of the process;
                                   `12:enospc` lets that action fail as a full disk does, `12:torn`
                                   leaves half of what it writes or removes, then SIGKILL
    CHARTER_FAULT_LOG=FILE         one line per durable action, so that a test can count them
    CHARTER_KILL=ppo:checkpoint:40:after[:all|:stop]
                                   SIGKILL at a named boundary: stage, point (start, step, checkpoint,
                                   outputs, record), step (`40-2` after two parts of the next one), before or
                                   after; `all` kills the supervisor and the stage server first, `stop`
                                   freezes the process instead (SIGSTOP)
    CHARTER_FAULT_RANK=1           in that process of a stage that has several, instead of rank 0

A fault fires in the first attempt that a supervisor makes of a stage, so that its restart can be watched.
"""

import errno
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NoReturn


def sizes_of(path: Path | None) -> dict[Path, int]:
    """Bytes of a file, or of every file below a directory; nothing for what is not there."""
    if path is None:
        return {}
    files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
    return {item: item.stat().st_size for item in sorted(files)}


def cut_what_was_added(path: Path, before: Mapping[Path, int]) -> None:
    """Leave half of what every file has gained; of flushed files that have gained nothing, half of all."""
    sizes = sizes_of(path)
    grown = {item: size for item, size in sizes.items() if size != before.get(item, 0)}
    for item, size in (grown or sizes).items():
        old_size = before.get(item, 0) if grown else 0
        os.truncate(item, old_size + max(0, size - old_size) // 2)


def remove_half(path: Path) -> None:
    """Remove every other file below a directory, the first one included."""
    for item in [*sizes_of(path)][::2]:
        item.unlink()


When = Literal["before", "after"]
ATTEMPT = "CHARTER_ATTEMPT"
SUPERVISOR_PID = "CHARTER_SUPERVISOR_PID"
_count = 0
_counting = threading.Lock()


@contextmanager
def durable_action(name: str, *, writes: Path | None = None, removes: Path | None = None) -> Iterator[None]:
    """Count one durable action, and crash before, in or after it when asked to.

    `writes` is what it fills or flushes, `removes` what it removes; without either it is atomic, and torn is not done.
    """
    global _count
    with _counting:
        _count += 1
        number = _count
    if log := os.environ.get("CHARTER_FAULT_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {number} {name}\n")
    _crash_at(number, "before")
    torn = _is_at(number, "torn")
    before = sizes_of(writes) if torn else {}
    if torn and writes is None:
        remove_half(removes) if removes is not None else None
        _kill_self()
    yield
    if torn and writes is not None:
        cut_what_was_added(writes, before)
        _kill_self()
    _crash_at(number, "after")


def boundary(stage: str, point: str, step: int | str, when: When) -> None:
    """Crash at a named boundary of a stage when asked to."""
    wanted = os.environ.get("CHARTER_KILL")
    if not wanted or not _meant():
        return
    parts = wanted.split(":")
    if parts[:4] != [stage, point, str(step), when]:
        return
    match parts[4:]:
        case ["all"]:
            kill_everything()
        case ["stop"]:
            os.kill(os.getpid(), signal.SIGSTOP)
        case _:
            _kill_self()


def kill_everything() -> NoReturn:
    """SIGKILL the supervisor, the stage server and this process, as a power cut of the machine would."""
    for pid in (int(os.environ.get(SUPERVISOR_PID, "0")), os.getppid()):
        if pid > 1:
            os.kill(pid, signal.SIGKILL)
    _kill_self()


def reset_count() -> None:
    """Start counting durable actions anew (in a forked stage process)."""
    global _count
    _count = 0


def _crash_at(number: int, when: When) -> None:
    if when == "before" and _is_at(number, "enospc"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if _is_at(number, when):
        _kill_self()


def _is_at(number: int, what: str) -> bool:
    """Return True if this kind of fault is asked for at this action of this process."""
    return os.environ.get("CHARTER_FAULT_AT") == f"{number}:{what}" and _meant()


def _meant() -> bool:
    """Return True if a fault fires in this process: in one rank, in the first attempt."""
    rank = os.environ.get("RANK", "0")
    return os.environ.get(ATTEMPT, "1") == "1" and rank == os.environ.get("CHARTER_FAULT_RANK", "0")


def _kill_self() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL cannot be survived")

"""The right to publish in a directory: a number that grows with every holder, looked at whenever a name appears.

A lock keeps two processes apart only while both see it. A process that was frozen, or cut off from a shared disk, may
be taken for dead, lose the directory to another one, and then wake in the middle of a write. So whoever takes a
directory writes the next number into its fence file, and every rename below the directory is done only while that file
still holds the number, and the holder, of the process that renames. The late one is stopped before anything appears.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charter.artifacts.group import GROUP
from charter.errors import InterruptedRunError, loads_json

TERM = "CHARTER_TERM"


@dataclass(frozen=True, order=True)
class LeaseTerm:
    """One start of a job."""

    submission: int
    """Counted in the stage directory from 1."""
    restart: int
    """How often the scheduler had started it before; -1 for the submission itself, before any start."""

    def __str__(self) -> str:
        return f"{self.submission}.{self.restart}"


NO_TERM = LeaseTerm(0, 0)
"""Of a directory that no scheduler has worked in."""


def read_term(text: object) -> LeaseTerm:
    """The term that a text names; `NO_TERM` for anything else.

    >>> read_term("7.1") > read_term("7.0") > read_term(None)
    True
    """
    submission, _, restart = str(text).partition(".")
    try:
        return LeaseTerm(int(submission), int(restart))
    except ValueError:
        return NO_TERM


def term_of_process() -> LeaseTerm | None:
    """The term of the start that this process belongs to; None where no scheduler started it."""
    term = os.environ.get(TERM)
    return None if term is None else read_term(term)


FENCE, FENCE_LOCK = ".fence", ".fence.lock"
LOCK_SECONDS = 30.0
"""How long a rename waits for another one in the same directory. One takes milliseconds; a holder that was frozen in
the middle of one keeps the others out, which is safe."""
JOIN_SECONDS = 60.0
"""How long a process beside the first one of a stage waits for that one to take the directory."""
_JOIN_LOOK_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Fence:
    """Content that the fence file must have for this process to publish."""

    directory: Path
    content: Mapping[str, Any]
    """All of it for the holder; the group alone for a process beside it."""
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)
    _seen: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    """Set once the holder was there: after that another one is a stranger."""

    def is_ours(self) -> bool:
        """Return True if nobody has taken the directory since."""
        content = read_fence(self.directory)
        ours = all(content.get(name) == value for name, value in self.content.items())
        if ours:
            self._seen.set()
        return ours

    def check(self) -> None:
        """Raise when somebody has."""
        if not self.is_ours() and not self._joined_late():
            content = read_fence(self.directory)
            raise InterruptedRunError(
                f"{self.directory} was taken over by pid {content.get('pid')} on {content.get('host')} (fence "
                f"{content.get('token')}) while this process, pid {os.getpid()}, was taken for dead; it has written "
                "nothing since and ends"
            )

    def _joined_late(self) -> bool:
        """Wait, beside a holder that has not taken the directory yet, until it has."""
        if "token" in self.content or self._seen.is_set():
            return False
        deadline = time.monotonic() + JOIN_SECONDS
        while not self.is_ours() and time.monotonic() < deadline:
            time.sleep(_JOIN_LOOK_SECONDS)
        self._seen.set()
        return self.is_ours()


_held: dict[Path, Fence] = {}
"""By directory: what this process holds. A process works in one stage; the supervisor holds the run."""


def next_content(directory: Path, holder: Mapping[str, Any], *, term: LeaseTerm | None = None) -> dict[str, Any]:
    """Return the content that the next holder of a directory writes into the fence file.

    An earlier start of a scheduler's job is refused. Whoever is started without a scheduler counts as a new submission.
    """
    content = read_fence(directory)
    last, own = read_term(content.get("term")), term or term_of_process()
    if own is not None and own < last:
        raise InterruptedRunError(
            f"{directory} belongs to start {last} of its stage by now; this is the earlier start {own}, which ends"
        )
    if own is None and last != NO_TERM:
        own = LeaseTerm(last.submission + 1, 0)
    named = {} if own is None else {"term": str(own)}
    return {"token": content.get("token", 0) + 1, "group": os.environ.get(GROUP), **named, **holder}


def hold(directory: Path, content: Mapping[str, Any]) -> Fence:
    """From now on this process publishes below the directory only while the fence file holds this."""
    fence = Fence(directory=directory.resolve(), content=dict(content))
    _held[fence.directory] = fence
    return fence


def join(directory: Path) -> Fence:
    """The same for a process beside the holder: the holder of its own group, which may take the directory later."""
    return hold(directory, {"group": os.environ.get(GROUP)})


def let_go(fence: Fence) -> None:
    """Publish without a fence again."""
    if _held.get(fence.directory) is fence:
        del _held[fence.directory]


def token_of(directory: Path) -> int | None:
    """The number under which this process publishes below a directory; None where it has taken none."""
    tokens = [fence.content.get("token") for fence in _above(directory)]
    return tokens[0] if tokens else None


def check(target: Path) -> None:
    """Raise when this process has lost a directory above the target."""
    for fence in _above(target):
        fence.check()


@contextlib.contextmanager
def publishing(target: Path) -> Iterator[None]:
    """Let a name appear or go: nobody takes the directory over between the look at the fence and the end of this."""
    with contextlib.ExitStack() as stack:
        for fence in _above(target):
            fence.check()  # may wait for the holder, which needs the lock
            stack.enter_context(fence.lock)
            stack.enter_context(locked(fence.directory))
            fence.check()
        yield


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep the fence file of a directory as it is meanwhile."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(directory / FENCE_LOCK, timeout=LOCK_SECONDS, poll_interval=0.01, is_singleton=False):
            yield
    except Timeout:
        raise InterruptedRunError(
            f"{directory} could not be written for {LOCK_SECONDS:g} s: another process holds {FENCE_LOCK}, perhaps "
            "one that was frozen (SIGSTOP) while it wrote; continue it or end it"
        ) from None


def read_fence(directory: Path) -> dict[str, Any]:
    """The content of a fence file; empty where none was written yet, or what is there cannot be read."""
    try:
        content = loads_json((directory / FENCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _above(target: Path) -> list[Fence]:
    """The fences that a target lies behind, the nearest first."""
    if not _held:
        return []
    place = Path(os.path.abspath(target))
    return [_held[directory] for directory in (place, *place.parents) if directory in _held]

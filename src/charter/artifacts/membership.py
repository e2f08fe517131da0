"""A process beside rank 0: it says who it is, and ends itself when rank 0 is gone."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from charter.artifacts import durable, fence
from charter.artifacts.group import member_path
from charter.artifacts.lease import Holder, read_holder, this_process
from charter.artifacts.term import term_of_process

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
        """Whether the holder of the stage directory, or whoever started this process, has ended without goodbye."""
        holder = read_holder(self._lease)
        gone = holder is not None and holder.is_here and not holder.is_alive
        return os.getppid() != self._parent or (gone and self._is_first(holder))

    def _is_first(self, holder: Holder | None) -> bool:
        """Whether a holder is rank 0 of this very start: what an earlier one has left behind says nothing."""
        if term_of_process() is None or holder is None:
            return holder is not None
        found = fence.read_fence(self._directory)
        return self._fence.is_ours() and found.get("pid") == holder.pid

    def _watch(self) -> None:
        seen = 0
        while seen < 2:
            if self._over.wait(LOOK_EVERY_SECONDS):
                return
            seen = seen + 1 if self.first_is_gone() else 0
        self._die()

    def __enter__(self) -> "Membership":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self._over.set()
        fence.let_go(self._fence)
        with contextlib.suppress(OSError):
            self._file.unlink()


class Share:
    """The hold of a process that makes its share of records apart: it publishes while its own submission counts."""

    def __init__(self, stage_dir: Path) -> None:
        self._fence = fence.join(stage_dir)
        self._fence.check()

    def __enter__(self) -> "Share":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        fence.let_go(self._fence)


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)

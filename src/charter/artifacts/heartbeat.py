"""Signs of life: a small file per process of a stage, which the supervisor watches for change."""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

BEAT_EVERY_SECONDS = 0.25
"""A stage may beat at every step; the file is written at most so often."""
START, SAVE, PUBLISH = "start", "save", "publish"
SLOW = frozenset({START, SAVE, PUBLISH})
"""What takes its time by nature: a stage's own pace says nothing about it."""
_WIDTH = 80


@dataclass(frozen=True)
class Sign:
    """The last sign of life of one process."""

    count: int
    """How many it has given; never the same for two different signs of one start."""
    parts: int
    """How many of them were given while working, at the beginning of a step or of a part of it."""
    what: str
    """What it began to do then."""

    @property
    def is_slow(self) -> bool:
        """Whether it began something that may take long."""
        return self.what in SLOW


class Heartbeat:
    """Writes the signs of life of this process."""

    def __init__(self, stage_dir: Path, rank: int) -> None:
        self._path = heartbeat_path(stage_dir, rank)
        self._file: int | None = None
        self._count = self._parts = 0
        self._written_at = float("-inf")
        self._was_slow = False
        self._what = START

    def beat(self, what: str) -> None:
        """This process lives, and begins `what`: `start`, `save`, `publish`, or a step by any other name."""
        self._parts += what not in SLOW
        self._sign(what)

    def alive(self) -> None:
        """This process is still at what it began: a token, a micro-batch further."""
        self._sign(self._what)

    def _sign(self, what: str) -> None:
        self._count += 1
        self._what = what
        slow = what in SLOW
        now = time.monotonic()
        if now - self._written_at < BEAT_EVERY_SECONDS and slow == self._was_slow:
            return
        self._written_at, self._was_slow = now, slow
        line = f"{self._count} {self._parts} {what}".replace("\n", " ")[: _WIDTH - 1]
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            os.pwrite(self._file, f"{line:<{_WIDTH - 1}}\n".encode(errors="replace")[:_WIDTH], 0)


def heartbeat_path(stage_dir: Path, rank: int) -> Path:
    """The file of one process."""
    return stage_dir / f"heartbeat-{rank}"


def read_sign(stage_dir: Path, rank: int) -> Sign | None:
    """The last sign of life of one process; None while it has given none."""
    try:
        words = heartbeat_path(stage_dir, rank).read_text(encoding="utf-8", errors="replace").split(maxsplit=2)
        return Sign(count=int(words[0]), parts=int(words[1]), what=words[2].strip())
    except (OSError, ValueError, IndexError):
        return None

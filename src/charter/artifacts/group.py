"""The processes of one stage: how one knows its place among them, and the files that each has for itself.

Every process is started with torchrun's variables `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, and with
`CHARTER_GROUP`, a name of this very start. Rank 0 holds the lease, reports and publishes.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
GROUP = "CHARTER_GROUP"
APART = "CHARTER_APART"
"""Set in a process that makes its share of the records without the others: a task of a scheduler's array."""
NODE_ADDRESS = "CHARTER_NODE_ADDRESS"
"""Of the node of rank 0, as other nodes reach it; only where a stage has several nodes."""
FAILURE, LOG = "failure.json", "log.txt"
_OF_ONE_START = ("heartbeat-*", "member-*.json", "rendezvous-*.json", "failure-*.json", "publisher-*.json")


def rank_of_process() -> int:
    """This process's number among those of its stage; 0 when it is alone."""
    return int(os.environ.get(RANK, "0"))


def world_size() -> int:
    """Return the number of processes of the stage."""
    return int(os.environ.get(WORLD_SIZE, "1"))


def works_apart() -> bool:
    """Return True in a task of an array, which shares the work with `world_size` others and meets none."""
    return bool(os.environ.get(APART))


def rank_environment(
    rank: int, *, processes: int, group: str, first: int = 0, here: int | None = None
) -> dict[str, str]:
    """Return the environment of one process of a stage; on one of several nodes `first` and `here` say its part.

    >>> sorted(rank_environment(1, processes=2, group="1-a").values())
    ['1', '1', '1-a', '2', '2']
    >>> rank_environment(5, processes=8, group="1-a", first=4, here=4)["LOCAL_RANK"]
    '1'
    """
    return {
        RANK: str(rank),
        WORLD_SIZE: str(processes),
        LOCAL_RANK: str(rank - first),
        LOCAL_WORLD_SIZE: str(processes if here is None else here),
        GROUP: group,
    }


def log_name(rank: int) -> str:
    """The file that a process prints into.

    >>> log_name(0), log_name(3)
    ('log.txt', 'log-3.txt')
    """
    return f"log-{rank}.txt" if rank else LOG


def failure_name(rank: int) -> str:
    """The file in which a process says why it failed."""
    return f"failure-{rank}.json" if rank else FAILURE


def member_path(stage_dir: Path, rank: int) -> Path:
    """The file in which a process beside rank 0, which has the lease, says who it is."""
    return stage_dir / f"member-{rank}.json"


def sweep_start(stage_dir: Path) -> None:
    """Remove what an ended start of a stage's processes has left for itself; logs stay."""
    for path in _left(stage_dir):
        path.unlink(missing_ok=True)


def _left(stage_dir: Path) -> Iterator[Path]:
    for pattern in _OF_ONE_START:
        yield from stage_dir.glob(pattern)


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
        """Return True if it began something that may take long."""
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

"""The processes of one stage: how one knows its place among them, and the files that each has for itself.

Every process is started with torchrun's variables `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, and with
`CHARTER_GROUP`, a name of this very start. Rank 0 holds the lease, reports and publishes.
"""

import os
from collections.abc import Iterator
from pathlib import Path

RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
GROUP = "CHARTER_GROUP"
APART = "CHARTER_APART"
"""Set in a process that makes its share of the records without the others: a task of an engine's array."""
NODE_ADDRESS = "CHARTER_NODE_ADDRESS"
"""Of the node of rank 0, as other nodes reach it; only where a stage has several nodes."""
FAILURE, LOG = "failure.json", "log.txt"
_OF_ONE_START = ("heartbeat-*", "member-*.json", "rendezvous-*.json", "failure-*.json", "publisher-*.json")


def rank_of_process() -> int:
    """This process's number among those of its stage; 0 when it is alone."""
    return int(os.environ.get(RANK, "0"))


def world_size() -> int:
    """How many processes the stage has."""
    return int(os.environ.get(WORLD_SIZE, "1"))


def works_apart() -> bool:
    """Whether this process is a task of an array: it shares the work with `world_size` others, and meets none."""
    return bool(os.environ.get(APART))


def rank_environment(
    rank: int, *, processes: int, group: str, first: int = 0, here: int | None = None
) -> dict[str, str]:
    """What one process of a stage is told about its place; on one of several nodes `first` and `here` say which part.

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

"""The processes of one stage: who this one is, and what they say to one another.

Every process is started with torchrun's variables `RANK`, `WORLD_SIZE` and `LOCAL_RANK`. They meet at
`MASTER_ADDR:MASTER_PORT` where these are set (torchrun), else at a port that rank 0 opens and writes into a file of
the stage's directory, with the address of its node where there are several. The store is prefixed with
`CHARTER_GROUP`, a name of this very start, so that a restarted group never reads addresses of the one before.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from charter.artifacts.group import GROUP, NODE_ADDRESS, rank_of_process, world_size
from charter.artifacts.lease import host_id
from charter.errors import StageError

RENDEZVOUS = "rendezvous"
LOOPBACK = "127.0.0.1"
MEETING_SECONDS = 120.0
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""What is computed together and takes longer raises: all have met on the host after whatever may take one of them long.
A supervisor notices a hang long before, by signs of life that stop (`run/watches.py`); a job may have none."""
WAITING_TIMEOUT = timedelta(hours=2)
"""The same on the host, where all wait for a generator beside the trainer, which may take an hour for a rollout, or for
tools of one process's answers; whatever they wait for has a time limit of its own."""


@dataclass(frozen=True)
class Ranks:
    """This process among the processes of its stage; a stage of one process is a group of one.

    `data` ranks read different rows; ranks that hold parts of the same tensors (tensor parallelism) read the same, as
    do those that have different positions of each row (context parallelism).
    """

    rank: int = 0
    world_size: int = 1
    data_rank: int = 0
    data_size: int = 1
    context_rank: int = 0
    context_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    data_group: Any = None
    """Process group of the ranks that this process adds up with, which have other rows or other positions of its own;
    None for one process."""
    context_group: Any = None
    """Process group of those that have the other positions of its rows."""
    host_group: Any = None
    """Gloo group of all processes, for what is said on the host."""
    saving_group: Any = None
    """Gloo group of all processes for checkpoints alone: a save in the background must not meet a step's collective."""

    @property
    def is_first(self) -> bool:
        """Return True if this process publishes, reports and logs."""
        return self.rank == 0

    @property
    def summed_size(self) -> int:
        """Number of processes that `sum` adds up."""
        return self.data_size * self.context_size

    def share(self, rows: Sequence[Any]) -> list[Any]:
        """This process's rows of a batch: every `data_size`-th, so that shares differ by one at most."""
        return list(rows[self.data_rank :: self.data_size])

    def sum(self, values: Tensor) -> Tensor:
        """The sum over the data ranks, and over the positions of their rows."""
        if self.summed_size == 1:
            return values
        summed = values.clone()
        dist.all_reduce(summed, group=self.data_group)
        return summed

    def total(self, sums: dict[str, float]) -> dict[str, float]:
        """Named numbers added up as by `sum`, in fp64; every process must name the same."""
        if self.summed_size == 1 or not sums:
            return dict(sums)
        names = sorted(sums)
        values = torch.tensor([sums[name] for name in names], dtype=torch.float64, device=self.device)
        return dict(zip(names, self.sum(values).tolist(), strict=True))

    def any(self, wanted: bool) -> bool:
        """Return True, in every process, if any process wants something."""
        return any(self.gather(wanted))

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, by rank; values are small and picklable."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.host_group)
        return values

    def from_first(self, value: Any) -> Any:
        """Rank 0's value, at every process."""
        if self.world_size == 1:
            return value
        box = [value if self.is_first else None]
        dist.broadcast_object_list(box, src=0, group=self.host_group)
        return box[0]

    def wait(self) -> None:
        """Go on when every process has come here."""
        if self.world_size > 1:
            dist.barrier(group=self.host_group)


def join(stage_dir: Path, device: torch.device, *, tensor: int = 1, context: int = 1) -> Ranks:
    """Meet the other processes of the stage.

    With `tensor` > 1 neighbouring ranks share one copy of the model, with `context` > 1 such groups share rows.
    """
    rank, world = rank_of_process(), world_size()
    if world == 1:
        return Ranks(device=device)
    if world % tensor:
        raise StageError(f"{world} processes cannot be split into groups of {tensor} for tensor parallelism")
    if world % (tensor * context):
        raise StageError(f"{world} processes cannot be split into groups of {tensor * context} for context parallelism")
    if not dist.is_initialized():
        store = PrefixStore(os.environ.get(GROUP, "charter"), _store(stage_dir, rank, world))
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=COLLECTIVE_TIMEOUT)
    groups = [_group([*range(first, world, tensor)]) for first in range(tensor)]
    own = tensor * context
    return Ranks(
        rank=rank,
        world_size=world,
        data_rank=rank // own,
        data_size=world // own,
        context_rank=rank % own // tensor,
        context_size=context,
        device=device,
        data_group=groups[rank % tensor],
        context_group=_context_group(rank, world, tensor, context),
        host_group=_group(backend="gloo"),
        saving_group=_group(backend="gloo"),
    )


def _group(members: list[int] | None = None, backend: str | None = None) -> Any:
    """Make a group of its members, or of all; torch gives the time of the first group to none of the others."""
    return dist.new_group(members, timeout=WAITING_TIMEOUT if backend else COLLECTIVE_TIMEOUT, backend=backend)


def _context_group(rank: int, world: int, tensor: int, context: int) -> Any:
    """Return the group of the ranks that have the other positions of this one's rows; every rank makes every group."""
    own = tensor * context
    if context == 1:
        return None
    members = [[*range(first + part, first + own, tensor)] for first in range(0, world, own) for part in range(tensor)]
    groups = [_group(ranks) for ranks in members]
    return next(group for ranks, group in zip(members, groups, strict=True) if rank in ranks)


def leave() -> None:
    """Part from the group; only after a success, since a process that failed must not wait for the others."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _store(stage_dir: Path, rank: int, world: int) -> Any:
    timeout = timedelta(seconds=MEETING_SECONDS)
    if "MASTER_ADDR" in os.environ:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        # torchrun's own agent may have opened the port already; then rank 0 is a guest there like the others.
        is_master = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        return TCPStore(host, port, world, is_master=is_master, timeout=timeout)
    place = stage_dir / f"{RENDEZVOUS}-{os.environ.get(GROUP, 'charter')}.json"
    if rank == 0:
        store = TCPStore(LOOPBACK, 0, world, is_master=True, timeout=timeout, wait_for_workers=False)
        address = os.environ.get(NODE_ADDRESS) or LOOPBACK
        temporary = place.with_suffix(".tmp")
        temporary.write_text(json.dumps({"port": store.port, "address": address, "host": host_id()}), encoding="utf-8")
        temporary.replace(place)
        return store
    meeting = _meeting(place)
    host = LOOPBACK if meeting["host"] == host_id() else meeting["address"]
    return TCPStore(host, int(meeting["port"]), world, is_master=False, timeout=timeout)


def _meeting(place: Path) -> dict[str, Any]:
    """Wait for rank 0 to open its port, and read its address."""
    deadline = time.monotonic() + MEETING_SECONDS
    while not place.exists():
        if time.monotonic() > deadline:
            raise StageError(f"the first process of the stage did not open its port within {MEETING_SECONDS:g} s")
        time.sleep(0.01)
    return dict(json.loads(place.read_text(encoding="utf-8")))

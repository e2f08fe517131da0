"""Meters the stages that run on this machine, for the follower of a local run."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.job import JOB_FILE
from charter.artifacts.lease import LEASE, read_holder
from charter.errors import DataError
from charter.tracking.metering.host import with_descendants
from charter.tracking.metering.nvml import open_gpu_meter
from charter.tracking.metering.row import append_row
from charter.tracking.metering.sampling import NodeMeter, this_node

MEMBERS = "member-*.json"


class LocalMeters:
    """One meter per running stage; nothing at all where the interval is 0."""

    def __init__(self, run_dir: Path, *, every_seconds: float) -> None:
        self._run_dir, self._every_seconds = run_dir, every_seconds
        self._meters: dict[Path, NodeMeter] = {}
        self._due = time.monotonic()

    def seconds_to_next(self, most: float) -> float:
        """How long may be waited before the next look."""
        if self._every_seconds <= 0:
            return most
        return min(most, max(0.0, self._due - time.monotonic()))

    def look(self, running: Iterable[Path], *, last: bool = False) -> None:
        """A sample of every running stage, when its time has come; a last one of those that have ended."""
        if self._every_seconds <= 0:
            return
        now = time.monotonic()
        stages = set(running)
        for directory in stages - self._meters.keys():
            self._meters[directory] = NodeMeter(node=this_node(), gpus=open_gpu_meter(_visible(directory)))
        due = now >= self._due
        for directory, meter in list(self._meters.items()):
            ended = directory not in stages
            if due or ended or last:
                append_row(directory, meter.look(with_descendants(stage_pids(directory, self._run_dir))))
            if ended:
                meter.close()
                del self._meters[directory]
        if due:
            self._due = now + self._every_seconds

    def close(self) -> None:
        """Let go of the drivers."""
        for meter in self._meters.values():
            meter.close()


def stage_pids(stage_dir: Path, run_dir: Path) -> tuple[int, ...]:
    """The processes that hold a stage directory on this machine; not the supervisor, which may announce one."""
    supervisor = read_holder(run_dir / LEASE)
    holders = [read_holder(path) for path in (stage_dir / LEASE, *sorted(stage_dir.glob(MEMBERS)))]
    alive = [holder.pid for holder in holders if holder is not None and holder.is_alive]
    return tuple(dict.fromkeys(pid for pid in alive if supervisor is None or pid != supervisor.pid))


def _visible(stage_dir: Path) -> str | None:
    """The accelerators of a stage: none for one that computes on processors, else those that it may see."""
    try:
        frozen = durable.read_json(stage_dir / JOB_FILE)["frozen"]
    except (DataError, KeyError):
        return None
    if frozen.get("device") == "cpu":
        return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(index) for index in range(int(frozen.get("world_size", 1)))] if visible is None else _names(visible)
    return ",".join(list(names)[: int(frozen.get("world_size", 1))])


def _names(visible: str) -> Iterator[str]:
    return (name.strip() for name in visible.split(",") if name.strip())

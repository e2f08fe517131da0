"""Meters a stage on this node from a small process of its own, so that nothing of it can hurt training."""

import argparse
import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from charter.artifacts import durable
from charter.artifacts.job import JOB_FILE
from charter.artifacts.lease import LEASE, read_holder
from charter.errors import DataError
from charter.metering.host import HostMeter, RaplMeter, with_descendants
from charter.metering.nvml import NoGpuMeter, NvmlMeter, open_gpu_meter
from charter.metering.row import MeterRow, append_row

NICENESS = 10


class Looks(Protocol):
    """Whoever says which processes a stage has at the moment."""

    def __call__(self) -> Sequence[int]:
        """Their numbers."""
        ...


class NodeMeter:
    """All meters of one node for one stage."""

    def __init__(self, *, node: str, gpus: NvmlMeter | NoGpuMeter) -> None:
        self._node, self._gpus = node, gpus
        self._host, self._rapl = HostMeter(), RaplMeter()

    def look(self, pids: Sequence[int]) -> MeterRow:
        """Measure the interval since the last look."""
        host = self._host.look(pids)
        return MeterRow(
            node=self._node,
            gpus=self._gpus.look(host.interval_seconds, pids),
            gpu_note=self._gpus.note,
            cpu_energy_joules=self._rapl.look(),
            **vars(host),
        )

    def close(self) -> None:
        """Let go of the drivers."""
        self._gpus.close()


def this_node() -> str:
    """The name of this machine, without its domain."""
    return socket.gethostname().partition(".")[0] or "node"


def sample_until_over(stage_dir: Path, meter: NodeMeter, processes: Looks, *, every_seconds: float, over: int) -> None:
    """Write one sample per interval until the file descriptor `over` ends, and a last one then."""
    ended = False
    while not ended:
        ready, _, _ = select.select([over], [], [], every_seconds)
        ended = bool(ready)
        append_row(stage_dir, meter.look(processes()))
    meter.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Meter until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage-dir", type=Path, required=True)
    parser.add_argument("--node", default=this_node())
    parser.add_argument("--every", type=float, default=10.0, help="seconds")
    parser.add_argument("--gpus", default=None, help="as CUDA_VISIBLE_DEVICES; empty for none, all unless given")
    parser.add_argument("--below", type=int, default=None, help="meter what is below this process, not itself")
    parser.add_argument("--pid", type=int, action="append", default=[], help="meter this process and what is below it")
    options = parser.parse_args(arguments)
    os.nice(NICENESS)

    def processes() -> Sequence[int]:
        roots = [*options.pid, *([] if options.below is None else [options.below])]
        return [pid for pid in with_descendants(roots, without=os.getpid()) if pid != options.below]

    meter = NodeMeter(node=options.node, gpus=open_gpu_meter(options.gpus))
    sample_until_over(options.stage_dir, meter, processes, every_seconds=options.every, over=sys.stdin.fileno())


if __name__ == "__main__":
    main()


STOP_SECONDS = 5.0
"""How long a stop waits for the last sample; a sampler that does not answer is killed."""
LOG = "meter.log"


class MeterSampler:
    """Writes `meter-<node>.jsonl` into a stage's directory, from `start` to `stop` or to the end of this process.

    The node agent of an engine writes `with Sampler(stage_dir, below=os.getpid(), every_seconds=...):` around its
    work. Nothing raises: a sampler that cannot start is a line in `meter.log`.
    """

    def __init__(
        self,
        stage_dir: Path,
        *,
        every_seconds: float,
        below: int | None = None,
        pids: Sequence[int] = (),
        node: str | None = None,
        gpus: str | None = None,
    ) -> None:
        """`below`: every process below this one counts, as they come; `pids`: these and what is below them.

        `gpus`: those of the job, as in CUDA_VISIBLE_DEVICES; "" for none; all of the node unless given.
        """
        self._stage_dir, self._every_seconds = stage_dir, every_seconds
        self._command = [sys.executable, "-m", "charter.metering.sampler", "--stage-dir", str(stage_dir)]
        self._command += ["--node", node or this_node(), "--every", str(every_seconds)]
        self._command += [] if below is None else ["--below", str(below)]
        self._command += [part for pid in pids for part in ("--pid", str(pid))]
        self._command += [] if gpus is None else [f"--gpus={gpus}"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start sampling; with an interval of 0 nothing is sampled."""
        if self._process is not None or self._every_seconds <= 0:
            return
        with contextlib.suppress(OSError), (self._stage_dir / LOG).open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def stop(self) -> None:
        """Take a last sample and end."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> "MeterSampler":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.stop()


MEMBERS = "member-*.json"


class LocalMeters:
    """One meter per running stage; nothing at all where the interval is 0."""

    def __init__(self, run_dir: Path, *, every_seconds: float) -> None:
        self._run_dir, self._every_seconds = run_dir, every_seconds
        self._meters: dict[Path, NodeMeter] = {}
        self._due = time.monotonic()

    def seconds_to_next(self, most: float) -> float:
        """Return the seconds that may be waited before the next look."""
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

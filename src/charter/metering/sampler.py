"""Meters a stage on this node from a small process of its own, so that nothing of it can hurt training."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from charter.artifacts import durable
from charter.artifacts.job import JOB_FILE
from charter.artifacts.lease import LEASE, read_holder
from charter.errors import DataError
from charter.metering.host import with_descendants
from charter.metering.nvml import open_gpu_meter
from charter.metering.row import append_row
from charter.metering.sampling import NodeMeter, this_node

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
        self._command = [sys.executable, "-m", "charter.metering.sampling", "--stage-dir", str(stage_dir)]
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

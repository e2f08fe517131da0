"""Meters a stage on this node from a small process of its own, so that nothing of it can hurt training."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from charter.tracking.metering.sampling import this_node

STOP_SECONDS = 5.0
"""How long a stop waits for the last sample; a sampler that does not answer is killed."""
LOG = "meter.log"


class Sampler:
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
        self._command = [sys.executable, "-m", "charter.tracking.metering.sampling", "--stage-dir", str(stage_dir)]
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

    def __enter__(self) -> "Sampler":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.stop()

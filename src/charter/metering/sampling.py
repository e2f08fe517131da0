"""A process that meters a stage on one node: `python -m charter.metering.sampling --stage-dir D --node N`.

It ends when its standard input does, so it never outlives whoever started it; and nothing it meets ends anything else.
"""

import argparse
import os
import select
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

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

"""Looks at the node that this runs on: disk, memory, processor, clock; a fraction of a second in all."""

import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.file_facts import free_bytes
from charter.launch.node_checks.report import Finding
from charter.units import format_bytes

WRITTEN_BYTES = 4 * 1024**2
COPIED_BYTES = 32 * 1024**2
MATRIX = 384
REPEATS = 5
"""The best of so many: what else runs on the node can only make it slower."""
LONGEST_CLOCK_SKEW_SECONDS = 5.0
_READ = {True: "what was written is read back", False: "other bytes are read than were written"}


def disk(directory: Path, *, least_bytes: int) -> tuple[Finding, ...]:
    """Free space, and whether a file can be written durably and read back."""
    free = free_bytes(directory)
    space = Finding(
        name="disk",
        ok=free >= least_bytes,
        found=f"{format_bytes(free)} free in {directory}, {format_bytes(least_bytes)} asked",
        advice="free some space, or lower launch.node_checks.disk_bytes",
    )
    path, content = directory / f".check-{uuid.uuid4().hex}", os.urandom(4096)
    try:
        durable.write_file(path, content)
        same = path.read_bytes() == content
    except OSError as error:
        return (space, Finding(name="writing", ok=False, found=str(error), advice="is the shared directory mounted?"))
    finally:
        path.unlink(missing_ok=True)
    return (
        space,
        Finding(name="writing", ok=same, found=_READ[same]),
    )


def clock(directory: Path) -> Finding:
    """This node's clock beside that of the file system: leases and the ledger go by both."""
    path = directory / f".clock-{uuid.uuid4().hex}"
    before = time.time()
    path.touch()
    written, after = path.stat().st_mtime, time.time()
    path.unlink(missing_ok=True)
    skew = max(0.0, before - written, written - after)  # a disk or a node that stood still meanwhile is no skew
    return Finding(
        name="clock",
        ok=skew <= LONGEST_CLOCK_SKEW_SECONDS,
        found=f"{skew:.1f} s from the file system's",
        advice="set the clock of the node (chrony, systemd-timesyncd)",
    )


def processor_rates(now: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Speed of a matrix product (flop/s, 2 n^3 for n x n) and of a copy in memory (bytes/s, read and written).

    Limits: a few milliseconds each, so a node that is throttled by heat only under load is not seen.
    """
    import numpy as np

    matrix = np.ones((MATRIX, MATRIX), dtype=np.float32)
    source = np.ones(COPIED_BYTES, dtype=np.uint8)
    target = np.empty_like(source)
    product = _best(lambda: matrix @ matrix, now)
    copy = _best(lambda: np.copyto(target, source), now)
    return {
        "matmul_flops_per_second": 2 * MATRIX**3 / product,
        "memory_bytes_per_second": 2 * COPIED_BYTES / copy,
    }


def _best(work: Callable[[], object], now: Callable[[], float]) -> float:
    seconds = []
    for _ in range(REPEATS):
        start = now()
        work()
        seconds.append(now() - start)
    return max(min(seconds), 1e-9)

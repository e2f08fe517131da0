"""Looks at the node that this runs on: disk, memory, processor, clock; a fraction of a second in all."""

import os
import re
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.fingerprint import free_bytes
from charter.errors import how_to_install
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


XID = re.compile(r"NVRM: Xid \((?:PCI:)?([^)]*)\): (\d+)")
NEEDS_RESET = frozenset({46, 48, 64, 74, 79, 95, 119, 120, 140})
"""Xid numbers after which NVIDIA's catalog (docs.nvidia.com/deploy/xid-errors, read 2026-11) has the accelerator reset
or looked at: stopped (46), double-bit ECC (48), a row that could not be remapped (64), NVLink (74), off the bus (79),
uncontained ECC (95), its system processor (119, 120), unrecovered ECC (140). A remapped row (63) and a contained error
(94) are left to the counters of NVML; most other numbers are the program's own doing."""
ADVICE = "drain the node and reset the accelerator (nvidia-smi --gpu-reset), or have it replaced"


def accelerators() -> tuple[Finding, ...]:
    """Return NVML's findings on every accelerator; one finding that there are none where there is no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return (Finding(name="accelerators", ok=True, found=f"not looked at: {how_to_install('meter')}"),)
    except Exception as error:
        return (Finding(name="accelerators", ok=True, found=f"none ({type(error).__name__})"),)
    try:
        return tuple(_one(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def _one(nvml: Any, index: int) -> Finding:
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    wrong = []
    uncorrected = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
    if errors := _asked(nvml, nvml.nvmlDeviceGetTotalEccErrors, device, *uncorrected):
        wrong.append(f"{errors} uncorrected ECC errors since the driver was loaded")
    rows = _asked(nvml, nvml.nvmlDeviceGetRemappedRows, device)
    if rows and rows[2]:
        wrong.append("memory rows wait to be remapped")
    if rows and rows[3]:
        wrong.append("remapping of memory rows failed")
    name = f"accelerator {index}"
    return Finding(name=name, ok=not wrong, found="; ".join(wrong) or "no memory errors", advice=ADVICE)


def _asked(nvml: Any, question: Any, *arguments: Any) -> Any:
    """An answer of NVML; None where this accelerator does not know the question."""
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return None


def xid_errors(log: Iterable[str]) -> Finding:
    """Errors of accelerators in the kernel's log that need a reset; each counts, whichever process met it.

    >>> xid_errors(["NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."]).found
    'Xid 79 at 0000:3b:00'
    >>> xid_errors(["NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception"]).ok
    True
    """
    errors = {(number, place) for line in log for place, number in XID.findall(line) if int(number) in NEEDS_RESET}
    words = ", ".join(f"Xid {number} at {place}" for number, place in sorted(errors))
    return Finding(name="Xid", ok=not errors, found=words or "none in the kernel's log", advice=ADVICE)


def kernel_log(device: Path = Path("/dev/kmsg")) -> list[str]:
    """The kernel's messages since boot; empty where they cannot be read."""
    import os

    lines = []
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        while True:
            lines.append(os.read(descriptor, 8192).decode(errors="replace"))
            if not lines[-1]:
                return lines
    except OSError:  # no more messages (EAGAIN), or they were overwritten meanwhile (EPIPE)
        return lines
    finally:
        os.close(descriptor)

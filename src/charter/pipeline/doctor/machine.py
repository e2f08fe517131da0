"""Looks at this machine: Python, packages, processor, disk, locks."""

import fcntl
import os
import sys
import tempfile
import time
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.disk_space import free_bytes
from charter.artifacts.stage_process import PIP_COMMAND
from charter.launch.machine import cpu_capability, installed_version
from charter.pipeline.doctor.check import Check
from charter.pipeline.preflight import RUN_PACKAGES
from charter.plan.hardware.machine import usable_cores, usable_memory_bytes
from charter.units import GIB, format_bytes

OLDEST_PYTHON = (3, 11)
MIN_FREE_BYTES = 2 * GIB
"""Room for the checkpoints of the smallest template, with a margin; larger runs need what `charter plan` says."""


def examine_machine(directory: Path) -> tuple[Check, ...]:
    """Python, packages, processor, disk and locks, for running in a directory."""
    return (_python(), _machine(), *_packages(), *_file_system(directory))


def _python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    return Check(
        name="python", ok=sys.version_info >= OLDEST_PYTHON, found=found, advice="install Python 3.11 or newer"
    )


def _packages() -> tuple[Check, ...]:
    versions = {name: installed_version(name) for name in RUN_PACKAGES}
    return tuple(
        Check(
            group="packages",
            name=name,
            ok=found != "absent",
            found=found,
            advice=f"running stages needs it: {PIP_COMMAND}",
        )
        for name, found in versions.items()
    )


def _machine() -> Check:
    memory = format_bytes(usable_memory_bytes())
    return Check(name="machine", ok=True, found=f"{usable_cores()} cores ({cpu_capability()}), {memory} memory")


def _file_system(directory: Path) -> tuple[Check, ...]:
    free = free_bytes(directory)
    space = Check(
        group="disk",
        name="disk",
        ok=free >= MIN_FREE_BYTES,
        found=f"{format_bytes(free)} free",
        advice=f"have at least {format_bytes(MIN_FREE_BYTES)} free",
    )
    existing = next(path for path in (directory, *directory.parents) if path.is_dir())
    try:
        with tempfile.TemporaryDirectory(prefix=".charter-doctor-", dir=existing) as probe:
            return (space, _locks(Path(probe)), _sync(Path(probe)))
    except OSError as error:
        return (
            space,
            Check(group="disk", name="writing", ok=False, found=str(error), advice="use a directory you may write to"),
        )


def _locks(probe: Path) -> Check:
    with (probe / "lock").open("w") as first, (probe / "lock").open("w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return Check(group="disk", name="locks", ok=True, found="flock works here")
    return Check(
        group="disk", name="locks", ok=False, found="flock does not exclude", advice="run on a local file system"
    )


def _sync(probe: Path) -> Check:
    start = time.perf_counter()
    durable.write_file(probe / "file", os.urandom(4096))
    milliseconds = (time.perf_counter() - start) * 1000
    return Check(group="disk", name="durable write", ok=True, found=f"{milliseconds:.1f} ms for 4 KiB with fsync")

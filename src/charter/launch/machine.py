"""What the bits of a stage depend on here: threads, device, instruction set, library versions."""

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from charter.plan.hardware.machine import usable_cores
from charter.spec.project import Project
from charter.spec.stage import Stage

_AVX512 = {"avx512f", "avx512dq", "avx512bw", "avx512vl", "fma"}
_AVX2 = {"avx2", "fma"}


def frozen_values(project: Project, stage: Stage) -> dict[str, str | int]:
    """The values that are written into a stage's job when it first starts, and hold until it is done."""
    micro_batch = stage.resources.micro_batch if stage.resources else None
    return {
        **({"micro_batch": max(1, micro_batch // stage.SEQUENCES_PER_ROW)} if micro_batch else {}),
        "threads": stage_threads(project, stage),
        "device": stage_device(project, stage),
        "cpu_capability": cpu_capability(),
        "torch": installed_version("torch"),
        "transformers": installed_version("transformers"),
    }


def stage_threads(project: Project, stage: Stage) -> int:
    """Processor cores of a stage: its own `cpus`, the project's, or its share of the machine."""
    if stage.resources is not None and stage.resources.cpus:
        return stage.resources.cpus
    if project.resources.cpus:
        return project.resources.cpus
    return max(1, usable_cores() // max(1, project.resources.max_parallel_stages))


def stage_device(project: Project, stage: Stage) -> str:
    """`cuda` where the machine has a GPU and the file does not ask for `cpu`; else `cpu`."""
    wanted = (stage.resources.accelerators,) if stage.resources else ()
    asked = [name for name in (*wanted, *project.resources.accelerators) if name]
    if asked and asked[0] == "cpu":
        return "cpu"
    return "cuda" if Path("/dev/nvidia0").exists() else "cpu"


def cpu_capability(cpu_info: Path = Path("/proc/cpuinfo")) -> str:
    """The instruction set that torch's kernels are chosen for.

    `ATEN_CPU_CAPABILITY` overrides it, as in torch.
    """
    if asked := os.environ.get("ATEN_CPU_CAPABILITY"):
        return asked.lower()
    try:
        lines = cpu_info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return sys.platform
    flags = set(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())
    return "avx512" if flags >= _AVX512 else "avx2" if flags >= _AVX2 else "default"


def installed_version(package: str) -> str:
    """The installed version of a package, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"

"""What the bits of a stage depend on here: processes and layout, threads, device, instruction set, library versions."""

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType

from charter.models.engine_layout import EngineLayout
from charter.plan.hardware.machine import usable_cores
from charter.spec.project import Project
from charter.spec.stage import Stage
from charter.spec.stage_kinds import MAKES_RECORDS, TRAINS

_AVX512 = {"avx512f", "avx512dq", "avx512bw", "avx512vl", "fma"}
_AVX2 = {"avx2", "fma"}


LAYOUT_DEFAULTS: Mapping[str, str | int] = MappingProxyType(
    {name: value if isinstance(value, str) else int(value) for name, value in asdict(EngineLayout()).items()}
)
"""The layout of a stage that says nothing: one process, nothing sharded, thrown away or moved."""
CPU = "cpu"


def frozen_values(project: Project, stage: Stage) -> dict[str, str | int]:
    """The values that are written into a stage's job when it first starts, and hold until it is done."""
    layout = asked_layout(project, stage)
    return {
        **{name: value for name, value in layout.items() if value != LAYOUT_DEFAULTS[name]},
        "threads": stage_threads(project, stage),
        "device": stage_device(project, stage),
        "cpu_capability": cpu_capability(),
        "torch": installed_version("torch"),
        "transformers": installed_version("transformers"),
    }


def asked_layout(project: Project, stage: Stage) -> dict[str, str | int]:
    """The part of a stage's layout that the file says, by the names of `EngineLayout`; processes are always said."""
    asked: dict[str, str | int] = {"world_size": stage_processes(project, stage)}
    if stage.resources is None:
        return asked
    for name in LAYOUT_DEFAULTS:
        value = getattr(stage.resources, name, None)
        if value is not None:
            asked[name] = value if isinstance(value, str) else int(value)
    if stage.resources.micro_batch:
        asked["micro_batch"] = max(1, stage.resources.micro_batch // stage.SEQUENCES_PER_ROW)
    return asked


def stage_processes(project: Project, stage: Stage) -> int:
    """Processes of a stage here: `cpu:4` asks for four; of accelerators one each, where this machine has them.

    Stages that make records have as many as they have shards.
    """
    if stage.kind in MAKES_RECORDS:
        return (stage.resources.shards if stage.resources else None) or 1
    if stage.kind not in TRAINS:
        return 1
    name, count = asked_accelerators(project, stage)
    return count if name == CPU or (name and stage_device(project, stage) == "cuda") else 1


def asked_accelerators(project: Project, stage: Stage) -> tuple[str, int]:
    """Type and number that the file asks for a stage, `("", 1)` where it asks for nothing.

    The project's first counts where the stage says nothing of its own.
    """
    own = (stage.resources.accelerators,) if stage.resources else ()
    asked = next((name for name in (*own, *project.resources.accelerators) if name), "")
    name, _, count = asked.partition(":")
    return name, int(count or 1)


def stage_threads(project: Project, stage: Stage) -> int:
    """Processor cores of each process of a stage.

    Its own `cpus`, the project's, or its share of the machine; divided by its processes where these train together.
    Shards make the same records whatever their number, so each has all of it.
    """
    own = stage.resources.cpus if stage.resources is not None else None
    cores = own or project.resources.cpus or usable_cores() // max(1, project.resources.max_parallel_stages)
    return max(1, cores if stage.kind in MAKES_RECORDS else cores // stage_processes(project, stage))


def stage_device(project: Project, stage: Stage) -> str:
    """`cuda` where the machine has a GPU and the file does not ask for `cpu`; else `cpu`."""
    if asked_accelerators(project, stage)[0] == CPU:
        return CPU
    return "cuda" if gpus_here() else CPU


def gpus_here(devices: Path = Path("/dev")) -> int:
    """NVIDIA GPUs that stages may use: those of `CUDA_VISIBLE_DEVICES`, else those of the machine."""
    present = sum(1 for path in devices.glob("nvidia*") if path.name[6:].isdecimal())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    return min(present, sum(1 for item in visible.split(",") if item.strip() and item.strip() != "-1"))


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

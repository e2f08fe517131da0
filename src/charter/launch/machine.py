"""Dependencies of a stage's bits here: processes and layout, threads, device, instruction set, library versions."""

import contextlib
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType

from charter.artifacts.job_files import JobFiles, NodeRecord
from charter.artifacts.lease import host_id
from charter.engines.installed import ENGINE, hosted_values
from charter.errors import StageError
from charter.models.engine_layout import CPU_VALUES, StageLayout
from charter.plan.machine import usable_cores
from charter.spec.project import BITS, EXACT, Project
from charter.spec.stage import MAKES_RECORDS, TRAINS, is_hosted
from charter.spec.stage_base import Stage

_AVX512 = {"avx512f", "avx512dq", "avx512bw", "avx512vl", "fma"}
_AVX2 = {"avx2", "fma"}


LAYOUT_DEFAULTS: Mapping[str, str | int] = MappingProxyType(
    {name: value if isinstance(value, str) else int(value) for name, value in asdict(StageLayout()).items()}
)
"""The layout of a stage that says nothing: one process, nothing sharded, thrown away or moved."""
CUDA_LIBRARIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
        "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
        "cublas": ("nvidia-cublas", "nvidia-cublas-cu12"),
        "triton": ("triton",),
        "flash_attn": ("flash-attn",),
    }
)
"""What chooses the kernels of a GPU, and the packages that torch's wheels take it from."""
ABSENT = "absent"
CPU = "cpu"
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """Facts of a machine on which the bits of a stage computed there depend."""

    gpus: int
    cpu_capability: str
    torch: str
    transformers: str
    cuda: Mapping[str, str] = field(default_factory=dict)
    """Where there are GPUs: their model, driver and the libraries that compute on them, as far as they are known."""


def facts_here() -> NodeFacts:
    """Those of this machine."""
    return NodeFacts(
        gpus=gpus_here(),
        cpu_capability=cpu_capability(),
        torch=installed_version("torch"),
        transformers=installed_version("transformers"),
        cuda=cuda_facts() if gpus_here() else {},
    )


def frozen_values(project: Project, stage: Stage, facts: NodeFacts | None = None) -> dict[str, str | int]:
    """The values that are written into a stage's job when it first starts, and hold until it is done.

    `facts` are those of the node that will compute it, this machine's unless given.
    """
    facts = facts or facts_here()
    layout = asked_layout(project, stage, gpus=facts.gpus)
    device = stage_device(project, stage, gpus=facts.gpus)
    own = CPU_VALUES if device == CPU else facts.cuda
    libraries = {"torch": facts.torch, "transformers": facts.transformers, **own}
    return {
        **{name: value for name, value in layout.items() if value != LAYOUT_DEFAULTS[name]},
        "threads": stage_threads(project, stage, processes=int(layout["world_size"])),
        "device": device,
        "cpu_capability": facts.cpu_capability,
        **(hosted_values(project, stage) if is_hosted(stage) else {**libraries, **_exactness(project)}),
    }


def _exactness(project: Project) -> dict[str, str]:
    """Return what the file demands of the native engine's kernels, where it is less than every bit."""
    return {} if project.exact == BITS else {EXACT: project.exact}


def processes_of(frozen: Mapping[str, str | int]) -> int:
    """Processes of Charter's that a stage is started with: one for each of its ranks, or one beside another engine."""
    return 1 if ENGINE in frozen else int(frozen.get("world_size", 1))


def devices_of(frozen: Mapping[str, str | int]) -> int:
    """Accelerators that a stage's own processes compute on, one each; 0 on processors."""
    return 0 if frozen["device"] == CPU else int(frozen.get("world_size", 1))


def asked_layout(project: Project, stage: Stage, *, gpus: int | None = None) -> dict[str, str | int]:
    """The part of a stage's layout that the file says, by the names of `StageLayout`; processes are always said."""
    layout: dict[str, str | int] = {"world_size": stage_processes(project, stage, gpus=gpus)}
    if stage.resources is None:
        return layout
    for name in LAYOUT_DEFAULTS:
        value = getattr(stage.resources, name, None)
        if value is not None:
            layout[name] = value if isinstance(value, str) else int(value)
    if stage.resources.micro_batch:
        layout["micro_batch"] = max(1, stage.resources.micro_batch // stage.SEQUENCES_PER_ROW)
    return layout


def stage_processes(project: Project, stage: Stage, *, gpus: int | None = None) -> int:
    """Processes of a stage: `cpu:4` asks for four on a node; of accelerators one each, where the machine has them.

    Stages that make records have as many as they have shards. `gpus` are those of the machine that computes.
    """
    if stage.kind in MAKES_RECORDS:
        return (stage.resources.shards if stage.resources else None) or 1
    if stage.kind not in TRAINS:
        return 1
    name, count = asked_accelerators(project, stage)
    if name == CPU or (name and stage_device(project, stage, gpus=gpus) == "cuda"):
        return count * stage_nodes(project, stage)
    return 1


def stage_nodes(project: Project, stage: Stage) -> int:
    """Nodes that the file asks for a stage; a run on this machine puts the processes of all of them here."""
    own = stage.resources.num_nodes if stage.resources else None
    return own or project.resources.num_nodes or 1


def asked_accelerators(project: Project, stage: Stage) -> tuple[str, int]:
    """Type and number that the file asks for a stage, `("", 1)` where it asks for nothing.

    The project's first counts where the stage says nothing of its own.
    """
    own = (stage.resources.accelerators,) if stage.resources else ()
    accelerators = next((name for name in (*own, *project.resources.accelerators) if name), "")
    name, _, count = accelerators.partition(":")
    return name, int(count or 1)


def asked_memory(project: Project, stage: Stage) -> int | None:
    """System memory of a node that a stage's job asks for; None: the cluster's own default."""
    own = stage.resources.memory if stage.resources is not None else None
    return own or project.resources.memory


def stage_threads(project: Project, stage: Stage, *, processes: int | None = None) -> int:
    """Processor cores of each process of a stage.

    Its own `cpus`, the project's, or its share of the machine; divided by its processes (those that it has here, unless
    given) where these train together. Shards make the same records whatever their number, so each has all of it.
    """
    own = stage.resources.cpus if stage.resources is not None else None
    cores = own or project.resources.cpus or usable_cores() // max(1, project.resources.max_parallel_stages)
    if stage.kind in MAKES_RECORDS:
        return max(1, cores)
    return max(1, cores // (stage_processes(project, stage) if processes is None else processes))


def stage_device(project: Project, stage: Stage, *, gpus: int | None = None) -> str:
    """`cuda` where the machine has a GPU and the file does not ask for `cpu`; else `cpu`.

    `gpus` are those of the machine that computes, this one's unless given.
    """
    if asked_accelerators(project, stage)[0] == CPU:
        return CPU
    return "cuda" if (gpus_here() if gpus is None else gpus) else CPU


def gpus_here(devices: Path = Path("/dev")) -> int:
    """NVIDIA GPUs that stages may use: those of `CUDA_VISIBLE_DEVICES`, else those of the machine."""
    return len(visible_gpus(devices))


def visible_gpus(devices: Path = Path("/dev")) -> tuple[str, ...]:
    """The GPUs that stages may use, as `CUDA_VISIBLE_DEVICES` names them: by number or UUID."""
    present = sum(1 for path in devices.glob("nvidia*") if path.name[6:].isdecimal())
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return tuple(map(str, range(present)))
    return tuple(item.strip() for item in visible.split(",") if item.strip() and item.strip() != "-1")[:present]


def cuda_facts(driver: Path = Path("/proc/driver/nvidia"), module: Path = Path("/sys/module/nvidia")) -> dict[str, str]:
    """The model of the GPUs here, their driver, and the libraries that choose kernels; what is not known is left out.

    Another GPU, driver or library adds up in another order. Read from the driver's files, since torch would take a
    second and memory of the device to say the same.
    """
    models = {
        line.partition(":")[2].strip()
        for path in driver.glob("gpus/*/information")
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.startswith("Model:")
    }
    version_file = module / "version"
    facts = {
        "gpu": ", ".join(sorted(models)),
        "driver": version_file.read_text(encoding="utf-8").strip() if version_file.exists() else "",
    }
    for name, packages in CUDA_LIBRARIES.items():
        present = (installed_version(package) for package in packages)
        facts[name] = next((installed for installed in present if installed != ABSENT), "")
    return {name: value for name, value in facts.items() if value}


def cpu_capability(cpu_info: Path = Path("/proc/cpuinfo")) -> str:
    """The instruction set that torch's kernels are chosen for.

    `ATEN_CPU_CAPABILITY` overrides it, as in torch.
    """
    if override := os.environ.get("ATEN_CPU_CAPABILITY"):
        return override.lower()
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
        return ABSENT


LOOPBACK = "127.0.0.1"
MEETING_SECONDS = 300.0
"""Nodes of one job start at different times: so long the first one is waited for."""
_LOOK_SECONDS = 0.1
_SOMEWHERE = ("192.0.2.1", 9)
"""TEST-NET-1 (RFC 5737): a UDP socket that is connected to it says the address of our route, and sends nothing."""


@dataclass(frozen=True, kw_only=True)
class MeetingPlace:
    """Address and port of the node of rank 0."""

    address: str
    port: int


def route_address() -> str:
    """The address by which this machine reaches others; its host name where there is no route."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_SOMEWHERE)
        return str(probe.getsockname()[0])
    return socket.gethostname()


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def meeting_place(files: JobFiles, mine: NodeRecord, *, first: int = 0) -> MeetingPlace:
    """Wait for the record of the node of rank 0; nodes of one machine meet on its loopback."""
    deadline = time.monotonic() + MEETING_SECONDS
    while True:
        record = files.read_node(mine.restart, first)
        if record is not None and record.port:
            break
        if time.monotonic() > deadline:
            raise StageError(
                f"node {first} of the job has not started within {MEETING_SECONDS:g} s of node {mine.place}"
            )
        time.sleep(_LOOK_SECONDS)
    return MeetingPlace(address=LOOPBACK if record.host_id == host_id() else record.address, port=record.port)

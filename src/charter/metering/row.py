"""Samples of machines as JSON lines, `meter-<node>.jsonl` in a stage's directory; writing and reading them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.errors import loads_json

METER_GLOB = "meter-*.jsonl"
NODE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    """One accelerator of a job at one moment, and what it did since the sample before."""

    index: int
    """NVML's number of it on its node."""
    uuid: str
    name: str
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    """By everybody; see `job_memory_bytes`."""
    job_memory_bytes: int | None = None
    """By the processes of the job; None where the driver does not say (containers without the host's pids)."""
    sm_activity: float | None = None
    """Share of multiprocessors that had work, as a mean over the interval (NVML GPM, from Hopper on)."""
    utilisation: float | None = None
    """Share of the time in which any kernel ran (NVML `utilization.gpu`): an upper bound of the activity."""
    power_watts: float | None = None
    energy_joules: float | None = None
    """Drawn during the interval."""
    energy_source: str | None = None
    """`nvml_counter`: the device's own meter; `nvml_power`: power at the sample times the interval."""
    temperature_celsius: float | None = None
    uncorrected_ecc_errors: int | None = None
    """Since the driver was loaded."""
    xids: tuple[int, ...] = ()
    """Xid errors that the driver told during the interval."""

    @property
    def activity(self) -> float | None:
        """Share of the device that worked: SM activity where it is known, else the share of time with a kernel."""
        return self.sm_activity if self.sm_activity is not None else self.utilisation


@dataclass(frozen=True, kw_only=True)
class HostSample:
    """One look at a node: what the job's processes used since the look before, and the node itself."""

    time: float
    """Unix time at the end of the interval."""
    interval_seconds: float
    processes: int
    """Processes of the job that lived; 0 is "no process", which is a finding and not a gap."""
    cpu_seconds: float
    """Processor time of the job's processes."""
    resident_bytes: int
    """Memory of the job's processes now; pages that they share count once per process."""
    read_bytes: int
    written_bytes: int
    """To and from disks, by the job's processes."""
    node_cpus: int
    node_cpu_share: float
    """Of all processors of the node, by everybody."""
    node_memory_bytes: int
    node_memory_used_bytes: int
    node_received_bytes: int
    node_sent_bytes: int
    """Over all interfaces but loopback, by everybody: the kernel does not count it per process."""


@dataclass(frozen=True, kw_only=True)
class MeterRow(HostSample):
    """One sample of one node of a stage, with its accelerators and its power."""

    node: str
    gpus: tuple[GpuSample, ...] | None = None
    """Those of the job; None where none is metered, and `gpu_note` says why. Never a zero in place of "unknown"."""
    gpu_note: str | None = None
    cpu_energy_joules: float | None = None
    """Of the node's processor packages during the interval (RAPL), by everybody; None where it cannot be read."""


def meter_path(stage_dir: Path, node: str) -> Path:
    """The file of one node in a stage's directory."""
    return stage_dir / f"meter-{NODE.sub('-', node)}.jsonl"


def append_row(stage_dir: Path, row: MeterRow) -> None:
    """Add a sample to the file of its node."""
    values = {name: value for name, value in asdict(row).items() if value is not None}
    values["gpus"] = None if row.gpus is None else [_without_none(gpu) for gpu in row.gpus]
    durable.append_line(meter_path(stage_dir, row.node), values)


def meter_rows(stage_dir: Path, *, since: float = float("-inf"), until: float = float("inf")) -> tuple[MeterRow, ...]:
    """The samples of all nodes of a stage between two times (Unix), in order of time; empty where nothing was metered.

    An attempt's samples are those between its start and its end. Lines that cannot be read, say one that a kill tore,
    are left out: a sample more or less decides nothing.
    """
    rows = (row for path in sorted(stage_dir.glob(METER_GLOB)) for row in _rows(path))
    return tuple(sorted((row for row in rows if since <= row.time <= until), key=lambda row: (row.time, row.node)))


def row_of(line: bytes | str) -> MeterRow | None:
    """The sample that a line holds; None where it holds none."""
    try:
        content: Any = loads_json(line)
        gpus = content.get("gpus")
        values = _known(MeterRow, content)
        values["gpus"] = None if gpus is None else tuple(_gpu(item) for item in gpus)
        return MeterRow(**values)
    except (ValueError, TypeError, AttributeError):
        return None


def _rows(path: Path) -> Iterator[MeterRow]:
    with path.open("rb") as file:
        for line in file:
            if (row := row_of(line)) is not None:
                yield row


def _gpu(item: Mapping[str, Any]) -> GpuSample:
    values = _known(GpuSample, item)
    return GpuSample(**{**values, "xids": tuple(values.get("xids", ()))})


def _known(cls: type, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that this version understands, of a line that a later one may have written."""
    names = {item.name for item in fields(cls)}
    return {name: value for name, value in content.items() if name in names}


def _without_none(gpu: GpuSample) -> dict[str, Any]:
    return {name: value for name, value in asdict(gpu).items() if value is not None and value != ()}

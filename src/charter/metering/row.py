"""Samples of machines as JSON lines, `meter-<node>.jsonl` in a stage's directory; writing, reading and summing them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.durable import object_in

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


def meter_rows(stage_dir: Path, *, since: float = float("-inf")) -> tuple[MeterRow, ...]:
    """The samples of all nodes of a stage from a time (Unix) on, in order of time; empty where nothing was metered.

    Lines that cannot be read, say one that a kill tore,
    are left out: a sample more or less decides nothing.
    """
    rows = (row for path in sorted(stage_dir.glob(METER_GLOB)) for row in _rows(path))
    return tuple(sorted((row for row in rows if since <= row.time), key=lambda row: (row.time, row.node)))


def row_of(line: bytes | str) -> MeterRow | None:
    """The sample that a line holds; None where it holds none."""
    if (content := object_in(line)) is None:
        return None
    try:
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


IDLE_BELOW = 0.05
JOULES_PER_KILOWATT_HOUR = 3.6e6
NOT_METERED = "nothing was metered"


@dataclass(frozen=True, kw_only=True)
class MeterSummary:
    """Summary of a stage, an attempt or a window. None means unknown, and the note says why; 0 means none."""

    samples: int
    nodes: tuple[str, ...]
    seconds: float
    """Node-seconds that the samples cover."""
    no_process_seconds: float
    """Of those, without any process of the job."""
    gpu_note: str | None
    """Why there is no GPU metering; None where there is."""
    gpu_names: tuple[str, ...]
    gpus: int
    """Different accelerators that were metered."""
    gpu_seconds: float | None
    """Accelerator-seconds that the samples cover."""
    gpu_activity: float | None
    """Mean over accelerators and time: SM activity where the device tells it, else the share of time with a kernel."""
    gpu_idle_seconds: float | None
    """Accelerator-seconds of samples whose activity was below the limit, or without any process of the job."""
    gpu_memory_peak_bytes: int | None
    """The most that was taken of one accelerator."""
    gpu_memory_bytes: int | None
    """The smallest accelerator's memory."""
    gpu_power_watts: float | None
    """Mean of one accelerator."""
    uncorrected_ecc_errors: int
    """New ones between the first and the last sample of each accelerator."""
    xids: tuple[int, ...]
    cpu_seconds: float
    node_cpus: int
    """Of the largest node."""
    resident_peak_bytes: int
    """The most that the job's processes took on one node."""
    node_memory_bytes: int
    """Of the smallest node."""
    read_bytes: int
    written_bytes: int
    received_bytes: int
    sent_bytes: int
    energy_joules: float | None
    """What could be metered of accelerators and processors; not power supplies, fans, disks, switches."""
    energy_sources: tuple[str, ...]
    """`nvml_counter`, `nvml_power`, `rapl`; empty where no energy is known."""

    @property
    def cpu_share(self) -> float | None:
        """Share of the node's processors that the job used while a sample saw its processes; None where none did.

        What a process used between the last sample that saw it and its end is in none.
        """
        seconds = self.seconds - self.no_process_seconds
        return self.cpu_seconds / (seconds * self.node_cpus) if seconds > 0 and self.node_cpus else None


def summarise(rows: Iterable[MeterRow], *, idle_below: float = IDLE_BELOW) -> MeterSummary:
    """The sums of samples, say those of `meter_rows(stage_dir, since=started, until=ended)`.

    An accelerator-second counts as idle where its activity is known and below `idle_below` (a share of 1), or where no
    process of the job lived. Unknown activity with a process counts as busy: nobody is told to give back what cannot
    be seen.
    """
    all_rows = tuple(rows)
    samples = [(row, gpu) for row in all_rows for gpu in row.gpus or ()]
    weighed = [(gpu.activity, row.interval_seconds) for row, gpu in samples if gpu.activity is not None]
    energy, sources = _energy(all_rows)
    powers = [(gpu.power_watts, row.interval_seconds) for row, gpu in samples if gpu.power_watts is not None]
    return MeterSummary(
        samples=len(all_rows),
        nodes=tuple(sorted({row.node for row in all_rows})),
        seconds=sum(row.interval_seconds for row in all_rows),
        no_process_seconds=sum(row.interval_seconds for row in all_rows if row.processes == 0),
        gpu_note=_note(all_rows),
        gpu_names=tuple(sorted({gpu.name for _, gpu in samples})),
        gpus=len({(row.node, gpu.uuid) for row, gpu in samples}),
        gpu_seconds=sum(row.interval_seconds for row, _ in samples) if samples else None,
        gpu_activity=_mean(weighed),
        gpu_idle_seconds=_idle_seconds(samples, idle_below) if samples else None,
        gpu_memory_peak_bytes=max(_known_sum(_taken_bytes(gpu) for _, gpu in samples), default=None),
        gpu_memory_bytes=min(_known_sum(gpu.memory_bytes for _, gpu in samples), default=None),
        gpu_power_watts=_mean(powers),
        uncorrected_ecc_errors=_new_errors(samples),
        xids=tuple(xid for _, gpu in samples for xid in gpu.xids),
        cpu_seconds=sum(row.cpu_seconds for row in all_rows),
        node_cpus=max((row.node_cpus for row in all_rows), default=0),
        resident_peak_bytes=max((row.resident_bytes for row in all_rows), default=0),
        node_memory_bytes=min((row.node_memory_bytes for row in all_rows), default=0),
        read_bytes=sum(row.read_bytes for row in all_rows),
        written_bytes=sum(row.written_bytes for row in all_rows),
        received_bytes=sum(row.node_received_bytes for row in all_rows),
        sent_bytes=sum(row.node_sent_bytes for row in all_rows),
        energy_joules=energy,
        energy_sources=sources,
    )


def _note(rows: Sequence[MeterRow]) -> str | None:
    if any(row.gpus for row in rows):
        return None
    return next((row.gpu_note for row in reversed(rows) if row.gpu_note), NOT_METERED)


def _mean(weighed: Sequence[tuple[float, float]]) -> float | None:
    seconds = sum(weight for _, weight in weighed)
    return sum(value * weight for value, weight in weighed) / seconds if seconds > 0 else None


def _idle_seconds(samples: Sequence[tuple[MeterRow, GpuSample]], idle_below: float) -> float:
    return sum(
        row.interval_seconds
        for row, gpu in samples
        if row.processes == 0 or (gpu.activity is not None and gpu.activity < idle_below)
    )


def _known_sum(values: Iterable[int | None]) -> Iterable[int]:
    return (value for value in values if value is not None)


def _taken_bytes(gpu: GpuSample) -> int | None:
    return gpu.memory_used_bytes if gpu.job_memory_bytes is None else gpu.job_memory_bytes


def _new_errors(samples: Sequence[tuple[MeterRow, GpuSample]]) -> int:
    by_gpu: dict[tuple[str, str], list[int]] = {}
    for row, gpu in samples:
        if gpu.uncorrected_ecc_errors is not None:
            by_gpu.setdefault((row.node, gpu.uuid), []).append(gpu.uncorrected_ecc_errors)
    return sum(max(0, counts[-1] - counts[0]) for counts in by_gpu.values())


def _energy(rows: Sequence[MeterRow]) -> tuple[float | None, tuple[str, ...]]:
    """Joules in all, with every source that gave some of them; None where none did."""
    parts = [(gpu.energy_joules, gpu.energy_source) for row in rows for gpu in row.gpus or ()]
    parts += [(row.cpu_energy_joules, "rapl") for row in rows]
    measured = [(joules, source) for joules, source in parts if joules is not None]
    if not measured:
        return None, ()
    return sum(joules for joules, _ in measured), tuple(sorted({source or "unknown" for _, source in measured}))

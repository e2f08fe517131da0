"""Meters a stage on this node from a small process of its own, so that nothing of it can hurt training.

Counters of the operating system for a job's processes and their node, since the look before (psutil).
"""

import argparse
import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from charter.artifacts import durable
from charter.artifacts.job import JOB_FILE
from charter.artifacts.lease import LEASE, read_holder
from charter.errors import DataError, how_to_install, needing
from charter.metering.row import GpuSample, HostSample, MeterRow, append_row

# -------- Accelerators by NVML: activity, memory, power, energy, temperature, errors; only those that a job may use.


JOULES_PER_MILLIJOULE = 1e-3
WATTS_PER_MILLIWATT = 1e-3
NO_LIBRARY = f"no GPU metering: nvidia-ml-py is not installed ({how_to_install('meter')})"
ON_PROCESSORS = "no GPU metering: the stage computes on processors"


class NoGpuMeter:
    """Stands where accelerators cannot be metered, and says why."""

    def __init__(self, note: str) -> None:
        self.note: str | None = note

    def look(self, seconds: float, pids: Collection[int]) -> tuple[GpuSample, ...] | None:
        """Nothing is known: not zero."""
        return None

    def close(self) -> None:
        """Nothing is open."""


class NvmlMeter:
    """The accelerators of one job on this node."""

    note: str | None = None

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        self._nvml = nvml
        self._devices = [_Device(nvml, handle) for handle in handles]
        self._xids = _XidEvents(nvml, handles)

    def look(self, seconds: float, pids: Collection[int]) -> tuple[GpuSample, ...] | None:
        """Measure each GPU over the `seconds` since the last look."""
        xids = self._xids.take()
        return tuple(device.look(seconds, pids, xids) for device in self._devices)

    def close(self) -> None:
        """Let go of the driver."""
        self._xids.close()
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()


def open_gpu_meter(visible: str | None, *, nvml: Any = None) -> NvmlMeter | NoGpuMeter:
    """The meter of the accelerators that `visible` names (as CUDA_VISIBLE_DEVICES does: numbers or UUIDs).

    None means all of the node, an empty text none of them. Where there is no driver, the meter says so instead of
    giving zeros. Numbers are NVML's (order of the bus), which are CUDA's where all accelerators of a node are alike.
    """
    if visible is not None and not visible.strip():
        return NoGpuMeter(ON_PROCESSORS)
    if nvml is None:
        try:
            import pynvml
        except ImportError:
            return NoGpuMeter(NO_LIBRARY)
        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return NoGpuMeter(f"no GPU metering: {error}")
    handles = list(_handles(nvml, visible))
    if not handles:
        named = "none is there" if visible is None else f"the driver knows none of {visible}"
        return NoGpuMeter(f"no GPU metering: {named}")
    return NvmlMeter(nvml, handles)


def _handles(nvml: Any, visible: str | None) -> Iterator[Any]:
    names = [str(index) for index in range(nvml.nvmlDeviceGetCount())] if visible is None else visible.split(",")
    for name in filter(None, (name.strip() for name in names)):
        with contextlib.suppress(nvml.NVMLError):
            yield nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)


class _Device:
    """One accelerator: what is asked of it, and what it had counted at the last look."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self.uuid: str = self._ask(nvml.nvmlDeviceGetUUID) or ""
        self._name: str = self._ask(nvml.nvmlDeviceGetName) or "unknown"
        self._index: int = self._ask(nvml.nvmlDeviceGetIndex) or 0
        self._millijoules: int | None = self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption)
        self._gpm = _SmActivity(nvml, handle)

    def look(self, seconds: float, pids: Collection[int], xids: list[tuple[str, int]]) -> GpuSample:
        """Return a sample of the device; new Xid errors come in `xids`."""
        nvml = self._nvml
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo)
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates)
        milliwatts = self._ask(nvml.nvmlDeviceGetPowerUsage)
        watts = None if milliwatts is None else milliwatts * WATTS_PER_MILLIWATT
        joules, source = self._energy(watts, seconds)
        return GpuSample(
            index=self._index,
            uuid=self.uuid,
            name=self._name,
            memory_bytes=None if memory is None else int(memory.total),
            memory_used_bytes=None if memory is None else int(memory.used),
            job_memory_bytes=self._job_memory_bytes(pids),
            sm_activity=self._gpm.look(),
            utilisation=None if rates is None else rates.gpu / 100,
            power_watts=watts,
            energy_joules=joules,
            energy_source=source,
            temperature_celsius=self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            uncorrected_ecc_errors=self._ask(
                nvml.nvmlDeviceGetTotalEccErrors, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            ),
            xids=tuple(xid for uuid, xid in xids if uuid == self.uuid),
        )

    def _energy(self, watts: float | None, seconds: float) -> tuple[float | None, str | None]:
        before, self._millijoules = self._millijoules, self._ask(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
        if before is not None and self._millijoules is not None and self._millijoules >= before:
            return (self._millijoules - before) * JOULES_PER_MILLIJOULE, "nvml_counter"
        return (None, None) if watts is None else (watts * seconds, "nvml_power")

    def _job_memory_bytes(self, pids: Collection[int]) -> int | None:
        """None where the driver names none of the job's processes: in a container it sees other pids."""
        running = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses)
        own = [item.usedGpuMemory for item in running or () if item.pid in pids]
        return sum(own) if own and None not in own else None

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """The answer; None where this device or driver has none."""
        try:
            return question(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


class _SmActivity:
    """Share of busy multiprocessors between two looks, by NVML's GPM (from Hopper on)."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._before: Any = None
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            if nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                self._before = self._sample()

    def look(self) -> float | None:
        """Return the share of busy SMs since the last look; None where the driver does not say."""
        if self._before is None:
            return None
        nvml = self._nvml
        try:
            after = self._sample()
            request = nvml.c_nvmlGpmMetricsGet_t()
            request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
            request.sample1, request.sample2 = self._before, after
            request.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
            nvml.nvmlGpmMetricsGet(request)
        except nvml.NVMLError:
            return None
        nvml.nvmlGpmSampleFree(self._before)
        self._before = after
        metric = request.metrics[0]
        return float(metric.value) / 100 if metric.nvmlReturn == nvml.NVML_SUCCESS else None

    def _sample(self) -> Any:
        sample = self._nvml.nvmlGpmSampleAlloc()
        self._nvml.nvmlGpmSampleGet(self._handle, sample)
        return sample


class _XidEvents:
    """Critical Xid errors as the driver tells them; nothing where it does not let this user listen."""

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        self._nvml = nvml
        self._set: Any = None
        with contextlib.suppress(nvml.NVMLError):
            self._set = nvml.nvmlEventSetCreate()
            for handle in handles:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._set)

    def take(self) -> list[tuple[str, int]]:
        """UUID and number of every error since the last call."""
        events: list[tuple[str, int]] = []
        with contextlib.suppress(self._nvml.NVMLError):
            while self._set is not None:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
                events.append((self._nvml.nvmlDeviceGetUUID(event.device), int(event.eventData)))
        return events

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(self._nvml.NVMLError):
            if self._set is not None:
                self._nvml.nvmlEventSetFree(self._set)


# -------- Meters a stage on this node from a small process of its own, so that nothing of it can hurt training.


RAPL = Path("/sys/class/powercap")
JOULES_PER_MICROJOULE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Used:
    """Running totals of one process."""

    cpu_seconds: float
    read_bytes: int
    written_bytes: int


class HostMeter:
    """Differences between looks; the first look starts the clock and counts nothing that was used before it.

    Intervals are by the clock that nobody sets: a correction of the time of day would be hours of an idle machine.
    """

    def __init__(self) -> None:
        self._psutil = _psutil()
        self._at = time.monotonic()
        self._used: dict[tuple[int, float], Used] = {}
        self._there = set(self._psutil.pids())
        self._busy = _busy(self._psutil)
        self._network = _network(self._psutil)

    def look(self, pids: Iterable[int]) -> HostSample:
        """Measure the use of these processes (given with all their descendants) and of the node since the last look."""
        now, started = time.monotonic(), self._at
        used, resident = self._processes(pids)
        new = [(total, self._used.get(key) or self._first(key[0], total)) for key, total in used.items()]
        busy, network = _busy(self._psutil), _network(self._psutil)
        memory = self._psutil.virtual_memory()
        sample = HostSample(
            time=time.time(),
            interval_seconds=now - started,
            processes=len(used),
            cpu_seconds=sum(max(0.0, total.cpu_seconds - before.cpu_seconds) for total, before in new),
            resident_bytes=resident,
            read_bytes=sum(max(0, total.read_bytes - before.read_bytes) for total, before in new),
            written_bytes=sum(max(0, total.written_bytes - before.written_bytes) for total, before in new),
            node_cpus=os.cpu_count() or 1,
            node_cpu_share=_share(self._busy, busy),
            node_memory_bytes=memory.total,
            node_memory_used_bytes=memory.total - memory.available,
            node_received_bytes=max(0, network[0] - self._network[0]),
            node_sent_bytes=max(0, network[1] - self._network[1]),
        )
        self._at, self._used, self._busy, self._network = now, used, busy, network
        self._there = set(self._psutil.pids())
        return sample

    def _first(self, pid: int, total: Used) -> Used:
        """Return a process's use at the start of the interval: nothing where it came since, else what it has by now."""
        return total if pid in self._there else Used(cpu_seconds=0.0, read_bytes=0, written_bytes=0)

    def _processes(self, pids: Iterable[int]) -> tuple[dict[tuple[int, float], Used], int]:
        used: dict[tuple[int, float], Used] = {}
        resident = 0
        gone = (self._psutil.NoSuchProcess, self._psutil.AccessDenied, self._psutil.ZombieProcess)
        for pid in pids:
            with contextlib.suppress(*gone):
                process = self._psutil.Process(pid)
                with process.oneshot():
                    if process.status() == self._psutil.STATUS_ZOMBIE:
                        continue
                    times, created = process.cpu_times(), process.create_time()
                    resident += process.memory_info().rss
                used[pid, created] = Used(
                    cpu_seconds=times.user + times.system, **_disk(process, self._psutil.AccessDenied)
                )
        return used, resident


class RaplMeter:
    """Energy of the node's processor packages, where the kernel lets this user read it (`powercap/intel-rapl:N`)."""

    def __init__(self, root: Path = RAPL) -> None:
        self._packages = sorted(root.glob("intel-rapl:?"))
        self._before = self._read()

    def look(self) -> float | None:
        """Joules since the last look; None where they cannot be read."""
        before, self._before = self._before, self._read()
        if not self._before or before.keys() != self._before.keys():
            return None
        joules = 0.0
        for package, count in self._before.items():
            delta = count - before[package]
            if delta < 0:  # the counter starts again at its end
                delta += int((package / "max_energy_range_uj").read_text())
            joules += delta * JOULES_PER_MICROJOULE
        return joules

    def _read(self) -> dict[Path, int]:
        with contextlib.suppress(OSError, ValueError):
            return {package: int((package / "energy_uj").read_text()) for package in self._packages}
        return {}


def with_descendants(pids: Iterable[int], *, without: int | None = None) -> tuple[int, ...]:
    """These processes and everything below them, but not `without` and what is below that."""
    psutil = _psutil()
    children: dict[int, list[int]] = {}
    for process in psutil.process_iter(["ppid"]):
        children.setdefault(process.info["ppid"], []).append(process.pid)
    descendants: list[int] = []
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid != without and pid not in descendants:
            descendants.append(pid)
            waiting += children.get(pid, ())
    return tuple(sorted(descendants))


def _psutil() -> Any:
    with needing("metering needs psutil", "meter"):
        import psutil
    return psutil


def _disk(process: Any, denied: type[Exception]) -> Mapping[str, int]:
    try:
        counters = process.io_counters()
    except (denied, AttributeError, OSError):
        return {"read_bytes": 0, "written_bytes": 0}
    return {"read_bytes": counters.read_bytes, "written_bytes": counters.write_bytes}


def _busy(psutil: Any) -> tuple[float, float]:
    """Busy and all processor time of the node since it started."""
    times = psutil.cpu_times()
    every = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return every - times.idle - getattr(times, "iowait", 0.0), every


def _share(before: tuple[float, float], after: tuple[float, float]) -> float:
    every = after[1] - before[1]
    return min(1.0, max(0.0, (after[0] - before[0]) / every)) if every > 0 else 0.0


def _network(psutil: Any) -> tuple[int, int]:
    """Bytes received and sent over all interfaces but loopback."""
    counters = psutil.net_io_counters(pernic=True)
    interfaces = [item for name, item in counters.items() if name != "lo"]
    return sum(item.bytes_recv for item in interfaces), sum(item.bytes_sent for item in interfaces)


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
    options = parser.parse_args(arguments)
    os.nice(NICENESS)

    def processes() -> Sequence[int]:
        roots = [] if options.below is None else [options.below]
        return [pid for pid in with_descendants(roots, without=os.getpid()) if pid != options.below]

    meter = NodeMeter(node=options.node, gpus=open_gpu_meter(options.gpus))
    sample_until_over(options.stage_dir, meter, processes, every_seconds=options.every, over=sys.stdin.fileno())


if __name__ == "__main__":
    main()


STOP_SECONDS = 5.0
"""How long a stop waits for the last sample; a sampler that does not answer is killed."""
LOG = "meter.log"


class MeterSampler:
    """Writes `meter-<node>.jsonl` into a stage's directory, from `start` to `stop` or to the end of this process.

    The node agent of a scheduler writes `with Sampler(stage_dir, below=os.getpid(), every_seconds=...):` around its
    work. Nothing raises: a sampler that cannot start is a line in `meter.log`.
    """

    def __init__(
        self,
        stage_dir: Path,
        *,
        every_seconds: float,
        below: int | None = None,
        node: str | None = None,
        gpus: str | None = None,
    ) -> None:
        """`below`: every process below this one counts, as they come.

        `gpus`: those of the job, as in CUDA_VISIBLE_DEVICES; "" for none; all of the node unless given.
        """
        self._stage_dir, self._every_seconds = stage_dir, every_seconds
        self._command = [sys.executable, "-m", "charter.metering.sampler", "--stage-dir", str(stage_dir)]
        self._command += ["--node", node or this_node(), "--every", str(every_seconds)]
        self._command += [] if below is None else ["--below", str(below)]
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

    def __enter__(self) -> "MeterSampler":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.stop()


MEMBERS = "member-*.json"


class LocalMeters:
    """One meter per running stage; nothing at all where the interval is 0."""

    def __init__(self, run_dir: Path, *, every_seconds: float) -> None:
        self._run_dir, self._every_seconds = run_dir, every_seconds
        self._meters: dict[Path, NodeMeter] = {}
        self._due = time.monotonic()

    def seconds_to_next(self, most: float) -> float:
        """Return the seconds that may be waited before the next look."""
        if self._every_seconds <= 0:
            return most
        return min(most, max(0.0, self._due - time.monotonic()))

    def look(self, running: Iterable[Path], *, last: bool = False) -> None:
        """A sample of every running stage, when its time has come; a last one of those that have ended."""
        if self._every_seconds <= 0:
            return
        now = time.monotonic()
        stages = set(running)
        for directory in stages - self._meters.keys():
            meter = self._meters[directory] = NodeMeter(node=this_node(), gpus=open_gpu_meter(_visible(directory)))
            # The next sample counts from here: what a process has used by then is not known later.
            meter.look(with_descendants(stage_pids(directory, self._run_dir)))
        due = now >= self._due
        for directory, meter in list(self._meters.items()):
            ended = directory not in stages
            if due or ended or last:
                append_row(directory, meter.look(with_descendants(stage_pids(directory, self._run_dir))))
            if ended:
                meter.close()
                del self._meters[directory]
        if due:
            self._due = now + self._every_seconds

    def close(self) -> None:
        """Let go of the drivers."""
        for meter in self._meters.values():
            meter.close()


def stage_pids(stage_dir: Path, run_dir: Path) -> tuple[int, ...]:
    """The processes that hold a stage directory on this machine; not the supervisor, which may announce one."""
    supervisor = read_holder(run_dir / LEASE)
    holders = [read_holder(path) for path in (stage_dir / LEASE, *sorted(stage_dir.glob(MEMBERS)))]
    alive = [holder.pid for holder in holders if holder is not None and holder.is_alive]
    return tuple(dict.fromkeys(pid for pid in alive if supervisor is None or pid != supervisor.pid))


def _visible(stage_dir: Path) -> str | None:
    """The accelerators of a stage: none for one that computes on processors, else those that it may see."""
    try:
        frozen = durable.read_json(stage_dir / JOB_FILE)["frozen"]
    except (DataError, KeyError):
        return None
    if frozen.get("device") == "cpu":
        return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(index) for index in range(int(frozen.get("world_size", 1)))] if visible is None else _names(visible)
    return ",".join(list(names)[: int(frozen.get("world_size", 1))])


def _names(visible: str) -> Iterator[str]:
    return (name.strip() for name in visible.split(",") if name.strip())

"""Counters of the operating system for a job's processes and their node, since the look before (psutil)."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charter.errors import MissingExtraError

RAPL = Path("/sys/class/powercap")
JOULES_PER_MICROJOULE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Used:
    """Running totals of one process."""

    cpu_seconds: float
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, kw_only=True)
class HostSample:
    """One look at a node; the fields are those of `MeterRow`."""

    time: float
    interval_seconds: float
    processes: int
    cpu_seconds: float
    resident_bytes: int
    read_bytes: int
    written_bytes: int
    node_cpus: int
    node_cpu_share: float
    node_memory_bytes: int
    node_memory_used_bytes: int
    node_received_bytes: int
    node_sent_bytes: int


class HostMeter:
    """Differences between looks; the first look starts the clock and counts nothing that was used before it."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._psutil = _psutil()
        self._clock = clock
        self._at = clock()
        self._used: dict[tuple[int, float], Used] = {}
        self._there = set(self._psutil.pids())
        self._busy = _busy(self._psutil)
        self._network = _network(self._psutil)

    def look(self, pids: Iterable[int]) -> HostSample:
        """Measure the use of these processes (given with all their descendants) and of the node since the last look."""
        now, started = self._clock(), self._at
        used, resident = self._processes(pids)
        new = [(total, self._used.get(key) or self._first(key[0], total)) for key, total in used.items()]
        busy, network = _busy(self._psutil), _network(self._psutil)
        memory = self._psutil.virtual_memory()
        sample = HostSample(
            time=now,
            interval_seconds=max(0.0, now - started),
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
    try:
        import psutil
    except ImportError:
        raise MissingExtraError("metering needs psutil; install it with  pip install 'charter-plan[meter]'") from None
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

"""The machine that Charter runs on, as measured, and figures of the native engine on its processors."""

import math
import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from charter.catalog.accelerators import Accelerator, processor

# -------- Figures of the native engine on processors, measured once.
#
# On a CPU a model of a few million parameters is bound by the framework: every operation costs a fixed time, and
# elementwise passes over activations and logits cost memory bandwidth. Measured with torch 2.13 and transformers 5 on
# one core of an AMD EPYC (AVX-512) virtual machine in CPU time, best of five: forward pass, training step and decode
# step of Llama-style models of 0.2 to 14 million parameters, batches of 1 x 8 to 32 x 128 tokens
# (docs/guides/plan.md, "Where the local constants come from"). The probe of the same core: 99 GFLOP/s fp32, 38 GB/s.
# Decode steps and the text work of answers are from whole stages in `benchmarks/planner_vs_engine.py`, shapes of
# `planned_against/fit.py`. Those ran while other programs kept all cores busy, which makes an operation cost 1.6 and a
# byte 1.8 times as much; the figures here stay those of a quiet machine, a pace (`validate calibrate -C`) has the rest.

OPERATION_SECONDS = 6e-6
"""Fixed cost of one torch operation, Python and dispatch included."""
OPERATIONS_PER_LAYER = 55.0
"""Such operations of a Hugging Face decoder layer in a forward pass: 0.3 ms per layer measured."""
OPERATIONS_PER_MODEL = 20.0
"""The same outside the layers: embedding, masks, final norm, head."""
DECODE_OPERATIONS = 2.0
"""Operations of a decode step over those of a forward pass: masks, cache, drawing a token."""
ANSWER_SECONDS = 1e-3
"""Text work per answer that is rewarded: decode, chat template, tokens of prompt and answer."""
BACKWARD_OPERATIONS = 4.0
"""Operations of backward pass, clipping and update over those of the forward pass: training step / forward was 5."""
AUTOCAST_OPERATIONS = 1.5
"""Operations under bf16 autocast over those in fp32: casts of weights and inputs."""
MATMUL_SHARE = 0.95
"""Share of the probed matrix-product rate that the products of a model reach."""
BF16_SPEEDUP = 3.0
"""Matrix products in bf16 over fp32 where the processor has instructions for them (AVX512-BF16, AMX)."""
BF16_WITHOUT_INSTRUCTIONS = 0.5
"""The same where it has none: every product is converted. Judgement."""
FURTHER_THREAD_GAIN = 0.3
"""What each thread after the first adds, as a share of the first: small operations stay on one thread.

Judgement within what was measured on a two-core virtual machine (benchmarks/thread_gain.py: training step of 1.28 M
parameters on 8 x 128 tokens): 0.14 to 0.46 at three earlier times, 0.58 in fp32 and bf16 on a quiet machine.
"""
ACTIVATION_PASSES = 8.0
"""Times that every kept activation is read or written in a forward pass."""
BACKWARD_PASSES = 1.5
"""The same in a backward pass, over those of the forward pass."""
LOGIT_BYTES_TRAINING = 200.0
"""Bytes moved per logit in a training step: fp32 copy, log-softmax, exponentials, their gradients."""
LOGIT_BYTES_SAMPLING = 290.0
"""Bytes moved per logit when a token is drawn: softmax, fp64 copy, cumulative sum, search."""
CACHE_PASSES = 3.0
"""Times that keys and values cross memory per decode step: the cache is copied to append a token, then read."""
OPTIMIZER_BYTES_PER_PARAMETER = 60.0
"""fused AdamW and clipping: weight, gradient and two moments read and written, gradient scaled."""
GRADIENT_BYTES_PER_SECOND = 1e9
"""Bytes that two processes of one machine sum per second: gloo over loopback, 1 to 64 MB, 0.9 to 1.7 GB/s measured."""
CPU_SOURCE = "measured on one core of an AMD EPYC, torch 2.13, 2026-11 (plan/machine.py)"


# -------- The machine that Charter runs on, as measured: processors, memory, and accelerators if there are any.
#
# Reading files and timing loops happen here and nowhere else in the planner; everything after works on `Machine`.

PROBE_SIZE, PROBE_REPEATS, PROBE_LEAST_RUNS = 64, 20, 3
"""Rows and columns of the probed matrix product: small enough that the library stays on one thread. Threads that wait
for each other on a busy machine would be measured instead of the processor."""
PROBE_COPY_BYTES = 32 * 2**20
PROBED_CORES = 16
"""At most so many cores are probed together; more add nothing but memory and time."""
SOURCE = "probe of this machine (matrix product and copy with numpy)"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Capacity of one machine for a local run."""

    name: str
    cores: int
    memory_bytes: float
    """Physical memory, or the limit of the cgroup if that is lower."""
    flops_per_second: float
    """fp32 matrix products of one core while all are busy, multiplied by the cores."""
    memory_bytes_per_second: float
    """Copy of one core while all cores copy, reads and writes counted, multiplied by the cores."""
    bf16_speedup: float = BF16_WITHOUT_INSTRUCTIONS
    """Matrix products in bf16 over fp32, by the processor's instruction set."""
    gpu_name: str | None = None
    gpu_count: int = 0
    busy_cores: float = 0.0
    """Cores' worth of other programs that were at work both while it was measured and in the last minutes.

    Each of the two counts too much: the system's load what has ended since, such as a run of one's own, and programs of
    low priority; the moment of the probe its noise, and what begins only to end.
    """

    def slowdown(self, threads: int) -> float:
        """Time on the clock over processor time of so many threads beside the other programs, all with equal shares.

        >>> two = Machine(name="m", cores=2, memory_bytes=8e9, flops_per_second=2e11, memory_bytes_per_second=4e10)
        >>> two.slowdown(2), replace(two, busy_cores=3.0).slowdown(1), replace(two, busy_cores=0.5).slowdown(1)
        (1.0, 2.0, 1.0)
        """
        return max(1.0, (self.busy_cores + min(threads, self.cores)) / self.cores)

    def processor(self, *, threads: int | None = None) -> Accelerator:
        """So many cores (all, when left out) as one accelerator of kind `cpu`, while other stages use the rest."""
        used = self.cores if threads is None else min(threads, self.cores)
        first_threads = 1 + FURTHER_THREAD_GAIN * (used - 1)
        rate = self.flops_per_second * first_threads / self.cores
        cpu = processor(
            flops_per_second=rate,
            memory_bytes_per_second=self.memory_bytes_per_second * first_threads / self.cores,
            memory_bytes=self.memory_bytes,
            cores=used,
            source=SOURCE,
        )
        return replace(cpu, dense_flops_per_second={"fp32": rate, "bf16": rate * self.bf16_speedup})


LEAST_BUSY_CORES = 0.15
"""Other programs that take less are the measurement's own noise."""


@dataclass(kw_only=True)
class ProbeClock:
    """Processor time that the threads of the probes got, of what they could have got."""

    threads: int = 0
    wall: float = 0.0
    used: float = 0.0

    def note(self, *, threads: int, wall: float, used: float) -> None:
        """Add the figures of a probe, of as many threads as the one before."""
        self.threads, self.wall, self.used = threads, self.wall + wall, self.used + used

    def others(self, cores: int) -> float:
        """Return the cores' worth of other programs: of `n` at the probe's priority, it got `threads / (threads + n)`.

        Programs of low priority count as little as they took. 0 where some cores were not probed, which may be free.

        >>> clock = ProbeClock()
        >>> clock.note(threads=2, wall=0.1, used=0.1)
        >>> clock.others(2), clock.others(8)
        (2.0, 0.0)
        """
        if self.threads != cores or self.used <= 0:
            return 0.0
        others = cores * self.threads * self.wall / self.used - self.threads
        return others if others >= LEAST_BUSY_CORES else 0.0


def probe_machine(*, cpu_info: Path = Path("/proc/cpuinfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> Machine:
    """Measure this machine; takes about 0.2 s."""
    gpu_name, gpu_count = _nvidia()
    cores = usable_cores(cgroup)
    clock = ProbeClock()
    return Machine(
        name=_cpu_name(cpu_info),
        cores=cores,
        memory_bytes=usable_memory_bytes(cgroup),
        flops_per_second=_matmul_flops_per_second(cores, clock),
        memory_bytes_per_second=_copy_bytes_per_second(cores, clock),
        busy_cores=min(clock.others(cores), recent_load()),
        bf16_speedup=_bf16_speedup(cpu_info),
        gpu_name=gpu_name,
        gpu_count=gpu_count,
    )


def recent_load() -> float:
    """Return the mean number of processes that wanted to run in the last five minutes; infinite where nobody says."""
    try:
        return os.getloadavg()[1]
    except (AttributeError, OSError):
        return math.inf


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Cores this process may use: its affinity, or the quota of its cgroup (v2 or v1) if that is lower."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    fields = _read(cgroup / "cpu.max").split()
    if len(fields) != 2:
        fields = [_read(cgroup / "cpu" / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    try:
        quota, period = (int(field) for field in fields)
    except ValueError:
        return cores
    return cores if quota <= 0 or period <= 0 else max(1, min(cores, quota // period))


CGROUP_USED, CGROUP_IDLE = ("memory.current", "memory.usage_in_bytes"), ("inactive_file", "total_inactive_file")
CGROUP, MEMINFO, OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/meminfo"), Path("/proc/self/cgroup")


def usable_memory_bytes(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> float:
    """Bytes of memory this process may use: physical, or the least limit of its cgroups (v2 or v1) if that is lower."""
    physical = _meminfo_bytes(meminfo, "MemTotal", 8 * 2.0**30)
    return min([physical, *(limit for limit, _ in _memory_limits(cgroup))])


def free_memory_bytes(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> float:
    """Bytes of memory that a process here can still take before the system or one of its cgroups ends a process.

    What the page cache could give back counts as free, in the system's own count and in that of a cgroup.
    """
    free = _meminfo_bytes(meminfo, "MemAvailable", usable_memory_bytes(cgroup, meminfo))
    return max(0.0, min([free, *(limit - _cgroup_use(place) for limit, place in _memory_limits(cgroup))]))


def _meminfo_bytes(meminfo: Path, name: str, otherwise: float) -> float:
    lines = (line.split() for line in _read(meminfo).splitlines())
    return next((float(words[1]) * 1024 for words in lines if words and words[0] == f"{name}:"), otherwise)


def _memory_limits(cgroup: Path) -> list[tuple[float, Path]]:
    """Each limit of memory on this process and its directory: a job of Slurm has it some levels below the root."""
    below = next((line[3:] for line in _read(OWN_CGROUP).splitlines() if line.startswith("0::")), "/").strip("/")
    places = [cgroup, *(cgroup / part for part in reversed(Path(below).parents)), cgroup / below]
    files = [*(place / "memory.max" for place in dict.fromkeys(places)), cgroup / "memory" / "memory.limit_in_bytes"]
    texts = ((_read(file).strip(), file.parent) for file in files)
    return [(float(text), place) for text, place in texts if text.isdecimal()]


def _cgroup_use(place: Path) -> float:
    """Bytes in use in a cgroup of either version, without file pages that nobody has used lately."""
    used = next((_read(place / name).strip() for name in CGROUP_USED if (place / name).exists()), "0")
    fields = (line.split() for line in _read(place / "memory.stat").splitlines())
    idle = next((float(words[1]) for words in fields if words and words[0] in CGROUP_IDLE), 0.0)
    return float(used or 0) - idle


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cpu_name(cpu_info: Path) -> str:
    lines = (line.partition(":") for line in _read(cpu_info).splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == "model name"), "processor")


def _bf16_speedup(cpu_info: Path) -> float:
    flags = next((line for line in _read(cpu_info).splitlines() if line.startswith("flags")), "").split()
    return BF16_SPEEDUP if {"avx512_bf16", "amx_bf16"} & set(flags) else BF16_WITHOUT_INSTRUCTIONS


def _matmul_flops_per_second(cores: int, clock: ProbeClock) -> float:
    """Operations per CPU second of one core while all of them multiply, times the cores."""
    import numpy

    def products() -> Callable[[], object]:
        stack = numpy.ones((PROBE_REPEATS, PROBE_SIZE, PROBE_SIZE), dtype=numpy.float32)
        result = numpy.empty_like(stack)
        return lambda: numpy.matmul(stack, stack, out=result)

    return cores * PROBE_REPEATS * 2 * PROBE_SIZE**3 / _usual_cpu_seconds(products, min(cores, PROBED_CORES), clock)


def _copy_bytes_per_second(cores: int, clock: ProbeClock) -> float:
    import numpy

    def copies() -> Callable[[], object]:
        source = numpy.ones(PROBE_COPY_BYTES // 4, dtype=numpy.float32)
        target = numpy.empty_like(source)
        return lambda: numpy.copyto(target, source)

    return cores * 2 * PROBE_COPY_BYTES / _usual_cpu_seconds(copies, min(cores, PROBED_CORES), clock)


def _usual_cpu_seconds(
    make: Callable[[], Callable[[], object]],
    cores: int,
    clock: ProbeClock,
) -> float:
    """Median CPU seconds of an action on one core while the same action runs on the others.

    CPU time and not wall time: other programs on the machine slow the clock on the wall, hardly this. numpy
    lets go of Python's lock in both probes, so that threads do run side by side.
    """
    finished, ready = threading.Event(), threading.Barrier(cores)
    others = [threading.Thread(target=_repeat, args=(make(), ready, finished), daemon=True) for _ in range(cores - 1)]
    for thread in others:
        thread.start()
    action = make()
    action()
    ready.wait()
    began, used = time.perf_counter(), time.process_time()
    samples, end = list[float](), began + 0.1
    while time.perf_counter() < end or len(samples) < PROBE_LEAST_RUNS:
        start = time.thread_time()
        action()
        samples.append(time.thread_time() - start)
    clock.note(threads=cores, wall=time.perf_counter() - began, used=time.process_time() - used)
    finished.set()
    for thread in others:
        thread.join()
    return max(statistics.median(samples), 1e-9)


def _repeat(action: Callable[[], object], ready: threading.Barrier, finished: threading.Event) -> None:
    action()
    ready.wait()
    while not finished.is_set():
        action()


def _nvidia() -> tuple[str | None, int]:
    if shutil.which("nvidia-smi") is None:
        return None, 0
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        listing = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None, 0
    names = [line.strip() for line in listing.splitlines() if line.strip()]
    return (names[0], len(names)) if names else (None, 0)

"""Checks that a node must pass before an attempt starts on it, and the choice of nodes that take part.

Findings on a node and the choice are pure. A node is looked at in a fraction of a second: disk, memory, processor,
clock. The nodes of one start meet in the stage directory: each leaves its report, and reads those of the others.
"""

import contextlib
import json
import os
import re
import socket
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.artifacts.fingerprint import free_bytes
from charter.errors import DataError, how_to_install
from charter.spec.launching import NodeChecks
from charter.units import format_bytes

LEAST_COMPARED = 3
"""Nodes that a comparison of speeds needs."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at on a node."""

    name: str
    ok: bool
    found: str
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """All that was found on one node before one start."""

    node: str
    """The scheduler's name of it, or its host name."""
    rank: int
    """Its number among the nodes of the job, spares included."""
    findings: tuple[Finding, ...] = ()
    rates: Mapping[str, float] = field(default_factory=dict)
    """Speeds by name, more is better (`matmul_flops_per_second`); compared with the other nodes of the job."""

    @property
    def problems(self) -> tuple[Finding, ...]:
        """Return its failed checks."""
        return tuple(finding for finding in self.findings if not finding.ok)


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """Choice of the nodes that take part in a start, and why others do not."""

    ranks: tuple[int, ...]
    """Of the nodes that take part, in order: the first one becomes node 0 of the group. Empty when too few are fit."""
    left_out: Mapping[str, str]
    """Nodes that failed, and why; spares that are merely not needed are not among them."""

    def place_of(self, rank: int) -> int | None:
        """The place of a node in the group, None for one that does not take part.

        >>> Assignment(ranks=(0, 2), left_out={"n1": "ECC"}).place_of(2)
        1
        """
        return self.ranks.index(rank) if rank in self.ranks else None


def assign(reports: Sequence[NodeReport], *, needed: int, expected: int, slow_ratio: float) -> Assignment:
    """Choose the nodes of a start: the first `needed` by number of those that are fit.

    A node is unfit when one of its checks failed, when it has said nothing (its number is missing of `expected`), or
    when a speed of it is lower than the median of all nodes divided by `slow_ratio`. Every node of a job comes to the
    same answer from the same reports.

    >>> fit = [NodeReport(node=f"n{rank}", rank=rank) for rank in (0, 2)]
    >>> assign(fit, needed=2, expected=3, slow_ratio=2.0)
    Assignment(ranks=(0, 2), left_out={'node 1': 'said nothing'})
    """
    by_rank = {report.rank: report for report in reports}
    left_out, fit = {}, []
    for rank in range(expected):
        report = by_rank.get(rank)
        if report is None:
            left_out[f"node {rank}"] = "said nothing"
        elif why := [f"{item.name}: {item.found}" for item in report.problems] or slow_rates(
            report, reports, slow_ratio
        ):
            left_out[report.node] = "; ".join(why)
        else:
            fit.append(rank)
    return Assignment(ranks=tuple(fit[:needed]) if len(fit) >= needed else (), left_out=left_out)


def slow_rates(report: NodeReport, peers: Sequence[NodeReport], slow_ratio: float) -> list[str]:
    """The speeds of a node that are far below those of its peers, in words.

    Fewer than three nodes are not compared: of two, the quicker one may be the odd one, and noise is told from a fault
    only by how the others do.
    """
    findings = []
    for name, rate in report.rates.items():
        rates = [peer.rates[name] for peer in peers if name in peer.rates]
        median = statistics.median(rates)
        if len(rates) >= LEAST_COMPARED and rate * slow_ratio < median:
            findings.append(f"slow: {name} is {rate:.3g}, the median of its {len(rates)} peers is {median:.3g}")
    return findings


def report_to_json(report: NodeReport) -> dict[str, Any]:
    """A report as plain JSON types."""
    return {**asdict(report), "findings": [asdict(finding) for finding in report.findings], "rates": {**report.rates}}


def report_from_json(content: Mapping[str, Any]) -> NodeReport:
    """The report that `report_to_json` wrote; raises KeyError or TypeError for anything else."""
    return NodeReport(
        node=str(content["node"]),
        rank=int(content["rank"]),
        findings=tuple(Finding(**finding) for finding in content["findings"]),
        rates={str(name): float(rate) for name, rate in content["rates"].items()},
    )


BAD_NODES = "bad_nodes.json"
FORGET_AFTER_SECONDS = 24 * 3600.0
"""A node that was mended is tried again the next day; take its line out of the file to try it sooner."""
FORGET_SILENCE_SECONDS = 1800.0
"""A node that fell silent may only have been started anew; its scheduler knows by then whether it is there."""


def read_bad_nodes(run_dir: Path, *, now: float | None = None) -> dict[str, str]:
    """Nodes to be left out now, and why."""
    at = time.time() if now is None else now
    return {node: str(entry["why"]) for node, entry in _entries(run_dir).items() if at < float(entry["until"])}


def leave_out(
    run_dir: Path, nodes: Mapping[str, str], *, seconds: float = FORGET_AFTER_SECONDS, now: float | None = None
) -> None:
    """Leave nodes out from now on, for so long."""
    at = time.time() if now is None else now
    fresh = {node: {"why": why, "until": at + seconds} for node, why in nodes.items()}
    if fresh:
        durable.write_json(run_dir / BAD_NODES, {**_entries(run_dir), **fresh})


def _entries(run_dir: Path) -> dict[str, dict[str, float | str]]:
    path = run_dir / BAD_NODES
    if not path.exists():
        return {}
    content = durable.read_json(path)
    if not isinstance(content, dict) or any("until" not in entry for entry in content.values()):
        raise DataError(f"{path} does not hold nodes with why and until; remove it to leave no node out")
    return content


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


SENT_BYTES = 8 * 1024**2
STREAMS = 2
WAIT_SECONDS = 20.0
"""How long a node waits for the first one's address; without it, it is compared by its other speeds only."""
STREAM_SECONDS = 10.0
"""Longest stream; at 8 MiB a slower link than 7 Mbit/s counts as none."""
_CHUNK = 256 * 1024


@contextlib.contextmanager
def receiving(stage_dir: Path, start: str) -> Iterator[None]:
    """Take streams of the other nodes meanwhile, on a port that the stage directory names."""
    with socket.create_server(("", 0), backlog=64) as server:
        over = threading.Event()
        thread = threading.Thread(target=_serve, args=(server, over), name="bandwidth", daemon=True)
        thread.start()
        place = {"host": socket.gethostname(), "port": server.getsockname()[1]}
        durable.write_hint(_place(stage_dir, start), place)
        try:
            yield
        finally:
            over.set()
            thread.join()


def sending_rate(
    stage_dir: Path,
    start: str,
    *,
    pause: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> dict[str, float]:
    """Bytes per second from this node to the first one, the best of two; empty where that one cannot be reached.

    One TCP stream: an adapter that is faster than one stream can fill is not measured at its full speed, which does
    not matter for a comparison between nodes. A first node that is slow itself makes all others equally slow.
    """
    deadline = now() + WAIT_SECONDS
    while not _place(stage_dir, start).exists():
        if now() > deadline:
            return {}
        pause(0.1)
    try:
        place = json.loads(_place(stage_dir, start).read_text(encoding="utf-8"))
        rates = [_stream(str(place["host"]), int(place["port"])) for _ in range(STREAMS)]
    except (OSError, ValueError, KeyError):
        return {}
    return {"network_bytes_per_second": max(rates)}


def _stream(host: str, port: int) -> float:
    chunk = bytes(_CHUNK)
    with socket.create_connection((host, port), timeout=STREAM_SECONDS) as connection:
        start = time.perf_counter()
        for _ in range(SENT_BYTES // _CHUNK):
            connection.sendall(chunk)
        connection.shutdown(socket.SHUT_WR)
        if connection.recv(1) != b"k":
            raise ConnectionError("the stream was not acknowledged")
        return SENT_BYTES / max(time.perf_counter() - start, 1e-9)


def _serve(server: socket.socket, over: threading.Event) -> None:
    server.settimeout(0.1)
    while not over.is_set():
        try:
            connection, _ = server.accept()
        except TimeoutError:
            continue
        with connection, contextlib.suppress(OSError):
            connection.settimeout(STREAM_SECONDS)
            while connection.recv(_CHUNK):
                pass
            connection.sendall(b"k")


def _place(stage_dir: Path, start: str) -> Path:
    return stage_dir / f"sink-{start}.json"


MEETING_SECONDS = 60.0
"""How long the nodes of a job wait for each other's reports; a node that is silent for longer takes no part."""
LOOK_SECONDS = 0.2


def look_at_this_node(stage_dir: Path, settings: NodeChecks, *, node: str, rank: int, compare: bool) -> NodeReport:
    """All checks of this node; its own speeds only where there are others to compare them with."""
    findings = (*disk(stage_dir, least_bytes=settings.disk_bytes), clock(stage_dir))
    devices = accelerators()
    xid = (xid_errors(kernel_log()),) if any(finding.name.startswith("accelerator ") for finding in devices) else ()
    rates = processor_rates() if compare else {}
    return NodeReport(node=node, rank=rank, findings=(*findings, *devices, *xid), rates=rates)


def meet(
    stage_dir: Path,
    settings: NodeChecks,
    *,
    start: str,
    rank: int,
    needed: int,
    expected: int,
    node: str = "",
    pause: Callable[[float], None] = time.sleep,
    clock_seconds: Callable[[], float] = time.monotonic,
) -> Assignment:
    """Look at this node, tell the others, and agree on who takes part in a start.

    `start` names this very start (an attempt and the scheduler's restarts of it), equal on all nodes. The node with the
    lowest number decides for all, as soon as `expected` reports are there or the wait is over; should it die first, any
    other one does. The decision is a file that is written once.
    """
    name, several = node or socket.gethostname(), expected > 1
    with receiving(stage_dir, start) if rank == 0 and several else contextlib.nullcontext():
        report = look_at_this_node(stage_dir, settings, node=name, rank=rank, compare=several)
        if rank and several:
            sent = sending_rate(stage_dir, start, pause=pause, now=clock_seconds)
            report = replace(report, rates={**report.rates, **sent})
        durable.write_hint(_path(stage_dir, start, rank), report_to_json(report))
        return _agreed(
            stage_dir, settings, start, rank, needed=needed, expected=expected, pause=pause, now=clock_seconds
        )


def _agreed(
    stage_dir: Path,
    settings: NodeChecks,
    start: str,
    rank: int,
    *,
    needed: int,
    expected: int,
    pause: Callable[[float], None],
    now: Callable[[], float],
) -> Assignment:
    begun = now()
    while (decided := _decided(stage_dir, start)) is None:
        reports = read_reports(stage_dir, start)
        waited = now() - begun
        decides = rank == min(report.rank for report in reports)
        if waited > 2 * MEETING_SECONDS or (decides and (len(reports) == expected or waited > MEETING_SECONDS)):
            chosen = assign(reports, needed=needed, expected=expected, slow_ratio=settings.slow_rank_ratio)
            _decide(stage_dir, start, chosen)
        else:
            pause(LOOK_SECONDS)
    return decided


def read_reports(stage_dir: Path, start: str) -> list[NodeReport]:
    """The reports that are there for a start, by number of the node; torn ones are not there yet."""
    reports = []
    for path in stage_dir.glob(f"check-{start}-*.json"):
        try:
            reports.append(report_from_json(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(reports, key=lambda report: report.rank)


def unfit_nodes(stage_dir: Path, start: str) -> dict[str, str]:
    """The nodes that a start was decided to do without, by the names that they gave, and why; the silent have none."""
    decided = _decided(stage_dir, start)
    named = {report.node for report in read_reports(stage_dir, start)}
    return {} if decided is None else {node: why for node, why in decided.left_out.items() if node in named}


def _decide(stage_dir: Path, start: str, chosen: Assignment) -> None:
    content = {"ranks": [*chosen.ranks], "left_out": dict(chosen.left_out)}
    durable.write_new(_decision(stage_dir, start), json.dumps(content).encode())


def _decided(stage_dir: Path, start: str) -> Assignment | None:
    try:
        content = json.loads(_decision(stage_dir, start).read_text(encoding="utf-8"))
        return Assignment(ranks=tuple(content["ranks"]), left_out=content["left_out"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _path(stage_dir: Path, start: str, rank: int) -> Path:
    return stage_dir / f"check-{start}-{rank}.json"


def _decision(stage_dir: Path, start: str) -> Path:
    return stage_dir / f"chosen-{start}.json"

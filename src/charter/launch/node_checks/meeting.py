"""The nodes of one start meet in the stage directory: each leaves its report, and reads those of the others."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from charter.artifacts import durable
from charter.launch.node_checks.local import accelerators, clock, disk, kernel_log, processor_rates, xid_errors
from charter.launch.node_checks.report import Assignment, NodeReport, assign, report_from_json, report_to_json
from charter.spec.launching import NodeChecks

SENT_BYTES = 8 * 1024**2
REPEATS = 2
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
        rates = [_stream(str(place["host"]), int(place["port"])) for _ in range(REPEATS)]
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

"""The nodes of one start meet in the stage directory: each leaves its report, and reads those of the others."""

import contextlib
import json
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from charter.artifacts import durable
from charter.launch.node_checks.bandwidth import receiving, sending_rate
from charter.launch.node_checks.local import clock, disk, processor_rates
from charter.launch.node_checks.nvidia import accelerators, kernel_log, xid_errors
from charter.launch.node_checks.report import Assignment, NodeReport, assign, report_from_json, report_to_json
from charter.spec.launching import NodeChecks

MEETING_SECONDS = 60.0
"""How long the nodes of a job wait for each other's reports; a node that is silent for longer takes no part."""
LOOK_SECONDS = 0.2


def look_at_this_node(stage_dir: Path, settings: NodeChecks, *, node: str, rank: int, compare: bool) -> NodeReport:
    """All checks of this node; its own speeds only where there are others to compare them with."""
    findings = (*disk(stage_dir, least_bytes=settings.disk_bytes), clock(stage_dir))
    found = accelerators()
    xid = (xid_errors(kernel_log()),) if any(finding.name.startswith("accelerator ") for finding in found) else ()
    rates = processor_rates() if compare else {}
    return NodeReport(node=node, rank=rank, findings=(*findings, *found, *xid), rates=rates)


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

    `start` names this very start (an attempt and the engine's restarts of it), equal on all nodes. The node with the
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
        decides = rank == min(found.rank for found in reports)
        if waited > 2 * MEETING_SECONDS or (decides and (len(reports) == expected or waited > MEETING_SECONDS)):
            chosen = assign(reports, needed=needed, expected=expected, slow_ratio=settings.slow_rank_ratio)
            _decide(stage_dir, start, chosen)
        else:
            pause(LOOK_SECONDS)
    return decided


def read_reports(stage_dir: Path, start: str) -> list[NodeReport]:
    """The reports that are there for a start, by number of the node; torn ones are not there yet."""
    found = []
    for path in stage_dir.glob(f"check-{start}-*.json"):
        try:
            found.append(report_from_json(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(found, key=lambda report: report.rank)


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

"""Findings on a node, and the choice of nodes that take part: pure."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from charter.artifacts import durable
from charter.errors import DataError

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

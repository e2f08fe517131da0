"""What a node agent does before a start: look at its node, and agree with the other agents on who takes part."""

import os
import socket
from dataclasses import dataclass

from charter.launch.agent_task import Task
from charter.launch.job_files import NodeRecord

CHECKS_FAILED_EXIT = 10
"""Of the agents of a start that cannot take place, since too few nodes are fit; never the exit code of a run. A node
that is left out while a spare takes its place is no failure."""
NODE_NAME = "CHARTER_NODE_NAME"
"""The engine's name of the node, where it has one of its own; what is left out of later jobs goes by it."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The part that a node has in a start."""

    node: int | None
    """Its number among those that take part; None for a spare that is not needed, or a node that is not fit."""
    first: int
    """The number that node 0 of the group had before."""
    why: str = ""
    """Why the start cannot take place, or this node takes no part in it."""
    cannot_start: bool = False
    """Too few nodes are fit."""


def node_name() -> str:
    """The engine's name of this node, or its host name."""
    return os.environ.get(NODE_NAME) or socket.gethostname()


def place_after_checks(task: Task, record: NodeRecord) -> Chosen:
    """Check this node, and read the part that it has."""
    from charter.launch.node_checks.meeting import meet
    from charter.spec.launching import NodeChecks

    assignment = meet(
        task.stage_dir,
        NodeChecks(disk_bytes=task.check_disk_bytes or 0, slow_rank_ratio=task.slow_ratio),
        start=f"{task.token}-{record.restart}",
        rank=record.place,
        needed=task.nodes,
        expected=task.expected or task.nodes,
        node=node_name(),
    )
    left_out = "; ".join(f"{node}: {why}" for node, why in assignment.left_out.items())
    if not assignment.ranks:
        return Chosen(node=None, first=0, why=f"too few nodes are fit: {left_out}", cannot_start=True)
    mine = assignment.left_out.get(node_name(), "")
    return Chosen(node=assignment.place_of(record.place), first=assignment.ranks[0], why=mine)

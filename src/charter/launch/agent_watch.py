"""A node agent at work: it waits for its processes, hears what is asked of it, and tells how they ended."""

import argparse
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Literal

from charter.artifacts.job_files import Control, Failure, JobFiles, NodeRecord, StoppedBy
from charter.artifacts.stage_process import INTERRUPTED_EXIT, PEER_EXIT
from charter.launch.group import CAUSE_SECONDS, GroupHandle
from charter.launch.node_processes import NodeProcesses


@dataclass(frozen=True, kw_only=True)
class AgentTask:
    """One job, as its agents know it."""

    stage_dir: Path
    module: str
    job: int
    """Number of the submission in the stage directory."""
    token: str
    """A name of this very submission."""
    attempt: int = 1
    nodes: int = 1
    processes: int = 1
    """Per node."""
    apart: bool = False
    """A task of an array: it makes its share of the records without the others."""
    launcher: Literal["direct", "torchrun"] = "direct"
    time_limit_seconds: float | None = None
    stop_before_seconds: float = 120.0
    meter_seconds: float = 0.0
    check_disk_bytes: int | None = None
    """The node is checked before the start, and must have so much room; None for no checks."""
    slow_ratio: float = 2.0
    expected: int = 0
    """Nodes that were asked for, spares included; 0 for those that take part."""
    pools: str = ""
    """Pools of servers that all nodes start beside the stage, which is then one process on the first of them."""
    accelerators: int = 0
    """Of this node, that the servers share."""
    layout: str = ""
    """How the stage is spread over its processes: what the plan said, and the stage's job has to say too."""
    with_parent: bool = False
    """End when whoever started the agent has ended."""


def command_of(task: AgentTask, *, python: str) -> tuple[str, ...]:
    """The command of an agent; what is as by default is left out.

    >>> command_of(AgentTask(stage_dir=Path("/d"), module="m", job=3, token="t", nodes=2), python="python3")[3:]
    ('--stage-dir', '/d', '--module', 'm', '--job', '3', '--token', 't', '--nodes', '2')
    """
    words = [python, "-m", "charter.launch.agent"]
    default = AgentTask(stage_dir=Path(), module="", job=-1, token="")
    for name, value in vars(task).items():
        if value == vars(default)[name]:
            continue
        words.append(f"--{name.replace('_', '-')}")
        words += [] if value is True else [f"{value:g}" if isinstance(value, float) else str(value)]
    return tuple(words)


def parse(argv: Sequence[str]) -> AgentTask:
    """The task that a command line says."""
    parser = argparse.ArgumentParser(description="Run a stage's processes of one node.", allow_abbrev=False)
    parser.add_argument("--stage-dir", type=Path, required=True)
    parser.add_argument("--module", required=True)
    parser.add_argument("--job", type=int, required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--attempt", type=int, default=AgentTask.attempt)
    parser.add_argument("--nodes", type=int, default=AgentTask.nodes)
    parser.add_argument("--processes", type=int, default=AgentTask.processes)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--launcher", choices=("direct", "torchrun"), default=AgentTask.launcher)
    parser.add_argument("--time-limit-seconds", type=float)
    parser.add_argument("--stop-before-seconds", type=float, default=AgentTask.stop_before_seconds)
    parser.add_argument("--meter-seconds", type=float, default=AgentTask.meter_seconds)
    parser.add_argument("--check-disk-bytes", type=int)
    parser.add_argument("--slow-ratio", type=float, default=AgentTask.slow_ratio)
    parser.add_argument("--expected", type=int, default=AgentTask.expected)
    parser.add_argument("--pools", default=AgentTask.pools)
    parser.add_argument("--accelerators", type=int, default=AgentTask.accelerators)
    parser.add_argument("--layout", default=AgentTask.layout)
    parser.add_argument("--with-parent", action="store_true")
    return AgentTask(**vars(parser.parse_args(argv)))


LOOK_SECONDS = 0.05
ASK_SECONDS = 0.5
"""How often the files of the job are looked at; on a shared disk every look is a request."""
BEAT_SECONDS = 4.0
"""How often an agent beside others counts a sign of life into its record."""
CLEAN = (0, INTERRUPTED_EXIT)
ASKED_EARLY = -int(signal.SIGTERM)
"""Of a process that was asked to stop while it started, before it could hear."""


class StopRequest:
    """Remembers SIGTERM, and SIGUSR1 as a wish for stacks."""

    def __init__(self) -> None:
        self.wanted = False
        self.dumps = 0
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGUSR1, self._dump)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True

    def _dump(self, number: int, frame: FrameType | None) -> None:
        self.dumps += 1


class NodeWatch:
    """One start on one node, from its first process to its last."""

    def __init__(
        self,
        task: AgentTask,
        files: JobFiles,
        processes: NodeProcesses,
        stop: StopRequest,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task, self._files, self._processes, self._stop = task, files, processes, stop
        self._sleep, self._clock = sleep, clock
        self._parent = os.getppid()
        self._stopped_by: StoppedBy = ""
        self._control = Control()
        self._dumps = 0
        self._started = self._asked_at = self._beaten_at = clock()

    def run(self) -> int:
        """Start the processes and wait for their end; returns their exit code, minus the number of a signal."""
        if self._files.asked().stop or self._stop.wanted:
            return self._end(INTERRUPTED_EXIT, 0, "signal" if self._stop.wanted else "supervisor")
        group = self._processes.start()
        self._files.tell(self._processes.record)
        while (code := group.poll()) is None:
            self._heed(group)
            self._sleep(LOOK_SECONDS)
        return self._ended(code, group.failed_rank)

    def _heed(self, group: GroupHandle) -> None:
        """Do what is asked of this node, by signals, by the clock and by the files of the job."""
        if self._stop.wanted:
            self._ask_to_stop(group, "signal")
        if self._stop.dumps != self._dumps:
            self._dumps = self._stop.dumps
            group.dump_stacks()
        now = self._clock()
        limit = self._task.time_limit_seconds
        if limit is not None and now - self._started >= max(0.0, limit - self._task.stop_before_seconds):
            self._ask_to_stop(group, "time_limit")
        if now - self._asked_at < ASK_SECONDS:
            return
        self._asked_at = now
        if self._processes.seen(group.pid):
            self._files.tell(self._processes.record)
        if self._task.with_parent and os.getppid() != self._parent:
            self._kill(group, "parent")
        if self._task.nodes > 1 and now - self._beaten_at >= BEAT_SECONDS:
            self._beaten_at = now
            self._files.tell(self._processes.beat())
        restart = self._processes.record.restart
        if self._task.nodes > 1 and self._files.failed(restart).exists():
            self._kill(group, "peer")
        wishes = self._files.asked()
        if wishes.kill:
            self._kill(group, "supervisor")
        if wishes.stop:
            self._ask_to_stop(group, "supervisor")
        if wishes.dumps != self._control.dumps:
            group.dump_stacks()
        self._control = wishes

    def _ask_to_stop(self, group: GroupHandle, by: StoppedBy) -> None:
        if not self._stopped_by:
            self._stopped_by = by
            group.stop()

    def _kill(self, group: GroupHandle, by: StoppedBy) -> None:
        self._stopped_by = by
        group.kill()

    def _ended(self, code: int, failed: int) -> int:
        """Tell the other nodes of a failure that is this node's own, and everybody how it ended."""
        record = self._processes.record
        rank = record.first_rank + failed
        if code == ASKED_EARLY and self._stopped_by and self._task.nodes == 1:
            # It has done nothing yet that could be lost. Beside other nodes it is a failure, which they must hear of.
            code = INTERRUPTED_EXIT
        if self._task.nodes > 1 and code not in CLEAN and self._stopped_by not in ("peer", "supervisor", "parent"):
            waited = 0.0
            while code == PEER_EXIT and waited < CAUSE_SECONDS and not self._files.failed(record.restart).exists():
                self._sleep(ASK_SECONDS)
                waited += ASK_SECONDS
            self._files.fail(record.restart, Failure(exit_code=code, rank=rank, host=record.host))
        return self._end(code, rank, self._stopped_by)

    def _end(self, code: int, rank: int, by: StoppedBy) -> int:
        record = replace(self._processes.record, ended_at=time.time(), exit_code=code, failed_rank=rank, stopped_by=by)
        self._files.tell(record)
        return code


CHECKS_FAILED_EXIT = 10
"""Of the agents of a start that cannot take place, since too few nodes are fit; never the exit code of a run. A node
that is left out while a spare takes its place is no failure."""
NODE_NAME = "CHARTER_NODE_NAME"
"""The scheduler's name of the node, where it has one of its own; what is left out of later jobs goes by it."""


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
    """The scheduler's name of this node, or its host name."""
    return os.environ.get(NODE_NAME) or socket.gethostname()


def place_after_checks(task: AgentTask, record: NodeRecord) -> Chosen:
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

"""The node agent: what a scheduler runs on every node of a job, the same program everywhere.

    python -m charter.launch.agent --stage-dir D --module M --job 3 --token T --attempt 1 --nodes 2 --processes 4

It reads its place from `CHARTER_NODE_RANK` (or `CHARTER_SHARD`, for a task of an array) and the scheduler's count of
restarts from `CHARTER_RESTART`, starts the stage's processes of this node, and ends with them. What it knows it writes
into the job's files (`charter.artifacts.job_files`), so that the supervisor and the other agents need no scheduler to
hear of it: SIGTERM, or a request in the control file, stops the stage at its next checkpoint; a failure anywhere ends
the processes of all nodes.
"""

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Literal, NoReturn

from charter.artifacts import durable, faults
from charter.artifacts.fence import TERM, LeaseTerm
from charter.artifacts.group import APART, NODE_ADDRESS, rank_environment
from charter.artifacts.job import JOB_FILE
from charter.artifacts.job_files import SERVERS, SERVERS_DIR, Control, Failure, JobFiles, NodeRecord, StoppedBy
from charter.artifacts.lease import host_id
from charter.artifacts.stage_process import INTERRUPTED_EXIT, PEER_EXIT
from charter.errors import ExitCode
from charter.launch.children import CAUSE_SECONDS, GroupHandle, NodeProcesses, Torchrun
from charter.launch.job import ENGINE_JOB, ENGINE_NODES, NODE_NAME, NODE_RANK, RESTART, SHARD
from charter.launch.machine import LOOPBACK, MeetingPlace, free_port, meeting_place, route_address
from charter.launch.servers import ServerKeeper, pools_of
from charter.metering.sampler import MeterSampler
from charter.models.engine_layout import StageLayout


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
    engine_nodes: int = 0
    """Nodes whose accelerators the stage's engine takes by itself; 0 where the agents' nodes are the stage's."""
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
        words += [] if value is True else [f"{value:.15g}" if isinstance(value, float) else str(value)]
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
    parser.add_argument("--engine-nodes", type=int, default=AgentTask.engine_nodes)
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
    from charter.launch.node_checks import meet
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


NO_RANK = -1
"""Of a node that has servers of a stage and no process of the stage itself."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run this node's part of one start, and say by the exit code how it ended."""
    task = parse(sys.argv[1:] if argv is None else argv)
    stop = StopRequest()
    code = run(task, os.environ, stop)
    sys.exit(128 - code if code < 0 else code)


def run(task: AgentTask, environment: Mapping[str, str], stop: StopRequest) -> int:
    """Start this node's processes and stay until they have ended."""
    files = JobFiles(task.stage_dir, task.job)
    place = int(environment.get(SHARD if task.apart else NODE_RANK, "0"))
    record = files.claim(
        NodeRecord(
            place=place,
            restart=int(environment.get(RESTART) or 0),
            host=socket.gethostname(),
            host_id=host_id(),
            node=node_name(),
            address=route_address() if task.nodes > 1 else "",
            port=free_port() if task.nodes > 1 else 0,
            engine_job=environment.get(ENGINE_JOB, ""),
            pid=os.getpid(),
            processes=task.processes,
            started_at=time.time(),
        )
    )
    chosen = Chosen(node=place, first=0)
    if task.check_disk_bytes is not None and not task.apart:
        chosen = place_after_checks(task, record)
    if chosen.node is None:
        code = CHECKS_FAILED_EXIT if chosen.cannot_start else 0
        files.tell(replace(record, ended_at=time.time(), exit_code=code, stopped_by="checks", note=chosen.why))
        return code
    if (differs := layout_differs(task)) is not None:
        return _refuse(files, record, differs)
    servers = files.directory / f"{SERVERS_DIR}-{record.restart}"
    keeper = _keeper(task, servers, place)
    try:
        with _metered(task):
            if keeper is not None and place:
                return serve_others(task, files, record)
            return NodeWatch(task, files, _processes(task, files, record, chosen, servers), stop).run()
    finally:
        if keeper is not None:
            keeper.end()


def layout_differs(task: AgentTask) -> str | None:
    """Return how the job that the stage froze differs from the layout that this start was submitted with."""
    if not task.layout:
        return None
    frozen = {**asdict(StageLayout()), **durable.read_json(task.stage_dir / JOB_FILE).get("frozen", {})}
    for word in task.layout.split(","):
        name, _, value = word.partition("=")
        own = frozen.get(name)
        if own is not None and str(int(own) if isinstance(own, bool) else own) != value:
            return f"the stage was frozen with {name} {own}, and this job was submitted with {name} {value}"
    return None


def _refuse(files: JobFiles, record: NodeRecord, why: str) -> int:
    print(why, file=sys.stderr, flush=True)
    files.tell(replace(record, ended_at=time.time(), exit_code=int(ExitCode.USAGE), note=why))
    return int(ExitCode.USAGE)


def _keeper(task: AgentTask, directory: Path, place: int) -> ServerKeeper | None:
    if not task.pools:
        return None
    durable.make_dir(directory)
    return ServerKeeper(
        pools_of(task.pools),
        directory=directory,
        logs=task.stage_dir,
        node=place,
        nodes=task.nodes,
        accelerators=task.accelerators,
    )


def serve_others(task: AgentTask, files: JobFiles, record: NodeRecord) -> int:
    """Keep this node's servers until the stage has ended on the first node; nothing of the stage runs here."""
    record = replace(record, first_rank=NO_RANK, processes=0)
    files.tell(record)
    by: StoppedBy = ""
    while True:
        first = files.read_node(record.restart, 0)
        if first is not None and first.ended_at is not None:
            break
        if files.failed(record.restart).exists():
            by = "peer"
            break
        if files.asked().kill:
            by = "supervisor"
            break
        time.sleep(ASK_SECONDS)
    files.tell(replace(record, ended_at=time.time(), exit_code=0, stopped_by=by))
    return 0


def _processes(task: AgentTask, files: JobFiles, record: NodeRecord, chosen: Chosen, servers: Path) -> NodeProcesses:
    """This node's processes, not started yet, each with its place in the environment."""
    common = {
        TERM: str(LeaseTerm(task.job, record.restart)),
        faults.ATTEMPT: str(task.attempt + record.restart),
        NODE_ADDRESS: record.address,
        **({ENGINE_NODES: str(task.engine_nodes)} if task.engine_nodes else {}),
    }
    torchrun = None
    if task.pools:
        common[SERVERS] = str(servers)
        first, world, ranks, group = 0, 1, [0], f"{task.token}-{record.restart}"
    elif task.apart:
        shards, world = files.shards()
        first, group = shards[record.place], task.token
        ranks, common[APART] = [first], "1"
    else:
        node = chosen.node or 0
        first, world = node * task.processes, task.nodes * task.processes
        ranks, group = [*range(first, first + task.processes)], f"{task.token}-{record.restart}"
        if task.launcher == "torchrun":
            torchrun = Torchrun(nodes=task.nodes, node=node, master=_master(task, files, record, chosen))
    return NodeProcesses(
        record=replace(record, first_rank=first),
        module=task.module,
        stage_dir=task.stage_dir,
        environments=[
            {**common, **rank_environment(rank, processes=world, group=group, first=first, here=len(ranks))}
            for rank in ranks
        ],
        torchrun=torchrun,
    )


def _master(task: AgentTask, files: JobFiles, record: NodeRecord, chosen: Chosen) -> MeetingPlace:
    if task.nodes == 1:
        return MeetingPlace(address=LOOPBACK, port=free_port())
    return meeting_place(files, record, first=chosen.first)


def _metered(task: AgentTask) -> MeterSampler:
    """Meters the node beside the stage; tasks of arrays are too many and too short for it."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    every = 0.0 if task.apart else task.meter_seconds
    return MeterSampler(task.stage_dir, below=os.getpid(), every_seconds=every, gpus=gpus)


if __name__ == "__main__":
    main()

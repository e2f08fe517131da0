"""The node agent: what a scheduler runs on every node of a job, the same program everywhere.

    python -m charter.launch.agent --stage-dir D --module M --job 3 --token T --attempt 1 --nodes 2 --processes 4

It reads its place from `CHARTER_NODE_RANK` (or `CHARTER_SHARD`, for a task of an array) and the scheduler's count of
restarts from `CHARTER_RESTART`, starts the stage's processes of this node, and ends with them. What it knows it writes
into the job's files (`charter.artifacts.job_files`), so that the supervisor and the other agents need no scheduler to
hear of it: SIGTERM, or a request in the control file, stops the stage at its next checkpoint; a failure anywhere ends
the processes of all nodes.
"""

import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

from charter.artifacts import durable, faults
from charter.artifacts.fence import TERM, LeaseTerm
from charter.artifacts.group import APART, NODE_ADDRESS, rank_environment
from charter.artifacts.job import JOB_FILE
from charter.artifacts.job_files import JobFiles, NodeRecord, StoppedBy
from charter.artifacts.lease import host_id
from charter.artifacts.server_files import SERVERS, SERVERS_DIR
from charter.errors import ExitCode
from charter.launch.agent_watch import (
    ASK_SECONDS,
    CHECKS_FAILED_EXIT,
    AgentTask,
    Chosen,
    NodeWatch,
    StopRequest,
    node_name,
    parse,
    place_after_checks,
)
from charter.launch.job import RESTART
from charter.launch.node_address import LOOPBACK, MeetingPlace, free_port, meeting_place, route_address
from charter.launch.node_processes import NodeProcesses, Torchrun
from charter.launch.servers import ServerKeeper, pools_of
from charter.metering.sampler import MeterSampler
from charter.models.engine_layout import StageLayout

NODE_RANK, SHARD = "CHARTER_NODE_RANK", "CHARTER_SHARD"
NO_RANK = -1
"""Of a node that has servers of a stage and no process of the stage itself."""
ENGINE_JOB = "CHARTER_ENGINE_JOB"
"""The scheduler's own number of the job, where its environment says it; for people who read the files."""


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

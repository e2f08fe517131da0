"""The stage's processes of one node: started by the agent itself, or by torchrun below it."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from charter.artifacts import faults
from charter.artifacts.group import LOCAL_RANK, RANK, WORLD_SIZE, failure_name, log_name
from charter.artifacts.job_files import NodeRecord
from charter.artifacts.stage_process import INTERRUPTED_EXIT, die_with_parent
from charter.launch.children import ChildHandle, inherited_environment
from charter.launch.commands import stage_command
from charter.launch.group import GroupHandle
from charter.launch.launcher import ProcessHandle
from charter.launch.node_address import MeetingPlace

ANY_PARENT = "0"
"""In place of the supervisor's number: the process dies with whoever started it, here torchrun."""
TORCHRUN_FAILED = 1


@dataclass(frozen=True, kw_only=True)
class Torchrun:
    """Arguments of torchrun beside the number of processes."""

    nodes: int
    node: int
    master: MeetingPlace


class NodeProcesses:
    """The processes of one node, which end together."""

    def __init__(
        self,
        *,
        record: NodeRecord,
        module: str,
        stage_dir: Path,
        environments: Sequence[Mapping[str, str]],
        torchrun: Torchrun | None,
    ) -> None:
        self._record = record
        self._module, self._stage_dir, self._torchrun = module, stage_dir, torchrun
        self._environments = environments
        self._inherited = inherited_environment({})

    @property
    def record(self) -> NodeRecord:
        """Return the record of this start on this node."""
        return self._record

    def seen(self, pid: int | None) -> bool:
        """Take in the number of the first process, which torchrun starts later than itself; whether it is new."""
        new = pid is not None and pid != self._record.first_pid
        self._record = replace(self._record, first_pid=pid) if new and pid is not None else self._record
        return new

    def beat(self) -> NodeRecord:
        """Count one more sign of life, and return the record with it."""
        self._record = replace(self._record, beats=self._record.beats + 1)
        return self._record

    def start(self) -> GroupHandle:
        """Start them."""
        if self._torchrun is not None:
            members: list[ProcessHandle] = [self._by_torchrun(self._torchrun)]
        else:
            members = [self._one(environment) for environment in self._environments]
        self._record = replace(self._record, first_pid=members[0].pid or 0)
        return GroupHandle(members)

    def _one(self, environment: Mapping[str, str]) -> ChildHandle:
        command = stage_command(self._module, self._stage_dir)
        return ChildHandle(self._open(command, int(environment[RANK]), environment))

    def _by_torchrun(self, torchrun: Torchrun) -> "TorchrunHandle":
        own = {
            name: value for name, value in self._environments[0].items() if name not in (RANK, WORLD_SIZE, LOCAL_RANK)
        }
        own |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", faults.SUPERVISOR_PID: ANY_PARENT}
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(torchrun.nodes)]
        command += ["--node-rank", str(torchrun.node), "--nproc-per-node", str(len(self._environments))]
        command += ["--master-addr", torchrun.master.address, "--master-port", str(torchrun.master.port)]
        command += ["--max-restarts", "0", "--monitor-interval", "0.1"]
        command += ["-m", self._module, "--stage-dir", str(self._stage_dir)]
        first = int(self._environments[0][RANK])
        return TorchrunHandle(self._open(command, first, own), self._stage_dir, first, len(self._environments))

    def _open(self, command: Sequence[str], rank: int, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        agent = os.getpid()
        with (self._stage_dir / log_name(rank)).open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._inherited, **environment},
                start_new_session=True,
                # Safe after fork: the agent has one thread, and torchrun does not ask the kernel for this itself.
                preexec_fn=lambda: die_with_parent(agent),
            )


class TorchrunHandle(ChildHandle):
    """torchrun with the processes of a node below it.

    Signals go to these: torchrun itself would end them for good before they are at a safe point.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", stage_dir: Path, first_rank: int, processes: int) -> None:
        super().__init__(process)
        self._stage_dir, self._ranks = stage_dir, range(first_rank, first_rank + processes)
        self._asked_to_stop = False
        self._first_pid: int | None = None

    @property
    def pid(self) -> int | None:
        """Of the first of the stage's processes, once it is there; of torchrun before."""
        self._first_pid = self._first_pid or next(iter(children_of(self._process.pid)), None)
        return self._first_pid or self._process.pid

    def poll(self) -> int | None:
        """The exit code; torchrun says 1 for every failure, so the stage's own files say which one it was."""
        code = super().poll()
        if code != TORCHRUN_FAILED or any((self._stage_dir / failure_name(rank)).exists() for rank in self._ranks):
            return code
        return INTERRUPTED_EXIT if self._asked_to_stop else -signal.SIGKILL

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the stage's processes; SIGKILL to torchrun as well."""
        self._asked_to_stop |= number == signal.SIGTERM
        workers = children_of(self._process.pid)
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGKILL or (number == signal.SIGTERM and not workers):
            super().send(number)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started, oldest first (Linux)."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return sorted(int(word) for word in text.split())

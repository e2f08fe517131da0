"""Stage processes as children: one, a group that ends together, those of one node of several."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from charter.artifacts import durable, faults
from charter.artifacts.group import LOCAL_RANK, RANK, WORLD_SIZE, failure_name, log_name, rank_environment
from charter.artifacts.job_files import SERVERS, SERVERS_DIR, NodeRecord
from charter.artifacts.stage_process import INTERRUPTED_EXIT, PEER_EXIT, die_with_parent
from charter.launch.job import stage_command
from charter.launch.launcher import ProcessHandle, StageStart
from charter.launch.machine import VISIBLE, MeetingPlace, visible_gpus
from charter.launch.servers import ServerKeeper

GRACE_SECONDS = 0.3
"""After a process failed, the others may say what they have to say; they are waiting for it in a collective."""
CAUSE_SECONDS = 5.0
"""A process that lost another one says nothing about why: so long the cause itself is waited for."""
_CLEAN = (0, INTERRUPTED_EXIT)


def rank_environments(request: StageStart) -> Iterator[dict[str, str]]:
    """The environment of every process of a stage; the name of the group is new at every start."""
    group = f"{request.attempt}-{secrets.token_hex(6)}"
    for rank in range(request.processes):
        place = rank_environment(rank, processes=request.processes, group=group)
        yield {**request.environment, faults.ATTEMPT: str(request.attempt), **place}


class GroupHandle:
    """All processes of a stage; when one fails, the others are ended."""

    job, where, waits = None, "", False
    """They are processes of this machine, and start at once."""
    cause, note = "", ""
    """Nobody but this machine ends them."""

    def __init__(
        self,
        members: Sequence[ProcessHandle],
        *,
        clock: Callable[[], float] = time.monotonic,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._members = tuple(members)
        self._at_end: Callable[[], None] | None = at_end
        self._clock = clock
        self._codes: list[int | None] = [None] * len(self._members)
        self._cause: tuple[int, int] | None = None
        """Rank and exit code of the process that failed first."""
        self._noticed_at = 0.0
        self._ended_the_rest = False

    @property
    def pid(self) -> int | None:
        """Process id of rank 0."""
        return self._members[0].pid

    @property
    def processes(self) -> int:
        """Return the number of its processes."""
        return len(self._members)

    @property
    def failed_rank(self) -> int:
        """The process that failed first."""
        return self._cause[0] if self._cause else 0

    @property
    def watched(self) -> Sequence[int]:
        """All of them."""
        return range(len(self._members))

    def poll(self) -> int | None:
        """The exit code of the group, None while any process runs."""
        before = list(self._codes)
        self._codes = [member.poll() for member in self._members]
        self._notice([rank for rank, code in enumerate(before) if code is None and self._codes[rank] is not None])
        if None in self._codes:
            self._end_the_rest()
            return None
        if self._at_end is not None:
            self._at_end()
            self._at_end = None
        if self._cause is not None:
            return self._cause[1]
        return next((code for code in self._codes if code), 0)

    def stop(self) -> None:
        """SIGTERM to all."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to all."""
        self._send(signal.SIGKILL)

    def dump_stacks(self) -> None:
        """SIGUSR1 to all."""
        self._send(signal.SIGUSR1)

    def _send(self, number: signal.Signals) -> None:
        for member, code in zip(self._members, self._codes, strict=True):
            if code is None:
                member.send(number)

    def _notice(self, ended: Sequence[int]) -> None:
        """Remember the first cause; of several that are seen at once, the one that cannot be the effect of another."""
        failed = [(rank, code) for rank in ended if (code := self._codes[rank]) is not None and code not in _CLEAN]
        if not failed or self._ended_the_rest:
            return
        best = min(failed, key=lambda item: (item[1] == PEER_EXIT, item[1] >= 0, item[0]))
        if self._cause is None or self._cause[1] == PEER_EXIT != best[1]:
            self._cause, self._noticed_at = best, self._clock()

    def _end_the_rest(self) -> None:
        if self._cause is None or self._ended_the_rest:
            return
        wait = CAUSE_SECONDS if self._cause[1] == PEER_EXIT else GRACE_SECONDS
        if self._clock() - self._noticed_at >= wait:
            self._ended_the_rest = True
            self.kill()


def inherited_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that stages inherit: this process's, but not the meeting place of its own job."""
    own = {name: value for name, value in os.environ.items() if name not in ("MASTER_ADDR", "MASTER_PORT")}
    return {**own, **environment, faults.SUPERVISOR_PID: str(os.getpid())}


def with_servers(request: StageStart) -> tuple[StageStart, ServerKeeper | None]:
    """Start the pools of a stage on this machine; return what the stage is started with, and who keeps them."""
    if not request.pools:
        return request, None
    directory = request.stage_dir / SERVERS_DIR / secrets.token_hex(4)
    durable.make_dir(directory)
    keeper = ServerKeeper(request.pools, directory=directory, logs=request.stage_dir, accelerators=request.accelerators)
    return replace(request, environment={**request.environment, SERVERS: str(directory)}), keeper


def at_end(keeper: ServerKeeper | None, give_back: Callable[[], None]) -> Callable[[], None]:
    """Return what follows the end of a stage: its servers end, its devices are free."""

    def end() -> None:
        if keeper is not None:
            keeper.end()
        give_back()

    return end


class DeviceShares:
    """The accelerators of this machine, shared out to the stages that run at one time.

    Each start has those that the fewest others use: devices of its own as long as there are enough.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._uses = dict.fromkeys(names, 0)

    def taken(self, request: StageStart) -> tuple[StageStart, Callable[[], None]]:
        """Return the start of a stage with its devices, and how they are given back.

        A stage with servers shares its devices with them by another plan, and one without devices sees what is there.
        """
        if not request.devices or request.pools or not self._uses:
            return request, lambda: None
        names = [*self._uses]
        fewest = sorted(names, key=lambda name: (self._uses[name], names.index(name)))[: request.devices]
        for name in fewest:
            self._uses[name] += 1

        def give_back() -> None:
            for name in fewest:
                self._uses[name] -= 1

        visible = ",".join(sorted(fewest, key=names.index))
        return replace(request, environment={**request.environment, VISIBLE: visible}), give_back


class OnThisMachine:
    """Answers that all launchers of this machine share: a stage is a process of it, and ends with its supervisor."""

    elsewhere = False

    def facts_of(self, stage: str) -> None:
        """This machine computes."""

    def under_way(self, request: StageStart) -> bool:
        """Nothing is: what a dead supervisor has started died with it."""
        return False

    def end_left(self, stage_dir: Path) -> None:
        """Nothing runs by itself."""


class ProcessLauncher(OnThisMachine):
    """Every stage process is started anew: `python -m charter.train.sft --stage-dir D`."""

    def __init__(self, *, environment: Mapping[str, str]) -> None:
        self._environment = inherited_environment(environment)
        self._started: list[ChildHandle] = []
        self._keepers: list[ServerKeeper] = []
        self._devices = DeviceShares(visible_gpus())

    def start(self, request: StageStart) -> GroupHandle:
        """Start the processes of a stage, each with its output in a log of its own."""
        request, give_back = self._devices.taken(request)
        request, keeper = with_servers(request)
        members = [
            self._child(request, rank, environment) for rank, environment in enumerate(rank_environments(request))
        ]
        self._started += members
        self._keepers += [] if keeper is None else [keeper]
        return GroupHandle(members, at_end=at_end(keeper, give_back))

    def renew(self) -> None:
        """Nothing stands between the supervisor and its children."""

    def end_all(self) -> None:
        """End what still runs."""
        self.close()

    def close(self) -> None:
        """End what still runs."""
        for handle in self._started:
            handle.send(signal.SIGKILL)
        for handle in self._started:
            handle.wait()
        for keeper in self._keepers:
            keeper.end()

    def _child(self, request: StageStart, rank: int, environment: Mapping[str, str]) -> "ChildHandle":
        with (request.stage_dir / log_name(rank)).open("ab") as log:
            return ChildHandle(
                subprocess.Popen(
                    stage_command(request.module, request.stage_dir),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**self._environment, **environment},
                    start_new_session=True,
                )
            )


class ChildHandle:
    """A stage process that is a child of the supervisor."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self) -> None:
        """Wait for its end."""
        self._process.wait()


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

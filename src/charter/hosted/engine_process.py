"""The processes of an engine as one: started under a guard, asked to stop, ended, and found again when left over.

Pump of an engine's output into the stage's own log, where `charter logs` shows it. On several nodes one process of
Charter's on each starts the engine there; what they tell one another lies in files below the engine's directory.
"""

import codecs
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

from charter.artifacts import durable
from charter.artifacts.group import GROUP, NODE_ADDRESS, failure_name, rank_of_process, world_size
from charter.artifacts.lease import host_id
from charter.artifacts.stage_dir import StageDir
from charter.artifacts.stage_process import PEER_EXIT, PEER_LOST
from charter.engines import handover_engine
from charter.engines.installed import checkout_of, interpreter_of
from charter.errors import DataError, InterruptedRunError, StageError
from charter.launch.job import ENGINE_NODES
from charter.launch.machine import LOOPBACK, VISIBLE, free_port

_MOST_BYTES = 1 << 20
_END_BYTES = 1 << 16
_LONGEST = 400
BY_TORCHRUN = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank")
"""What torchrun prints of its first process that has failed (minus the number of a signal); it ends with 1 itself."""


class LogPump:
    """Passes on what has been added to a file since it last looked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def pump(self, *, to_end: bool = False) -> None:
        """Pass on what is new: a megabyte at most, so that the caller goes on looking, or all of it."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                while new_bytes := file.read(_MOST_BYTES):
                    self._position += len(new_bytes)
                    sys.stdout.write(self._decoder.decode(new_bytes))
                    if not to_end:
                        break
        except OSError:
            return
        sys.stdout.flush()

    def last_lines(self, number: int) -> str:
        """The last lines of the file, for a message, without torchrun's own report: it stands below the errors."""
        try:
            with self._path.open("rb") as file:
                file.seek(max(0, self._path.stat().st_size - _END_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        report = next((at for at, line in enumerate(lines, start=1) if BY_TORCHRUN.search(line)), None)
        return "\n".join([line[:_LONGEST] for line in lines[:report] if line.strip()][-number:])


WORK = "engine"
"""The directory below a stage's in which its engine works."""
MARK, START_MARK = "CHARTER_HOSTED_STAGE", "CHARTER_HOSTED_START"
"""Set in every process of an engine: the stage directory that it works for, and the start of the stage."""
_OF_CHARTERS_PROCESS = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CHARTER_GROUP",
    "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV",
)  # fmt: skip
"""Variables that say what Charter's own process is, and would mislead an engine's."""
GUARD = Path(__file__).resolve().with_name("guard.py")
"""Run as a file: it needs nothing of Charter's."""
END_SECONDS = 60.0
"""How long killed processes may take to be gone: memory of an accelerator is freed first."""


class EngineProcess:
    """A running engine; when this process ends, in whatever way, all processes of the engine are killed."""

    def __init__(
        self, command: Sequence[str], *, directory: Path, log: Path, environment: Mapping[str, str], stage_dir: Path
    ) -> None:
        self._stage_dir = stage_dir
        read, self._held = os.pipe()
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", str(GUARD), str(read), *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=directory,
                    env={**environment, MARK: str(stage_dir), START_MARK: os.environ.get(GROUP, "")},
                    pass_fds=(read,),
                    start_new_session=True,
                )
        finally:
            os.close(read)

    def poll(self) -> int | None:
        """The exit code of the engine (128 and the number of a signal), or None while it runs."""
        return self._process.poll()

    def ask_to_stop(self) -> None:
        """SIGTERM to the engine."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Kill all of the engine, and wait until it is gone."""
        if self._held is not None:
            os.close(self._held)
            self._held = None
        try:
            self._process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            end_left(self._stage_dir)  # the guard itself among them: alone it would leave the engine behind
            self._process.wait()

    _held: int | None


def driven_nodes() -> int:
    """Nodes of a Ray cluster whose accelerators the engine takes by itself; 0 where its processes are on this node."""
    return int(os.environ.get(ENGINE_NODES, "0"))


def ray_environment(variables: Mapping[str, str], *, python: str) -> dict[str, str]:
    """Variables by which what an engine starts through Ray, on whichever node, runs in its environment as here.

    Ray's processes have the variables and the Python of the node's own daemon. `RAY_JOB_CONFIG_JSON_ENV_VAR` is how
    `ray job submit` tells a program's `ray.init` otherwise (Ray 2.60, _private/worker.py); what the engine itself says
    there comes first.
    """
    sent = {"HF_HUB_OFFLINE": "1", "PATH": f"{os.path.dirname(python)}{os.pathsep}${{PATH}}", **variables}
    config = {"runtime_env": {"py_executable": python, "env_vars": sent}}
    return {**variables, "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(config), "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}


def engine_environment(extra: Mapping[str, str], *, python: str) -> dict[str, str]:
    """The variables of an engine's processes: those of this one, without what names its own place, and `extra`.

    Programs of the engine's environment (`accelerate`, `torchrun`) are found first. Nothing is fetched from a hub
    unless `extra` says so: what a stage reads lies in directories.
    """
    hidden = {*_OF_CHARTERS_PROCESS, *((VISIBLE,) if driven_nodes() else ())}  # Ray shows a driver's node no devices
    own = {name: value for name, value in os.environ.items() if name not in hidden}
    path = os.pathsep.join([os.path.dirname(python), own.get("PATH", os.defpath)])
    return {**own, "HF_HUB_OFFLINE": "1", "PATH": path, **extra}


def end_left(stage_dir: Path, *, spared: str | None = None) -> int:
    """Kill what an earlier start has left of an engine in a stage directory, and wait for its end; how many it were.

    The guard sees to it that there is nothing; this is for the case that the guard was killed itself. What belongs to
    the start `spared` is left alone: two nodes may be one machine.
    """
    deadline, ended = time.monotonic() + END_SECONDS, set[int]()
    while left := _marked(stage_dir, spared):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended |= left
        if time.monotonic() > deadline:
            raise StageError(
                f"processes {', '.join(map(str, sorted(left)))} of an earlier start still work in {stage_dir}, and "
                "SIGKILL did not end them; end them by hand"
            )
        time.sleep(0.01)
    return len(ended)


def _marked(stage_dir: Path, spared: str | None) -> set[int]:
    wanted, unwanted = f"{MARK}={stage_dir}".encode(), f"{START_MARK}={spared}".encode()
    pids = set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            while (environment := _environment(name)) is None:
                time.sleep(0.001)
            if wanted in environment and (spared is None or unwanted not in environment):
                pids.add(int(name))
    return pids


PF_KTHREAD = 0x00200000
"""Flag of a thread of the kernel, of which `/proc/PID/cmdline` is empty for good (linux/sched.h)."""


def _environment(pid: str) -> list[bytes] | None:
    """Return the variables of a process; None while it becomes another program.

    Its parent knows that `exec` has succeeded before the kernel has set out arguments and variables: until then both
    are empty, and a process with the mark would be missed.
    """
    place = Path("/proc", pid)
    if variables := (place / "environ").read_bytes():
        return variables.split(b"\0")
    state, *numbers = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
    is_settled = state in "ZX" or int(numbers[5]) & PF_KTHREAD or (place / "cmdline").read_bytes()
    return [] if is_settled else None


STARTS = "starts"
"""Below the work directory: what the nodes of each start tell one another."""
TOLD_SECONDS = 5.0
"""Where one node's engine has failed the others' fail with it, and say so within moments unless they are lost."""
STOP, PEER = "stop", "peer"
NODE_LOOK_SECONDS = 0.2
"""How often these files are looked at; on a shared disk every look is a request."""


NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class EngineStart:
    """One start of an engine, as every node of the stage begins it."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    address: str
    """Of the first node, as the others reach it."""
    port: int
    host_id: str
    """Two nodes with the same one are on one machine, and meet on its loopback."""

    def words(self, *, node: int, python: str, variables: Mapping[str, str] = NO_VARIABLES) -> list[str]:
        """Return the command of one node; in it stand names of `variables` and of the node's place.

        >>> command = ("python", "--rank", "${NODE_RANK}", "--at", "${MASTER_ADDR}:${MASTER_PORT}")
        >>> start = EngineStart(command=command, environment={}, address="10.0.0.7", port=29500, host_id="another")
        >>> start.words(node=1, python="/opt/bin/python")
        ['/opt/bin/python', '--rank', '1', '--at', '10.0.0.7:29500']
        >>> start = EngineStart(command=("python", "${HERE}/run.py"), environment={}, address="", port=1, host_id="")
        >>> start.words(node=0, python="python3", variables={"HERE": "/checkout"})
        ['python3', '/checkout/run.py']
        """
        address = LOOPBACK if self.host_id == host_id() else self.address
        place = {"NODE_RANK": str(node), "MASTER_ADDR": address, "MASTER_PORT": str(self.port)}
        values = {**variables, **place, "ENGINE_PYTHON": python}
        words = [python if word == "python" else word for word in self.command]
        for name, value in values.items():
            words = [word.replace(f"${{{name}}}", value) for word in words]
        return words


@dataclass(frozen=True, kw_only=True)
class EngineEnd:
    """End of the engine's processes of one node."""

    code: int
    last_lines: str = ""
    ended_by: str = ""
    """`stop` or `peer` where Charter has ended them: at a checkpoint, or since another node's had failed."""


class EngineNodes:
    """The nodes of one start of an engine, seen from one of them."""

    def __init__(self, work: Path) -> None:
        self.node, self.count = rank_of_process(), world_size()
        self._directory = work / STARTS / os.environ.get(GROUP, "alone")

    @property
    def host(self) -> str:
        """Return the address of this node for all processes of the engine; its loopback where they are all here."""
        is_apart = self.count > 1 or driven_nodes() > 0
        return (os.environ.get(NODE_ADDRESS) if is_apart else None) or LOOPBACK

    def begin(self, command: Sequence[str], environment: Mapping[str, str]) -> EngineStart:
        """Let the other nodes start the engine too; called by the first."""
        start = EngineStart(
            command=tuple(command),
            environment=dict(environment),
            address=self.host,
            port=free_port(),
            host_id=host_id(),
        )
        if self.count > 1:
            durable.make_dir(self._directory)
            durable.write_json(self._directory / "start.json", asdict(start))
        return start

    def begun(self) -> EngineStart | None:
        """Return the start that the first node has begun; None as long as it has not."""
        try:
            content = durable.read_json(self._directory / "start.json")
        except DataError:
            return None
        return EngineStart(**{**content, "command": tuple(content["command"])})

    def tell(self, end: EngineEnd) -> None:
        """Say how the engine has ended on this node; the directory is gone once the stage is done."""
        if self.count > 1:
            with contextlib.suppress(FileNotFoundError):
                durable.write_hint(self._directory / f"end-{self.node}.json", asdict(end))

    def end_of(self, node: int) -> EngineEnd | None:
        """Return how the engine has ended on a node; None where that node has not said so."""
        try:
            return EngineEnd(**durable.read_json(self._directory / f"end-{node}.json"))
        except DataError:
            return None

    def ends(self) -> dict[int, EngineEnd]:
        """Return how it has ended on the nodes that have said so, in the order in which they did."""
        paths = sorted(self._directory.glob("end-*.json"), key=lambda path: path.stat().st_mtime_ns)
        ends = {int(path.stem.partition("-")[2]): self.end_of(int(path.stem.partition("-")[2])) for path in paths}
        return {node: end for node, end in ends.items() if end is not None}

    def another_has_failed(self) -> bool:
        """Return True if the engine has failed on another node: here it would wait for it."""
        return self.count > 1 and any(end.code and node != self.node for node, end in self.ends().items())

    def all_ends(self, own: EngineEnd) -> dict[int, EngineEnd]:
        """The same, when all have said so or those that have not are taken for lost; `own` is this node's."""
        if self.count == 1:
            return {self.node: own}
        deadline = time.monotonic() + TOLD_SECONDS
        while len(ends := self.ends()) < self.count and time.monotonic() < deadline:
            time.sleep(NODE_LOOK_SECONDS)
        return ends


LAST_LINES = 40
"""So many of what an engine prints last tell why it has failed."""


def run_beside(stage: StageDir) -> None:
    """Run the engine's processes of a node that is not the first, until they end or the first node has ended its own.

    What has failed, and what that means, the first node says; a stop it carries out.
    """
    end_left(stage.path, spared=os.environ.get(GROUP))
    work = stage.path / WORK
    nodes = EngineNodes(work)
    while (start := nodes.begun()) is None:
        if stage.should_stop():
            return
        time.sleep(NODE_LOOK_SECONDS)
    log = work / f"log-{nodes.node}.txt"
    process, pump = start_engine(stage, start, log=log, nodes=nodes), LogPump(log)
    over, ended_by = float("inf"), ""
    try:
        while (code := process.poll()) is None:
            pump.pump()
            if (first := _first_end(stage, nodes)) is not None:
                over = min(over, time.monotonic() + END_SECONDS)
                if first.code or first.ended_by or time.monotonic() > over:
                    ended_by = first.ended_by or PEER
                    process.end()
            time.sleep(NODE_LOOK_SECONDS)
    finally:
        process.end()
    pump.pump(to_end=True)
    nodes.tell(EngineEnd(code=code, last_lines=pump.last_lines(LAST_LINES), ended_by=ended_by))
    _leave(stage, nodes, code, ended_by)


def _first_end(stage: StageDir, nodes: EngineNodes) -> EngineEnd | None:
    """Return how the engine has ended on the first node; of a stage that is done its word is gone."""
    return nodes.end_of(0) or (EngineEnd(code=0) if stage.is_done else None)


def _leave(stage: StageDir, nodes: EngineNodes, code: int, ended_by: str) -> None:
    """End this process as the engine has ended: with success where the first node's has succeeded or was stopped."""
    deadline = time.monotonic() + TOLD_SECONDS
    while (first := _first_end(stage, nodes)) is None and code and not stage.should_stop():
        if time.monotonic() > deadline:
            break
        time.sleep(NODE_LOOK_SECONDS)
    if not code or (first is not None and not first.code and not first.ended_by):
        return
    if stage.should_stop() or (first is not None and first.ended_by == STOP):
        raise InterruptedRunError(f"the engine of node {nodes.node} has ended with the first node's")
    how = "were ended with the first node's" if ended_by else f"ended with exit code {code}"
    end_as_lost(stage, f"the engine's processes of node {nodes.node} {how}")


def end_as_lost(stage: StageDir, message: str) -> NoReturn:
    """End as a process that lost another one: the supervisor starts it again from its checkpoint."""
    print(message, file=sys.stderr)
    content = {"exit_code": PEER_EXIT, "label": PEER_LOST, "message": message}
    durable.write_hint(stage.path / failure_name(rank_of_process()), content)
    raise SystemExit(PEER_EXIT)


def start_engine(stage: StageDir, start: EngineStart, *, log: Path, nodes: EngineNodes) -> EngineProcess:
    """Start the engine's processes of one node."""
    job = stage.job
    python = interpreter_of(job.engines, job.spec.engine)
    own = job.engines.get(job.spec.engine)
    variables = {**start.environment, **(own.environment if own else {})}
    if variable := handover_engine(job.spec.engine).checkout:
        variables[variable] = checkout_of(job.engines, job.spec.engine)
    if driven_nodes():
        variables = ray_environment(variables, python=python)
    return EngineProcess(
        start.words(node=nodes.node, python=python, variables=variables),
        directory=log.parent,
        log=log,
        environment=engine_environment(variables, python=python),
        stage_dir=stage.path,
    )

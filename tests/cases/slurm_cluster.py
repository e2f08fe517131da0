"""A real Slurm of four nodes on this machine, each with four H100 that only Slurm believes in: for tests, as root.

Everything is its own: directory, ports, munge key and daemon, and with `accounting` a MariaDB and a slurmdbd. Clients
find it by `SLURM_CONF`. Nodes share one host, so a job's processes are visible here, and what a node's death leaves
behind stays alive, as on a real node that only the controller has lost.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from held_port import held_port
from slurm_configuration import DBD_CONF, GRES_CONF, PASSWORD, SLURM_CONF, dbd_lines
from waiting import eventually

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "sacct", "scontrol")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db")
T = TypeVar("T")
NODES = ("n1", "n2", "n3", "n4")
GPUS_PER_NODE = 4
PATIENCE_SECONDS = 600
"""Only there to end a hang. Other suites run beside this one; starting takes a few seconds when nothing does."""


def missing_programs(*, accounting: bool = False) -> list[str]:
    """What `tools/system_packages.sh` would have to install; also `root`, where this is another user."""
    names = PROGRAMS + (ACCOUNTING_PROGRAMS if accounting else ())
    return [*(name for name in names if shutil.which(name) is None), *([] if os.geteuid() == 0 else ["root"])]


@contextlib.contextmanager
def slurm_cluster(*, accounting: bool = False, extra: str = "", cpus: int = 8) -> Iterator["SlurmCluster"]:
    """Start a cluster, give it when its nodes are idle, and end it with everything that runs on it.

    `extra` is added to `slurm.conf`; `cpus` is what every node says it has.
    """
    with tempfile.TemporaryDirectory(prefix="charter-slurm-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        Path(directory).chmod(0o755)
        cluster = SlurmCluster(directory=Path(directory), accounting=accounting, extra=extra, cpus=cpus)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@dataclass
class SlurmCluster:
    """Its daemons are children of this process and die with it."""

    directory: Path
    accounting: bool = False
    extra: str = ""
    cpus: int = 8
    ports: dict[str, int] = field(default_factory=dict)
    daemons: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def configuration(self) -> Path:
        """What `SLURM_CONF` names."""
        return self.directory / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        """Variables of this process and the one that makes Slurm's commands talk to this cluster."""
        return {**os.environ, "SLURM_CONF": str(self.configuration)}

    @property
    def impatient_environment(self) -> dict[str, str]:
        """The same for commands that give a silent controller up after seconds; the cluster's own wait under load."""
        path = self.directory / "impatient.conf"
        path.write_text(self.configuration.read_text().replace("MessageTimeout=20", "MessageTimeout=3"))
        return {**os.environ, "SLURM_CONF": str(path)}

    def start(self) -> None:
        """Write the configuration, start the daemons, wait until all nodes are idle."""
        names = ("slurmctld", "slurmdbd", "mariadb", *NODES)
        self.ports = {name: held_port() for name in names}
        for name in ("state", "spool", "log", "dev", "munge"):
            (self.directory / name).mkdir()
        for index in range(GPUS_PER_NODE):
            os.mknod(self.directory / "dev" / f"nvidia{index}", 0o20666, os.makedev(1, 3))
        self._configure()
        self._begin_munge()
        if self.accounting:
            self._begin_accounting()
        self.begin_controller(fresh=True)
        for node in NODES:
            self.begin_node(node)
        self.wait_for_nodes()

    def stop(self) -> None:
        """End jobs, daemons and whatever jobs left behind."""
        for name in ("slurmctld", *NODES, "slurmdbd", "mariadb", "munged"):
            self._end(name, signal.SIGKILL)
        eventually(self._ended_the_rest, "processes of the cluster do not end", seconds=60.0, every=0.05)

    def _ended_the_rest(self) -> bool:
        left = self.processes()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    def run(self, *command: str, check: bool = True) -> str:
        """What a command prints that talks to this cluster."""
        done = subprocess.run(
            command, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0 or not check, f"{' '.join(command)}\n{done.stdout}{done.stderr}\n{self.tails()}"
        return done.stdout

    # What goes wrong.

    def lose_node(self, node: str) -> None:
        """A node that the controller no longer reaches; what ran there goes on (the zombie) until it comes back."""
        self._end(node, signal.SIGKILL)
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=lost")
        # A last word of its daemon may still lie with the controller, and would make a node that is only down idle.
        self.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=lost")

    def power_off(self, node: str, *, frozen: bool = False) -> list[int]:
        """End, or freeze, a node's daemon and all that its jobs run there; nobody tells the controller."""
        mark = f"SLURMD_NODENAME={node}".encode()
        pids = [pid for pid in self.processes() if mark in _environment_of(pid)]
        steps = {pid for pid, command in self.processes().items() if command.startswith("slurmstepd")}
        pids += steps & {_parent_of(pid) for pid in pids}
        how = signal.SIGSTOP if frozen else signal.SIGKILL
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        if frozen:
            self.daemons[node].send_signal(how)
        else:
            self._end(node, how)
        return pids

    def thaw(self, node: str, pids: list[int]) -> None:
        """Start a frozen node anew, without what ran there."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._end(node, signal.SIGKILL)
        self.bring_back(node)

    def bring_back(self, node: str) -> None:
        """Its daemon starts again, and ends what the controller has given up."""
        self.begin_node(node)
        self.wait_until(lambda: answers(self.ports[node]), f"slurmd of {node}")
        self.wait_until(lambda: self._is_back(node), f"{node} to come back")

    def _is_back(self, node: str) -> bool:
        """Whether a node is up and answers; one that is still given up is let in again."""
        said = self._said_of(node)
        if said.startswith("DOWN") or "DRAIN" in said:
            self.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        return "*" not in said and said.rstrip("~#!%$@^-") in ("IDLE", "MIXED", "ALLOCATED")

    def preempt(self, node: str, *, seconds: float = 1.0) -> str:
        """Submit a job of the urgent partition that takes a whole node; its number, as soon as it runs."""
        script = f"#!/bin/sh\nsleep {seconds}\n"
        sbatch = ("sbatch", "--parsable", "-p", "prod", "-w", node, "--exclusive", "--mem=0", "-o", "/dev/null")
        done = subprocess.run(
            [*sbatch, f"--gres=gpu:{GPUS_PER_NODE}"], input=script, env=self.environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        number = done.stdout.strip()
        started = ("RUNNING", "COMPLETING", "COMPLETED")
        self.wait_until(lambda: self.job_field(number, "JobState") in started, f"the urgent job on {node}")
        return number

    def stop_controller(self) -> None:
        """The controller is gone; jobs go on."""
        self._end("slurmctld", signal.SIGTERM)

    # What is there.

    def job_field(self, job_id: str, name: str) -> str:
        """A field of `scontrol show job`; empty when the controller does not know the job."""
        for word in self.run("scontrol", "-o", "show", "job", job_id, check=False).split():
            key, _, value = word.partition("=")
            if key == name:
                return value
        return ""

    def nodes_of(self, job_id: str) -> list[str]:
        """The nodes that a running job has."""
        names = self.run("squeue", "-h", "-j", job_id, "-o", "%N", check=False).strip()
        return self.run("scontrol", "show", "hostnames", names).split() if names else []

    def node_state(self, node: str) -> str:
        """`IDLE`, `MIXED`, `DOWN`, ...: without what is appended to it."""
        return self._said_of(node).partition("+")[0].rstrip("*~#!%$@^-")

    def _said_of(self, node: str) -> str:
        """The same with all that is appended; `*` is a node that does not answer."""
        for word in self.run("scontrol", "-o", "show", "node", node, check=False).split():
            if word.startswith("State="):
                return word[6:]
        return ""

    def wait_for_nodes(self) -> None:
        """Wait until every node is idle."""
        self.wait_until(
            lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D", "-p", "gpu", check=False).strip() == "4",
            "all nodes to be idle",
        )

    def wait_for_state(self, job_id: str, *states: str) -> str:
        """Wait until `scontrol show job` says one of these states."""
        return self.wait_until(
            lambda: state if (state := self.job_field(job_id, "JobState")) in states else "",
            f"job {job_id} to be {' or '.join(states)}",
        )

    def wait_until(self, found: Callable[[], T], what: str, *, seconds: float = PATIENCE_SECONDS) -> T:
        """Ask again and again until it says something; fails with the daemons' last lines."""

        def look() -> T | None:
            if not (value := found()):
                dead = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
                assert not dead, f"while waiting for {what}: {dead} ended\n{self.tails()}"
            return value

        return eventually(look, lambda: f"waited {seconds:g} s for {what}\n{self.tails()}", seconds=seconds, every=0.05)

    def tails(self, lines: int = 8) -> str:
        """The last lines of every log, and the queue."""
        queue = subprocess.run(["squeue", "-a"], env=self.environment, capture_output=True, text=True, check=False)
        logs = [log for log in sorted((self.directory / "log").glob("*.log")) if not log.name.endswith(".out.log")]
        said = [f"== {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) for log in logs]
        return "\n".join([queue.stdout, *said])

    def processes(self) -> dict[int, str]:
        """Processes of this cluster's jobs that are alive: process id to command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if self._is_ours(entry, command):
                    found[int(entry.name)] = command
        return found

    # Daemons.

    def begin_controller(self, *, fresh: bool = False) -> None:
        """Start slurmctld; `fresh` forgets what an earlier one knew."""
        self._begin("slurmctld", "slurmctld", "-D", "-f", str(self.configuration), *(["-c"] if fresh else []))
        self.wait_until(lambda: "UP" in self.run("scontrol", "ping", check=False), "slurmctld")

    def begin_node(self, node: str) -> None:
        """Start a node's slurmd."""
        self._begin(node, "slurmd", "-D", "-N", node, "-f", str(self.configuration))

    def _configure(self) -> None:
        nodes = [
            f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={self.ports[node]} CPUs={self.cpus}"
            f" RealMemory=16000 Gres=gpu:h100:{GPUS_PER_NODE}"
            for node in NODES
        ]
        lines = dbd_lines(self.directory, self.ports["slurmdbd"]) if self.accounting else ""
        text = SLURM_CONF.format(directory=self.directory, port=self.ports["slurmctld"], nodes="\n".join(nodes))
        self.configuration.write_text(f"{text}{lines}{self.extra}\n")
        (self.directory / "gres.conf").write_text(GRES_CONF.format(directory=self.directory, last=GPUS_PER_NODE - 1))

    def _begin_munge(self) -> None:
        here = self.directory / "munge"
        (here / "key").write_bytes(os.urandom(128))
        (here / "key").chmod(0o600)
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        options = [f"--{option}={here / name}" for option, name in files.items()]
        self._begin("munged", "munged", "--foreground", "--force", "--num-threads=10", *options)
        self.wait_until(lambda: (here / "socket").exists(), "munged")

    def _begin_accounting(self) -> None:
        data, port = self.directory / "mariadb", self.ports["mariadb"]
        user = ["--user=root"]
        install = [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={data}",
            "--auth-root-authentication-method=normal",
        ]
        self.run(*install, "--skip-test-db", *user)
        sql = self.directory / "accounts.sql"
        sql.write_text(
            "CREATE DATABASE slurm_acct;\n"
            f"CREATE USER 'slurm'@'%' IDENTIFIED BY '{PASSWORD}';\nGRANT ALL ON slurm_acct.* TO 'slurm'@'%';\n"
        )
        quick = ["--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=64M", "--skip-log-bin"]
        where = [f"--datadir={data}", f"--socket={data}/socket", f"--pid-file={data}/pid", f"--init-file={sql}"]
        address = ["--bind-address=127.0.0.1", f"--port={port}", "--skip-name-resolve"]
        self._begin("mariadb", "mariadbd", "--no-defaults", *user, *where, *address, *quick)
        self.wait_until(lambda: answers(port), "MariaDB")
        (self.directory / "slurmdbd.conf").write_text(
            DBD_CONF.format(directory=self.directory, port=self.ports["slurmdbd"], database_port=port)
        )
        (self.directory / "slurmdbd.conf").chmod(0o600)
        self._begin("slurmdbd", "slurmdbd", "-D")
        self.wait_until(lambda: answers(self.ports["slurmdbd"]), "slurmdbd")

    def _begin(self, name: str, *command: str) -> None:
        with (self.directory / "log" / f"{name}.out.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                env=self._daemon_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _daemon_environment(self) -> Mapping[str, str]:
        kept = {name: value for name, value in self.environment.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return {**kept, "SLURM_CONF": str(self.configuration)}

    def _end(self, name: str, how: signal.Signals) -> None:
        if (daemon := self.daemons.pop(name, None)) is not None:
            daemon.send_signal(how)
            daemon.wait()

    def processes_of(self, job_id: str, words: str = "python") -> dict[int, str]:
        """Processes of a job with these words in their command, and the node of each."""
        mark, name = f"SLURM_JOB_ID={job_id}".encode(), b"SLURMD_NODENAME="
        found = {}
        for pid, command in self.processes().items():
            with contextlib.suppress(OSError):
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if mark in variables and words in command and not command.startswith(("slurmstepd", "srun", "bash")):
                    found[pid] = next((it[len(name) :].decode() for it in variables if it.startswith(name)), "")
        return found

    def _is_ours(self, entry: Path, command: str) -> bool:
        if command.startswith("slurmstepd"):
            # It writes its title over its environment, and stands in its job's directory: what it has open tells.
            return any(os.readlink(fd).startswith(f"{self.directory}/") for fd in (entry / "fd").iterdir())
        return f"\0SLURM_CONF={self.configuration}\0".encode() in b"\0" + (entry / "environ").read_bytes()


def _environment_of(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def _parent_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def answers(port: int) -> bool:
    """Whether something listens on a port of the loopback."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False

"""A real Ray cluster on this machine for tests: a head and three nodes with four made-up GPUs each, all on loopback.

The cluster lives in a process of its own (this file, run as a program), so that its threads and open files are not the
test's. Nodes can be lost (killed with all they run), frozen (a network partition: they live, nobody hears them), told
to leave, and added.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from waiting import eventually

NODES = 3
"""Beside the head, on which nothing runs but what is lost with the cluster anyway."""
CPUS_PER_NODE = 4
GPUS_PER_NODE = 4
OBJECT_STORE_BYTES = 80 * 1024**2
"""Ray's least is 75 MiB; nothing of Charter goes through it."""
LOOPBACK = "127.0.0.2"
"""Ray takes 127.0.0.1 for the address of the network card, and then finds nothing there."""
PREEMPTION = "DRAIN_NODE_REASON_PREEMPTION"
HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 4000,
    "health_check_failure_threshold": 4,
}
"""A node that was killed counts as lost after four seconds, one that is silent after twenty: a node that only waits for
its turn on a busy machine must not."""
START_SECONDS = 600.0
"""How long the cluster may take to see what has become of its nodes."""


class RayCluster:
    """A running cluster, seen from a test."""

    def __init__(self, *, nodes: int = NODES, environment: dict[str, str] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="cray-"))
        (self.directory / "ray").mkdir()
        own = {
            "RAY_AUTH_MODE": "disabled",
            "RAY_TMPDIR": str(self.directory),
            "RAY_USAGE_STATS_ENABLED": "0",
            # The machine is shared: how full its memory is says nothing of these nodes.
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_enable_open_telemetry": "0",
        }
        with (self.directory / "cluster.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **own, **(environment or {})},
                text=True,
                start_new_session=True,
            )
        self.node_ids: list[str] = []
        """Of the nodes that compute, in the order in which they came."""
        self.raylets: dict[str, int] = {}
        self.frozen: set[str] = set()
        self.leaving: set[str] = set()
        answer = self._answer()
        self.address: str = answer["address"]
        for _ in range(nodes):
            self.add_node()

    def add_node(self) -> str:
        """One more node; its id."""
        answer = self._ask("add")
        self.node_ids.append(answer["node_id"])
        self.raylets[answer["node_id"]] = answer["raylet"]
        return str(answer["node_id"])

    def id_of(self, name: str) -> str:
        """The id of a node by the name that a job's state gives it."""
        return next(node for node in self.node_ids if node.startswith(name.rpartition("/")[2]))

    def processes_of(self, node_id: str) -> list[psutil.Process]:
        """Everything that runs on a node: the raylet, its workers, the agents and stages under them."""
        with contextlib.suppress(psutil.NoSuchProcess):
            raylet = psutil.Process(self.raylets[node_id])
            return [raylet, *raylet.children(recursive=True)]
        return []

    def lose_node(self, name: str) -> None:
        """The machine is gone from one moment to the next, with all that runs on it."""
        node_id = self.id_of(name)
        for process in self.processes_of(node_id):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._forget(node_id)

    def freeze_node(self, name: str) -> None:
        """Nobody hears of the node any more, but what runs on it is not dead: see `wake_node`."""
        node_id = self.id_of(name)
        self.frozen.add(node_id)
        for process in self.processes_of(node_id):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)

    def wake_node(self, name: str) -> None:
        """Let everything on a frozen node go on where it was."""
        node_id = self.id_of(name)
        self.frozen.discard(node_id)
        for process in reversed(self.processes_of(node_id)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    def drain_node(self, name: str, *, deadline_seconds: float) -> None:
        """The notice alone."""
        node_id = self.id_of(name)
        self.leaving.add(node_id)
        answer = self._ask("drain", node_id, int(deadline_seconds * 1000))
        assert answer["accepted"], answer["why"]

    def kill_worker(self, name: str, *, containing: str) -> int:
        """SIGKILL to the first process on a node whose command line has this text; its process id."""
        for process in self.processes_of(self.id_of(name)):
            with contextlib.suppress(psutil.NoSuchProcess):
                if containing in " ".join(process.cmdline()):
                    process.kill()
                    return process.pid
        raise AssertionError(f"nothing with {containing!r} runs on {name}")

    def kill_keeper(self) -> None:
        """SIGKILL to the actor that holds Charter's jobs."""
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if "ray::Keeper" in " ".join(process.cmdline()):
                    process.kill()
                    return
        raise AssertionError("no keeper runs")

    def mend(self) -> None:
        """As many living nodes as at first, for the next test; returns when the cluster counts no other as living."""
        gone = [node_id for node_id in self.node_ids if node_id in self.frozen | self.leaving or self._is_dead(node_id)]
        for node_id in gone:
            self.lose_node(node_id)
        while len(self.node_ids) < NODES:
            self.add_node()
        self._ask("see", *self.node_ids)

    def stop(self) -> None:
        """End all of it."""
        everything = []
        with contextlib.suppress(psutil.NoSuchProcess):
            everything = psutil.Process(self._process.pid).children(recursive=True)
        for process in everything:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _is_dead(self, node_id: str) -> bool:
        """Whether its raylet has ended, as one does that wakes up and hears that it counts as lost."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.raylets[node_id]).status() == psutil.STATUS_ZOMBIE
        return True

    def _forget(self, node_id: str) -> None:
        self.node_ids.remove(node_id)
        self.frozen.discard(node_id)
        self.leaving.discard(node_id)
        del self.raylets[node_id]

    def _ask(self, *request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the cluster did not start:\n{(self.directory / 'cluster.log').read_text()[-3000:]}")
        found: dict[str, Any] = json.loads(line)
        return found


def serve() -> None:
    """Hold a cluster, and do what the test asks until it hangs up."""
    from ray.cluster_utils import Cluster

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    cluster = Cluster()
    common = {"node_ip_address": LOOPBACK, "object_store_memory": OBJECT_STORE_BYTES, "memory": 4 * 1024**3}
    asked = {
        **common,
        "num_cpus": CPUS_PER_NODE,
        "num_gpus": GPUS_PER_NODE,
        "resources": {"accelerator_type:H100": 1},
    }
    cluster.add_node(**common, num_cpus=0, include_dashboard=False, _system_config=HEALTH)
    print(json.dumps({"address": cluster.address}), file=answers)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        answer: dict[str, Any] = {}
        if verb == "add":
            node = cluster.add_node(wait=False, **asked)
            _see(cluster, node.node_id)
            answer = {"node_id": node.node_id, "raylet": node.all_processes["raylet"][0].process.pid}
        if verb == "see":
            _see(cluster, *arguments, and_no_other=True)
        if verb == "drain":
            answer = _drain(cluster.address, *arguments)
        print(json.dumps(answer), file=answers)
    cluster.shutdown()


def _see(cluster: Any, *node_ids: str, and_no_other: bool = False) -> None:
    """Wait until the cluster counts these nodes among the living, or takes just them for the living beside the head."""
    head = cluster.head_node.node_id

    def living() -> set[str]:
        return {node["NodeID"] for node in cluster.global_state.node_table() if node["Alive"]} - {head}

    eventually(
        lambda: living() == set(node_ids) if and_no_other else living() >= set(node_ids),
        lambda: f"nodes {sorted(node_ids)} are expected to live, and the cluster sees {sorted(living())}",
        seconds=START_SECONDS,
        every=0.1,
    )


def _drain(address: str, node_id: str, milliseconds: int) -> dict[str, Any]:
    """What `ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION` does, without its two seconds of imports."""
    import ray
    from ray.core.generated import autoscaler_pb2

    client = ray._raylet.GcsClient(address=address)
    deadline = time.time_ns() // 1_000_000 + milliseconds
    reason = autoscaler_pb2.DrainNodeReason.Value(PREEMPTION)
    accepted, why = client.drain_node(node_id, reason, "taken away by a test", deadline)
    return {"accepted": accepted, "why": why}


if __name__ == "__main__":
    serve()

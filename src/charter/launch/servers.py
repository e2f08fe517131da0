"""Server pools that a job starts beside its stage: one keeper on every node, which starts, watches and restarts.

    python -m charter.launch.servers --directory D --node 0 --nodes 4 --accelerators 8 --pools JSON

Every replica has its accelerators and its port for as long as the keeper lives, and a file in the directory that says
where it listens and how it is; the stage reads the addresses there (`charter.artifacts.job_files`). A replica that
ends or hangs is started again. One that says it serves something else than it was started with is ended for good.
"""

import argparse
import contextlib
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from charter.artifacts import durable
from charter.artifacts.job_files import KEY_FILE, ServerNow, server_file
from charter.artifacts.stage_process import die_with_parent
from charter.errors import DataError
from charter.launch.machine import LOOPBACK, route_address

START_SECONDS = 1800.0
"""Longest wait for a replica's first answer: a large model is read from a shared disk."""
LOOK_SECONDS = 0.5
HEALTH_SECONDS = 5.0
HEALTH_TIMEOUT_SECONDS = 20.0
MISSES = 3
"""Health checks in a row without an answer, after which a replica hangs."""
MOST_FAILED_STARTS = 5
LONGEST_PAUSE_SECONDS = 60.0
STOP_SECONDS = 10.0
API_PATH = "/v1"


@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """The servers of one model, over all nodes of a job."""

    model: str
    """The model's name in `charter.yaml`."""
    served_name: str
    """What clients call it."""
    path: str
    """Its directory, or the name under which the engine finds it."""
    engine: str
    replicas: int
    tensor: int = 1
    max_num_seqs: int | None = None
    max_tokens: int | None = None
    memory_share: float | None = None
    quantization: str | None = None
    """vLLM's method of bringing the weights to fewer bits as it loads them."""
    first_slot: int = 0
    """Groups of accelerators of the first node that the stage itself has."""
    threads: int = 1


@dataclass(frozen=True, kw_only=True)
class ReplicaPlace:
    """Place of one replica on its node."""

    replica: int
    devices: tuple[int, ...]
    """Numbers of its accelerators here; empty on processors."""
    part: int = 0
    """Of a replica over several nodes: the first part answers, the others compute for it."""
    parts: int = 1


def pools_text(pools: Sequence[PoolSpec]) -> str:
    """Return pools as one argument of a process."""
    return json.dumps([asdict(pool) for pool in pools], ensure_ascii=False, separators=(",", ":"))


def pools_of(text: str) -> tuple[PoolSpec, ...]:
    """Return the pools of `pools_text`."""
    return tuple(PoolSpec(**item) for item in json.loads(text))


def places_on(pool: PoolSpec, *, node: int, nodes: int, accelerators: int) -> tuple[ReplicaPlace, ...]:
    """Return the replicas of a pool that a node starts: as many as it has accelerators for, or an even share.

    >>> pool = PoolSpec(
    ...     model="judge", served_name="judge", path="/m", engine="vllm", replicas=3, tensor=2, first_slot=1
    ... )
    >>> [place.devices for place in places_on(pool, node=0, nodes=1, accelerators=8)]
    [(2, 3), (4, 5), (6, 7)]
    """
    if not accelerators:
        return tuple(
            ReplicaPlace(replica=number, devices=()) for number in range(pool.replicas) if number % nodes == node
        )
    if pool.tensor > accelerators:
        parts = pool.tensor // accelerators
        replica, part = divmod(node, parts)
        if replica >= pool.replicas:
            return ()
        return (ReplicaPlace(replica=replica, devices=tuple(range(accelerators)), part=part, parts=parts),)
    slots = accelerators // pool.tensor
    places = []
    for number in range(pool.replicas):
        where, slot = divmod(number + pool.first_slot, slots)
        if where == node:
            first = slot * pool.tensor
            places.append(ReplicaPlace(replica=number, devices=tuple(range(first, first + pool.tensor))))
    return tuple(places)


def server_command(
    pool: PoolSpec, place: ReplicaPlace, *, host: str, port: int, key: Path, leader: str = ""
) -> tuple[str, ...]:
    """Return the command of one replica; the key of its clients is in a file or the environment, never here.

    A replica over several nodes shares the layers of the model over the nodes, and each layer inside a node; `leader`
    is where its first part is met, `ADDRESS:PORT`.
    """
    on_accelerator = bool(place.devices)
    if pool.engine == "charter":
        words = [
            sys.executable,
            "-m",
            "charter.cli.main",
            "run",
            "serve",
            pool.path,
            "--host",
            host,
            "--port",
            str(port),
        ]
        words += ["--name", pool.served_name, "--token", f"file:{key}"]
        words += [] if pool.max_num_seqs is None else ["--batch", str(pool.max_num_seqs)]
        return (*words, "--threads", str(pool.threads), "--device", "cuda" if on_accelerator else "cpu")
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", pool.path]
    words += ["--served-model-name", pool.served_name, "--host", host, "--port", str(port)]
    words += ["--tensor-parallel-size", str(pool.tensor // place.parts), "--enable-prefix-caching"]
    if place.parts > 1:
        address, _, meeting_port = leader.rpartition(":")
        words += ["--pipeline-parallel-size", str(place.parts), "--nnodes", str(place.parts)]
        words += ["--node-rank", str(place.part), "--master-addr", address, "--master-port", meeting_port]
        words += ["--headless"] if place.part else []
    words += ["--dtype", "bfloat16" if on_accelerator else "auto"]
    for option, value in (
        ("--max-num-seqs", pool.max_num_seqs),
        ("--max-model-len", pool.max_tokens),
        ("--gpu-memory-utilization", pool.memory_share if on_accelerator else None),
        ("--quantization", pool.quantization),
    ):
        words += [] if value is None else [option, f"{value:g}" if isinstance(value, float) else str(value)]
    return tuple(words)


class Replica(threading.Thread):
    """One server: its process, started again whenever it ends or hangs."""

    def __init__(
        self, pool: PoolSpec, place: ReplicaPlace, *, directory: Path, host: str, key: Path, log: Path
    ) -> None:
        super().__init__(name=f"{pool.model}-{place.replica}", daemon=True)
        self._pool, self._place, self._log, self._key = pool, place, log, key
        self._file = server_file(directory, pool.model, place.replica)
        self._host, self._port = host, _free_port(host)
        self._meeting = f"{host}:{_free_port(host)}" if place.parts > 1 and not place.part else ""
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self.failure = ""
        self.has_settled = threading.Event()
        """It answers, or has failed for good."""

    @property
    def url(self) -> str:
        """Address that clients are given."""
        return f"http://{self._host}:{self._port}{API_PATH}"

    def register(self) -> None:
        """Say where the server will listen."""
        self._tell("starting")

    def run(self) -> None:
        """Keep the server alive until `end`."""
        failed_starts = 0
        while not self._over.is_set():
            self._start()
            ready, why = self._until_ready()
            if ready:
                failed_starts = 0
                self._tell("ready")
                self.has_settled.set()
                why = self._until_gone()
            else:
                failed_starts += 1
            self._kill()
            if self._over.is_set():
                return
            if self.failure or failed_starts >= MOST_FAILED_STARTS:
                self.failure = self.failure or why
                self._tell("failed", self.failure)
                self.has_settled.set()
                return
            self._tell("starting", why)
            self._over.wait(min(LONGEST_PAUSE_SECONDS, 0.5 * 2**failed_starts))

    def end(self) -> None:
        """End the server."""
        self._over.set()
        if self._process is not None:
            _signal_group(self._process, signal.SIGTERM)

    def finish(self, seconds: float) -> None:
        """Wait for the end that was asked for; force it where it does not come."""
        if self.is_alive():
            self.join(timeout=seconds)
        self._kill()

    def _start(self) -> None:
        self._starts += 1
        environment = {**os.environ, "VLLM_API_KEY": self._key.read_text(encoding="utf-8")}
        if self._place.devices:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            names = visible.split(",") if visible else [str(number) for number in range(1 + max(self._place.devices))]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(names[number] for number in self._place.devices)
        keeper = os.getpid()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                server_command(
                    self._pool, self._place, host=self._host, port=self._port, key=self._key, leader=self._leader()
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(keeper),
            )

    def _leader(self) -> str:
        """Return where the first part of this replica is met; waits until that has said so."""
        if self._meeting or self._place.parts == 1:
            return self._meeting
        while not self._over.is_set():
            with contextlib.suppress(DataError, KeyError):
                return str(durable.read_json(self._file)["meeting"])
            self._over.wait(LOOK_SECONDS)
        return self._meeting

    def _until_ready(self) -> tuple[bool, str]:
        since = time.monotonic()
        while not self._over.is_set():
            code = self._process.poll() if self._process else 0
            if code is not None:
                return False, f"it ended with {code} before it answered; its log is {self._log}"
            if self._place.part:
                return True, ""  # only the first part answers, and only a process that ends is known to be gone
            answer = self._ask()
            if answer is not None:
                self.failure = self._other_model(answer)
                return not self.failure, self.failure
            if time.monotonic() - since > START_SECONDS:
                return False, f"no answer within {START_SECONDS:g} s of its start; its log is {self._log}"
            self._over.wait(LOOK_SECONDS)
        return False, "ended"

    def _until_gone(self) -> str:
        misses = 0
        asked_at = time.monotonic()
        while not self._over.wait(LOOK_SECONDS):
            code = self._process.poll() if self._process else 0
            if code is not None:
                return f"it ended with {code}; its log is {self._log}"
            if time.monotonic() - asked_at < HEALTH_SECONDS:
                continue
            misses = 0 if self._place.part or self._ask() is not None else misses + 1
            asked_at = time.monotonic()
            if misses >= MISSES:
                return f"{MISSES} health checks without an answer"
        return "ended"

    def _ask(self) -> object | None:
        """Return the server's list of models; None where it gives none."""
        request = urllib.request.Request(f"{self.url}/models")
        request.add_header("Authorization", f"Bearer {self._key.read_text(encoding='utf-8')}")
        try:
            with urllib.request.urlopen(request, timeout=HEALTH_TIMEOUT_SECONDS) as reply:
                answer: object = json.load(reply)
                return answer
        except (OSError, ValueError, http.client.HTTPException):  # the last: a server that ends while it answers
            return None

    def _other_model(self, answer: object) -> str:
        """Return why the server is not the one that was started; empty where it is."""
        listed = answer.get("data") if isinstance(answer, dict) else None
        models = [item for item in listed or () if isinstance(item, dict)]
        own = next((item for item in models if item.get("id") == self._pool.served_name), None)
        if own is None:
            return f"it does not serve {self._pool.served_name!r} but {[item.get('id') for item in models]}"
        root = own.get("root")
        if isinstance(root, str) and "/" in root and Path(root) != Path(self._pool.path):
            return f"it serves the weights of {root}, and was started with {self._pool.path}"
        return ""

    def _kill(self) -> None:
        if self._process is None:
            return
        _signal_group(self._process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=STOP_SECONDS)
        _signal_group(self._process, signal.SIGKILL)
        self._process.wait()

    def _tell(self, state: str, why: str = "") -> None:
        if self._place.part:
            return
        now = ServerNow(
            model=self._pool.model,
            replica=self._place.replica,
            url=self.url,
            state=state,
            starts=self._starts,
            why=why,
            pid=self._process.pid if self._process else 0,
            host=socket.gethostname(),
            meeting=self._meeting,
            at=time.time(),
        )
        durable.write_hint(self._file, asdict(now))


def _signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def client_key(directory: Path) -> Path:
    """Return the file of the key that clients of these servers send; whoever comes first writes it."""
    path = directory / KEY_FILE
    with contextlib.suppress(FileExistsError):
        own = directory / f".{KEY_FILE}-{socket.gethostname()}-{os.getpid()}"
        descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(secrets.token_hex(16))
        try:
            os.link(own, path)  # complete or not there, whichever node looks
        finally:
            own.unlink()
    return path


def main(argv: Sequence[str] | None = None) -> None:
    """Keep this node's replicas until SIGTERM, or until a pool has failed for good."""
    parser = argparse.ArgumentParser(description="Keep the servers of a stage's pools on one node.", allow_abbrev=False)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--node", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--accelerators", type=int, default=0)
    parser.add_argument("--pools", type=pools_of, required=True)
    parser.add_argument("--parent", type=int, default=0)
    options = parser.parse_args(argv)
    if options.parent:
        die_with_parent(options.parent)
    durable.make_dir(options.directory)
    host = route_address() if options.nodes > 1 else LOOPBACK
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    by_pool = [
        [
            Replica(
                pool,
                place,
                directory=options.directory,
                host=host,
                key=client_key(options.directory),
                log=options.logs / f"server-{pool.model}-{place.replica}.txt",
            )
            for place in places_on(pool, node=options.node, nodes=options.nodes, accelerators=options.accelerators)
        ]
        for pool in options.pools
    ]
    replicas = [replica for pool in by_pool for replica in pool]
    for replica in replicas:
        replica.register()
    for pool in by_pool:
        for replica in pool:
            replica.start()
        # A server measures the free memory of its accelerators when it starts: models that share them come in turn.
        while options.accelerators and not over.is_set() and not all(replica.has_settled.is_set() for replica in pool):
            over.wait(LOOK_SECONDS)
    while not over.wait(LOOK_SECONDS) and any(replica.is_alive() for replica in replicas):
        pass
    for replica in replicas:
        replica.end()
    for replica in replicas:
        replica.finish(STOP_SECONDS)


class ServerKeeper:
    """The keeper of one node as a child of whoever runs the stage there."""

    def __init__(
        self,
        pools: Sequence[PoolSpec],
        *,
        directory: Path,
        logs: Path,
        node: int = 0,
        nodes: int = 1,
        accelerators: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        words = ["--directory", str(directory), "--logs", str(logs), "--node", str(node), "--nodes", str(nodes)]
        words += ["--accelerators", str(accelerators), "--pools", pools_text(pools), "--parent", str(os.getpid())]
        with (logs / f"servers-{node}.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "charter.launch.servers", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    def end(self) -> None:
        """End the servers and the keeper."""
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=2 * STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


if __name__ == "__main__":
    main()

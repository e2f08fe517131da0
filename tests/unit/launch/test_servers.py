"""Pools of servers: their places and commands, and replicas that end, hang or serve something else."""

import os
import signal
import sys
import textwrap
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from charter.artifacts.job_files import await_servers, read_servers
from charter.errors import StageError
from charter.launch import servers
from charter.launch.servers import (
    PoolSpec,
    Replica,
    ReplicaPlace,
    client_key,
    places_on,
    pools_of,
    pools_text,
    server_command,
)

PATIENCE = threading.Event()
POOL = PoolSpec(model="judge", served_name="org/judge", path="/models/judge", engine="vllm", replicas=2)
SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
port, name, root = int(sys.argv[1]), sys.argv[2], sys.argv[3]
cut = 2
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        global cut
        body = json.dumps({"data": [{"id": name, "root": root}]}).encode()
        if root == "cut" and cut:
            cut -= 1
            self.wfile.write([b"rubbish", b"HTTP/1.0 200 OK\\r\\nContent-Length: 99\\r\\n\\r\\n{"][cut])
            return
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def keep(tmp_path, monkeypatch):
    """Starts replicas of a server that knows its name and nothing else; all end with the test."""
    monkeypatch.setattr(servers, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(servers, "HEALTH_SECONDS", 0.05)
    monkeypatch.setattr(servers, "HEALTH_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(servers, "STOP_SECONDS", 0.5)
    script = tmp_path / "server.py"
    script.write_text(textwrap.dedent(SERVER))
    started = []

    def start(*, name=POOL.served_name, root=POOL.path):
        def command(pool, place, *, host, port, key, leader=""):
            return (sys.executable, str(script), str(port), name, root)

        monkeypatch.setattr(servers, "server_command", command)
        replica = Replica(
            POOL,
            ReplicaPlace(replica=len(started), devices=()),
            directory=tmp_path,
            host="127.0.0.1",
            key=client_key(tmp_path),
            log=tmp_path / "log.txt",
        )
        started.append(replica)
        replica.register()
        replica.start()
        return replica

    yield start
    for replica in started:
        replica.end()
        replica.finish(10.0)


def until(directory, wanted):
    """The state of the first replica, once it is as wanted."""
    while not wanted(now := read_servers(directory, "judge", 1)[0]):
        PATIENCE.wait(0.02)
    return now


def test_places_fill_nodes_and_no_accelerator_is_used_twice():
    pool = PoolSpec(model="m", served_name="m", path="/m", engine="vllm", replicas=16, tensor=2)
    places = {
        (node, device): place.replica
        for node in range(4)
        for place in places_on(pool, node=node, nodes=4, accelerators=8)
        for device in place.devices
    }
    assert len(places) == 32
    assert sorted(set(places.values())) == list(range(16))


def test_a_replica_over_two_nodes_has_one_address():
    pool = PoolSpec(model="m", served_name="m", path="/m", engine="vllm", replicas=2, tensor=16)
    parts = [places_on(pool, node=node, nodes=4, accelerators=8)[0] for node in range(4)]
    assert [(part.replica, part.part, part.parts) for part in parts] == [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2)]
    words = server_command(pool, parts[1], host="h", port=1, key=Path("/k"), leader="10.0.0.1:99")
    assert "--headless" in words
    options = dict(pairwise(words))
    assert (options["--tensor-parallel-size"], options["--pipeline-parallel-size"]) == ("8", "2")
    assert (options["--node-rank"], options["--master-addr"], options["--master-port"]) == ("1", "10.0.0.1", "99")


def test_replicas_on_processors_are_spread_over_the_nodes():
    assert [[place.replica for place in places_on(POOL, node=node, nodes=2, accelerators=0)] for node in (0, 1)] == [
        [0],
        [1],
    ]


def test_a_server_is_started_as_it_was_planned():
    pool = PoolSpec(
        **{
            **vars(POOL),
            "tensor": 2,
            "max_num_seqs": 64,
            "max_tokens": 4096,
            "memory_share": 0.45,
            "quantization": "fp8",
        }
    )
    words = server_command(pool, ReplicaPlace(replica=0, devices=(0, 1)), host="127.0.0.1", port=8000, key=Path("/k"))
    options = dict(pairwise(words))
    assert options["--tensor-parallel-size"] == "2"
    assert options["--max-num-seqs"] == "64"
    assert options["--max-model-len"] == "4096"
    assert options["--gpu-memory-utilization"] == "0.45"
    assert options["--quantization"] == "fp8"
    assert (options["--dtype"], options["--served-model-name"]) == ("bfloat16", "org/judge")
    assert not any("key" in word.lower() for word in words), "the key is in the environment alone"


def test_pools_survive_the_command_line():
    assert pools_of(pools_text([POOL, POOL])) == (POOL, POOL)


def test_the_key_is_one_for_all_nodes_and_for_nobody_else(tmp_path):
    assert client_key(tmp_path).read_text() == client_key(tmp_path).read_text()
    assert client_key(tmp_path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
def test_a_replica_that_is_killed_or_hangs_comes_back_at_its_address(tmp_path, keep, number):
    keep()
    first = until(tmp_path, lambda now: now.state == "ready")
    os.killpg(first.pid, number)
    again = until(tmp_path, lambda now: now.state == "ready" and now.starts > 1)
    assert (again.url, again.pid != first.pid) == (first.url, True)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"root": "/models/another"}, "serves the weights of /models/another"),
        ({"name": "another"}, "does not serve 'org/judge'"),
    ],
)
def test_a_server_with_other_weights_is_refused(tmp_path, keep, more, why):
    keep(**more)
    failed = until(tmp_path, lambda now: now.state == "failed")
    assert why in failed.why
    with pytest.raises(StageError, match="no server of 'judge' has come up"):
        await_servers(tmp_path, "judge", 1, alive=lambda: None, should_stop=lambda: False)


def test_an_answer_that_is_cut_off_is_none(tmp_path, keep):
    """A server that ends while it answers, or speaks no HTTP yet, ends nothing but that look at it."""
    keep(root="cut")
    assert until(tmp_path, lambda now: now.state != "starting").state == "ready"


def test_a_stage_waits_for_every_address_and_one_answer(tmp_path, keep):
    keep(), keep()
    found = await_servers(tmp_path, "judge", 2, alive=lambda: None, should_stop=lambda: False)
    assert len({server.url for server in found}) == 2

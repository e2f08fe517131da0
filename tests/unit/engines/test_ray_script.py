"""The script by which the nodes of a job make a Ray of their own, run by bash with a program in the place of Ray."""

import contextlib
import os
import signal
import socket
import stat
import subprocess

import handover_stages as cases
import pytest
from waiting import eventually

from charter.engines.common import rendered
from charter.spec.layout import Layout

PYTHON = """\
#!/bin/bash
case "$*" in
  *"ray.scripts.scripts start"*) echo "$$ $*" >> "$SEEN"; exec sleep 600;;
  "-") cat > /dev/null;;
  *) until [ -s "$SEEN" ]; do sleep 0.05; done; echo "$* by $RAY_ADDRESS" >> "$SEEN"; exit 3;;
esac
"""


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Start the script of a node beside a port that answers, as that of node 0; the process and its port."""
    monkeypatch.setattr(rendered, "LOOK_SECONDS", 0.05)
    python, script = tmp_path / "python", tmp_path / "on_ray.sh"
    python.write_text(PYTHON)
    python.chmod(0o755)
    script.write_text(
        rendered.ray_script(cases.handover(cases.accepted_stage("verl", "ppo"), Layout(data=16), nodes=2))
    )
    answering, begun = socket.create_server(("127.0.0.1", 0)), []

    def start(node):
        around = {"PATH": os.environ["PATH"], "SEEN": str(tmp_path / "seen"), "NODE_RANK": str(node)}
        around |= {"MASTER_ADDR": "127.0.0.1", "RAY_PORT": str(answering.getsockname()[1])}
        words = ["bash", script, python, "-m", "trainer"]
        begun.append(subprocess.Popen(words, env=around, cwd=tmp_path, start_new_session=True))
        return begun[-1], answering

    yield start
    answering.close()
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def seen(tmp_path):
    path = tmp_path / "seen"
    return path.read_text().splitlines() if path.exists() else []


def has_ended(line):
    try:
        os.kill(int(line.partition(" ")[0]), 0)
    except ProcessLookupError:
        return True
    return False


def test_the_first_node_ends_as_its_trainer_and_ends_its_ray(begin, tmp_path):
    process, answering = begin(0)
    port = answering.getsockname()[1]
    assert process.wait(timeout=60) == 3
    ray, trainer = seen(tmp_path)
    assert ray.endswith(f"start --num-gpus=8 --block --head --port={port}")
    assert trainer == f"-m trainer by 127.0.0.1:{port}"
    assert has_ended(ray)


def test_another_node_serves_until_the_first_is_gone(begin, tmp_path):
    process, answering = begin(1)
    eventually(lambda: seen(tmp_path), "Ray of the second node", seconds=60)
    (ray,) = seen(tmp_path)
    assert ray.endswith(f"start --num-gpus=8 --block --address=127.0.0.1:{answering.getsockname()[1]}")
    assert process.poll() is None
    answering.close()
    assert process.wait(timeout=60) == 0
    assert has_ended(ray)


def test_nobody_else_may_use_a_jobs_ray(begin, tmp_path):
    process, _ = begin(0)
    process.wait(timeout=60)
    token = tmp_path / "ray_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(token.read_text()) >= 32

"""Charter's jobs on a real Ray cluster, beyond the contract: placement, losses without any client, secrets, tokens."""

import contextlib
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_cluster import CPUS_PER_NODE, GPUS_PER_NODE, NODES, RayCluster
from scheduler_contract import alive, tiny
from waiting import eventually

from charter.engines.project import load_project
from charter.errors import CharterError
from charter.launch.job import StageJob
from charter.launch.ray.node_task import DIES_WITH_PARENT
from charter.launch.ray.scheduler import RayScheduler
from charter.launch.scheduler import JobState
from charter.run.runner import RunOptions, run_project
from charter.run.status import status_of
from charter.spec.launching import RaySettings
from charter.spec.project import Project
from charter.templates.shipped import find_template, write_template

PATIENCE_SECONDS = 900.0
"""Only there to end a hang."""
SLEEP = "import time; time.sleep(3600)"
GATE = "import os, pathlib, time\nwhile not pathlib.Path('gate').exists(): time.sleep(0.05)\n"
"""A command that cannot end before the test has done what it does to it."""


@pytest.fixture
def ray(cluster: RayCluster) -> Iterator[RayScheduler]:
    """A client; afterwards nothing runs that it submitted, and all nodes live again."""

    class Noting(RayScheduler):
        """Remembers what it has submitted."""

        submitted: list[str] = []  # noqa: RUF012  one object of the class is ever made

        def submit(self, job: StageJob) -> str:
            self.submitted.append(job.name)
            return super().submit(job)

    opened = Noting(RaySettings(address=cluster.address))
    yield opened
    for job_id in opened.submitted:
        opened.cancel(job_id)
    opened.close()
    cluster.mend()


def wait(scheduler: RayScheduler, job_id: str, until: Callable[[JobState], Any] | None = None) -> JobState:
    """The state of a job once it has ended, or is what is wanted."""
    wanted = until or (lambda state: state.phase == "ended")

    def found() -> JobState | None:
        state = scheduler.poll([job_id])[job_id]
        return state if wanted(state) else None

    state: JobState = soon(found, lambda: scheduler.poll([job_id])[job_id])
    return state


def soon(found: Callable[[], Any], what: Any) -> Any:
    """Ask again and again until it says something; `what` is waited for, or says how it stands."""
    return eventually(found, what, seconds=PATIENCE_SECONDS, every=0.1)


def is_running(state: JobState) -> bool:
    return state.phase == "running" and bool(state.nodes)


def test_nodes_of_a_job_are_different_machines_and_lose_nothing_when_one_dies(ray, cluster, tmp_path):
    job_id = ray.submit(tiny(tmp_path, GATE, nodes=NODES, accelerators_per_node=2))
    state = wait(ray, job_id, lambda state: len(state.nodes) == NODES)
    assert len(set(state.nodes)) == NODES
    cluster.lose_node(state.nodes[1])
    wait(ray, job_id, lambda state: state.phase == "queued" and state.reason.startswith("Infeasible: 3 nodes"))
    cluster.mend()
    (tmp_path / "gate").touch()
    state = wait(ray, job_id)
    assert (state.cause, state.restarts) == ("done", 1)
    lost, done = ray.attempts(job_id)
    assert (lost.state, done.state) == ("NODE_DIED", "SUCCEEDED")
    assert [len(lost.nodes), len(done.nodes), done.accelerators] == [NODES, NODES, 2 * NODES]
    assert lost.ended_at <= done.started_at


def test_a_job_survives_its_submitter_and_then_its_node(ray, cluster, tmp_path):
    job = tiny(tmp_path, "import os, pathlib; pathlib.Path('start-' + os.environ['CHARTER_RESTART']).touch()\n" + GATE)
    job_id = ray.submit(job)
    (node,) = wait(ray, job_id, is_running).nodes
    ray.close()
    cluster.lose_node(node)
    soon((tmp_path / "start-1").exists, "the second start, with nobody connected")
    (tmp_path / "gate").touch()
    assert ray.find(job.name) == job_id
    state = wait(ray, job_id)
    assert (state.cause, state.restarts) == ("done", 1)
    assert state.nodes != (node,)


def test_a_job_that_is_submitted_twice_is_one_job(ray, tmp_path):
    job = tiny(tmp_path, "import pathlib, os; pathlib.Path(f'ran-{os.getpid()}').touch()")
    assert ray.submit(job) == ray.submit(job)
    wait(ray, job.name)
    assert len(list(tmp_path.glob("ran-*"))) == 1


def test_shards_of_a_node_have_accelerators_of_their_own(ray, tmp_path):
    code = "import os, pathlib; pathlib.Path('gpu-' + os.environ['CHARTER_SHARD'])"
    code = f"{code}.write_text(os.environ['CUDA_VISIBLE_DEVICES'])\n{GATE}"
    shards = NODES * GPUS_PER_NODE
    job_id = ray.submit(tiny(tmp_path, code, shards=shards, accelerator="H100", accelerators_per_node=1))
    soon(lambda: len(list(tmp_path.glob("gpu-*"))) == shards, "all shards at once")
    (tmp_path / "gate").touch()
    state = wait(ray, job_id)
    assert state.cause == "done"
    used = [
        (task.nodes[0], (tmp_path / f"gpu-{shard}").read_text()) for shard, task in sorted((state.tasks or {}).items())
    ]
    assert len(set(used)) == shards
    assert {gpu for _, gpu in used} <= {str(number) for number in range(GPUS_PER_NODE)}


def test_a_job_without_accelerators_sees_none(ray, tmp_path):
    code = "import os, pathlib; pathlib.Path('seen').write_text(repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    wait(ray, ray.submit(tiny(tmp_path, code)))
    assert (tmp_path / "seen").read_text() == "''"


def test_a_lost_shard_is_started_again_alone(ray, cluster, tmp_path):
    job_id = ray.submit(tiny(tmp_path, GATE, shards=NODES, cpus_per_node=CPUS_PER_NODE))
    state = wait(ray, job_id, lambda state: all(is_running(task) for task in (state.tasks or {}).values()))
    tasks = state.tasks or {}
    lost = next(shard for shard, task in tasks.items() if task.nodes == tasks[0].nodes)
    cluster.lose_node(tasks[lost].nodes[0])
    wait(ray, job_id, lambda state: (state.tasks or {})[lost].restarts == 1)
    (tmp_path / "gate").touch()
    state = wait(ray, job_id)
    assert state.cause == "done"
    assert {shard: task.restarts for shard, task in (state.tasks or {}).items()} == {
        shard: int(shard == lost) for shard in range(NODES)
    }
    assert len(ray.attempts(job_id)) == NODES + 1


def test_a_hundred_shards_are_one_submission_and_all_are_made(ray, tmp_path):
    code = "import os, pathlib; pathlib.Path('made-' + os.environ['CHARTER_SHARD']).touch()"
    job_id = ray.submit(tiny(tmp_path, code, shards=100))
    state = wait(ray, job_id)
    assert state.cause == "done"
    assert len(list(tmp_path.glob("made-*"))) == 100
    assert len(ray.attempts(job_id)) == 100


def test_what_fits_nowhere_is_said_and_can_be_cancelled(ray, tmp_path):
    job_id = ray.submit(tiny(tmp_path, SLEEP, accelerator="H100", accelerators_per_node=GPUS_PER_NODE + 4))
    state = wait(ray, job_id, lambda state: state.reason)
    assert state.reason == "Infeasible: no node has 8 GPU (the most is 4)"
    ray.cancel(job_id)
    assert wait(ray, job_id).cause == "cancelled"


def test_what_an_engine_will_take_is_given_to_nobody_else(ray, tmp_path):
    """Ray counts the accelerators of a driver's engine as free until it has them; these engines never take any."""
    nodes = {"nodes": NODES - 1, "accelerator": "H100", "accelerators_per_node": GPUS_PER_NODE}
    first = ray.submit(tiny(tmp_path / "first", GATE, **nodes, drives=True))
    assert len(wait(ray, first, is_running).nodes) == 1
    others = [
        ray.submit(tiny(tmp_path / "second", "pass", **nodes, drives=True)),
        ray.submit(tiny(tmp_path / "gang", "pass", **nodes)),
    ]
    small = ray.submit(tiny(tmp_path / "small", "pass", accelerator="H100", accelerators_per_node=1))
    assert wait(ray, small).cause == "done"
    for job_id in others:
        state = wait(ray, job_id, lambda state: state.reason)
        assert (state.phase, state.reason) == ("queued", "Resources")
    (tmp_path / "first" / "gate").touch()
    assert [wait(ray, job_id).cause for job_id in (first, *others)] == ["done"] * 3
    (bill,) = ray.attempts(first)
    assert (len(bill.nodes), bill.accelerators) == (1, GPUS_PER_NODE * (NODES - 1))


def test_nodes_that_are_left_out_are_not_used(ray, cluster, tmp_path):
    names = [node["name"] for node in ray.nodes() if node["alive"] and node["resources"].get("CPU")]
    assert len(names) == NODES
    job_id = ray.submit(tiny(tmp_path, "pass", exclude_nodes=tuple(names[:-1])))
    assert wait(ray, job_id).nodes == (names[-1],)


def test_a_command_knows_the_name_that_its_node_has_in_the_job(ray, tmp_path):
    """By which a node that falls silent is left out later: a host name would mean all nodes of the host."""
    program = "import os, pathlib; pathlib.Path('name').write_text(os.environ['CHARTER_NODE_NAME'])"
    state = wait(ray, ray.submit(tiny(tmp_path, program)))
    assert (tmp_path / "name").read_text() == state.nodes[0]


def test_a_command_that_ignores_its_notice_is_ended_at_the_time_limit(ray, tmp_path):
    # The notice comes after 35 s: the command has long said that it ignores it.
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
    job_id = ray.submit(tiny(tmp_path, code, time_limit_seconds=40.0, stop_before_seconds=10.0))
    state = wait(ray, job_id)
    assert (state.cause, state.exit_code) == ("time_limit", -signal.SIGKILL)
    assert ray.attempts(job_id)[0].state == "TIME_LIMIT"


def test_a_directory_that_a_node_does_not_see_is_said(ray, tmp_path):
    job = tiny(tmp_path, "pass")
    job_id = ray.submit(replace(job, directory=tmp_path / "elsewhere"))
    state = wait(ray, job_id)
    assert (state.cause, state.exit_code) == ("failed", 1)
    assert "all nodes need one file system there" in state.reason


def test_a_program_that_is_not_there_is_said_in_the_log(ray, tmp_path):
    job_id = ray.submit(replace(tiny(tmp_path, "pass"), command=("/no/such/python",)))
    assert wait(ray, job_id).exit_code == 127
    assert "/no/such/python: No such file or directory" in ray.logs(job_id)


def test_a_worker_that_is_killed_takes_its_command_along_and_the_job_has_failed(ray, cluster, tmp_path):
    job_id = ray.submit(tiny(tmp_path, SLEEP))
    (node,) = wait(ray, job_id, is_running).nodes
    running = wait_for_process(cluster, node, "time.sleep(3600)")
    cluster.kill_worker(node, containing=f"ray::{job_id}")
    state = wait(ray, job_id)
    assert (state.cause, state.exit_code) == ("failed", -signal.SIGKILL)
    soon(lambda: not alive(running), "the end of its command")


def test_when_the_keeper_dies_what_it_held_ends_and_the_next_one_takes_jobs(ray, cluster, tmp_path):
    job_id = ray.submit(tiny(tmp_path, SLEEP))
    (node,) = wait(ray, job_id, is_running).nodes
    pid = wait_for_process(cluster, node, "time.sleep(3600)")
    cluster.kill_keeper()
    soon(lambda: not alive(pid), "the end of the command")
    assert ray.poll([job_id])[job_id].phase == "unknown"
    assert wait(ray, ray.submit(tiny(tmp_path, "pass"))).cause == "done"


def wait_for_process(cluster: RayCluster, node: str, text: str) -> int:
    """The process on a node whose command line ends with a text, once it is the command itself."""

    def found() -> int | None:
        for process in cluster.processes_of(cluster.id_of(node)):
            with contextlib.suppress(psutil.NoSuchProcess):
                words = process.cmdline()
                if words and words[-1].endswith(text) and DIES_WITH_PARENT not in words:
                    return int(process.pid)
        return None

    pid: int = soon(found, f"a process with {text} on {node}")
    return pid


def test_a_secret_is_in_no_log_of_ray_and_on_no_command_line(ray, cluster, tmp_path, monkeypatch):
    value = secrets.token_hex(16)
    monkeypatch.setenv("CONTRACT_KEY", value)
    job_id = ray.submit(tiny(tmp_path, SLEEP, keys={"CONTRACT_KEY": "env:CONTRACT_KEY"}))
    (node,) = wait(ray, job_id, is_running).nodes
    pid = wait_for_process(cluster, node, "time.sleep(3600)")
    assert f"CONTRACT_KEY={value}" in Path(f"/proc/{pid}/environ").read_text()
    seen = 0
    for process in cluster.processes_of(cluster.id_of(node)):
        with contextlib.suppress(psutil.NoSuchProcess):
            seen += 1
            assert value not in " ".join(process.cmdline())
    assert seen >= 3, "the raylet, its worker, the command"
    ray.cancel(job_id)
    for path in cluster.directory.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # of a process of Ray that ends just now
            if path.is_file() and not path.is_symlink():
                assert value.encode() not in path.read_bytes(), path


def test_a_cluster_with_a_token_takes_those_who_have_it_and_tells_the_others(tmp_path, monkeypatch):
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    guarded = RayCluster(nodes=1, environment=token)
    settings = RaySettings(address=guarded.address)
    try:
        stranger = RayScheduler(settings)
        with pytest.raises(CharterError, match=r"RAY_AUTH_TOKEN"):
            stranger.find("charter-nobody")
        stranger.close()
        for name, value in token.items():
            monkeypatch.setenv(name, value)
        friend = RayScheduler(settings)
        job = tiny(tmp_path, "print('let in')")
        assert wait(friend, friend.submit(job)).cause == "done"
        assert token["RAY_AUTH_TOKEN"] not in friend.render(job) + friend.logs(job.name)
        friend.close()
    finally:
        guarded.stop()


def test_a_cluster_that_is_not_there_is_told_and_nothing_hangs(monkeypatch):
    monkeypatch.setattr("charter.launch.ray.scheduler.CONNECT_SECONDS", 5.0)
    nobody = RayScheduler(RaySettings(address="127.0.0.2:1"))
    with pytest.raises(
        CharterError, match=r"no connection to the Ray cluster at 127\.0\.0\.2:1(.|\n)*ray start --head"
    ):
        nobody.poll(["x"])
    nobody.close()


def test_the_example_project_gives_the_same_outputs_on_ray_as_here(cluster, tmp_path):
    """Its supervisor here, and, for the first stage, sent to the cluster as a job itself."""
    pytest.importorskip("torch")
    outputs = {}
    for engine in ("local", "ray"):
        project = example(tmp_path / engine, cluster)
        run_project(project, tmp_path / engine, RunOptions(launcher=engine), [])
        outputs[engine] = outputs_of(project, tmp_path / engine)
    assert all(outputs["local"].values())
    assert outputs["ray"] == outputs["local"]
    root = tmp_path / "sent"
    project = example(root, cluster)
    sender = RayScheduler(project.launch.ray)
    full = tiny(tmp_path / "full", GATE, shards=NODES, cpus_per_node=CPUS_PER_NODE)
    try:
        sender.submit(full)
        wait(sender, full.name, lambda state: all(is_running(task) for task in (state.tasks or {}).values()))
        sent = submit_pretrain(root, cluster)
        number = re.search(r"submitted to ray: (\S+)\n", sent.stdout)[1]
        again = submit_pretrain(root, cluster)
        assert (again.returncode, again.stdout) == (2, "")
        assert f"ray job {number} has this project already" in again.stderr
        (full.directory / "gate").touch()
        assert wait(sender, number).cause == "done", sender.logs(number)
    finally:
        sender.cancel(full.name)
        sender.close()
    assert outputs_of(project, root)["pretrain"] == outputs["local"]["pretrain"]
    with sqlite3.connect(root / "run" / "ledger.sqlite") as ledger:
        assert ledger.execute("SELECT stage, infra, outcome FROM attempts").fetchall() == [("pretrain", "ray", "done")]


def submit_pretrain(root: Path, cluster: RayCluster) -> "subprocess.CompletedProcess[str]":
    """`charter submit`, ended."""
    words = ["submit", "pretrain", "-C", str(root), "--on", "ray", "--set", f"launch.ray.address={cluster.address}"]
    command = [sys.executable, "-m", "charter.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def example(directory: Path, cluster: RayCluster) -> Project:
    """The small project that `charter init` writes."""
    write_template(find_template("cai-smoke"), directory)
    return load_project(directory, overrides=[f"launch.ray.address={cluster.address}"])


def outputs_of(project: Project, directory: Path) -> dict[str, dict[str, str]]:
    """Hashes of what every stage has published."""
    return {stage["name"]: stage["outputs"] for stage in status_of(project, directory)["stages"]}

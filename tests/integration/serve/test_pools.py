"""A run whose judge is a pool of servers that Charter starts: here, and as a job with one of them killed."""

import os
import random
import signal
import subprocess
import sys
import threading

import forks
import pytest

torch = pytest.importorskip("torch")

from pooled import POOL, QUESTIONS, answers, project_at, servers_of, stage_of, verdicts

from charter.artifacts.batch_files import finished_batches
from charter.artifacts.job import Job, JobInput, write_job
from charter.artifacts.stage_dir import StageDir
from charter.engines.project import load_project
from charter.feedback import label
from charter.spec.project import DataSpec

pytestmark = pytest.mark.torch
PATIENCE = threading.Event()
KILLS, KILLS_A_RUN = 20, 3


def start(root, *words):
    command = [sys.executable, "-m", "charter.cli.main", "run", "--yes", "-C", str(root), *words]
    return forks.Process(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    out, _ = process.communicate()
    assert process.returncode == 0, out
    return out


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def in_process(tmp_path_factory, judge_dir):
    """What the judge says in the stage's own process."""
    root = project_at(tmp_path_factory.mktemp("alone") / "project", judge_dir)
    project, pairs, path = load_project(root / "charter.yaml"), str(root / "pairs.jsonl"), root / "stage"
    data = JobInput(
        name="pairs", role="candidates", source="data", path=pairs, fingerprint="d", data=DataSpec(path=pairs)
    )
    judge = JobInput(name="judge", role="judge", source="model", path=str(judge_dir), fingerprint="j")
    job = Job(
        run=project.name,
        stage="label",
        kind="label",
        fingerprint="f" * 64,
        seed=project.seed,
        spec=project.pipeline["label"],
        inputs={"judge": (judge,), "candidates": (data,)},
        constitution=str(root / "constitution.yaml"),
        frozen={"threads": 1, "device": "cpu"},
        keep_last=1,
    )
    path.mkdir()
    write_job(path, job)
    label.run(StageDir(path))
    return verdicts(path)


@pytest.mark.thorough
def test_a_pool_gives_the_labels_of_the_judge_in_process(tmp_path, judge_dir, in_process):
    root = project_at(tmp_path / "pool", judge_dir, POOL)
    finish(start(root))
    assert verdicts(stage_of(root).directory) == in_process
    assert [server["state"] for server in servers_of(root)] == ["ready", "ready"]
    assert not any(is_alive(server["pid"]) for server in servers_of(root)), "they end with the stage"


def test_a_replica_that_is_killed_loses_and_doubles_no_answer(tmp_path, judge_dir, in_process):
    root = project_at(tmp_path / "killed", judge_dir, POOL)
    process = start(root, "--on", "subprocess")
    batches = stage_of(root).directory / "batches"
    while process.poll() is None and finished_batches(batches.parent) < 2:
        PATIENCE.wait(0.02)
    os.killpg(servers_of(root)[0]["pid"], signal.SIGKILL)
    finish(process)
    assert verdicts(stage_of(root).directory) == in_process
    assert answers(root) == QUESTIONS


@pytest.mark.thorough
def test_twenty_kills_lose_and_double_no_answer(tmp_path, judge_dir, in_process):
    kills, runs, draws = 0, 0, random.Random(1)
    while kills < KILLS:
        runs += 1
        root = project_at(tmp_path / f"run-{runs}", judge_dir, POOL)
        process, hit = start(root, "--on", "subprocess"), set()
        while process.poll() is None:
            done = finished_batches(stage_of(root).directory)
            ready = [server for server in servers_of(root) if server["state"] == "ready"]
            victims = [server for server in ready if server["pid"] not in hit and is_alive(server["pid"])]
            if victims and done and len(hit) < KILLS_A_RUN and kills < KILLS and draws.random() < 0.2:
                victim = draws.choice(victims)
                os.killpg(victim["pid"], signal.SIGKILL)
                hit.add(victim["pid"])
                kills += 1
            PATIENCE.wait(0.05)
        finish(process)
        assert verdicts(stage_of(root).directory) == in_process, f"run {runs}"
        assert answers(root) == QUESTIONS, f"run {runs}: an answer was lost or bought twice"

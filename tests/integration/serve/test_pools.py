"""A run whose judge is a pool of servers that Charter starts: here, and as a job with one of them killed."""

import json
import os
import signal
import subprocess
import sys
import threading

import forks
import pytest

torch = pytest.importorskip("torch")

from charter.artifacts.batch_files import finished_batches
from charter.artifacts.job import Job, JobInput, write_job
from charter.artifacts.stage_dir import StageDir
from charter.feedback import label
from charter.ledger.calls import CallStore
from charter.run.graph import build_pipeline
from charter.spec.load import load_project
from charter.spec.project import DataSpec

from .conftest import TOPICS

pytestmark = pytest.mark.torch
PAIRS_EACH = 8
QUESTIONS = 2 * PAIRS_EACH * len(TOPICS)
"""Each pair in both orders."""
PATIENCE = threading.Event()
FILE = """
name: pools
models:
  judge: {{model: {judge}}}
constitution: constitution.yaml
data: {{pairs: pairs.jsonl}}
pipeline:
  label: {{kind: label, judge: judge, candidates: [pairs], rollout_batch: 4, checkpoint_every: 1}}
resources: {{infra: local, cpus: 1}}
{serving}
"""
POOL = "serving: {judge: {pool: {engine: charter, replicas: 2}, api: completions, billed: false, concurrency: 4}}"
CONSTITUTION = """
schema: charter.constitution/v1
principles:
  - {id: kind, critique: 'Is it kind?', revision: Make it kinder., compare: 'Which answer is kinder?'}
"""


def project_at(root, judge, serving=""):
    """A project directory whose judge is in the stage's process, or in a pool."""
    root.mkdir()
    (root / "charter.yaml").write_text(FILE.format(judge=judge, serving=serving))
    (root / "constitution.yaml").write_text(CONSTITUTION)
    rows = [
        {
            "id": f"{topic} {number}",
            "prompt": [{"role": "user", "content": f"Tell me about {topic}."}],
            "chosen": [{"role": "assistant", "content": f"I know {topic}."}],
            "rejected": [{"role": "assistant", "content": "No. " * (1 + number)}],
        }
        for number in range(PAIRS_EACH)
        for topic in TOPICS
    ]
    (root / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def start(root, *words):
    command = [sys.executable, "-m", "charter.cli.main", "run", "--yes", "-C", str(root), *words]
    return forks.Process(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process):
    out, _ = process.communicate()
    assert process.returncode == 0, out
    return out


def stage_of(root):
    return build_pipeline(load_project(root / "charter.yaml"), root).stages["label"]


def verdicts(stage_dir):
    """What was found of each pair, but for digits that depend on how many questions were computed together."""
    lines = (stage_dir / "outputs" / "records.jsonl").read_text().splitlines()
    return {
        row["id"]: (row["chosen"], row["both_orders"]["agree"], pytest.approx(row["chosen_probability"], abs=1e-4))
        for row in map(json.loads, lines)
    }


def answers(root):
    """How many questions have a stored answer, each counted with its check."""
    stage = stage_of(root)
    place = stage.directory / "calls.sqlite"
    with CallStore.open(place, run="pools", stage="label", fingerprint=stage.fingerprint) as calls:
        return calls.checked_totals().sums.answered


def servers_of(root):
    return [json.loads(path.read_text()) for path in sorted(stage_of(root).directory.glob("**/judge-*.json"))]


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

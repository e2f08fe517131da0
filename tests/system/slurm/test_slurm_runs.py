"""Whole runs on a real Slurm: the same bits as here, nodes that train together, a ledger that equals the accounts."""

import json
import re
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster
from waiting import eventually

TOGETHER = ("--set", "resources.accelerators=cpu:2", "--set", "resources.num_nodes=2", "--set", "resources.cpus=2")

RUN_SECONDS = 3600.0
"""All of cai-smoke, whatever else this machine does; only there to end a hang."""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "DEADLINE")


def run_charter(cluster: SlurmCluster, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command of the product, ended."""
    command = [sys.executable, "-m", "charter.cli.main", *arguments]
    own = {**cluster.environment, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=own, capture_output=True, text=True, check=False)


def charter(cluster: SlurmCluster, *arguments: str) -> str:
    """The same with success; its standard output."""
    done = run_charter(cluster, *arguments)
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{cluster.tails()}"
    return done.stdout


def project(cluster: SlurmCluster, root: Path, *, launcher: str = "direct") -> Path:
    """cai-smoke in a directory of its own."""
    charter(cluster, "init", "--template", "cai-smoke", str(root))
    path = root / "charter.yaml"
    if launcher != "direct":
        path.write_text(f"{path.read_text()}\nlaunch: {{launcher: {launcher}}}\n")
    return root


def outputs(cluster: SlurmCluster, root: Path) -> dict[str, object]:
    """Hashes of what every stage has published."""
    return {stage["name"]: stage["outputs"] for stage in status(cluster, root)}


def status(cluster: SlurmCluster, root: Path) -> list[dict[str, Any]]:
    """What `charter status` says of every stage."""
    found: list[dict[str, Any]] = json.loads(charter(cluster, "status", "-C", str(root), "--json"))["stages"]
    return found


def ledger_rows(root: Path) -> list[dict[str, Any]]:
    """Every attempt in a run's ledger."""
    database = sqlite3.connect(root / "run" / "ledger.sqlite")
    database.row_factory = sqlite3.Row
    rows = [dict(row) for row in database.execute("SELECT * FROM attempts")]
    database.close()
    return rows


def rows_of_sacct(cluster: SlurmCluster, job_id: str) -> list[tuple[float, float]]:
    """Start and seconds of every start, by Slurm's accounts."""
    fields = ("--format=Start,ElapsedRaw,NodeList",)
    said = cluster.run("env", "SLURM_TIME_FORMAT=%s", "sacct", "-D", "-X", "-P", "-n", "-j", job_id, *fields)
    rows = [row.split("|") for row in said.splitlines()]
    return [(float(start), float(elapsed)) for start, elapsed, nodes in rows if nodes != "None assigned"]


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A supervisor that was sent as a job itself, and what a second `charter submit` was told meanwhile."""

    number: str
    again: "subprocess.CompletedProcess[str]"


@pytest.fixture(scope="module")
def finished(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Sent]:
    """cai-smoke run here, and sent to Slurm as a whole: nothing of it stays here."""
    here, there = (project(cluster, tmp_path_factory.mktemp(name) / "cai") for name in ("here", "there"))
    send = ("submit", "-C", str(there), "--on", "slurm", "--set", "owner=alignment")
    number = re.search(r"submitted to slurm: (\d+)\n", charter(cluster, *send))[1]
    again = run_charter(cluster, *send)
    charter(cluster, "run", "-C", str(here), "--yes")
    eventually(lambda: job_state(cluster, number) in ENDED, cluster.tails, seconds=RUN_SECONDS, every=0.5)
    assert job_state(cluster, number) == "COMPLETED", [
        log.read_text() for log in (there / "run" / "supervisor").glob("log-*.txt")
    ]
    return here, there, Sent(number=number, again=again)


def job_state(cluster: SlurmCluster, number: str) -> str:
    """How a job stands, in Slurm's word."""
    return re.search(r"JobState=(\w+)", cluster.run("scontrol", "show", "job", number))[1]


def test_cai_smoke_gives_the_same_bits_as_here(cluster, finished):
    here, there = (outputs(cluster, root) for root in finished[:2])
    assert len(here) == 12
    assert there == here
    assert {stage["state"] for stage in status(cluster, finished[1])} == {"done"}


def test_a_second_supervisor_is_refused_while_the_first_is_there(cluster, finished):
    _, _, sent = finished
    assert (sent.again.returncode, sent.again.stdout) == (2, "")
    assert f"slurm job {sent.number} has this project already" in sent.again.stderr

    def supervisors():
        names = cluster.run("sacct", "-X", "-P", "-n", "--format=JobID,JobName,State").split()
        return [row.split("|")[0::2] for row in names if "-supervisor-" in row]

    ended = [sent.number, "COMPLETED"]
    cluster.wait_until(lambda: ended in supervisors(), "the end in its record")
    assert supervisors() == [ended]


def test_the_ledger_equals_the_accounts_to_the_second(cluster, finished):
    _, there, _ = finished
    rows = ledger_rows(there)
    assert len(rows) == 12
    assert {(row["outcome"], row["owner"]) for row in rows} == {("done", "alignment")}
    for row in rows:
        assert [(row["started_at"], row["duration_milliseconds"] / 1000)] == rows_of_sacct(cluster, row["job_id"])


@pytest.mark.parametrize("launcher", ["direct", "torchrun"])
def test_two_nodes_of_two_processes_train_one_model(cluster, tmp_path, launcher):
    here = project(cluster, tmp_path / "here")
    charter(cluster, "run", "-C", str(here), "--yes", "--only", "pretrain", *TOGETHER)
    there = project(cluster, tmp_path / "there", launcher=launcher)
    charter(cluster, "run", "-C", str(there), "--yes", "--only", "pretrain", *TOGETHER, "--on", "slurm")
    assert outputs(cluster, there)["pretrain"] == outputs(cluster, here)["pretrain"] != {}
    (record,) = (there / "run" / "stages").glob("pretrain-*/jobs/0001/node-0-1.json")
    assert json.loads(record.read_text())["processes"] == 2


def test_silent_node_is_replaced_with_the_same_bits(cluster, tmp_path):
    here, there = (project(cluster, tmp_path / name) for name in ("here", "there"))
    train = ("run", "--yes", "--only", "pretrain", *TOGETHER)
    charter(cluster, *train, "-C", str(here))
    with (tmp_path / "errors.txt").open("w") as errors:
        command = [sys.executable, "-m", "charter.cli.main", *train, "-C", str(there), "--on", "slurm"]
        run = subprocess.Popen(command, env=cluster.environment, stdout=errors, stderr=errors)
        cluster.wait_until(lambda: [*there.glob("run/stages/pretrain-*/state/step-*/manifest.json")], "a checkpoint")
        (submission,) = there.glob("run/stages/pretrain-*/jobs/0001/submission.json")
        lost = cluster.nodes_of(json.loads(submission.read_text())["job_id"])[1]
        frozen = cluster.power_off(lost, frozen=True)
        assert run.wait() == 0, (tmp_path / "errors.txt").read_text()
    assert frozen
    cluster.thaw(lost, frozen)
    assert outputs(cluster, there)["pretrain"] == outputs(cluster, here)["pretrain"] != {}
    assert [row["outcome"] for row in ledger_rows(there)] == ["killed", "done"]
    assert list(json.loads((there / "run" / "bad_nodes.json").read_text())) == [lost]

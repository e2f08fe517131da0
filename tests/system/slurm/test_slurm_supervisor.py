"""A supervisor that is a job of a real Slurm: it is put back into the queue, which does not disturb its stages."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_workplace import STAGES, EngineWorkplace
from slurm_cluster import SlurmCluster
from typer.testing import CliRunner

from charter.artifacts.job_files import numbers
from charter.cli.main import app
from charter.engines.project import load_project
from charter.launch.sent_supervisor import supervisor_dir
from charter.launch.slurm.scheduler import SlurmScheduler
from charter.run.status import status_of
from charter.run.submit import submit_supervisor
from charter.spec.launching import SlurmSettings

PYTHON = """#!/bin/sh
# Stands for python on the nodes: `charter run` runs the counting stages.
[ "$2" = charter.cli.main ] || exec {python} "$@"
exec {python} {counting_run} {root} --on slurm
"""
APART: dict[str, Any] = {"cpus": 8}
"""A stage takes a whole node, so that the supervisor's can be taken away without it."""


@pytest.fixture
def work(cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineWorkplace]:
    """A project whose stage waits in the middle, under a supervisor that Slurm runs."""
    monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
    root, python = tmp_path / "project", tmp_path / "python"
    words = {"python": sys.executable, "counting_run": STAGES / "counting_run.py", "root": root}
    python.write_text(PYTHON.format(**{name: shlex.quote(str(word)) for name, word in words.items()}))
    python.chmod(0o755)
    launch = {"python": str(python), "slurm": {"seconds_between_polls": "0.5s", "requeue": False}}
    place = EngineWorkplace(root, on="slurm", launch=launch)
    place.write(held="a:4", stage_environment={"COUNTING_MODULE": "held_stage"}, resources=APART)
    yield place
    cluster.run("scancel", "--user=root", check=False)


def send(work: EngineWorkplace) -> str:
    """Submit the supervisor; the number of its job."""
    return submit_supervisor(load_project(work.root), work.root, "slurm", [])[1]


def told(work: EngineWorkplace, name: str) -> list[dict[str, Any]]:
    """The events of a name that a run has written down."""
    lines = (work.root / "run" / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def put_back(cluster: SlurmCluster, number: str, how: str) -> None:
    """Have Slurm take the supervisor's place away, and wait until it stands in the queue again."""
    if how == "requeued":
        cluster.run("scontrol", "requeue", number)
    else:
        cluster.preempt(cluster.nodes_of(number)[0])
    cluster.wait_until(
        lambda: cluster.job_field(number, "Restarts") == "1" and cluster.job_field(number, "JobState") == "PENDING",
        f"job {number} to be put back",
    )


def let_go(cluster: SlurmCluster, number: str) -> None:
    """Start it before the two minutes have passed that Slurm holds it."""
    engine = SlurmScheduler(SlurmSettings(seconds_between_polls=0.2), environ=cluster.environment)
    engine.release(number)
    cluster.wait_until(lambda: engine.poll([number])[number].phase == "running", f"job {number} to run again")


@pytest.mark.parametrize("how", ["requeued", "preempted"])
def test_a_supervisor_that_is_put_back_goes_on_with_the_attempt_that_runs(cluster, work, tmp_path, how):
    number = send(work)
    first = work.wait_at_gate("a")
    assert cluster.nodes_of(number) != cluster.nodes_of(work.job_id("a"))
    put_back(cluster, number, how)
    let_go(cluster, number)
    work.wait_for(lambda: told(work, "job_found"), "the attempt to be found")
    work.open_gate()
    assert cluster.wait_for_state(number, "COMPLETED", "FAILED", "CANCELLED") == "COMPLETED", log(work)
    here = EngineWorkplace(tmp_path / "here", on="local")
    here.write()
    here.run()
    assert work.outputs() == here.outputs()
    assert [(row["outcome"], row["first_step"]) for row in work.ledger("a")] == [("done", 0)]
    assert [record.first_pid for record in work.node_records("a")] == [first.first_pid]
    assert [len(work.jobs(stage)) for stage in ("a", "b")] == [1, 1]
    assert not told(work, "stopping")
    assert numbers(supervisor_dir(work.root)) == [1]


def test_the_next_start_of_a_lost_supervisor_waits_for_its_zombie_and_goes_on_with_the_attempt(cluster, work):
    number = send(work)
    first = work.wait_at_gate("a")
    (node,) = cluster.nodes_of(number)
    cluster.lose_node(node)
    try:
        let_go(cluster, number)
        work.wait_for(lambda: "was started again and waits for it" in log(work), "the next start to wait")
        assert not told(work, "job_found"), "the zombie has the run"
    finally:
        cluster.bring_back(node)
    work.wait_for(lambda: told(work, "job_found"), "the attempt to be found")
    work.open_gate()
    assert cluster.wait_for_state(number, "COMPLETED", "FAILED", "CANCELLED") == "COMPLETED", log(work)
    assert [(row["outcome"], row["first_step"]) for row in work.ledger("a")] == [("done", 0)]
    assert [record.first_pid for record in work.node_records("a")] == [first.first_pid]
    assert not told(work, "stopping")


def test_stop_ends_a_supervisor_that_was_put_back_and_the_stage_that_it_left(cluster, work):
    number = send(work)
    work.wait_at_gate("a")
    put_back(cluster, number, "requeued")
    said = CliRunner().invoke(app, ["stop", "-C", str(work.root)])
    assert f"stopped slurm job {number}, the supervisor" in said.output
    assert f"stopped slurm job {work.job_id('a')} (" in said.output
    assert cluster.wait_for_state(number, "CANCELLED", "COMPLETED", "FAILED") == "CANCELLED"
    stage = status_of(load_project(work.root), work.root)["stages"][0]
    assert (stage["state"], stage["step"]) == ("interrupted", 4)


def test_a_supervisor_that_somebody_cancels_stops_its_stages(cluster, work):
    number = send(work)
    work.wait_at_gate("a")
    cluster.run("scancel", number)
    work.wait_for(lambda: told(work, "stopping"), "its stages to be stopped")
    cluster.wait_for_state(number, "CANCELLED")
    assert cluster.job_field(number, "Restarts") == "0"


def log(work: EngineWorkplace) -> str:
    """What the supervisor has printed."""
    return "\n".join(path.read_text() for path in supervisor_dir(work.root).glob("log-*.txt"))

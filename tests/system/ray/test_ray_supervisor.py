"""A supervisor that is a job of a real Ray cluster: when its node dies the keeper starts it again, and it goes on."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_workplace import STAGES, EngineWorkplace
from ray_cluster import CPUS_PER_NODE, RayCluster

from charter.engines.project import load_project
from charter.launch.ray.scheduler import RayScheduler
from charter.run.submit import submit_supervisor
from charter.spec.launching import RaySettings

PYTHON = """#!/bin/sh
# Stands for python on the nodes: `charter run` runs the counting stages.
[ "$2" = charter.cli.main ] || exec {python} "$@"
exec {python} {counting_run} {root} --on ray
"""


@pytest.fixture
def work(cluster: RayCluster, tmp_path: Path) -> Iterator[EngineWorkplace]:
    """A project whose stage takes a whole node and waits in the middle, under a supervisor that Ray runs."""
    root, python = tmp_path / "project", tmp_path / "python"
    words = {"python": sys.executable, "counting_run": STAGES / "counting_run.py", "root": root}
    python.write_text(PYTHON.format(**{name: shlex.quote(str(word)) for name, word in words.items()}))
    python.chmod(0o755)
    place = EngineWorkplace(root, on="ray", launch={"python": str(python), "ray": {"address": cluster.address}})
    of_stages = {"COUNTING_MODULE": "held_stage"}
    place.write(held="a:4", stage_environment=of_stages, resources={"cpus": CPUS_PER_NODE})
    yield place
    scheduler = RayScheduler(RaySettings(address=cluster.address))
    for stage in ("a", "b"):
        if (job_id := place.job_id(stage)) is not None:
            scheduler.cancel(job_id)
    scheduler.close()
    cluster.mend()


def told(work: EngineWorkplace, name: str) -> list[dict[str, Any]]:
    """The events of a name that a run has written down."""
    lines = (work.root / "run" / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def test_a_supervisor_whose_node_dies_goes_on_elsewhere_with_the_attempt_that_runs(cluster, work):
    number = submit_supervisor(load_project(work.root), work.root, "ray", [])[1]
    scheduler = RayScheduler(RaySettings(address=cluster.address))
    try:
        first = work.wait_at_gate("a")
        (node,), (of_stage,) = (scheduler.poll([job])[job].nodes for job in (number, work.job_id("a")))
        assert node != of_stage
        cluster.lose_node(node)
        work.wait_for(lambda: told(work, "job_found"), "the attempt to be found")
        work.open_gate()
        work.wait_for(lambda: scheduler.poll([number])[number].phase == "ended", "the end of the supervisor")
        state = scheduler.poll([number])[number]
    finally:
        scheduler.cancel(number)
        scheduler.close()
    assert (state.cause, state.restarts) == ("done", 1)
    assert [(row["outcome"], row["first_step"]) for row in work.ledger("a")] == [("done", 0)]
    assert [record.first_pid for record in work.node_records("a")] == [first.first_pid]
    assert work.outputs()["b"]

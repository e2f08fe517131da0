"""What the keeper says of a job from what happened to it; no Ray is needed for it."""

import pytest

from charter.launch.ray.job_records import JobRecord, StartOutcome, UnitStart, worst
from charter.launch.ray.scheduler import state_of

NODE = "host/0a1b2c"
LOST = StartOutcome(cause="node_lost", exit_code=-9, reason="NODE_DIED")
DONE = StartOutcome(cause="done", exit_code=0, reason="DONE")


def record(**tasks):
    return JobRecord.of({"name": "j", "tasks": tasks or {"nodes": 1}, "resources_per_task": {"CPU": 4, "GPU": 2}})


def start(restart, *, at=None, ended=None, outcome=None, nodes=1):
    seen = {rank: f"{NODE}{rank}" for rank in range(nodes)} if at is not None else {}
    return UnitStart(restart=restart, nodes=seen, started_at=at, ended_at=ended, outcome=outcome)


def test_a_job_waits_until_a_task_has_reached_its_node():
    job = record()
    job.units[0].starts.append(start(0))
    job.units[0].waiting_for = "Resources"
    state = state_of(job.state())
    assert (state.phase, state.reason, state.nodes) == ("queued", "Resources", ())
    job.units[0].starts[0] = start(0, at=10.0)
    assert state_of(job.state()).phase == "running"


def test_a_restarted_job_counts_its_restarts_and_says_why_the_last_start_ended():
    job = record()
    job.units[0].starts += [start(0, at=10.0, ended=20.0, outcome=LOST), start(1, at=25.0)]
    state = state_of(job.state())
    assert (state.phase, state.cause, state.restarts, state.exit_code) == ("running", "node_lost", 1, None)


def test_every_start_that_reached_a_node_is_billed_by_itself():
    job = record(nodes=2)
    job.units[0].starts += [
        start(0, at=10.0, ended=20.0, outcome=LOST, nodes=2),
        start(1, ended=22.0, outcome=LOST),
        start(2, at=25.0, ended=40.0, outcome=DONE, nodes=2),
    ]
    attempts = job.attempts()
    assert [(a["restart"], a["state"], a["started_at"], a["ended_at"]) for a in attempts] == [
        (0, "NODE_DIED", 10.0, 20.0),
        (2, "SUCCEEDED", 25.0, 40.0),
    ]
    assert [(a["accelerators"], a["cpus"], len(a["nodes"])) for a in attempts] == [(4, 8, 2), (4, 8, 2)]


def test_a_driver_is_billed_for_what_its_engine_takes():
    job = record(nodes=1, engine_takes={"nodes": 3, "resources_per_node": {"CPU": 8, "GPU": 4}})
    job.units[0].starts.append(start(0, at=10.0, ended=20.0, outcome=DONE))
    (attempt,) = job.attempts()
    assert (attempt["accelerators"], attempt["cpus"], attempt["nodes"]) == (12, 24, [f"{NODE}0"])


def test_an_array_ends_with_its_last_shard_and_names_the_first_that_failed():
    job = record(shards=3)
    for number, unit in enumerate(job.units):
        unit.starts.append(start(0, at=float(number), ended=9.0, outcome=DONE))
        unit.outcome = DONE
    job.units[1].outcome = StartOutcome(cause="failed", exit_code=7)
    job.units[2].outcome = None
    assert state_of(job.state()).phase == "running"
    job.units[2].outcome = DONE
    state = state_of(job.state())
    assert (state.phase, state.cause, state.exit_code) == ("ended", "failed", 7)
    assert state.tasks is not None
    assert {number: task.exit_code for number, task in state.tasks.items()} == {0: 0, 1: 7, 2: 0}


@pytest.mark.parametrize(
    ("causes", "explains"),
    [
        (["done", "done"], "done"),
        (["failed", "done"], "failed"),
        (["failed", "node_lost", "failed"], "node_lost"),
        (["cancelled", "preempted"], "preempted"),
        (["cancelled", "out_of_memory"], "out_of_memory"),
    ],
)
def test_the_outcome_of_several_nodes_is_the_one_that_explains_the_others(causes, explains):
    assert worst([StartOutcome(cause=cause) for cause in causes]).cause == explains

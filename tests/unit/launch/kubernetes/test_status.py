"""Objects and pods as a newer cluster reports them (1.31 and later), turned into states.

Fields are as its API documents them; what 1.20 really says is tested against it in tests/system/kubernetes.
"""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.launch.kubernetes.status import attempts_of, indexes, job_state, pod_of, unix_seconds

START = unix_seconds("2026-11-20T10:00:00Z")
NOW = START + 3600
NOTE = "batch.kubernetes.io/"


def when(seconds):
    return datetime.fromtimestamp(START + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(number=0, *, phase="Running", index=0, at=0, code=None, reason=None, disruption=None, leaving=None, **extra):
    """A pod as the API server gives it."""
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": when(at + 5)}]
    if disruption:
        conditions.append({"type": "DisruptionTarget", "status": "True", "reason": disruption})
    status = {"phase": phase, "conditions": conditions, **extra}
    if reason:
        status["reason"] = reason
    if code is not None:
        ended = {"exitCode": code, "finishedAt": when(at + 65), "reason": "OOMKilled" if code == 137 else "Error"}
        status["containerStatuses"] = [{"name": "stage", "state": {"terminated": ended}}]
    notes = {f"{NOTE}job-completion-index": str(index), f"{NOTE}job-index-ignored-failure-count": str(number)}
    metadata = {
        "name": f"job-{index}-{number}", "uid": f"uid-{index}-{number}", "labels": {"charter/job": "job"},
        "annotations": notes, "creationTimestamp": when(at),
    }  # fmt: skip
    if leaving is not None:
        metadata["deletionTimestamp"] = when(leaving)
    resources = {"requests": {"cpu": "3500m"}, "limits": {"nvidia.com/gpu": "8"}}
    spec = {"nodeName": f"node-{number}", "containers": [{"name": "stage", "resources": resources}]}
    item = {"kind": "Pod", "metadata": metadata, "spec": spec, "status": status}
    return pod_of(item, job_label="charter/job", accelerator_resource="nvidia.com/gpu")


def job(condition=None, *, reason="", message="", completions=1, kind="Job", suspend=False, **status):
    conditions = [{"type": condition, "status": "True", "reason": reason, "message": message}] if condition else []
    spec = {"completions": completions, "suspend": suspend}
    return {"kind": kind, "metadata": {"name": "job"}, "spec": spec, "status": {"conditions": conditions, **status}}


def state(item, *pods):
    found = job_state(item, pods, now=NOW)
    return found.phase, found.cause, found.exit_code, found.restarts


@pytest.mark.parametrize(
    ("item", "pods", "expected"),
    [
        (None, [], ("unknown", "", None, 0)),
        (job(), [], ("queued", "", None, 0)),
        (job("Suspended", suspend=True), [], ("queued", "", None, 0)),
        (job(), [pod()], ("running", "", None, 0)),
        (job("Complete"), [pod(phase="Succeeded", code=0)], ("ended", "done", 0, 0)),
        (job("Complete"), [], ("ended", "done", 0, 0)),
        (job("Completed", kind="JobSet", restarts=2), [], ("ended", "done", 0, 2)),
        (job("Failed", reason="PodFailurePolicy"), [pod(phase="Failed", code=8)], ("ended", "failed", 8, 0)),
        (
            job(
                "Failed",
                reason="PodFailurePolicy",
                message="Container stage for pod a/b failed with exit code 7 matching",
            ),
            [],
            ("ended", "failed", 7, 0),
        ),
        (
            job("Failed", reason="BackoffLimitExceeded"),
            [pod(0, phase="Failed", code=139), pod(1, phase="Failed", code=137, at=100)],
            ("ended", "out_of_memory", -9, 1),
        ),
        (job("Failed", reason="DeadlineExceeded"), [pod(phase="Failed", code=143)], ("ended", "time_limit", -15, 0)),
        (
            job("Failed", reason="PodFailurePolicy"),
            [pod(phase="Failed", code=6, reason="DeadlineExceeded")],
            ("ended", "time_limit", 6, 0),
        ),
        (
            job(),
            [pod(0, phase="Failed", code=143, disruption="PreemptionByScheduler"), pod(1, phase="Pending", at=100)],
            ("queued", "preempted", None, 1),
        ),
        (
            job(),
            [pod(0, phase="Failed", disruption="DeletionByPodGC"), pod(1, at=100)],
            ("running", "node_lost", None, 1),
        ),
        (job(), [pod(disruption="DeletionByTaintManager", leaving=3590)], ("ended", "node_lost", None, 0)),
        (job(), [pod(leaving=3000)], ("ended", "node_lost", None, 0)),
        (job(), [pod(disruption="EvictionByEvictionAPI", leaving=3700)], ("running", "", None, 0)),
    ],
)
def test_states(item, pods, expected):
    assert state(item, *pods) == expected


def test_why_a_job_waits():
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    waiting = pod(phase="Pending")
    item = {
        "metadata": {"name": "a", "uid": "a", "creationTimestamp": when(0)},
        "status": {"phase": "Pending", "conditions": [unschedulable]},
    }
    waiting = pod_of(item, job_label="charter/job", accelerator_resource="nvidia.com/gpu")
    assert job_state(job(), [waiting], now=NOW).reason == "Unschedulable: 0/3 nodes"
    assert job_state(job("Suspended", suspend=True), [], now=NOW).reason == "Suspended", "Kueue has not admitted it"
    item["status"] = {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}
    pulling = pod_of(item, job_label="charter/job", accelerator_resource="nvidia.com/gpu")
    assert job_state(job(), [pulling], now=NOW).reason == "ImagePullBackOff"


def test_every_shard_has_its_own_state():
    item = job(completions=6, completedIndexes="0-1", failedIndexes="3")
    pods = [
        pod(0, index=2), pod(0, index=3, phase="Failed", code=8), pod(1, index=4, at=9),
        pod(0, index=4, phase="Failed", code=137), pod(0, index=5, leaving=100),
    ]  # fmt: skip
    found = job_state(item, pods, now=NOW)
    assert found.phase == "running"
    assert found.tasks is not None
    assert {index: (task.phase, task.cause, task.restarts) for index, task in found.tasks.items()} == {
        0: ("ended", "done", 0),
        1: ("ended", "done", 0),
        2: ("running", "", 0),
        3: ("ended", "failed", 0),
        4: ("running", "out_of_memory", 1),
        5: ("ended", "node_lost", 0),
    }
    assert found.tasks[3].exit_code == 8


def test_an_array_whose_last_shards_are_lost_has_ended():
    found = job_state(job(completions=3, completedIndexes="0-1"), [pod(index=2, leaving=100)], now=NOW)
    assert (found.phase, found.cause) == ("ended", "node_lost")


def test_of_several_nodes_the_one_that_failed_first_says_why():
    first, later = pod(0, index=2, phase="Failed", code=137), pod(0, index=0, phase="Failed", code=9, at=30)
    found = job_state(job("Failed", kind="JobSet", reason="FailedJobs", restarts=1), [later, first], now=NOW)
    assert (found.cause, found.exit_code, found.restarts) == ("out_of_memory", -9, 1)


def test_attempts_are_the_pods_that_held_a_node():
    pods = [pod(1, at=100), pod(0, phase="Failed", code=143, disruption="PreemptionByScheduler")]
    waiting = replace(pod(2, at=200), started_at=None)
    first, second = attempts_of("job/job", [*pods, waiting], shards=False)
    assert (first.restart, first.state, first.seconds, first.accelerators) == (0, "PreemptionByScheduler", 60.0, 8)
    assert (first.cpus, first.shard, first.nodes) == (4, None, ("node-0",))
    assert (second.restart, second.seconds) == (1, None)
    assert attempts_of("job/job", [pod(index=7)], shards=True)[0].shard == 7


@given(st.sets(st.integers(0, 5000)))
def test_indexes_read_what_the_controller_writes(numbers):
    runs, ordered = [], sorted(numbers)
    for number in ordered:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    assert indexes(text) == numbers

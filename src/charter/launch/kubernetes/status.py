"""How a job stands, from the object that runs it and its pods; pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from charter.launch.kubernetes.indexes import indexes
from charter.launch.kubernetes.pods import Pod, exit_code
from charter.launch.scheduler import Cause, JobAttempt, JobState

DONE_CONDITIONS = ("Complete", "Completed")
"""Of a Job and a TrainJob, and of a JobSet."""
OBJECT_REASONS: Mapping[str, Cause] = MappingProxyType({"DeadlineExceeded": "time_limit"})
_EXIT_CODE = re.compile(r"exit code (\d+)")


def job_state(item: Mapping[str, Any] | None, pods: Sequence[Pod], *, now: float) -> JobState:
    """The state of one job; `pods` are all that were ever seen of it, in any order."""
    if item is None:
        return JobState(phase="unknown")
    ordered = sorted(pods, key=lambda pod: (pod.created_at, pod.name))
    state = _state(item, ordered, now)
    spec = item.get("spec", {})
    shards = spec.get("completions", 1) if item["kind"] == "Job" else 1
    return replace(state, tasks=_tasks(item, ordered, shards, now)) if shards > 1 else state


def attempts_of(job_id: str, pods: Sequence[Pod], *, shards: bool) -> tuple[JobAttempt, ...]:
    """Every pod that held a node, as one attempt; those of one index are numbered in their order."""
    counts: dict[int, int] = {}
    found = []
    for pod in sorted(pods, key=lambda pod: (pod.created_at, pod.name)):
        if pod.started_at is None:
            continue
        number = counts.get(pod.index, 0)
        counts[pod.index] = number + 1
        found.append(
            JobAttempt(
                job_id=job_id,
                shard=pod.index if shards else None,
                restart=max(number, pod.restart),
                state=pod.reason or pod.phase,
                started_at=pod.started_at,
                ended_at=pod.ended_at,
                nodes=(pod.node,) if pod.node else (),
                accelerators=pod.accelerators,
                cpus=pod.cpus,
            )
        )
    return tuple(found)


def _state(item: Mapping[str, Any], pods: Sequence[Pod], now: float) -> JobState:
    conditions = {c["type"]: c for c in item.get("status", {}).get("conditions", ()) if c.get("status") == "True"}
    restarts = _restarts(item, pods)
    for name in DONE_CONDITIONS:
        if name in conditions:
            reason = conditions[name].get("reason") or name
            return JobState(
                phase="ended", cause="done", exit_code=0, restarts=restarts, nodes=_nodes(pods), reason=reason
            )
    if "Failed" in conditions:
        return _failed(conditions["Failed"], pods, restarts)
    return _unfinished(item, conditions, pods, restarts, now)


def _failed(condition: Mapping[str, Any], pods: Sequence[Pod], restarts: int) -> JobState:
    """The first pod of the last start that ended by itself says why; the object's own words where none is left."""
    word, message = str(condition.get("reason", "")), str(condition.get("message", ""))
    guilty = _guilty(pods)
    said = _EXIT_CODE.search(message)
    code = guilty.exit_code if guilty else exit_code(int(said[1])) if said else None
    cause = OBJECT_REASONS.get(word) or (guilty.cause if guilty else "failed")
    return JobState(phase="ended", cause=cause, exit_code=code, restarts=restarts, nodes=_nodes(pods), reason=word)


def _unfinished(
    item: Mapping[str, Any], conditions: Mapping[str, Any], pods: Sequence[Pod], restarts: int, now: float
) -> JobState:
    lost = [pod for pod in pods if pod.is_lost(now)]
    live = [pod for pod in pods if not pod.has_ended and not pod.is_lost(now)]
    running = [pod for pod in live if pod.phase == "Running"]
    over = [pod for pod in pods if pod not in live]
    cause: Cause = "" if not over or over[-1].cause == "done" else over[-1].cause or "node_lost"
    if item["metadata"].get("deletionTimestamp") and not live:
        return JobState(phase="ended", cause="cancelled", restarts=restarts, nodes=_nodes(pods), reason="Deleted")
    gang = item["kind"] != "Job"
    if lost and (gang or not live):
        names = tuple(sorted({pod.node for pod in lost}))
        return JobState(
            phase="ended", cause="node_lost", restarts=restarts, nodes=names, reason=lost[-1].reason or "Lost"
        )
    if running:
        return JobState(
            phase="running", cause=cause, restarts=restarts, nodes=_nodes(running), reason=running[-1].reason
        )
    suspended = "Suspended" in conditions or item.get("spec", {}).get("suspend") is True
    reason = "Suspended" if suspended else live[-1].reason if live else ""
    return JobState(phase="queued", cause=cause, restarts=restarts, reason=reason)


def _tasks(item: Mapping[str, Any], pods: Sequence[Pod], shards: int, now: float) -> dict[int, JobState]:
    """Every shard of an Indexed Job: by the Job's own lists where it has ended, else by its pods."""
    status = item.get("status", {})
    done, failed = indexes(status.get("completedIndexes", "")), indexes(status.get("failedIndexes", ""))
    by_index: dict[int, list[Pod]] = {index: [] for index in range(shards)}
    for pod in pods:
        by_index.setdefault(pod.index, []).append(pod)
    tasks = {}
    for index, own in by_index.items():
        restarts = max([len(own) - 1, 0, *(pod.restart for pod in own)])
        if index in done:
            tasks[index] = JobState(phase="ended", cause="done", exit_code=0, restarts=restarts, nodes=_nodes(own))
        elif index in failed:
            tasks[index] = _failed({"reason": "FailedIndexes"}, own, restarts)
        else:
            tasks[index] = _unfinished(item, {}, own, restarts, now)
    return tasks


def _restarts(item: Mapping[str, Any], pods: Sequence[Pod]) -> int:
    """How often all of it was started again; that of a shard is told with the shard."""
    if item["kind"] == "JobSet":
        return int(item.get("status", {}).get("restarts", 0))
    if item.get("spec", {}).get("completions", 1) > 1:
        return 0
    of_first_index = [pod for pod in pods if pod.index == 0]
    return max([len(of_first_index) - 1, 0, *(pod.restart for pod in pods)])


def _guilty(pods: Sequence[Pod]) -> Pod | None:
    """Of the last start of every index, the one that failed first."""
    last_starts = {pod.index: pod for pod in sorted(pods, key=lambda pod: pod.created_at)}.values()
    failed = [pod for pod in last_starts if pod.has_ended and pod.cause not in ("", "done")]
    return min(failed, key=lambda pod: (pod.ended_at is None, pod.ended_at or 0.0), default=None)


def _nodes(pods: Sequence[Pod]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pod.node for pod in pods if pod.node))

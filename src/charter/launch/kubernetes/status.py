"""State of a job, from the object that runs it and its pods; pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from charter.launch.kubernetes.pod import INDEX, STARTS
from charter.launch.scheduler import Cause, JobAttempt, JobState


def indexes(text: str) -> frozenset[int]:
    """Numbers and ranges with commas between.

    >>> sorted(indexes("0-2,5"))
    [0, 1, 2, 5]
    >>> sorted(indexes(""))
    []
    """
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return frozenset(numbers)


SIGNAL_CODE = 128
"""A shell's and the runtime's code of a process that signal n ended is 128 + n."""
DISRUPTIONS: Mapping[str, Cause] = MappingProxyType(
    {
        "PreemptionByScheduler": "preempted",
        "PreemptionByKubeScheduler": "preempted",
        "EvictionByEvictionAPI": "preempted",
        "TerminationByKubelet": "preempted",
        "DeletionByTaintManager": "node_lost",
        "DeletionByPodGC": "node_lost",
    }
)
"""Reasons of the condition DisruptionTarget. Source: Kubernetes documentation, Disruptions, Pod disruption conditions.
"""
POD_REASONS: Mapping[str, Cause] = MappingProxyType(
    {
        "NodeLost": "node_lost",
        "NodeShutdown": "node_lost",
        "Shutdown": "node_lost",
        "Terminated": "node_lost",
        "Evicted": "preempted",
        "Preempting": "preempted",
        "DeadlineExceeded": "time_limit",
    }
)
"""`status.reason` as the kubelet and the node controller write it."""


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One start of a job, of one of its nodes or of one of its shards."""

    name: str
    uid: str
    job: str
    """Value of the label by which it belongs to a job."""
    index: int
    restart: int
    """How often its index, or the whole set, had been started before, as far as Kubernetes says it."""
    node: str
    phase: str
    is_leaving: bool
    """Somebody has deleted it; its processes may still run."""
    leaves_by: float | None
    """Unix seconds at which its time for stopping is over."""
    created_at: float
    started_at: float | None
    """Unix seconds since which it holds its node."""
    ended_at: float | None
    exit_code: int | None
    cause: Cause
    reason: str
    accelerators: int
    cpus: int

    @property
    def has_ended(self) -> bool:
        """Return True if none of its processes runs."""
        return self.phase in ("Succeeded", "Failed", "Gone")

    def is_lost(self, now: float) -> bool:
        """Return True if it was to leave and its node says nothing any more; it may still run there."""
        late = self.leaves_by is not None and now > self.leaves_by + 1.0
        return self.is_leaving and not self.has_ended and (self.cause == "node_lost" or late)


def pod_of(item: Mapping[str, Any], *, job_label: str, accelerator_resource: str) -> Pod:
    """A pod from the object that the API server gives."""
    metadata, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
    notes = metadata.get("annotations", {})
    ended = _terminated(status)
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    cause, reason = _cause(status, conditions, ended)
    leaves = metadata.get("deletionTimestamp")
    resources = spec.get("containers", [{}])[0].get("resources", {})
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        job=metadata.get("labels", {}).get(job_label, ""),
        index=int(notes.get(_key(INDEX)) or 0),
        restart=sum(int(notes.get(_key(path)) or 0) for path in STARTS.values()),
        node=spec.get("nodeName", ""),
        phase=status.get("phase", "Pending"),
        is_leaving=leaves is not None,
        leaves_by=None if leaves is None else unix_seconds(leaves),
        created_at=unix_seconds(metadata["creationTimestamp"]),
        started_at=_started_at(status, conditions),
        ended_at=_ended_at(status, ended),
        exit_code=exit_code(ended["exitCode"]) if ended else None,
        cause=cause,
        reason=reason,
        accelerators=int(resources.get("limits", {}).get(accelerator_resource, 0)),
        cpus=whole_cpus(resources.get("requests", {}).get("cpu", "0")),
    )


def exit_code(code: int) -> int:
    """An exit code with signals below zero, as Python has them.

    >>> exit_code(137), exit_code(5)
    (-9, 5)
    """
    return SIGNAL_CODE - code if code > SIGNAL_CODE else code


def whole_cpus(quantity: str) -> int:
    """CPUs of a quantity, rounded up.

    >>> whole_cpus("500m"), whole_cpus("8")
    (1, 8)
    """
    milli = quantity.endswith("m")
    value = Decimal(quantity.removesuffix("m")) / (1000 if milli else 1)
    return int(value.to_integral_value(rounding="ROUND_CEILING"))


def unix_seconds(timestamp: str) -> float:
    """Seconds of a timestamp as Kubernetes writes it.

    >>> unix_seconds("2026-11-20T10:00:00Z")
    1795168800.0
    """
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


def _key(path: str) -> str:
    """The annotation that a field path names."""
    return path.split("'")[1]


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for container in status.get("containerStatuses", ()):
        ended: Mapping[str, Any] | None = container.get("state", {}).get("terminated")
        if ended is not None:
            return ended
    return None


def _cause(
    status: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]], ended: Mapping[str, Any] | None
) -> tuple[Cause, str]:
    """Return why it ended, or is being ended; for one that waits, the word that says why it does."""
    disruption = conditions.get("DisruptionTarget", {})
    if disruption.get("status") == "True":
        word = str(disruption.get("reason", ""))
        return DISRUPTIONS.get(word, "preempted"), word
    phase, word = status.get("phase"), str(status.get("reason", ""))
    if word in POD_REASONS:
        return POD_REASONS[word], word
    if ended is not None and ended.get("reason") == "OOMKilled":
        return "out_of_memory", "OOMKilled"
    if phase == "Succeeded":
        return "done", "Completed"
    if phase == "Failed":
        return "failed", word or str((ended or {}).get("reason", "")) or "Failed"
    return "", _waiting(status, conditions)


def _waiting(status: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> str:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return ": ".join(filter(None, (str(scheduled.get("reason", "")), str(scheduled.get("message", "")))))
    for container in status.get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            return str(waiting.get("reason", ""))
    return ""


def _started_at(status: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> float | None:
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "True" and scheduled.get("lastTransitionTime"):
        return unix_seconds(scheduled["lastTransitionTime"])
    return unix_seconds(status["startTime"]) if status.get("startTime") else None


def _ended_at(status: Mapping[str, Any], ended: Mapping[str, Any] | None) -> float | None:
    if ended is not None and ended.get("finishedAt"):
        return unix_seconds(ended["finishedAt"])
    if status.get("phase") not in ("Succeeded", "Failed"):
        return None
    changes = [c["lastTransitionTime"] for c in status.get("conditions", ()) if c.get("lastTransitionTime")]
    return max(map(unix_seconds, changes), default=None)


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
    attempts = []
    for pod in sorted(pods, key=lambda pod: (pod.created_at, pod.name)):
        if pod.started_at is None:
            continue
        number = counts.get(pod.index, 0)
        counts[pod.index] = number + 1
        attempts.append(
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
    return tuple(attempts)


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
    """Return the number of restarts of the whole job; that of a shard is told with the shard."""
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

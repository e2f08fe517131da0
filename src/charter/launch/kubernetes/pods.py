"""One pod as Kubernetes reports it: where it ran, since when, and how it ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from charter.launch.kubernetes.environment import INDEX, STARTS
from charter.launch.scheduler import Cause

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
        """Whether none of its processes runs."""
        return self.phase in ("Succeeded", "Failed", "Gone")

    def is_lost(self, now: float) -> bool:
        """Whether it was to leave and its node says nothing any more; it may still run there."""
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
    asked = spec.get("containers", [{}])[0].get("resources", {})
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
        accelerators=int(asked.get("limits", {}).get(accelerator_resource, 0)),
        cpus=whole_cpus(asked.get("requests", {}).get("cpu", "0")),
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
        found: Mapping[str, Any] | None = container.get("state", {}).get("terminated")
        if found is not None:
            return found
    return None


def _cause(
    status: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]], ended: Mapping[str, Any] | None
) -> tuple[Cause, str]:
    """Why it ended, or is being ended; for one that waits, the word that says why it does."""
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

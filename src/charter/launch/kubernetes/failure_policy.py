"""Which ends of a pod Kubernetes answers by starting it again, and which it leaves to Charter."""

from typing import Any

from charter.launch.kubernetes.pod import CONTAINER

AGENT_EXITS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
"""Codes that the node agent returns of itself. What follows (restart, roll back, another machine, nothing) is decided
by the supervisor, which knows why; 2, 3, 4, 7 and 8 would only fail again. A signal that ends it has another code."""
RETRIES = 0
"""Starts after a failure that Kubernetes may make by itself. A pod that the cluster took away (a disruption) is not a
failure, and replaced; every other end is the supervisor's affair, which goes on from a checkpoint as a new job."""


def pod_failure_policy(*, per_index: bool) -> dict[str, Any]:
    """Rules in their order; the first that fits counts, and what fits none counts against the backoff limit.

    A disruption (preemption, drain, eviction) is nobody's fault and is not counted. `per_index`: a shard that fails
    ends alone.
    """
    return {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            _agent_said(action="FailIndex" if per_index else "FailJob"),
        ]
    }


def gang_failure_policy() -> dict[str, Any]:
    """Of the Job inside a JobSet: a node that ends, for whatever reason, ends the Job, and all nodes start together.

    What the agent itself said fails with the reason `PodFailurePolicy`, by which the JobSet tells it from the rest.
    """
    return {"rules": [_agent_said(action="FailJob")]}


def _agent_said(*, action: str) -> dict[str, Any]:
    codes = {"containerName": CONTAINER, "operator": "In", "values": list(AGENT_EXITS)}
    return {"action": action, "onExitCodes": codes}

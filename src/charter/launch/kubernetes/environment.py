"""The variables of a container: plain ones, those that Kubernetes fills in, and secrets by reference."""

from collections.abc import Mapping
from typing import Any

from charter.errors import UsageError
from charter.launch.job import StageJob
from charter.launch.kubernetes.names import object_name

SECRET_SCHEME = "secret:"
BROUGHT = ("env:", "file:")
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
STARTS = {
    "CHARTER_INDEX_FAILURES": "metadata.annotations['batch.kubernetes.io/job-index-failure-count']",
    "CHARTER_INDEX_DISRUPTIONS": "metadata.annotations['batch.kubernetes.io/job-index-ignored-failure-count']",
    "CHARTER_SET_RESTARTS": "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']",
}
"""Where Kubernetes says how often it has started a pod of this index (a Job) or all pods (a JobSet) again.

What does not apply is an empty text."""
START_SCRIPT = (
    "export CHARTER_RESTART=$((" + " + ".join(f"${{{name}:-0}}" for name in STARTS) + ")); log=$1; shift; "
    '[ -n "$log" ] || exec "$@"; '
    '[ "${CHARTER_NODE_RANK:-0}" = 0 ] || log=$log.$CHARTER_NODE_RANK; '
    'touch "$log"; tail -n 0 -F "$log" 2>/dev/null & exec "$@" >>"$log" 2>&1'
)
"""Adds them up, then becomes the node agent, which so receives the signals of the kubelet. What the agent prints goes
into the job's log, and from there to the container's output, which loses its last lines when the agent ends."""


def container_command(job: StageJob) -> list[str]:
    """The command of a container: the node agent, told how often it was started before.

    Shards print to their containers only: thousands of them would write into one file.
    """
    log = "" if job.shards > 1 else str(job.log)
    return [literal(word) for word in ("/bin/sh", "-c", START_SCRIPT, "charter", log, *job.command)]


def literal(text: str) -> str:
    """A text of a command or a variable that Kubernetes leaves as it is: it replaces `$(NAME)`, and `$$` by `$`.

    >>> literal("$(HOME) costs 5$")
    '$$(HOME) costs 5$$'
    """
    return text.replace("$", "$$")


def container_environment(job: StageJob, secrets: Mapping[str, str]) -> list[dict[str, Any]]:
    """Variables in a fixed order; `secrets` are the project's, `VARIABLE: SECRET/KEY`."""
    gang = job.nodes + job.spare_nodes > 1
    place = {"CHARTER_SHARD": INDEX} if job.shards > 1 else {"CHARTER_NODE_RANK": INDEX} if gang else {}
    fields = {**place, **STARTS, "CHARTER_ENGINE_JOB": "metadata.name", "CHARTER_NODE_NAME": "spec.nodeName"}
    plain = dict(job.environment)
    if not place:
        plain["CHARTER_NODE_RANK"] = "0"
    own = {name: f"{object_name(job.name)}/{name}" for name in brought_secrets(job, secrets)}
    by_reference = {**job.secrets, **own, **secrets}
    return [
        *({"name": name, "value": literal(plain[name])} for name in sorted(plain) if name not in by_reference),
        *(_field(name, path) for name, path in fields.items()),
        *(_secret(name, by_reference[name]) for name in sorted(by_reference)),
    ]


def brought_secrets(job: StageJob, secrets: Mapping[str, str]) -> dict[str, str]:
    """References whose values are here, `env:` and `file:`, and for which the project names no secret of the cluster.

    They go into a secret of the job's own, which is made when it is submitted and removed with it.
    """
    return {
        name: reference
        for name, reference in job.secrets.items()
        if reference.startswith(BROUGHT) and name not in secrets
    }


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _secret(variable: str, reference: str) -> dict[str, Any]:
    name, _, key = reference.removeprefix(SECRET_SCHEME).partition("/")
    if not name or not key or "/" in key or ":" in name:
        raise UsageError(
            f"the variable {variable} comes from {reference!r}, which names no key of a secret\n"
            f"  say it in charter.yaml: launch.kubernetes.secrets: {{{variable}: NAME/KEY}}"
        )
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": key, "optional": False}}}

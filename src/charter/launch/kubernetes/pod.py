"""The pod of one node, or of one shard, of a job. Its names and labels too."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from charter.catalog import accelerators
from charter.errors import UsageError
from charter.launch.job import ENGINE_JOB, NODE_NAME, NODE_RANK, RESTART, SHARD, StageJob, safe_name
from charter.launch.tags import KUBERNETES_PREFIX, kubernetes_annotations, kubernetes_labels
from charter.spec.launching import KubernetesSettings

LONGEST_NAME = 40
"""Of an object. The longest name made from it, a pod of a JobSet (`NAME-nodes-0-999999-xxxxx`), is a label of 63."""
JOB_LABEL = f"{KUBERNETES_PREFIX}job"
"""On the object, on what it makes and on their pods: all are listed by one selector."""
LOG_NOTE = f"{KUBERNETES_PREFIX}log"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
QUEUES = "localqueues.kueue.x-k8s.io"
"""Named without a version, so that a cluster answers in the one that it serves: Kueue serves v1beta2 since 0.15, and
v1beta1 no more since 0.20. The label, and `suspend` of an object, are the same with both."""


def without_queue(queue: str, namespace: str, there: Sequence[str] | None) -> str:
    """Return why nothing would let a job of a queue start; `there` are the namespace's, None where Kueue is not."""
    if there is None:
        return (
            f"launch.kubernetes.queue is {queue!r}, and the cluster has no Kueue: nothing would let a job start\n"
            "  have Kueue installed, or leave queue out"
        )
    return (
        f"namespace {namespace} has no LocalQueue {queue!r}: nothing would let a job start\n"
        f"  it has {', '.join(there) or 'none'}; correct launch.kubernetes.queue, or have one made"
    )


def object_name(name: str) -> str:
    """The name of the object that runs a job: the job's, or when it is too long its beginning and its hash.

    >>> object_name("charter-r1-sft-ab12")
    'charter-r1-sft-ab12'
    >>> object_name("charter-a-run-with-a-name-that-goes-on-and-on-sft-ab12")
    'charter-a-run-with-a-name-that-d91f9677'
    """
    plain = safe_name(name)
    if len(plain) <= LONGEST_NAME:
        return plain
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{plain[: LONGEST_NAME - 9].rstrip('-')}-{digest}"


def job_labels(job: StageJob) -> dict[str, str]:
    """Labels of every object of a job."""
    own = {"run": job.run, "stage": job.stage, "attempt": str(job.attempt)}
    labels = kubernetes_labels({**job.labels, **own})
    return {**labels, JOB_LABEL: object_name(job.name), "app.kubernetes.io/managed-by": "charter"}


def job_annotations(job: StageJob) -> dict[str, str]:
    """The job's own name, what labels cannot hold, and what it was asked to run on."""
    notes = {f"{KUBERNETES_PREFIX}name": job.name, f"{KUBERNETES_PREFIX}kind": job.kind}
    if job.shards == 1:
        notes[LOG_NOTE] = str(job.log)
    if job.accelerator:
        notes[f"{KUBERNETES_PREFIX}accelerator"] = job.accelerator
    notes[f"{KUBERNETES_PREFIX}tags"] = json.dumps(dict(job.labels), sort_keys=True, ensure_ascii=False)
    return {**kubernetes_annotations(job.labels), **notes}


def selector(names: Iterable[str]) -> str:
    """The label selector of the objects and pods of several jobs.

    >>> selector(["a", "b"])
    'charter/job in (a,b)'
    """
    return f"{JOB_LABEL} in ({','.join(names)})"


LOST_NODE_SECONDS = 5
"""How long a pod stays on a node that is not ready or not reachable. The controller notices after 40 s, since 1.32
after 50 s (`--node-monitor-grace-period`), so that a lost node is seen in under a minute; the default adds 300 s.
Source: Kubernetes documentation, Taints and Tolerations, taint based evictions; kube-controller-manager reference."""
LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
SPOT_LABELS = (
    ("cloud.google.com/gke-spot", "true"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("karpenter.sh/capacity-type", "spot"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
)
"""How GKE, EKS, Karpenter and AKS mark a spot node. Source: their documentation of spot nodes."""
SPOT_TAINTS = ("cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority")
GPU_PRODUCT = "nvidia.com/gpu.product"
GKE_ACCELERATOR = "cloud.google.com/gke-accelerator"
PRODUCTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        "B200-SXM-180GB": (("NVIDIA-B200",), ("nvidia-b200",)),
        "H200-SXM-141GB": (("NVIDIA-H200",), ("nvidia-h200-141gb",)),
        "H100-SXM-80GB": (("NVIDIA-H100-80GB-HBM3",), ("nvidia-h100-80gb", "nvidia-h100-mega-80gb")),
        "H100-PCIe-80GB": (("NVIDIA-H100-PCIe",), ()),
        "H100-NVL-94GB": (("NVIDIA-H100-NVL",), ()),
        "A100-SXM-80GB": (("NVIDIA-A100-SXM4-80GB",), ("nvidia-a100-80gb",)),
        "A100-PCIe-80GB": (("NVIDIA-A100-80GB-PCIe",), ()),
        "A100-SXM-40GB": (("NVIDIA-A100-SXM4-40GB",), ("nvidia-tesla-a100",)),
        "A100-PCIe-40GB": (("NVIDIA-A100-PCIE-40GB",), ()),
        "L40S": (("NVIDIA-L40S",), ()),
        "L4": (("NVIDIA-L4",), ("nvidia-l4",)),
        "A10G": (("NVIDIA-A10G",), ()),
        "T4": (("Tesla-T4",), ("nvidia-tesla-t4",)),
        "V100-SXM2-16GB": (("Tesla-V100-SXM2-16GB",), ("nvidia-tesla-v100",)),
    }
)
"""What nodes with an accelerator of the catalog call it: NVIDIA's GPU feature discovery (the product name of the
driver, with hyphens), and GKE. Any other accelerator is left to the `node_selector` of the file."""


def tolerations(job: StageJob, settings: KubernetesSettings) -> list[dict[str, Any]]:
    """Leave a lost node soon; go to nodes that are kept for accelerators or are spot, where the job wants them."""
    lost = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
        for key in LOST_NODE_TAINTS
    ]
    devices = [settings.accelerator_resource] if job.accelerators_per_node else []
    spot = list(SPOT_TAINTS) if job.use_spot else []
    return [*lost, *({"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in (*devices, *spot))]


def affinity(job: StageJob, settings: KubernetesSettings) -> dict[str, Any] | None:
    """Nodes with the asked accelerator, spot or not, without those that are excluded; None for any node.

    The terms of a node selector are alternatives, and the expressions of a term must all hold.
    """
    excluded = [_expression("kubernetes.io/hostname", "NotIn", job.exclude_nodes)] if job.exclude_nodes else []
    alternatives = [
        [*accelerator, *spot, *excluded]
        for accelerator in _accelerator_terms(job, settings)
        for spot in (([_expression(key, "In", (value,))] for key, value in SPOT_LABELS) if job.use_spot else [[]])
    ]
    terms = [{"matchExpressions": term} for term in alternatives if term]
    if not terms:
        return None
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def _accelerator_terms(job: StageJob, settings: KubernetesSettings) -> list[list[dict[str, Any]]]:
    """A user who selects nodes knows better what they are called."""
    labels = PRODUCTS.get(accelerators.get(job.accelerator).name) if job.accelerator else None
    if labels is None or not job.accelerators_per_node or settings.node_selector:
        return [[]]
    products, google = labels
    alternatives = ((GPU_PRODUCT, products), (GKE_ACCELERATOR, google))
    return [[_expression(key, "In", values)] for key, values in alternatives if values]


def _expression(key: str, operator: str, values: tuple[str, ...]) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


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
    f"export {RESTART}=$((" + " + ".join(f"${{{name}:-0}}" for name in STARTS) + ")); log=$1; shift; "
    '[ -n "$log" ] || exec "$@"; '
    f'[ "${{{NODE_RANK}:-0}}" = 0 ] || log=$log.${NODE_RANK}; '
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
    place = {SHARD: INDEX} if job.shards > 1 else {NODE_RANK: INDEX} if gang else {}
    fields = {**place, **STARTS, ENGINE_JOB: "metadata.name", NODE_NAME: "spec.nodeName"}
    plain = dict(job.environment)
    if not place:
        plain[NODE_RANK] = "0"
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


CONTAINER = "stage"
PROJECT_VOLUME, SHARED_MEMORY = "project", "shared-memory"
SHARED_MEMORY_SHARE = 2
"""/dev/shm may take this part of the pod's memory (one half): workers of a data loader and NCCL exchange data there,
and a container has 64 MiB otherwise."""


def pod_template(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """The pod template of a Job or of the Job of a JobSet."""
    return {
        "metadata": {"labels": job_labels(job), "annotations": job_annotations(job)},
        "spec": pod_spec(job, settings),
    }


def pod_spec(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """Return the specification of a pod: what runs, with what, where, and how long it may take to stop."""
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_seconds(job),
        "activeDeadlineSeconds": active_seconds(job),
        "automountServiceAccountToken": False if settings.service_account is None else None,
        "serviceAccountName": settings.service_account,
        "priorityClassName": settings.priority_class,
        "nodeSelector": dict(settings.node_selector) or None,
        "affinity": affinity(job, settings),
        "tolerations": tolerations(job, settings),
        "containers": [container(job, settings)],
        "volumes": volumes(job, settings),
    }
    return {key: value for key, value in spec.items() if value is not None}


def container(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """The container that runs the node agent."""
    return {
        "name": CONTAINER,
        "image": checked_image(settings),
        "command": container_command(job),
        "workingDir": settings.mount_path,
        "env": container_environment(job, settings.secrets),
        "resources": resources(job, settings),
        "volumeMounts": volume_mounts(settings),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def resources(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """Return the requests, and limits of accelerators and of the memory that the file says; quantities are texts.

    There is no limit on CPUs: it would slow a process down that nobody else needs them from; and none on memory that
    a plan counted, by which a pod would be killed for an estimate.
    """
    requests, limits = {"cpu": str(job.cpus_per_node)}, {}
    if job.memory_bytes_per_node is not None:
        requests["memory"] = str(job.memory_bytes_per_node)
    if job.memory_limit_bytes_per_node is not None:
        limits["memory"] = str(job.memory_limit_bytes_per_node)
    if job.accelerators_per_node:
        count = str(job.accelerators_per_node)
        requests[settings.accelerator_resource] = limits[settings.accelerator_resource] = count
    parts: Mapping[str, Any] = {"requests": requests, "limits": limits}
    return {key: value for key, value in parts.items() if value}


def volumes(job: StageJob, settings: KubernetesSettings) -> list[dict[str, Any]]:
    """The claim that holds the project, and memory that the processes of a pod share."""
    memory: dict[str, str] = {"medium": "Memory"}
    if job.memory_limit_bytes_per_node is not None:
        memory["sizeLimit"] = str(job.memory_limit_bytes_per_node // SHARED_MEMORY_SHARE)
    return [
        {"name": PROJECT_VOLUME, "persistentVolumeClaim": {"claimName": checked_claim(job, settings)}},
        {"name": SHARED_MEMORY, "emptyDir": memory},
    ]


def volume_mounts(settings: KubernetesSettings) -> list[dict[str, str]]:
    """Return the places of the volumes in the container."""
    return [
        {"name": PROJECT_VOLUME, "mountPath": settings.mount_path},
        {"name": SHARED_MEMORY, "mountPath": "/dev/shm"},
    ]


def grace_seconds(job: StageJob) -> int:
    """Seconds between SIGTERM and SIGKILL: long enough to stop at a checkpoint."""
    return max(1, math.ceil(job.stop_before_seconds))


def active_seconds(job: StageJob) -> int | None:
    """Seconds after which Kubernetes ends a pod that has not stopped by itself: the time limit.

    It counts from the pod's start, so that neither a queue nor an earlier start of the job takes from it, but with the
    pull of its image. The agent asks the stage to stop before (`stop_before`), by its own clock.
    """
    return None if job.time_limit_seconds is None else max(1, math.ceil(job.time_limit_seconds))


def checked_image(settings: KubernetesSettings) -> str:
    """The image, or what to write."""
    if not settings.image:
        raise UsageError(
            "Kubernetes needs an image with Charter in it\n"
            "  say launch.kubernetes.image in charter.yaml: REGISTRY/NAME:TAG"
        )
    return settings.image


def checked_claim(job: StageJob, settings: KubernetesSettings) -> str:
    """The claim that holds the project, if the stage directory lies in it."""
    if not settings.volume_claim:
        raise UsageError(
            "pods need a volume that all of them and this process see\n"
            "  say launch.kubernetes.volume_claim in charter.yaml: a ReadWriteMany claim, mounted here too"
        )
    directory = PurePosixPath(job.directory)
    if not directory.is_relative_to(settings.mount_path):
        raise UsageError(
            f"the stage directory {directory} is not in {settings.mount_path}, where pods see the claim "
            f"{settings.volume_claim}\n  put the project there, or say launch.kubernetes.mount_path"
        )
    return settings.volume_claim

"""Names of the objects of a job, and the labels by which they are found again."""

import hashlib
import json
from collections.abc import Iterable, Sequence

from charter.launch.job import StageJob, safe_name
from charter.launch.tags import KUBERNETES_PREFIX, kubernetes_annotations, kubernetes_labels

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

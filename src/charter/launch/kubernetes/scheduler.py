"""Kubernetes as a scheduler, by `kubectl`: an object is created, listed with its pods, and deleted.

What an object's state means is in `status`.
"""

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from charter.errors import MissingExtraError, StageError, UsageError
from charter.launch.job import StageJob, secret_values, yaml_text
from charter.launch.kubernetes.pod import (
    CONTAINER,
    JOB_LABEL,
    LOG_NOTE,
    QUEUE_LABEL,
    QUEUES,
    affinity,
    brought_secrets,
    checked_image,
    container_command,
    container_environment,
    grace_seconds,
    job_annotations,
    job_labels,
    object_name,
    pod_template,
    resources,
    selector,
    tolerations,
    volume_mounts,
    volumes,
    without_queue,
)
from charter.launch.kubernetes.status import Pod, attempts_of, job_state, pod_of
from charter.launch.scheduler import JobAttempt, JobState
from charter.spec.launching import KubernetesSettings

# -------- The text that is sent to Kubernetes for a job.


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


KEEP_SECONDS = 7 * 24 * 3600
"""A finished object stays so long, for whoever asks how it ended, and is then removed by the cluster."""


def job_manifest(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """A Job that is Indexed even with one pod: only so does a pod learn how often it was started before.

    Failures are counted per index. With shards, one that has used up its retries fails alone and the others go on.
    """
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": job.shards,
        "parallelism": job.shards,
        "backoffLimitPerIndex": RETRIES,
        "backoffLimit": RETRIES if job.shards == 1 else None,
        "podFailurePolicy": pod_failure_policy(per_index=job.shards > 1),
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": KEEP_SECONDS,
        "suspend": True if settings.queue else None,
        "template": pod_template(job, settings),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(job, settings),
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


def gang_job(job: StageJob, settings: KubernetesSettings, *, pods: int) -> dict[str, Any]:
    """The spec of the Job inside a JobSet: one pod per node, all or none."""
    return {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": 0,
        "podFailurePolicy": gang_failure_policy(),
        "podReplacementPolicy": "Failed",
        "template": pod_template(job, settings),
    }


def metadata(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """Name, namespace, labels and annotations of the object that is submitted, with Kueue's queue if there is one."""
    queue = {QUEUE_LABEL: settings.queue} if settings.queue else {}
    return {
        "name": object_name(job.name),
        "namespace": settings.namespace,
        "labels": {**job_labels(job), **queue},
        "annotations": job_annotations(job),
    }


NODES = "nodes"
"""The one replicated job; its pod of index k is node k."""


def jobset_manifest(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """One Job of as many pods as nodes, with a headless service that also names pods which are not ready yet.

    What ends one node ends the set: its pods cannot go on without each other, and the supervisor sends a new one.
    """
    pods = job.nodes + job.spare_nodes
    spec: dict[str, Any] = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {
            "maxRestarts": RETRIES,
            "rules": [
                {"name": "agentSaidSo", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
            ],
        },
        "successPolicy": {"operator": "All"},
        "ttlSecondsAfterFinished": KEEP_SECONDS,
        "suspend": True if settings.queue else None,
        "replicatedJobs": [
            {
                "name": NODES,
                "replicas": 1,
                "template": {
                    "metadata": {"labels": job_labels(job), "annotations": job_annotations(job)},
                    "spec": gang_job(job, settings, pods=pods),
                },
            }
        ],
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(job, settings),
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


NODE = "node"
"""What the runtimes of Kubeflow Trainer call both the replicated job of a training and its container."""
MANAGER = "charter/launch"


def trainjob_manifest(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """As many nodes as the job has, each running the node agent; patches carry what the runtime does not know."""
    _check(job, settings)
    spec: dict[str, Any] = {
        "runtimeRef": {
            "apiGroup": "trainer.kubeflow.org",
            "kind": "ClusterTrainingRuntime",
            "name": settings.training_runtime,
        },
        "suspend": True if settings.queue else None,
        "activeDeadlineSeconds": None if job.time_limit_seconds is None else max(1, int(job.time_limit_seconds)),
        "trainer": {
            "image": checked_image(settings),
            "command": container_command(job),
            "env": container_environment(job, settings.secrets),
            "numNodes": job.nodes + job.spare_nodes,
            "numProcPerNode": job.processes_per_node,
            "resourcesPerNode": resources(job, settings),
        },
        "runtimePatches": [{"manager": MANAGER, "trainingRuntimeSpec": {"template": _jobset_patch(job, settings)}}],
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job, settings),
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


def _jobset_patch(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    pod = {
        "affinity": affinity(job, settings),
        "containers": [{"name": NODE, "volumeMounts": volume_mounts(settings)}],
        "nodeSelector": dict(settings.node_selector) or None,
        "serviceAccountName": settings.service_account,
        "terminationGracePeriodSeconds": grace_seconds(job),
        "tolerations": tolerations(job, settings),
        "volumes": volumes(job, settings),
    }
    template = {
        "metadata": {"labels": job_labels(job), "annotations": job_annotations(job)},
        "spec": {key: value for key, value in pod.items() if value is not None},
    }
    return {"spec": {"replicatedJobs": [{"name": NODE, "template": {"spec": {"template": template}}}]}}


def _check(job: StageJob, settings: KubernetesSettings) -> None:
    if settings.priority_class is not None:
        raise UsageError(
            "a TrainJob cannot carry launch.kubernetes.priority_class: its training runtime does\n"
            f"  set priorityClassName in the runtime {settings.training_runtime}, or use shape: jobset"
        )
    if job.shards > 1:
        raise UsageError("a TrainJob has nodes, not shards\n  use shape: auto, which makes an indexed Job of them")


Kind = Literal["job", "jobset", "trainjob"]
KINDS: Mapping[Kind, str] = MappingProxyType(
    {"job": "jobs.batch", "jobset": "jobsets.jobset.x-k8s.io", "trainjob": "trainjobs.trainer.kubeflow.org"}
)
"""By their full names, as `kubectl` finds them whatever else the cluster has."""
_MAKERS: Mapping[Kind, Callable[[StageJob, KubernetesSettings], dict[str, Any]]] = MappingProxyType(
    {"job": job_manifest, "jobset": jobset_manifest, "trainjob": trainjob_manifest}
)


def render(job: StageJob, settings: KubernetesSettings) -> str:
    """YAML of the one object that runs a job."""
    return yaml_text(manifest(job, settings))


def manifest(job: StageJob, settings: KubernetesSettings) -> dict[str, Any]:
    """The object as plain values."""
    return _MAKERS[kind_of(job, settings)](job, settings)


def kind_of(job: StageJob, settings: KubernetesSettings) -> Kind:
    """Shards are an indexed Job; several nodes a JobSet, or a TrainJob where the file says so; else a Job."""
    shape, gang = settings.shape, job.nodes + job.spare_nodes > 1
    if job.shards > 1 and gang:
        raise UsageError(f"{job.stage}: shards are pods of one node each\n  use num_nodes: 1 with shards")
    if job.shards > 1 or (shape == "auto" and not gang):
        return "job"
    if shape in ("job", "indexed_job"):
        if gang:
            raise UsageError(
                f"{job.stage}: a Job cannot run {job.nodes + job.spare_nodes} nodes together\n"
                "  use launch.kubernetes.shape: auto, jobset or trainjob"
            )
        return "job"
    return "trainjob" if shape == "trainjob" else "jobset"


def secret_text(job: StageJob, settings: KubernetesSettings, values: Mapping[str, str]) -> str:
    """A Secret as JSON. It goes to `kubectl` by its input and nowhere else: it is never printed or kept."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "immutable": True,
            "metadata": {
                "name": object_name(job.name),
                "namespace": settings.namespace,
                "labels": job_labels(job),
            },
            "stringData": dict(values),
        }
    )


def owner_patch(job: StageJob, *, api_version: str, kind: str, uid: str) -> str:
    """Makes the secret the job's, so that the cluster removes it with the job."""
    owner = {"apiVersion": api_version, "kind": kind, "name": object_name(job.name), "uid": uid}
    return json.dumps({"metadata": {"ownerReferences": [owner]}})


# -------- Kubernetes as a scheduler.


CALL_SECONDS = 60.0
"""One call; an API server that takes longer is treated as out of reach."""
TRIES = 4
PAUSE_SECONDS = 0.5
"""Before the second try, and twice as long before each further one."""
_OUT_OF_REACH = (
    "connection refused", "was refused - did you specify", "connection reset", "i/o timeout", "tls handshake timeout",
    "no such host", "no route to host", "unexpected eof", "context deadline exceeded", "server is currently unable",
    "etcdserver", "too many requests", "serviceunavailable",
)  # fmt: skip
_REFUSED = ("forbidden", "unauthorized", "you must be logged in", "is invalid", "badrequest", "strict decoding error")


class ClusterOutOfReachError(StageError):
    """The API server does not answer; jobs that run go on without it."""


@dataclass(frozen=True, kw_only=True)
class KubectlOutput:
    """Output of a call, and its exit code."""

    code: int
    out: str
    err: str


def run_process(command: Sequence[str], text: str | None) -> KubectlOutput:
    """Run `kubectl` itself."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=CALL_SECONDS, check=False, stdin=None
        )
    except FileNotFoundError:
        raise MissingExtraError(
            f"Kubernetes needs {command[0]}, which is not on the path here\n"
            "  install it (https://kubernetes.io/docs/tasks/tools, or apt-get install kubernetes-client) and give it "
            "access to the cluster: kubectl get jobs must answer"
        ) from None
    except subprocess.TimeoutExpired:
        return KubectlOutput(code=1, out="", err=f"context deadline exceeded: no answer in {CALL_SECONDS:.0f} s")
    return KubectlOutput(code=done.returncode, out=done.stdout, err=done.stderr)


@dataclass(kw_only=True)
class Kubectl:
    """`kubectl` for one namespace of one cluster."""

    settings: KubernetesSettings
    program: str = "kubectl"
    call: Callable[[Sequence[str], str | None], KubectlOutput] = run_process
    pause: Callable[[float], None] = field(default=time.sleep)

    def run(self, *arguments: str, text: str | None = None) -> KubectlOutput:
        """Call it, again while the cluster is out of reach; every call is one that may be made twice."""
        context = ["--context", self.settings.context] if self.settings.context else []
        command = [self.program, *context, "--namespace", self.settings.namespace, *arguments]
        for number in range(TRIES):
            answer = self.call(command, text)
            if answer.code == 0 or not _mentions(answer.err, _OUT_OF_REACH):
                return answer
            if number < TRIES - 1:
                self.pause(PAUSE_SECONDS * 2**number)
        raise ClusterOutOfReachError(
            f"the Kubernetes API server does not answer ({TRIES} tries): {_last_line(answer.err)}\n"
            f"  kubectl {' '.join([*context, 'version'])} should answer; jobs that run are not affected"
        )

    def text(self, *arguments: str, text: str | None = None) -> str:
        """Return the output of a call, or raise an error with the cluster's words."""
        answer = self.run(*arguments, text=text)
        if answer.code != 0:
            raise failure(arguments, answer)
        return answer.out

    def items(self, *arguments: str) -> list[Mapping[str, Any]]:
        """The objects of `get ... --output json`."""
        said = self.text("get", *arguments, "--output", "json")
        try:
            document = json.loads(said)
            return list(document["items"]) if document.get("kind", "").endswith("List") else [document]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise StageError(f"kubectl get printed no JSON of objects: {said.strip()[:200]!r}") from None


def failure(arguments: Sequence[str], answer: KubectlOutput) -> StageError | UsageError:
    """Return the error of a failed call: what the cluster refused is the user's to change; anything else failed."""
    said = answer.err.strip() or answer.out.strip() or f"exit code {answer.code}"
    message = f"kubectl {' '.join(arguments[:2])}: {said}"
    return UsageError(message) if _mentions(said, _REFUSED) else StageError(message)


def lacks_kind(answer: KubectlOutput) -> bool:
    """Return True if the cluster does not have the kind of object that was asked for."""
    return _mentions(
        answer.err, ("doesn't have a resource type", "no matches for kind", "could not find the requested")
    )


def _mentions(text: str, words: Sequence[str]) -> bool:
    plain = text.lower()
    return any(word in plain for word in words)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "nothing was said"


CANCEL_SECONDS = 5
"""A cancelled pod has so long between SIGTERM and SIGKILL."""
LOG_REQUESTS = 64
"""Pods whose logs are read at the same time."""


class KubernetesScheduler:
    """One namespace of a cluster. A job's number is its kind and name: `job/charter-r1-sft-ab12`."""

    name = "kubernetes"

    def __init__(
        self,
        settings: KubernetesSettings,
        *,
        kubectl: Kubectl | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._kubectl = kubectl or Kubectl(settings=settings)
        self._clock = clock
        self._pods: dict[str, dict[str, Pod]] = {}
        """By job and uid: pods that were seen, since the cluster forgets a pod that is deleted."""
        self._states: dict[str, JobState] = {}
        self._cancelled: set[str] = set()
        self._logs: dict[str, Path] = {}

    def render(self, job: StageJob) -> str:
        """The object as YAML."""
        return render(job, self._settings)

    def submit(self, job: StageJob) -> str:
        """Create the object; that it is there already means that this very submission got through before."""
        item = manifest(job, self._settings)
        if self._settings.queue:
            self._check_queue(self._settings.queue)
        name, kind = object_name(job.name), kind_of(job, self._settings)
        brought = brought_secrets(job, self._settings.secrets)
        if brought:
            self._create(name, secret_text(job, self._settings, secret_values(brought)))
        uid = self._create(name, self.render(job))
        if brought and uid:
            patch = owner_patch(job, api_version=item["apiVersion"], kind=item["kind"], uid=uid)
            self._kubectl.text("patch", "secret", name, "--patch", patch)
        if job.shards == 1:
            self._logs[f"{kind}/{name}"] = Path(job.log)
        return f"{kind}/{name}"

    def find(self, name: str) -> str | None:
        """The object of that name, of whichever kind; a kind that the cluster does not have is passed over."""
        for kind, resource in KINDS.items():
            answer = self._kubectl.run("get", resource, object_name(name), "--ignore-not-found", "--output", "name")
            if answer.code == 0 and answer.out.strip():
                return f"{kind}/{object_name(name)}"
            if answer.code != 0 and not lacks_kind(answer):
                raise failure(("get", object_name(name)), answer)
        return None

    def poll(self, job_ids: Sequence[str]) -> Mapping[str, JobState]:
        """One list of the objects and pods of all jobs that have not ended yet."""
        open_ids = [number for number in job_ids if _is_ours(number) and not self._has_ended(number)]
        if open_ids:
            items = self._listed(open_ids)
            self._take_pods(items, [_name(number) for number in open_ids])
            objects = {item["metadata"]["name"]: item for item in items if item["kind"] != "Pod"}
            self._take_logs(objects.values())
            for number in open_ids:
                self._states[number] = self._state(number, objects.get(_name(number)))
        return {number: self._states.get(number, JobState(phase="unknown")) for number in job_ids}

    def cancel(self, job_id: str) -> None:
        """Delete the object first, so that nothing takes the place of its pods, and then these."""
        self._cancelled.add(job_id)
        self._delete(job_id)

    def release(self, job_id: str) -> None:
        """Nothing: Kubernetes holds no job back, and a queue of Kueue is its administrator's."""

    def logs(self, job_id: str) -> str:
        """The job's log where its volume is seen here; else what the pods that are still there have printed."""
        path = self._logs.get(job_id)
        if path is not None and path.exists():
            return path.read_text(encoding="utf-8", errors="replace")
        return self._kubectl.text(
            "logs", "--selector", f"{JOB_LABEL}={_name(job_id)}", "--tail=-1", "--ignore-errors", "--prefix",
            f"--max-log-requests={LOG_REQUESTS}",
        )  # fmt: skip

    def attempts(self, job_id: str) -> tuple[JobAttempt, ...]:
        """Every pod that this process has seen, or that the cluster still has."""
        self.poll([job_id])
        state = self._states.get(job_id)
        return attempts_of(job_id, self._seen(job_id), shards=state is not None and state.tasks is not None)

    def close(self) -> None:
        """Nothing is held."""

    def _check_queue(self, queue: str) -> None:
        """Refuse a queue that is not there: the object would stay suspended. Not checked without the right to list."""
        answer = self._kubectl.run("get", QUEUES, "--output", "name")
        there = None if lacks_kind(answer) else [line.rpartition("/")[2] for line in answer.out.split()]
        if there is None or (answer.code == 0 and queue not in there):
            raise UsageError(without_queue(queue, self._settings.namespace, there))

    def _create(self, name: str, text: str) -> str:
        """Create an object; its uid, or nothing where it is there already."""
        checked = f"--validate={self._settings.validation}"
        answer = self._kubectl.run(
            "create", "--filename", "-", checked, "--output", "jsonpath={.metadata.uid}", text=text
        )
        if answer.code != 0 and not _mentions(answer.err, ("alreadyexists", "already exists")):
            raise failure(("create", name), answer)
        return answer.out.strip() if answer.code == 0 else ""

    def _delete(self, job_id: str) -> None:
        self._kubectl.text(
            "delete", f"{KINDS[_kind(job_id)]},pods", "--selector", f"{JOB_LABEL}={_name(job_id)}",
            "--ignore-not-found", "--wait=false", f"--grace-period={CANCEL_SECONDS}",
        )  # fmt: skip

    def _has_ended(self, job_id: str) -> bool:
        return job_id in self._states and self._states[job_id].phase == "ended"

    def _listed(self, job_ids: Iterable[str]) -> list[Mapping[str, Any]]:
        names = [_name(number) for number in job_ids]
        kinds = [KINDS[kind] for kind in dict.fromkeys(_kind(number) for number in job_ids)]
        return self._kubectl.items(",".join([*kinds, "pods"]), "--selector", selector(names))

    def _take_pods(self, items: Iterable[Mapping[str, Any]], jobs: Iterable[str]) -> None:
        """Remember pods; one that is gone ended when that was noticed, if it was not known to have ended before."""
        resource = self._settings.accelerator_resource
        present = [
            pod_of(item, job_label=JOB_LABEL, accelerator_resource=resource) for item in items if item["kind"] == "Pod"
        ]
        there = {pod.uid for pod in present}
        for pods in (self._pods.get(job, {}) for job in jobs):
            for uid, pod in pods.items():
                if uid not in there and not pod.has_ended:
                    pods[uid] = _gone(pod, self._clock())
        for pod in present:
            self._pods.setdefault(pod.job, {})[pod.uid] = pod

    def _take_logs(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Remember where jobs write their logs; that of another client's job stands in its annotations."""
        for item in objects:
            if path := item["metadata"].get("annotations", {}).get(LOG_NOTE):
                self._logs.setdefault(f"{item['kind'].lower()}/{item['metadata']['name']}", Path(path))

    def _seen(self, job_id: str) -> list[Pod]:
        return list(self._pods.get(_name(job_id), {}).values())

    def _state(self, job_id: str, item: Mapping[str, Any] | None) -> JobState:
        pods = self._seen(job_id)
        if job_id in self._cancelled and (item is None or item["metadata"].get("deletionTimestamp")):
            if all(pod.has_ended or pod.is_lost(self._clock()) for pod in pods):
                return JobState(phase="ended", cause="cancelled", reason="Deleted", restarts=max(0, len(pods) - 1))
            return JobState(phase="running", cause="cancelled", reason="Terminating")
        state = job_state(item, pods, now=self._clock())
        if state.phase == "ended" and state.cause == "node_lost" and item is not None:
            self._give_up(job_id)
        return state

    def _give_up(self, job_id: str) -> None:
        """Delete a job of a lost node: ended means that nothing of it starts again when the node comes back."""
        with contextlib.suppress(StageError):
            self._delete(job_id)


def _gone(pod: Pod, now: float) -> Pod:
    return replace(
        pod, phase="Gone", ended_at=now, cause=pod.cause or "failed", reason=pod.reason or "Deleted", is_leaving=True
    )


def _is_ours(job_id: str) -> bool:
    return job_id.partition("/")[0] in KINDS


def _kind(job_id: str) -> Kind:
    kind = job_id.partition("/")[0]
    return next(name for name in KINDS if name == kind)


def _name(job_id: str) -> str:
    return job_id.partition("/")[2]

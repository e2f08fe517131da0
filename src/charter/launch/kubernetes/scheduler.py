"""Kubernetes as an engine: an object is created, listed with its pods, and deleted; what it means is in `status`.

The calls of `kubectl`: what is asked, what came back, and what may be tried again.
"""

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from charter.errors import MissingExtraError, StageError, UsageError
from charter.launch.job import StageJob
from charter.launch.kubernetes import manifest
from charter.launch.kubernetes.manifest import KINDS, Kind, kind_of, owner_patch, secret_text
from charter.launch.kubernetes.names import JOB_LABEL, LOG_NOTE, object_name, selector
from charter.launch.kubernetes.pod import brought_secrets
from charter.launch.kubernetes.status import Pod, attempts_of, job_state, pod_of
from charter.launch.scheduler import JobAttempt, JobState
from charter.launch.secret_values import secret_values
from charter.spec.launching import KubernetesSettings

CALL_SECONDS = 60.0
"""One call; an API server that takes longer is treated as out of reach."""
TRIES = 4
PAUSE_SECONDS = 0.5
"""Before the second try, and twice as long before each further one."""
_OUT_OF_REACH = (
    "connection refused",
    "was refused - did you specify",
    "connection reset",
    "i/o timeout",
    "tls handshake timeout",
    "no such host",
    "no route to host",
    "unexpected eof",
    "context deadline exceeded",
    "server is currently unable",
    "etcdserver",
    "too many requests",
    "serviceunavailable",
)
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
        document = json.loads(self.text("get", *arguments, "--output", "json"))
        items: list[Mapping[str, Any]] = document["items"] if document.get("kind", "").endswith("List") else [document]
        return items


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


def already_exists(answer: KubectlOutput) -> bool:
    """Return True if an object of that name is there."""
    return _mentions(answer.err, ("alreadyexists", "already exists"))


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
        return manifest.render(job, self._settings)

    def submit(self, job: StageJob) -> str:
        """Create the object; that it is there already means that this very submission got through before."""
        item = manifest.manifest(job, self._settings)
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

    def _create(self, name: str, text: str) -> str:
        """Create an object; its uid, or nothing where it is there already."""
        checked = f"--validate={self._settings.validation}"
        answer = self._kubectl.run(
            "create", "--filename", "-", checked, "--output", "jsonpath={.metadata.uid}", text=text
        )
        if answer.code != 0 and not already_exists(answer):
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

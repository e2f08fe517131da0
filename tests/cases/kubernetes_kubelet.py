"""A kubelet for tests: it registers a node, says that it is well, and runs the pods that the scheduler gives it.

A pod's one container is a process of this machine: its command with its variables (plain, from fields, from secrets),
with its output in a file that the API server can read, SIGTERM and SIGKILL as a kubelet sends them, and its time limit.
No image, no volume, no isolation. `freeze` is a node that nobody hears from any more, whose processes run on.
"""

import contextlib
import os
import re
import signal
import ssl
import subprocess
import threading
import time
import urllib.error
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kubernetes_server import KubernetesServer

SYNC_SECONDS = 0.1
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


@dataclass
class RunningPod:
    """A pod whose process was started here."""

    item: dict[str, Any]
    process: "subprocess.Popen[bytes]"
    started_at: float
    reason: str = ""
    asked_to_stop: float | None = None
    reported: bool = False


@dataclass
class Kubelet:
    """One node."""

    server: KubernetesServer
    node: str
    directory: Path
    gpus: int = 0
    pods: dict[str, RunningPod] = field(default_factory=dict)
    """By uid."""

    def start(self) -> None:
        """Register the node and begin."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._frozen, self._closed = threading.Event(), threading.Event()
        self._listener = _log_server(self.directory)
        self._log_thread = threading.Thread(target=self._listener.serve_forever, daemon=True)
        self._log_thread.start()
        self._register()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def freeze(self) -> None:
        """Say nothing any more, and do nothing about pods; their processes run on."""
        self._frozen.set()

    def thaw(self) -> None:
        """Come back."""
        self._frozen.clear()

    def close(self) -> None:
        """End the node with all that runs on it."""
        self._closed.set()
        self._thread.join()
        for pod in self.pods.values():
            _send(pod.process, signal.SIGKILL)
            pod.process.wait()
        self._listener.shutdown()
        self._listener.server_close()

    def process_of(self, job: str) -> "subprocess.Popen[bytes] | None":
        """The process of a job's newest pod here that runs."""
        found = [
            pod.process
            for pod in self.pods.values()
            if pod.item["metadata"]["labels"].get("charter/job") == job and pod.process.poll() is None
        ]
        return found[-1] if found else None

    def _loop(self) -> None:
        told = 0.0
        while not self._closed.wait(SYNC_SECONDS):
            if self._frozen.is_set():
                continue
            with contextlib.suppress(OSError, urllib.error.URLError):
                if time.monotonic() - told > 1.0:
                    self._tell_ready()
                    told = time.monotonic()
                self._sync()

    def _register(self) -> None:
        self.server.request(
            "POST",
            "/api/v1/nodes",
            {"kind": "Node", "metadata": {"name": self.node, "labels": {"kubernetes.io/hostname": self.node}}},
        )
        self._tell_ready()

    def _tell_ready(self) -> None:
        now = _now()
        capacity = {"cpu": "8", "memory": "16Gi", "pods": "110", "nvidia.com/gpu": str(self.gpus)}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
        status = {
            "capacity": capacity,
            "allocatable": capacity,
            "conditions": [{**ready, "lastTransitionTime": now}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._listener.server_address[1]}},
        }
        self.server.request("PATCH", f"/api/v1/nodes/{self.node}/status", {"status": status}, kind=MERGE)

    def _sync(self) -> None:
        found = self.server.request("GET", f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.node}")["items"]
        for item in found:
            uid = item["metadata"]["uid"]
            if uid not in self.pods and item["status"].get("phase", "Pending") == "Pending":
                if "deletionTimestamp" in item["metadata"]:
                    self._delete(item)
                else:
                    self._run(item)
            if uid in self.pods:
                self._look_after(item, self.pods[uid])
        there = {item["metadata"]["uid"] for item in found}
        for uid, pod in self.pods.items():
            if uid not in there and pod.process.poll() is None:
                _send(pod.process, signal.SIGKILL)

    def _run(self, item: dict[str, Any]) -> None:
        container, metadata = item["spec"]["containers"][0], item["metadata"]
        path = self.directory / f"{metadata['namespace']}_{metadata['name']}.log"
        variables = self._variables(item)
        with path.open("ab") as log:
            process = subprocess.Popen(
                [expanded(word, variables) for word in (*container["command"], *container.get("args", ()))],
                env={"PATH": os.environ["PATH"], "HOME": str(self.directory), **variables},
                cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.pods[metadata["uid"]] = RunningPod(item=item, process=process, started_at=time.time())
        self._patch(item, {"phase": "Running", "startTime": _now(), **_container("running", {"startedAt": _now()})})

    def _look_after(self, item: dict[str, Any], pod: RunningPod) -> None:
        now, metadata = time.time(), item["metadata"]
        limit = item["spec"].get("activeDeadlineSeconds")
        if limit is not None and now - pod.started_at > limit and not pod.reason:
            pod.reason = "DeadlineExceeded"
        if ("deletionTimestamp" in metadata or pod.reason) and pod.asked_to_stop is None:
            pod.asked_to_stop = now
            _send(pod.process, signal.SIGTERM, group=False)
        given = metadata.get("deletionGracePeriodSeconds", item["spec"]["terminationGracePeriodSeconds"])
        if pod.asked_to_stop is not None and now - pod.asked_to_stop > given:
            _send(pod.process, signal.SIGKILL)
        code = pod.process.poll()
        if code is None:
            return
        _send(pod.process, signal.SIGKILL)
        if not pod.reported:
            ended = {"exitCode": code if code >= 0 else 128 - code, "finishedAt": _now(), "reason": "Completed"}
            ended |= {"startedAt": datetime.fromtimestamp(pod.started_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
            ended["reason"] = "Completed" if code == 0 else "Error"
            phase = {"phase": "Failed" if code or pod.reason else "Succeeded", "reason": pod.reason or None}
            self._patch(item, {**phase, **_container("terminated", ended)})
            pod.reported = True
        if "deletionTimestamp" in metadata:
            self._delete(item)

    def _variables(self, item: dict[str, Any]) -> dict[str, str]:
        variables: dict[str, str] = {}
        for entry in item["spec"]["containers"][0].get("env", ()):
            source = entry.get("valueFrom")
            variables[entry["name"]] = (
                self._looked_up(item, source) if source else expanded(entry.get("value", ""), variables)
            )
        return variables

    def _looked_up(self, item: dict[str, Any], source: dict[str, Any]) -> str:
        if "secretKeyRef" in source:
            import base64

            reference, space = source["secretKeyRef"], item["metadata"]["namespace"]
            secret = self.server.request("GET", f"/api/v1/namespaces/{space}/secrets/{reference['name']}")
            return base64.b64decode(secret["data"][reference["key"]]).decode()
        path = source["fieldRef"]["fieldPath"]
        if path.startswith("metadata.annotations['"):
            return str(item["metadata"].get("annotations", {}).get(path.split("'")[1], ""))
        return str({"metadata.name": item["metadata"]["name"], "spec.nodeName": item["spec"]["nodeName"]}[path])

    def _patch(self, item: dict[str, Any], status: dict[str, Any]) -> None:
        path = f"/api/v1/namespaces/{item['metadata']['namespace']}/pods/{item['metadata']['name']}/status"
        self.server.request("PATCH", path, {"status": status}, kind=STRATEGIC)

    def _delete(self, item: dict[str, Any]) -> None:
        metadata = item["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        with contextlib.suppress(urllib.error.HTTPError):
            self.server.request("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})


def expanded(text: str, variables: dict[str, str]) -> str:
    """`$(NAME)` by its value, where there is one; `$$` by `$` (Kubernetes API, EnvVar.value and Container.command)."""
    return re.sub(
        r"\$\$|\$\(([^)]*)\)",
        lambda found: "$" if found[0] == "$$" else variables.get(found[1], found[0]),
        text,
    )


def _container(state: str, details: dict[str, Any]) -> dict[str, Any]:
    status = {"name": "stage", "image": "", "imageID": "", "ready": state == "running", "restartCount": 0}
    return {"containerStatuses": [{**status, "state": {state: details}}]}


def _send(process: "subprocess.Popen[bytes]", number: signal.Signals, *, group: bool = True) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(process.pid, number)
        elif process.poll() is None:
            os.kill(process.pid, number)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _log_server(directory: Path) -> ThreadingHTTPServer:
    """What the API server asks for `kubectl logs`: `/containerLogs/NAMESPACE/POD/CONTAINER`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, _, space, pod, *_ = self.path.split("?")[0].split("/")
            path = directory / f"{space}_{pod}.log"
            body = path.read_bytes() if path.exists() else b""
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    key, certificate = directory / "kubelet.key", directory / "kubelet.crt"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    return server

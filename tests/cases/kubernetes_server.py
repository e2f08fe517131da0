"""A real Kubernetes control plane for tests: etcd, API server, controllers and scheduler, on private ports.

The programs are Kubernetes 1.20.2, built once from Debian's source by `tools/kubernetes_server.sh` (no package and no
registry has them built). Only the kubelets are ours: `kubernetes_kubelet` runs the command of a pod as a process here.
"""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waiting import eventually

CACHE = Path(os.environ.get("CHARTER_KUBERNETES", Path.home() / ".cache" / "charter-kubernetes"))
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
TOKEN = "tests-only"
SECONDS_TO_START = 90
CONTROLLERS = "--controllers=job,garbagecollector,nodelifecycle,podgc,namespace,persistentvolume-binder"
NODE_GRACE_SECONDS = 4
"""After so long without a word from a kubelet the controller calls its node lost; 40 s unless told otherwise."""


def program(name: str) -> Path | None:
    """Where a program of the control plane is."""
    places = (CACHE / "bin" / name, CACHE / "root" / "usr" / "bin" / name, Path("/usr/bin") / name)
    return next((path for path in places if path.exists()), None)


def missing() -> list[str]:
    """Programs that are not there."""
    return [name for name in PROGRAMS if program(name) is None]


@dataclass
class KubernetesServer:
    """The control plane; `start` returns when it answers."""

    directory: Path
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    port: int = 0

    @property
    def kubeconfig(self) -> Path:
        """For `kubectl`, with the context `tests`."""
        return self.directory / "kubeconfig"

    @property
    def address(self) -> str:
        """Of the API server."""
        return f"https://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start all programs and wait until the API server and the namespace `default` are there."""
        self.directory.mkdir(parents=True, exist_ok=True)
        etcd, peers, self.port = free_port(), free_port(), free_port()
        self._secrets()
        store = f"http://127.0.0.1:{etcd}"
        self._begin(
            "etcd", f"--data-dir={self.directory / 'etcd'}", f"--listen-client-urls={store}",
            f"--advertise-client-urls={store}", f"--listen-peer-urls=http://127.0.0.1:{peers}", "--unsafe-no-fsync",
        )  # fmt: skip
        self._wait(lambda: urllib.request.urlopen(f"{store}/health", timeout=1).read())
        self.start_api_server(store)
        common = (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--port=0", "--secure-port=0")
        self._begin(
            "kube-controller-manager", *common, CONTROLLERS,
            f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s", "--node-monitor-period=1s",
        )  # fmt: skip
        self._begin("kube-scheduler", *common)

    def start_api_server(self, store: str | None = None) -> None:
        """Start the API server (again, on the same port and store)."""
        self._store = store or self._store
        key = self.directory / "service.key"
        self._begin(
            "kube-apiserver", f"--etcd-servers={self._store}", f"--secure-port={self.port}",
            "--bind-address=127.0.0.1", f"--cert-dir={self.directory / 'certificates'}",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://tests", f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=AlwaysAllow", "--service-cluster-ip-range=10.96.0.0/24",
            "--disable-admission-plugins=ServiceAccount", "--allow-privileged=false",
        )  # fmt: skip
        self._wait(lambda: self.request("GET", "/api/v1/namespaces/default"))

    def stop_program(self, name: str) -> None:
        """End one program as a crash does."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End everything."""
        for name in reversed([*self.processes]):
            self.stop_program(name)

    def request(self, method: str, path: str, body: Any = None, *, kind: str = "application/json") -> Any:
        """One request of the API; the answer's JSON."""
        request = urllib.request.Request(
            self.address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": kind},
        )
        with urllib.request.urlopen(request, timeout=10, context=_trusting()) as answer:
            return json.loads(answer.read())

    def new_claim(self, name: str, path: Path) -> None:
        """A volume claim of the namespace `default`, bound to a directory; the test's kubelets mount nothing."""
        common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        volume = {**common, "capacity": {"storage": "1Gi"}, "hostPath": {"path": str(path)}}
        metadata, body = {"name": name}, {**common, "resources": {"requests": {"storage": "1Gi"}}}
        self.request("POST", "/api/v1/persistentvolumes", {"metadata": metadata, "spec": volume})
        claims = "/api/v1/namespaces/default/persistentvolumeclaims"
        self.request("POST", claims, {"metadata": metadata, "spec": body})
        bound = {"volumeName": name}
        self.request("PATCH", f"{claims}/{name}", {"spec": bound}, kind="application/merge-patch+json")
        eventually(lambda: self.request("GET", f"{claims}/{name}")["status"].get("phase") == "Bound", every=0.1)

    def _secrets(self) -> None:
        (self.directory / "tokens.csv").write_text(f"{TOKEN},tests,tests,system:masters\n")
        command = ["openssl", "genrsa", "-out", str(self.directory / "service.key"), "2048"]
        subprocess.run(command, check=True, capture_output=True)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": {"server": self.address, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "tests", "user": {"token": TOKEN}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        }
        self.kubeconfig.write_text(json.dumps(config))

    def _begin(self, name: str, *arguments: str) -> None:
        found = program(name)
        assert found is not None, f"{name} is not there; tools/kubernetes_server.sh builds it"
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(found), *arguments], stdout=log, stderr=log, cwd=self.directory, start_new_session=True
            )

    def _wait(self, ask: Any) -> None:
        def answers() -> bool:
            with contextlib.suppress(OSError, urllib.error.URLError):
                ask()
                return True
            return False

        what = f"the control plane did not start; see the logs in {self.directory}"
        eventually(answers, what, seconds=SECONDS_TO_START, every=0.1)


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context

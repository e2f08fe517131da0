"""One control plane for all tests of this directory, and fresh nodes for each of them."""

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from kubernetes_kubelet import Kubelet
from kubernetes_server import KubernetesServer, missing
from waiting import eventually

from charter.launch.job import StageJob
from charter.launch.kubernetes.scheduler import Kubectl, KubernetesScheduler, run_process
from charter.spec.launching import KubernetesSettings

pytest.register_assert_rewrite("scheduler_contract", "engine_workplace")
_NUMBERS = itertools.count(1)
WAIT_SECONDS = 90


def pytest_collection_modifyitems(items):
    if absent := missing():
        reason = f"needs a Kubernetes control plane ({', '.join(absent)}); tools/kubernetes_server.sh builds it"
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def server():
    with tempfile.TemporaryDirectory(prefix="charter-kubernetes-") as directory:
        running = KubernetesServer(Path(directory) / "server")
        running.start()
        running.new_claim("runs", Path(directory))
        try:
            yield running
        finally:
            running.stop()


@pytest.fixture
def kubelets(server, tmp_path):
    """Three nodes of eight CPUs, gone afterwards with everything on them."""
    nodes = [Kubelet(server, f"node-{next(_NUMBERS)}", tmp_path / f"kubelet-{number}", gpus=4) for number in range(3)]
    for node in nodes:
        node.start()
    yield nodes
    for node in nodes:
        node.thaw()
        node.close()
        server.request("DELETE", f"/api/v1/nodes/{node.node}")


@pytest.fixture
def settings(tmp_path):
    # 1.20 knows neither Indexed Jobs nor failure policies: it drops these fields, where a newer one would refuse none.
    return KubernetesSettings(
        image="charter:tests", volume_claim="runs", mount_path=str(tmp_path.parent), validation="ignore"
    )


@pytest.fixture
def calls():
    """Every call of kubectl that was made."""
    return []


@pytest.fixture
def scheduler(server, kubelets, settings, calls, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))

    def counted(command, text):
        calls.append(command)
        return run_process(command, text)

    return KubernetesScheduler(settings, kubectl=Kubectl(settings=settings, call=counted))


@pytest.fixture
def job(tmp_path):
    """Makes jobs of shell scripts."""

    def made(script, **changes):
        directory = tmp_path / "stage"
        directory.mkdir(exist_ok=True)
        plain = StageJob(
            name=f"charter-tests-sft-{next(_NUMBERS)}", run="tests", stage="sft", kind="sft", attempt=1,
            command=("/bin/sh", "-c", script), directory=directory, log=directory / "log", stop_before_seconds=2,
        )  # fmt: skip
        return replace(plain, **changes)

    return made


@pytest.fixture
def wait(scheduler):
    """Polls until a job stands as asked; returns its state."""

    def until(number, **wanted):
        def as_wanted():
            state = scheduler.poll([number])[number]
            return state if all(getattr(state, name) == value for name, value in wanted.items()) else None

        return eventually(as_wanted, lambda: f"{number} is not {wanted}", seconds=WAIT_SECONDS, every=0.2)

    return until

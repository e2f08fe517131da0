"""Engines that are applications of Ray, on two nodes of a real Slurm, with a Ray of their own."""

import json
import os
import signal

import engines_over_nodes as engines
import hosted_case as case
import pytest

pytest.importorskip("torch")
pytest.importorskip("ray", reason='pip install ".[dev-system]"')


@pytest.fixture(autouse=True)
def of_this_cluster(cluster, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(cluster.configuration))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def project(root, engine):
    return engines.project(root, engine, infra="slurm", settings="slurm: {}")


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    """Hashes of a run to which nothing happens."""
    root = project(tmp_path_factory.mktemp("undisturbed") / "project", "verl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.configuration))
        return engines.undisturbed_hashes(root)


def node_of(root, number):
    (path,) = root.glob(f"run/stages/rl-*/jobs/0001/node-0-{number}.json")
    return json.loads(path.read_text())["node"]


def lose_first(cluster, root):
    cluster.power_off(node_of(root, 0))


def lose_second(cluster, root):
    cluster.power_off(node_of(root, 1))


def kill_trainer(cluster, root):
    """The program that drives Ray, with which nothing but it ends."""
    pids = [
        pid for pid, words in case.engine_processes(root).items() if "train_ppo_ray" in words and "bash" not in words
    ]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "harm"), [("verl", lose_second), ("nemo_rl", lose_first), ("openrlhf", kill_trainer)]
)
def test_an_engine_goes_on_from_its_checkpoint(cluster, undisturbed, tmp_path, engine, harm):
    root = project(tmp_path / "project", engine)
    engines.goes_on(root, undisturbed, lambda workers: harm(cluster, root))

"""Engines that are applications of Ray, on two nodes of a real cluster: lost nodes, a kill, the bill."""

import json
import os
import signal

import engines_over_nodes as engines
import hosted_case as case
import pytest
from ray_cluster import RayCluster

pytest.importorskip("torch")


def project(root, cluster: RayCluster, engine):
    return engines.project(root, engine, infra="ray", settings=f'ray: {{address: "{cluster.address}"}}')


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    """Hashes of a run to which nothing happens."""
    root = tmp_path_factory.mktemp("undisturbed") / "project"
    return engines.undisturbed_hashes(project(root, cluster, "verl"))


@pytest.fixture
def mended(cluster):
    """All nodes live again afterwards."""
    yield cluster
    cluster.mend()


def driver_node(root):
    (path,) = root.glob("run/stages/rl-*/jobs/0001/node-0-0.json")
    return json.loads(path.read_text())["node"]


def lose_driver(cluster, root, workers):
    cluster.lose_node(driver_node(root))


def lose_another(cluster, root, workers):
    """A node on which the engine has workers, and the driver is not."""
    own = cluster.id_of(driver_node(root))
    cluster.lose_node(f"host/{next(node for node in workers if node != own)}")


def kill_engine(cluster, root, workers):
    found = [pid for pid, words in case.engine_processes(root).items() if "run_grpo" in words and "guard" not in words]
    assert found
    for pid in found:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "harm"),
    [("verl", lose_another), ("verl", lose_driver), ("nemo_rl", kill_engine), ("openrlhf", lose_another)],
)
def test_an_engine_goes_on_from_its_checkpoint(mended, undisturbed, tmp_path, engine, harm):
    root = project(tmp_path / "project", mended, engine)
    engines.goes_on(root, undisturbed, lambda workers: harm(mended, root, workers))

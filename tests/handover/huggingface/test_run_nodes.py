"""TRL's SFT on two nodes of a real Slurm and of a real Ray: a node is lost at work, and the hashes stay the same."""

import contextlib
import json

import hosted_case as case
import pytest
from engine_case import engine_python
from ray_cluster import RayCluster
from slurm_cluster import SlurmCluster, missing_programs, slurm_cluster

EVERY, STEPS, HELD_AT = 4, 12, 7
NODES = "infra: local, cpus: 2, accelerators: 'cpu:1', num_nodes: 2,"


@pytest.fixture(scope="module")
def slurm():
    missing = missing_programs()
    assert not missing, f"{missing}: tools/system_packages.sh installs what tests of Slurm need; they run as root"
    with slurm_cluster() as started:
        yield started


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with contextlib.closing(Stopping()) as started:
        yield started


class Stopping(RayCluster):
    """A cluster of a head and three nodes that `closing` ends."""

    close = RayCluster.stop


def project(root):
    case.write_project(root, python=engine_python("huggingface"), steps=STEPS, every=EVERY)
    path = root / "charter.yaml"
    path.write_text(path.read_text().replace("infra: local, cpus: 1,", NODES))
    return root


@pytest.fixture(scope="module")
def undisturbed(slurm, tmp_path_factory):
    """Hashes of a run of two nodes to which nothing happens."""
    root = project(tmp_path_factory.mktemp("undisturbed") / "project")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(slurm.configuration))
        ended = case.charter(root, "run", "--yes", "--only", "sft", "--on", "slurm")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return case.outputs_of(root)["sft"]


def record_of_second_node(root):
    (path,) = root.glob("run/stages/sft-*/jobs/0001/node-0-1.json")
    return json.loads(path.read_text())


def survives(root, words, lose):
    """Run, lose the second node before a step, and go on; what each attempt came to."""
    stands = case.hold(root, "sft", before_step=HELD_AT)
    with contextlib.closing(case.Run(root, "--only", "sft", *words)) as run:
        run.wait_for(lambda: stands.exists() and case.has_checkpoint(root, "sft", EVERY)())
        record = record_of_second_node(root)
        assert (record["first_rank"], record["processes"]) == (1, 1)
        lose(record["node"])
        case.let_go(root, "sft")
        assert run.process.wait(timeout=2 * case.HANG_SECONDS) == 0, (root / "run.log").read_text()
    attempts = case.answered(root, "cost", "report")["attempts"]
    return [(item["outcome"], item["first_step"]) for item in attempts]


@pytest.mark.slow
def test_a_node_of_slurm_that_loses_power_is_replaced(slurm: SlurmCluster, undisturbed, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(slurm.configuration))
    root = project(tmp_path / "project")
    attempts = survives(root, ("--on", "slurm"), slurm.power_off)
    assert attempts == [("killed", 0), ("done", EVERY)]
    assert case.outputs_of(root)["sft"] == undisturbed


@pytest.mark.slow
def test_a_node_of_ray_that_is_lost_is_replaced(ray: RayCluster, undisturbed, tmp_path):
    root = project(tmp_path / "project")
    words = ("--on", "ray", "--set", f"launch.ray.address={ray.address}")
    attempts = survives(root, words, ray.lose_node)
    assert attempts[0] == ("killed", 0)
    assert attempts[-1] == ("done", EVERY)
    assert case.outputs_of(root)["sft"] == undisturbed

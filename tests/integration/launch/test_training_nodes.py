"""Real training by two nodes of two processes each, started by torchrun under the agents: the bits of one machine."""

import subprocess
import sys
from pathlib import Path

import forks
import pytest

from charter.engines.project import load_project
from charter.launch.scheduler import STATE_VARIABLE
from charter.run.status import status_of

pytestmark = [pytest.mark.torch, pytest.mark.slow]
SETTINGS = (
    "pipeline.pretrain.steps=6",
    "pipeline.pretrain.checkpoint_every=3",
    "resources.accelerators=[cpu:2]",
    "resources.num_nodes=2",
    "resources.cpus=4",
)


def trained(project: Path, engine: str, launcher: str) -> dict[str, str]:
    """The outputs of the first stage of cai-smoke, trained by four processes."""
    charter = [sys.executable, "-m", "charter.cli.main"]
    forks.run([*charter, "init", "--template", "cai-smoke", str(project)], check=True, stdout=subprocess.DEVNULL)
    words = [word for setting in (*SETTINGS, f"launch.launcher={launcher}") for word in ("--set", setting)]
    command = [*charter, "run", "-C", str(project), "--on", engine, "--yes", "--only", "pretrain", *words]
    done = forks.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    stages = status_of(load_project(project, overrides=SETTINGS), project)["stages"]
    return next(stage["outputs"] for stage in stages if stage["name"] == "pretrain")


@pytest.mark.thorough
def test_two_nodes_under_torchrun_train_the_bits_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "state"))
    here = trained(tmp_path / "here", "local", "direct")
    assert here
    assert trained(tmp_path / "nodes", "subprocess", "torchrun") == here
    (stage,) = (tmp_path / "nodes" / "run" / "stages").glob("pretrain-*")
    assert "log-2.txt" in {path.name for path in stage.iterdir()}, "the second node's processes print there"
    assert len(list((stage / "jobs" / "0001").glob("node-0-*.json"))) == 2

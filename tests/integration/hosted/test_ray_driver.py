"""An engine that is an application of Ray, from its driver: the nodes that it is told of, what counts as a lost one."""

import json
import os
import sys

import faked
import pytest
from test_faults import run, stage_of, states

from charter.artifacts.stage_process import PEER_EXIT
from charter.errors import StageError
from charter.hosted.engine_process import engine_environment, ray_environment
from charter.launch.job import ENGINE_NODES

pytestmark = pytest.mark.torch


@pytest.fixture
def stage(tmp_path, inputs, monkeypatch):
    monkeypatch.setenv(ENGINE_NODES, "2")
    return stage_of(tmp_path / "s", inputs)


def test_an_engine_that_lost_a_worker_starts_again(stage, monkeypatch):
    with pytest.raises(SystemExit) as ended:
        run(stage, monkeypatch, "lost:5")
    assert ended.value.code == PEER_EXIT
    told = json.loads((stage.path / "failure.json").read_text())["message"]
    assert told == "TRL lost the connection between its nodes at step 4 of 6"
    assert states(stage) == ["2", "4"]


def test_an_error_of_its_own_is_no_loss(stage, monkeypatch):
    with pytest.raises(StageError, match=r"(?s)TRL ended with exit code 1 at step 4 of 6.*rabbit"):
        run(stage, monkeypatch, "unmade:5")


def test_without_a_cluster_the_same_error_is_the_stages(stage, monkeypatch):
    monkeypatch.delenv(ENGINE_NODES)
    with pytest.raises(StageError, match="ActorDiedError"):
        run(stage, monkeypatch, "lost:5")


def test_one_driver_is_told_of_all_nodes(stage, monkeypatch):
    told, rendered = [], faked.render

    def render(handover):
        told.append((handover.num_nodes, handover.on_ray, handover.starts_ray))
        return rendered(handover)

    monkeypatch.setattr(faked, "render", render)
    with pytest.raises(StageError):
        run(stage, monkeypatch, "nothing")
    assert told == [(2, True, False)]


def test_workers_on_other_nodes_get_its_variables_and_its_python(monkeypatch):
    """Ray shows a task without accelerators none; the engine's driver may hand that on to workers that have some."""
    monkeypatch.setenv(ENGINE_NODES, "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    own = engine_environment(ray_environment({"MADE_BY": "charter"}, python=sys.executable), python=sys.executable)
    assert "CUDA_VISIBLE_DEVICES" not in own
    sent = json.loads(own["RAY_JOB_CONFIG_JSON_ENV_VAR"])["runtime_env"]
    assert sent["py_executable"] == sys.executable
    path = f"{os.path.dirname(sys.executable)}:${{PATH}}"
    assert sent["env_vars"] == {"HF_HUB_OFFLINE": "1", "MADE_BY": "charter", "PATH": path}
    assert own["MADE_BY"] == "charter"

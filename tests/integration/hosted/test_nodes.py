"""A stage of another engine on two nodes: a process of Charter's on each, which start, end and fail as one."""

import json
import os
import signal
import sys
from pathlib import Path

import faked
import forks
import pytest
from test_faults import lines_of, run, stage_of, states

from charter.artifacts.group import rank_environment
from charter.artifacts.record import read_record
from charter.artifacts.stage_process import INTERRUPTED_EXIT, PEER_EXIT
from charter.errors import InterruptedRunError, StageError

pytestmark = pytest.mark.torch


def place_of(node):
    return rank_environment(node, processes=2, group="1-a", first=node, here=1)


@pytest.fixture
def stage(tmp_path, inputs, monkeypatch):
    """The stage as the first node's process sees it, which is the test's own."""
    for name, value in place_of(0).items():
        monkeypatch.setenv(name, value)
    return stage_of(tmp_path / "s", inputs)


def beside(stage):
    """The process of the second node."""
    command = [sys.executable, str(Path(faked.__file__)), "--stage-dir", str(stage.path)]
    return forks.Process(command, preload=forks.STAGES, env={**os.environ, **place_of(1)}, start_new_session=True)


def failure(stage):
    return json.loads((stage.path / "failure.json").read_text())["message"]


def test_the_first_node_publishes_and_the_other_ends_with_it(stage, tmp_path, inputs, monkeypatch):
    other = beside(stage)
    run(stage, monkeypatch)
    assert other.wait() == 0
    with monkeypatch.context() as alone:
        alone.setenv("WORLD_SIZE", "1")
        single = stage_of(tmp_path / "alone", inputs)
        run(single, monkeypatch)
    assert read_record(stage.path).outputs == read_record(single.path).outputs
    assert [line["step"] for line in lines_of(stage)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("beside-crash", r"(?s)TRL ended with exit code 1 on node 1 at step 2 of 6.*this node has no rabbit"),
        ("crash:5", r"(?s)TRL ended with exit code 1 on node 0 at step 4 of 6.*the loss is a rabbit"),
    ],
)
def test_the_first_node_says_what_has_failed_and_where(stage, monkeypatch, fault, words):
    other = beside(stage)
    with pytest.raises(StageError, match=words):
        run(stage, monkeypatch, fault)
    assert other.wait() == PEER_EXIT
    assert states(stage)


def test_a_node_whose_engine_was_killed_is_one_that_was_lost(stage, monkeypatch):
    other = beside(stage)
    with pytest.raises(SystemExit) as ended:
        run(stage, monkeypatch, "beside-kill")
    assert (ended.value.code, other.wait()) == (PEER_EXIT, PEER_EXIT)
    assert failure(stage) == "TRL was killed by signal 9 on node 1"
    assert states(stage) == ["2"]


def test_a_node_that_says_nothing_is_one_that_was_lost(stage, monkeypatch):
    monkeypatch.setattr("charter.hosted.engine_process.TOLD_SECONDS", 0.0)
    with pytest.raises(SystemExit) as ended:
        run(stage, monkeypatch, "crash:3")
    assert ended.value.code == PEER_EXIT
    assert failure(stage) == "TRL was lost on node 1"


def test_a_stop_ends_both_nodes_at_the_next_checkpoint(stage, tmp_path, inputs, monkeypatch):
    gate = tmp_path / "gate"
    monkeypatch.setenv("GATE", str(gate))

    def should_stop():
        """Tell the other node too, once it has begun; only then may the engine come to its next checkpoint."""
        if not lines_of(stage) or not (stage.path / "engine" / "log-1.txt").exists():
            return False
        if not gate.exists():
            other.send_signal(signal.SIGTERM)
            gate.touch()
        return True

    first, other = stage_of(stage.path, inputs, should_stop=should_stop), beside(stage)
    with pytest.raises(InterruptedRunError, match="stopped after the checkpoint of step 2 of 6"):
        run(first, monkeypatch, "gate:2")
    assert other.wait() == INTERRUPTED_EXIT
    assert states(stage) == ["2"]

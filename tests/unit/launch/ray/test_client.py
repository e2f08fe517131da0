"""The supervisor's side without a cluster: what is missing is told, and what could be done about it."""

import sys

import pytest

from charter.errors import MissingExtraError, StageError, UsageError
from charter.launch.job import StageJob, secret_values
from charter.launch.ray import scheduler
from charter.launch.ray.cluster_view import death_of, matching_ids
from charter.launch.ray.scheduler import BridgeClient, RayScheduler
from charter.spec.launching import RaySettings

ECHO = """
import json, sys
print(json.dumps({"result": "connected"}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message["arguments"] == ["die"]:
        sys.exit(3)
    print(json.dumps({"id": message["id"], "result": [message["verb"], *message["arguments"]]}), flush=True)
"""


@pytest.fixture
def bridge_of(monkeypatch):
    """A client whose bridge is a program of the test: what fails is injected, the pipes are real."""
    monkeypatch.setattr(scheduler, "find_spec", lambda name: object())
    clients = []

    def make(program):
        monkeypatch.setattr(scheduler, "bridge_command", lambda address: [sys.executable, "-c", program])
        clients.append(BridgeClient("10.0.0.7:6379"))
        return clients[-1]

    yield make
    for each in clients:
        each.close()


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(scheduler, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install .\.\[ray\]"):
        BridgeClient("auto")


def test_questions_go_to_one_bridge_until_it_dies_and_then_to_the_next(bridge_of):
    bridge = bridge_of(ECHO)
    assert bridge.ask("poll", ["a"]) == ["poll", ["a"]]
    first = bridge._process
    assert bridge.ask("knows", "b") == ["knows", "b"]
    assert bridge._process is first
    first.kill()
    first.wait()
    assert bridge.ask("knows", "c") == ["knows", "c"]
    assert bridge._process is not first


def test_a_bridge_that_dies_under_the_same_question_twice_is_a_failure_and_not_a_loop(bridge_of):
    with pytest.raises(StageError, match="the connection broke twice"):
        bridge_of(ECHO).ask("poll", "die")


def test_a_bridge_that_talks_nonsense_is_left_for_another(bridge_of):
    chatty = ECHO.replace("    if message", "    print('ray: hello', flush=True)\n    if message", 1)
    with pytest.raises(StageError, match="the connection broke twice"):
        bridge_of(chatty).ask("knows", "a")


def test_a_cluster_that_is_not_there_is_told_with_what_would_work(bridge_of):
    program = 'import json; print(json.dumps({"error": "no such cluster", "kind": "ConnectionError"}), flush=True)'
    with pytest.raises(UsageError, match=r"10\.0\.0\.7:6379: no such cluster\n(.|\n)*ray start --head"):
        bridge_of(program).ask("poll", [])


def test_a_bridge_that_ends_without_a_word_is_told_with_what_it_printed(bridge_of):
    with pytest.raises(UsageError, match="it ended at once\n  it printed: out of luck"):
        bridge_of("import sys; sys.exit('out of luck')").ask("poll", [])


def test_missing_secrets_are_told_all_at_once_before_anything_is_asked_of_the_cluster(monkeypatch, tmp_path):
    key = tmp_path / "key"
    key.write_text("abc\n")
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    assert secret_values({"A": f"file:{key}"}) == {"A": "abc"}
    job = StageJob(
        name="j",
        run="r",
        stage="s",
        kind="label",
        attempt=1,
        command=("true",),
        directory=tmp_path,
        log=tmp_path / "log",
        secrets={"JUDGE_KEY": "env:JUDGE_KEY", "OTHER": "file:/nowhere", "A": f"file:{key}"},
    )
    with pytest.raises(UsageError, match=r"JUDGE_KEY \(env:JUDGE_KEY\), OTHER \(file:/nowhere\)"):
        RayScheduler(RaySettings()).submit(job)


def test_a_node_that_was_taken_away_is_told_from_one_that_broke():
    nodes = [
        {"NodeID": "a", "Alive": False, "DeathReason": 3},
        {"NodeID": "b", "Alive": False, "DeathReason": 2},
        {"NodeID": "c", "Alive": True},
    ]
    assert death_of(nodes, {"a", "c"}) == ("preempted", "PREEMPTED")
    assert death_of(nodes, {"b"}) == ("node_lost", "NODE_DIED")
    assert death_of(nodes, {"c"}) == ("", "")


def test_nodes_are_left_out_by_any_of_their_names():
    node = {"Alive": True, "NodeManagerHostname": "gpu-3", "NodeName": "rack1-3", "NodeManagerAddress": "10.0.0.3"}
    nodes = [{**node, "NodeID": "ab12"}, {**node, "NodeID": "cd34", "NodeManagerHostname": "gpu-4", "NodeName": "n"}]
    nodes[1]["NodeManagerAddress"] = "10.0.0.4"
    assert matching_ids(nodes, ["gpu-3"]) == matching_ids(nodes, ["gpu-3/ab12"]) == ["ab12"]
    assert matching_ids(nodes, ["rack1-3", "10.0.0.4"]) == ["ab12", "cd34"]
    assert matching_ids(nodes, ["ab", "gpu"]) == []

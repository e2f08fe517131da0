"""Runs told to real MLflow servers, which are killed, frozen and brought back; processes of ours are killed too."""

import json
import os
import signal
from pathlib import Path

import pytest
from tracked_runs import (
    is_metered,
    kill_tracking,
    mlflow_points,
    nested_runs,
    told,
    tracking_processes,
    written_points,
)

LONG = 600.0


@pytest.fixture
def tracked(work, server, request):
    """A project that names the server, in an experiment of its own."""
    experiment = f"experiment-{request.node.name}".replace("[", "-").replace("]", "")
    entry = f"{{mlflow: {{uri: '{server.uri}', experiment: {experiment}}}, drain: 4m}}"
    work.edit("name: count", f"name: count\nowner: ann\ntags: {{team: safety}}\ntracking: [{entry}]\n")
    work.edit("metering: {every: 0}", "metering: {every: 0.3s}")
    work.experiment = experiment
    return work


def arrived(work, server):
    return mlflow_points(server.client(), work.experiment, told(work.root, "mlflow")[""]["id"])


def behind(finished):
    return [event for event in finished.events if event["event"] == "tracking_behind"]


def test_a_pipeline_is_one_run_with_nested_stages(tracked, server, undisturbed, held):
    run = held("b")
    run.start()
    tracked.wait_for(lambda: is_metered(tracked.root, "b"), seconds=LONG)
    done = run.go_on()
    assert (done.code, behind(done)) == (0, []), done.err
    assert tracked.outputs() == undisturbed
    assert arrived(tracked, server) == written_points(tracked.root)
    client, parent = server.client(), told(tracked.root, "mlflow")[""]["id"]
    assert client.get_run(parent).info.status == "FINISHED"
    assert client.get_run(parent).data.tags["team"] == "safety"
    stages = {run.data.tags["charter.stage"]: run for run in nested_runs(client, tracked.experiment, parent)}
    assert set(stages) == {"a", "b", "c"}
    stage = stages["b"]
    assert (stage.info.status, stage.data.params["steps"], stage.data.tags["charter.owner"]) == ("FINISHED", "6", "ann")
    fingerprint = tracked.status()["b"]["fingerprint"]
    assert stage.data.tags["charter.fingerprint"] == fingerprint
    read = {(item.dataset.name, item.tags[0].value) for item in stage.inputs.dataset_inputs}
    assert read == {("a", "init"), ("chat", "data")}
    kept = {item.path for item in client.list_artifacts(stage.info.run_id)}
    assert {"record.json", "timings.json"} <= kept
    path = client.download_artifacts(stage.info.run_id, "record.json", str(tracked.root))
    assert json.loads(Path(path).read_text())["fingerprint"] == fingerprint
    assert any(name.startswith("system/") and name.endswith("/processes") for name in stage.data.metrics)


@pytest.mark.parametrize("server", [pytest.param("sqlite", marks=pytest.mark.smoke), "postgres"], indirect=True)
def test_a_server_killed_in_the_middle_of_a_run_has_everything_once_it_is_back(tracked, server, undisturbed, held):
    run = held("b")
    run.start()
    tracked.wait_for(lambda: "a" in arrived_or_nothing(tracked, server), seconds=LONG)
    server.kill()
    done = run.go_on()
    assert done.code == 0, done.err
    (event,) = behind(done)
    assert event["trackers"] == ["mlflow"]
    assert tracked.outputs() == undisturbed
    dead = tracked.charter("status", "track", "sync")
    assert (dead.code, "mlflow" in dead.err) == (6, True)
    server.start()
    synced = tracked.charter("status", "track", "sync", "--json")
    assert synced.code == 0, synced.err
    assert json.loads(synced.out)["trackers"][0]["is_up_to_date"]
    assert arrived(tracked, server) == written_points(tracked.root)


def arrived_or_nothing(work, server):
    try:
        return arrived(work, server)
    except (KeyError, AttributeError, FileNotFoundError):
        return {}


def test_a_frozen_server_holds_nothing_up_and_the_next_run_delivers(tracked, server, undisturbed):
    server.signal(signal.SIGSTOP)
    try:
        done = tracked.run(timeout=LONG, MLFLOW_HTTP_REQUEST_TIMEOUT="10")
        assert done.code == 0, done.err
        assert behind(done)
        assert tracked.outputs() == undisturbed
    finally:
        server.signal(signal.SIGCONT)
    tracked.wait_for(server.works, seconds=LONG)
    again = tracked.run(timeout=LONG)
    assert (again.code, behind(again)) == (0, []), again.err
    assert again.names("stage_started") == []
    assert arrived(tracked, server) == written_points(tracked.root)


def test_a_killed_follower_and_sender_lose_and_double_nothing(tracked, server, undisturbed, held):
    run = held("b")
    run.start()
    tracked.wait_for(lambda: "b" in arrived_or_nothing(tracked, server), seconds=LONG)
    assert kill_tracking(tracked.root) == 2, "a follower and a sender"
    done = run.go_on()
    assert done.code == 0, done.err
    assert tracked.outputs() == undisturbed
    assert behind(done)
    synced = tracked.charter("status", "track", "sync")
    assert synced.code == 0, synced.err
    assert arrived(tracked, server) == written_points(tracked.root)


def test_a_lost_record_of_what_was_told_finds_its_runs_again(tracked, server):
    """A kill between the creation of a run and the note of its number: the tag finds it, and nothing is doubled."""
    assert tracked.run(timeout=LONG).code == 0
    first = told(tracked.root, "mlflow")
    (tracked.root / "run/tracking/mlflow.json").unlink()
    assert tracked.charter("status", "track", "sync").code == 0
    again = told(tracked.root, "mlflow")
    assert {key: item["id"] for key, item in again.items()} == {key: item["id"] for key, item in first.items()}
    assert arrived(tracked, server) == written_points(tracked.root)


def test_steps_done_again_after_a_kill_are_told_once(tracked, server, undisturbed, held):
    run = held("b")
    process = run.start()
    tracked.wait_for(lambda: "b" in arrived_or_nothing(tracked, server), seconds=LONG)
    os.killpg(process.pid, signal.SIGKILL)
    tracked.wait_for(lambda: not tracking_processes(tracked.root), seconds=LONG)
    resumed = tracked.run(timeout=LONG)
    assert (resumed.code, behind(resumed)) == (0, []), resumed.err
    assert tracked.outputs() == undisturbed
    assert arrived(tracked, server) == written_points(tracked.root)
    parent = told(tracked.root, "mlflow")[""]["id"]
    tags = server.client().get_run(parent).data.tags
    assert (tags["charter.attempts"], tags["charter.interruptions"]) == ("2", "1")

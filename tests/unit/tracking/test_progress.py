"""States of a run and its stages from events."""

import json

import pytest

from charter.artifacts import durable
from charter.metering.sampler import LocalMeters
from charter.tracking.forward import Endpoint, RunFollower
from charter.tracking.journal import tracking_dir
from charter.tracking.progress import RunProgress
from charter.tracking.run_facts import Followed
from charter.tracking.send import Drained


@pytest.fixture
def run(tmp_path):
    for name in ("a-00000001", "b-00000002"):
        (tmp_path / "stages" / name).mkdir(parents=True)
    return tmp_path


def write(run, *events):
    with (run / "events.jsonl").open("a") as file:
        for time, event, details in events:
            file.write(json.dumps({"time": time, "event": event, **details}) + "\n")


def add_text(run, text):
    with (run / "events.jsonl").open("a") as file:
        file.write(text)


def start(run, name, time):
    directory = {"a": "a-00000001", "b": "b-00000002"}[name]
    write(run, (time, "stage_started", {"stage": name, "directory": f"/elsewhere/run/stages/{directory}"}))


def states(progress):
    return {path.name[0]: standing.state for path, standing in progress.stages.items()}


def test_a_run_from_start_to_end(run):
    progress = RunProgress(run_dir=run)
    progress.look()
    assert progress.run.attempts == 0
    write(run, (1.0, "run_started", {}))
    start(run, "a", 2.0)
    progress.look()
    assert (progress.run.state, states(progress), progress.running()[0].name) == (
        "running",
        {"a": "running"},
        "a-00000001",
    )
    write(run, (3.0, "stage_done", {"stage": "a"}), (4.0, "run_done", {}))
    progress.look()
    assert (progress.run.state, states(progress), progress.run.ended_at) == ("finished", {"a": "finished"}, 4.0)


def test_a_restart_counts_and_a_failure_ends(run):
    write(run, (1.0, "run_started", {}))
    start(run, "a", 2.0)
    write(run, (3.0, "stage_restart", {"stage": "a"}))
    start(run, "a", 4.0)
    write(run, (5.0, "stage_failed", {"stage": "a"}), (6.0, "run_stopped", {"label": "stage"}))
    progress = RunProgress(run_dir=run)
    progress.look()
    (standing,) = progress.stages.values()
    assert (standing.state, standing.attempts, standing.interruptions) == ("failed", 2, 1)
    assert progress.run.state == "failed"


@pytest.mark.parametrize(("label", "state"), [("interrupted", "killed"), ("budget", "killed"), ("stage", "failed")])
def test_how_a_stop_is_called(run, label, state):
    write(run, (1.0, "run_started", {}), (2.0, "run_stopped", {"label": label}))
    progress = RunProgress(run_dir=run)
    progress.look()
    assert progress.run.state == state


def test_a_stage_that_was_changed_is_shown_once(run):
    changed = run / "stages" / "a-00000009"
    changed.mkdir()
    write(run, (1.0, "run_started", {}))
    start(run, "a", 2.0)
    write(run, (3.0, "run_stopped", {"label": "interrupted"}), (4.0, "run_started", {}))
    write(run, (5.0, "stage_started", {"stage": "a", "directory": str(changed)}))
    durable.write_json(changed / "progress.json", {"step": 3, "target_step": 9})
    progress = RunProgress(run_dir=run)
    progress.look()
    endpoint = Endpoint(run, "r")
    tracking_dir(run).mkdir()
    endpoint.serve(0)
    try:
        endpoint.show(progress)
        gauges = {family.name: family.samples for family in endpoint.collect()}
    finally:
        endpoint.close()
    assert [sample.value for sample in gauges["charter_stage_step"]] == [3.0]
    (state,) = gauges["charter_stage_state"]
    assert state.labels == {"run": "r", "stage": "a", "state": "running"}


def test_machines_that_cannot_be_metered_end_nothing_else(run, monkeypatch, capsys):
    def full(*args, **named):
        raise OSError("No space left on device")

    shown = []
    monkeypatch.setattr(LocalMeters, "look", full)
    monkeypatch.setattr(Endpoint, "show", lambda self, progress: shown.append(progress.run.state))
    write(run, (1.0, "run_started", {}), (2.0, "run_done", {}))
    RunFollower(run, Followed(key="k", name="n", root="/r", trackers={})).run(Drained())
    assert shown == ["finished"]
    assert "No space left on device" in capsys.readouterr().err


def test_what_a_killed_supervisor_left_running_was_killed(run):
    write(run, (1.0, "run_started", {}))
    start(run, "a", 2.0)
    write(run, (9.0, "run_started", {}))
    progress = RunProgress(run_dir=run)
    progress.look()
    (standing,) = progress.stages.values()
    assert (standing.state, standing.ended_at) == ("killed", 9.0)
    assert (progress.run.attempts, progress.run.interruptions, progress.run.state) == (2, 1, "running")


def test_events_name_directories_of_this_run_only(run):
    write(run, (1.0, "run_started", {}), (2.0, "stage_started", {"stage": "x", "directory": "/etc"}))
    write(run, (2.5, "stage_started", {"stage": "y", "directory": "../../.."}))
    add_text(run, "nonsense\n[1]\n")
    start(run, "b", 3.0)
    add_text(run, '{"time": 4.0, "event": "stage_done", "sta')
    progress = RunProgress(run_dir=run)
    progress.look()
    assert states(progress) == {"b": "running"}


def point(value, repetition=0):
    return {
        "sweep": "rate",
        "label": f"learning_rate {value}, seed +{repetition}",
        "values": {"pipeline.b.learning_rate": value},
        "repetition": repetition,
    }


def points(progress):
    return {point.label: standing.state for point, standing in progress.points.values()}


def test_a_stage_belongs_to_the_point_that_ran_it_first(run):
    write(run, (1.0, "run_started", {"point": point(0.1)}))
    start(run, "a", 2.0)
    write(run, (3.0, "stage_failed", {"stage": "a"}), (4.0, "run_stopped", {"label": "stage"}))
    write(run, (5.0, "run_started", {"point": point(0.2)}))
    start(run, "a", 6.0)
    start(run, "b", 7.0)
    progress = RunProgress(run_dir=run)
    progress.look()
    assert {path.name[0]: item.label for path, item in progress.first_point.items()} == {
        "a": "learning_rate 0.1, seed +0",
        "b": "learning_rate 0.2, seed +0",
    }
    assert points(progress) == {"learning_rate 0.1, seed +0": "failed", "learning_rate 0.2, seed +0": "running"}
    assert progress.sweeps()["rate"].state == "running"
    write(run, (8.0, "run_done", {}))
    progress.look()
    sweep = progress.sweeps()["rate"]
    assert (sweep.state, sweep.started_at, sweep.ended_at, sweep.attempts) == ("failed", 1.0, 8.0, 2)


def test_a_point_is_its_values_and_its_seed(run):
    for number, item in enumerate([point(0.1), point(0.1, 1), point(0.2), point(0.1)]):
        write(run, (number, "run_started", {"point": item}), (number + 0.5, "run_done", {}))
    progress = RunProgress(run_dir=run)
    progress.look()
    assert list(points(progress).values()) == ["finished"] * 3
    assert [standing.attempts for _, standing in progress.points.values()] == [2, 1, 1]


def test_a_run_after_a_sweep_is_no_point(run):
    write(run, (1.0, "run_started", {"point": point(0.1)}), (2.0, "run_done", {}), (3.0, "run_started", {}))
    start(run, "a", 4.0)
    write(run, (5.0, "run_stopped", {"label": "stage"}))
    progress = RunProgress(run_dir=run)
    progress.look()
    assert (points(progress), progress.first_point) == ({"learning_rate 0.1, seed +0": "finished"}, {})

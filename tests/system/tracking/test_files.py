"""Runs told to W&B (offline) and TensorBoard, read back with their own formats; processes are killed meanwhile."""

import os
import signal

import numpy as np
import pytest
from tracked_runs import is_metered, kill_tracking, told, written_points
from wandb_file import history, runs

LONG = 600.0


@pytest.fixture
def tracked(work):
    trackers = "[{wandb: {mode: offline}, drain: 4m}, {tensorboard: {directory: board}, drain: 4m}]"
    work.edit("name: count", f"name: count\nowner: ann\ntags: {{team: safety}}\ntracking: {trackers}")
    work.edit("metering: {every: 0}", "metering: {every: 0.3s}")
    return work


def wandb_points(work):
    found = {}
    numbers = {item["id"]: key.rpartition("-")[0] for key, item in told(work.root, "wandb").items() if key}
    for run, rows in history(work.root / "run/tracking/wandb").items():
        if run not in numbers:
            continue
        steps = [row["_step"] for row in rows]
        assert steps == sorted(set(steps)), "every row once, in order"
        series = found[numbers[run]] = {}
        for row in rows:
            for name in set(row) - {"step", "time", "_step", "_timestamp", "_runtime", "system/sample"}:
                if not name.startswith("system/"):
                    series.setdefault(name, []).append((row["step"], row[name]))
    return found


def board_points(work):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for path in sorted((work.root / "board").glob("*-????????")):
        accumulator = EventAccumulator(str(path), size_guidance={"scalars": 0})
        accumulator.Reload()
        found[path.name.rpartition("-")[0]] = {
            name: [(event.step, event.value) for event in accumulator.Scalars(name)]
            for name in accumulator.Tags()["scalars"]
        }
    return found


def single(points):
    """As TensorBoard keeps values: in single precision."""
    return {
        stage: {name: [(step, float(np.float32(value))) for step, value in series] for name, series in metrics.items()}
        for stage, metrics in points.items()
    }


def check(work):
    written = written_points(work.root)
    assert wandb_points(work) == written
    assert board_points(work) == single(written)


@pytest.mark.smoke
def test_a_run_read_back(tracked, undisturbed, held):
    run = held("b")
    run.start()
    tracked.wait_for(lambda: is_metered(tracked.root, "b"), seconds=LONG)
    done = run.go_on()
    assert (done.code, done.err) == (0, "")
    assert tracked.outputs() == undisturbed
    check(tracked)
    described = runs(tracked.root / "run/tracking/wandb")
    numbers = {key: item["id"] for key, item in told(tracked.root, "wandb").items()}
    parent = described[numbers[""]]
    assert {run.run_group for run in described.values()} == {parent.run_id}
    assert {run.job_type for run in described.values()} == {"pipeline", "pretrain", "sft"}
    assert "team:safety" in parent.tags
    assert (tracked.root / "board" / "charter.json").exists()
    rows = history(tracked.root / "run/tracking/wandb")
    assert any("system/sample" in row for found in rows.values() for row in found)


def test_killed_followers_and_senders_lose_and_double_nothing(tracked, undisturbed, held):
    run = held("b")
    run.start()
    tracked.wait_for(lambda: told_rows(tracked, "tensorboard") > 6 and told_rows(tracked, "wandb") > 6, seconds=LONG)
    assert kill_tracking(tracked.root) == 3, "a follower and two senders"
    done = run.go_on()
    assert done.code == 0, done.err
    assert tracked.outputs() == undisturbed
    synced = tracked.charter("status", "track", "sync")
    assert synced.code == 0, synced.err
    check(tracked)


def test_a_killed_supervisor_and_steps_done_again(tracked, undisturbed, held):
    run = held("b")
    process = run.start()
    tracked.wait_for(lambda: told_rows(tracked, "tensorboard") > 6 and told_rows(tracked, "wandb") > 6, seconds=LONG)
    os.killpg(process.pid, signal.SIGKILL)
    resumed = tracked.run(timeout=LONG)
    assert resumed.code == 0, resumed.err
    assert tracked.outputs() == undisturbed
    synced = tracked.charter("status", "track", "sync")
    assert synced.code == 0, synced.err
    check(tracked)


def told_rows(work, tracker):
    try:
        return sum(item["rows"] for item in told(work.root, tracker).values())
    except FileNotFoundError:
        return 0


def test_a_result_that_training_went_back_from_is_replaced_on_the_board(tracked):
    """A roll-back: steps come again with other values; TensorBoard forgets what stood there."""
    assert tracked.run(timeout=LONG).code == 0
    path = tracked.stage_dir("a") / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    later = [line.replace('"loss": ', '"loss": 1') for line in lines[3:]]
    path.write_text("".join([*lines[:3], *later]))
    assert tracked.charter("status", "track", "sync", "--only", "tensorboard").code == 0
    assert board_points(tracked)["a"] == single(written_points(tracked.root))["a"]


def test_a_sweep_read_back_from_wandb_and_mlflow(work):
    """Points below their sweep in MLflow's own store, and one group in W&B's files."""
    from mlflow import MlflowClient

    trackers = "[{wandb: {mode: offline}, drain: 4m}, {mlflow: {}, drain: 4m}]"
    sweep = "sweeps:\n  rate: {over: {pipeline.b.learning_rate: [1.0e-05, 0.0003]}}"
    work.edit("name: count", f"name: count\ntags: {{team: safety}}\ntracking: {trackers}\n{sweep}")
    done = work.run("--sweep", "rate", timeout=LONG)
    assert done.code == 0, done.err
    client = MlflowClient(tracking_uri=f"sqlite:///{work.root / 'run/tracking/mlflow.db'}")
    experiment = client.get_experiment_by_name("count")
    stored = {run.info.run_id: run for run in client.search_runs([experiment.experiment_id])}

    def place(run):
        above = stored.get(run.data.tags.get("mlflow.parentRunId"))
        return (*(place(above) if above else ()), run.info.run_name)

    first, second = (("count", "rate", f"learning_rate {rate}, seed +0") for rate in ("1e-05", "0.0003"))
    below = [(*first, "a"), (*first, "b"), (*first, "c"), (*second, "b")]
    assert sorted(place(run) for run in stored.values()) == sorted(
        [("count",), ("count", "rate"), first, second, *below]
    )
    rates = {place(run): run.data.tags.get("pipeline.b.learning_rate") for run in stored.values()}
    assert (rates[(*first, "b")], rates[(*second, "b")], rates[("count",)]) == ("1e-05", "0.0003", None)
    assert {run.info.status for run in stored.values()} == {"FINISHED"}
    assert all("sweep" not in run.data.tags for run in stored.values() if place(run) == ("count",))
    described = runs(work.root / "run/tracking/wandb")
    numbers = {key: item["id"] for key, item in told(work.root, "wandb").items()}
    groups = {key: described[number].run_group for key, number in numbers.items()}
    (group,) = {value for key, value in groups.items() if key}
    assert (group.startswith("rate-"), groups[""]) == (True, numbers[""])
    labels = {key: list(described[number].tags) for key, number in numbers.items() if key.startswith("point-")}
    assert sorted(label for own in labels.values() for label in own if "learning_rate:" in label) == [
        "pipeline.b.learning_rate:0.0003",
        "pipeline.b.learning_rate:1e-05",
    ]

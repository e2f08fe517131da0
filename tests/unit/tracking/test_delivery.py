"""Delivery to a tracker that fails, dies and forgets at every possible call: in the end it knows everything, once."""

import json
import os
from dataclasses import dataclass, field

import pytest

from charter.artifacts import durable
from charter.tracking.delivery import Delivery, backoff_seconds, read_told, status_of_trackers
from charter.tracking.journal import Collector
from charter.tracking.run_facts import Followed, write_followed

FOLLOWED = Followed(
    key="k1",
    name="harmless",
    root="/nowhere",
    trackers={"mlflow": {"weights": False}},
    owner="ann",
    tags={"team": "safety"},
    notes={"sft": "the first try"},
)


CALLS = 11
"""Two runs are opened, described and ended, three batches of rows told and two files kept."""


class Down(Exception):
    """The tracker does not answer."""


@dataclass
class Scripted:
    """A tracker in memory, with a fault at one call: before the call has an effect, or after."""

    runs: dict = field(default_factory=dict)
    rows: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)
    states: dict = field(default_factory=dict)
    calls: int = 0
    fail_at: int = -1
    after: bool = False
    lost_from: int | None = None

    def _call(self, effect):
        self.calls += 1
        failing = self.calls == self.fail_at
        if failing and not self.after:
            raise Down
        effect()
        if failing:
            raise Down

    def open_run(self, facts, *, parent, known):
        self._call(lambda: self.runs.setdefault(facts.key, (facts.name, parent)))
        return facts.key

    def rows_lost_from(self, run, *, told, sure):
        if self.lost_from is None or told <= self.lost_from:
            return None
        lost, self.lost_from = self.lost_from, None
        self.rows[run] = {number: row for number, row in self.rows.get(run, {}).items() if number < lost}
        return lost

    def describe(self, run, facts):
        self._call(lambda: self.runs.__setitem__(run, (facts.name, self.runs[run][1], dict(facts.tags))))

    def log(self, run, rows):
        def take():
            for row in rows:
                known = self.rows.setdefault(run, {})
                assert known.get(row.number, row) == row
                known[row.number] = row

        self._call(take)

    def attach(self, run, name, path):
        self._call(lambda: self.files.setdefault(run, {}).__setitem__(name, path.read_text()))

    def set_state(self, run, state, *, ended_at):
        self._call(lambda: self.states.__setitem__(run, state))

    def close(self):
        pass


@pytest.fixture
def run_dir(tmp_path):
    run = tmp_path / "run"
    stage = run / "stages" / "sft-0123abcd"
    stage.mkdir(parents=True)
    write_followed(run, FOLLOWED)
    job = {"stage": "sft", "kind": "sft", "fingerprint": "0123abcd", "seed": 7, "frozen": {"device": "cpu"}}
    job |= {"spec": {"steps": 3, "init": "base"}, "identity": {"spec": {"steps": 3}}}
    job["inputs"] = {"init": [{"name": "base", "source": "model", "fingerprint": "ff", "path": None}]}
    durable.write_json(stage / "job.json", job)
    durable.write_json(stage / "record.json", {"outputs": {"model/weights": "00"}})
    (run / "plan.json").write_text('{"plan": 1}')
    with (stage / "metrics.jsonl").open("w") as file:
        file.writelines(json.dumps({"step": step, "time": step, "loss": 1 / step}) + "\n" for step in range(1, 501))
    events = [
        {"time": 1.0, "event": "run_started", "run": "harmless"},
        {"time": 2.0, "event": "stage_started", "stage": "sft", "directory": str(stage)},
        {"time": 3.0, "event": "stage_done", "stage": "sft"},
        {"time": 4.0, "event": "run_done"},
    ]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    Collector(run).collect([stage])
    return run


def deliver(run_dir, tracker, **options):
    return Delivery(run_dir, "mlflow", tracker, FOLLOWED).deliver(**options)


def check_all_told(run_dir, tracker):
    assert set(tracker.runs) == {"k1", "k1-sft-0123abcd"}
    assert tracker.runs["k1-sft-0123abcd"][1] == "k1"
    told = tracker.rows["k1-sft-0123abcd"]
    assert [told[number].step for number in sorted(told)] == list(range(1, 501))
    assert tracker.states == {"k1": "finished", "k1-sft-0123abcd": "finished"}
    assert tracker.files["k1"] == {"plan.json": '{"plan": 1}'}
    assert set(tracker.files["k1-sft-0123abcd"]) == {"record.json"}
    (status,) = status_of_trackers(run_dir)
    assert (status.is_up_to_date, status.told_rows, status.waiting_rows) == (True, 500, 0)


def test_everything_is_told(run_dir):
    tracker = Scripted()
    assert deliver(run_dir, tracker)
    check_all_told(run_dir, tracker)
    tags = tracker.runs["k1-sft-0123abcd"][2]
    assert (tags["team"], tags["charter.owner"], tags["charter.setting.init"]) == ("safety", "ann", "base")


def test_nothing_is_told_again(run_dir):
    tracker = Scripted()
    deliver(run_dir, tracker)
    calls = tracker.calls
    deliver(run_dir, tracker)
    assert tracker.calls == calls + 2, "only that the two runs are looked up"


@pytest.mark.parametrize("after", [False, True], ids=["before its effect", "after it"])
@pytest.mark.parametrize("call", range(1, CALLS + 1))
def test_a_fault_at_any_call_loses_and_doubles_nothing(run_dir, call, after):
    tracker = Scripted(fail_at=call, after=after)
    try:
        deliver(run_dir, tracker)
    except Down:
        assert not status_of_trackers(run_dir)[0].is_up_to_date
    assert deliver(run_dir, tracker)
    check_all_told(run_dir, tracker)


def test_there_are_no_more_calls_than_the_fault_test_tries(run_dir):
    tracker = Scripted()
    deliver(run_dir, tracker)
    assert tracker.calls == CALLS


def test_rows_that_died_with_a_process_are_told_again(run_dir):
    tracker = Scripted()
    deliver(run_dir, tracker)
    tracker.lost_from = 120
    assert deliver(run_dir, tracker)
    assert tracker.lost_from is None
    check_all_told(run_dir, tracker)


def test_what_is_sure_shrinks_with_what_was_lost(run_dir):
    tracker = Scripted()
    deliver(run_dir, tracker)
    assert read_told(run_dir, "mlflow")["sft-0123abcd"].sure == 500
    tracker.lost_from, tracker.fail_at = 120, CALLS + 4
    with pytest.raises(Down):
        deliver(run_dir, tracker)
    told = read_told(run_dir, "mlflow")["sft-0123abcd"]
    assert (told.rows, told.sure) == (120, 120)
    assert deliver(run_dir, tracker)
    check_all_told(run_dir, tracker)


def test_after_a_fault_the_same_process_asks_again_what_the_tracker_has(run_dir):
    tracker = Scripted(fail_at=6)
    delivery = Delivery(run_dir, "mlflow", tracker, FOLLOWED)
    with pytest.raises(Down):
        delivery.deliver()
    assert read_told(run_dir, "mlflow")["sft-0123abcd"].rows == 200, "each batch is written down"
    tracker.rows.clear()
    tracker.lost_from = 0
    assert delivery.deliver()
    check_all_told(run_dir, tracker)


def test_a_file_that_was_written_again_is_kept_again(run_dir):
    tracker = Scripted()
    delivery = Delivery(run_dir, "mlflow", tracker, FOLLOWED)
    delivery.deliver()
    (run_dir / "plan.json").write_text('{"plan": 2}')
    os.utime(run_dir / "plan.json", ns=(1, 1))
    delivery.deliver()
    assert tracker.files["k1"] == {"plan.json": '{"plan": 2}'}


@pytest.mark.parametrize("what", ["row", "file"])
def test_rows_after_a_reported_end_are_followed_by_the_end_again(run_dir, what):
    """The follower collects the last rows when it looks next; a tracker may have closed the run, and opens it again."""
    stage = run_dir / "stages" / "sft-0123abcd"
    tracker = Scripted()
    delivery = Delivery(run_dir, "mlflow", tracker, FOLLOWED)
    assert delivery.deliver()
    tracker.states.clear()
    if what == "row":
        with (stage / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 501, "time": 501, "loss": 0.5}) + "\n")
        Collector(run_dir).collect([stage])
    else:
        durable.write_json(stage / "record.json", {"outputs": {"model/weights": "11"}})
    assert delivery.deliver()
    assert tracker.states == {"k1-sft-0123abcd": "finished"}
    told = read_told(run_dir, "mlflow")["sft-0123abcd"]
    assert (told.state, told.sure) == ("finished", told.rows)


def test_of_a_running_stage_nothing_is_sure_and_no_file_is_kept(run_dir):
    events = (run_dir / "events.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "events.jsonl").write_text("".join(events[:2]))
    tracker = Scripted()
    assert deliver(run_dir, tracker)
    told = read_told(run_dir, "mlflow")["sft-0123abcd"]
    assert (told.state, told.rows, told.sure, told.files) == ("running", 500, 0, {})


def test_a_lost_note_of_what_was_told_tells_all_again(run_dir):
    tracker = Scripted()
    deliver(run_dir, tracker)
    (run_dir / "tracking" / "mlflow.json").unlink()
    assert deliver(run_dir, tracker)
    check_all_told(run_dir, tracker)


def test_who_is_told_to_stop_stops_between_two_calls(run_dir):
    tracker = Scripted()
    assert not deliver(run_dir, tracker, stop=lambda: tracker.calls >= 4)
    assert tracker.calls == 4
    assert read_told(run_dir, "mlflow")["sft-0123abcd"].state == ""


def test_where_nothing_ever_ran_there_is_nothing_to_tell(tmp_path):
    tracker = Scripted()
    assert Delivery(tmp_path, "mlflow", tracker, FOLLOWED).deliver()
    assert tracker.calls == 0


def test_pauses_grow_up_to_a_bound():
    assert [backoff_seconds(failures) for failures in (1, 2, 7, 10_000)] == [1.0, 2.0, 60.0, 60.0]


@pytest.fixture
def swept_dir(run_dir):
    """Two points of a sweep after the run: the first runs `pm` and `ppo`, the second another `ppo`."""
    events = []
    for number, names in enumerate((["pm-00000001", "ppo-00000002"], ["ppo-00000003"])):
        values = {"pipeline.ppo.kl_coefficient": (0.05, 0.2)[number]}
        point = {"sweep": "kl", "label": f"point {number}", "values": values, "repetition": 0}
        events.append({"time": 10.0 + number, "event": "run_started", "point": point})
        for name in names:
            stage = run_dir / "stages" / name
            stage.mkdir()
            job = {"stage": name.split("-")[0], "kind": "ppo", "fingerprint": name.split("-")[1], "seed": 7}
            durable.write_json(stage / "job.json", job | {"frozen": {}, "spec": {"steps": 3}, "inputs": {}})
            events.append({"time": 10.1, "event": "stage_started", "stage": job["stage"], "directory": str(stage)})
            events.append({"time": 10.2, "event": "stage_done", "stage": job["stage"]})
        events.append({"time": 10.5 + number, "event": "run_done"})
    with (run_dir / "events.jsonl").open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)
    return run_dir


def check_sweep_told(tracker):
    """Every run by the names from the pipeline down to it, with its point's tags."""

    def place(run):
        name, parent, *_ = tracker.runs[run]
        return (*(place(parent) if parent else ()), name)

    first, second = ("harmless", "kl", "point 0"), ("harmless", "kl", "point 1")
    assert {place(run): run_tags[2].get("pipeline.ppo.kl_coefficient") for run, run_tags in tracker.runs.items()} == {
        ("harmless",): None,
        ("harmless", "sft"): None,
        ("harmless", "kl"): None,
        first: "0.05",
        (*first, "pm"): "0.05",
        (*first, "ppo"): "0.05",
        second: "0.2",
        (*second, "ppo"): "0.2",
    }
    assert set(tracker.states.values()) == {"finished"}
    assert len(tracker.states) == 8


def test_a_sweep_holds_its_points_and_they_their_stages(swept_dir):
    tracker = Scripted()
    assert deliver(swept_dir, tracker)
    check_sweep_told(tracker)
    assert status_of_trackers(swept_dir)[0].is_up_to_date
    calls = tracker.calls
    assert deliver(swept_dir, tracker)
    assert tracker.calls == calls + 8, "only that the runs are looked up"


@pytest.mark.parametrize("after", [False, True], ids=["before its effect", "after it"])
def test_a_fault_in_a_sweep_loses_and_doubles_nothing(swept_dir, after):
    reference = Scripted()
    deliver(swept_dir, reference)
    note = swept_dir / "tracking" / "mlflow.json"
    for call in range(1, reference.calls + 1):
        note.unlink()
        tracker = Scripted(fail_at=call, after=after)
        with pytest.raises(Down):
            deliver(swept_dir, tracker)
        assert deliver(swept_dir, tracker)
        check_sweep_told(tracker)


def test_a_point_that_was_not_told_is_behind(swept_dir):
    tracker = Scripted()
    deliver(swept_dir, tracker)
    point = {"sweep": "kl", "label": "point 2", "values": {"pipeline.ppo.kl_coefficient": 0.4}, "repetition": 0}
    with (swept_dir / "events.jsonl").open("a") as file:
        file.writelines(
            json.dumps(event) + "\n"
            for event in ({"time": 20, "event": "run_started", "point": point}, {"time": 21, "event": "run_done"})
        )
    assert not status_of_trackers(swept_dir)[0].is_up_to_date
    assert deliver(swept_dir, tracker)
    assert status_of_trackers(swept_dir)[0].is_up_to_date

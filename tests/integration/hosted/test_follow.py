"""What a stage reports of the steps that an engine has logged, and what it takes over of an earlier start."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from charter.engines.common.adapter import EngineCheckpoint, LoggedStep
from charter.hosted.data_files import DataFiles
from charter.hosted.engine_process import EngineNodes
from charter.hosted.follow import Follower, _written, take_over
from charter.hosted.run import OWNER, _owner, take_over_left


@dataclass
class Stage:
    """Remembers what it was told."""

    place: Path | None = None
    reports: list = field(default_factory=list)
    saved: list = field(default_factory=list)

    job = SimpleNamespace(spec=SimpleNamespace(engine="trl"), fingerprint="a", frozen={})
    checkpoints = SimpleNamespace(positions=lambda: [])

    def report(self, step, target, unit, metrics, counters):
        self.reports.append((step, dict(counters)))

    def save_checkpoint(self, step, write):
        write(self.place / f"step-{step}")
        self.saved.append(step)

    def alive(self):
        pass


def follower(steps, *, target=4, counters=None, first_step=0):
    stage = Stage()
    made = Follower(
        stage=stage,
        adapter=SimpleNamespace(steps=lambda work, log: steps),
        process=None,
        work=None,
        log=None,
        data=DataFiles(paths={}, rows={}, target_steps=target, counters=counters or {}),
        meter=SimpleNamespace(metrics=dict, add=lambda counters: None),
        pump=None,
        nodes=EngineNodes(Path("work")),
        first_step=first_step,
    )
    made._report(is_last=True)
    return stage.reports


def test_steps_that_were_not_logged_count_with_the_next_one_that_is():
    counters = {step: {"tokens": 10**step, "pairs": 1} for step in range(1, 5)}
    found = follower([LoggedStep(step=1), LoggedStep(step=4)], counters=counters)
    assert found == [(1, {"tokens": 10, "pairs": 1}), (4, {"tokens": 11100, "pairs": 3})]


def test_what_the_engine_counts_itself_is_taken_where_nothing_else_is_known():
    assert follower([LoggedStep(step=1, tokens=7), LoggedStep(step=2)]) == [(1, {"tokens": 7}), (2, {})]


def test_steps_before_the_start_and_beyond_the_target_are_not_told():
    assert follower([LoggedStep(step=step) for step in range(1, 7)], first_step=2) == [(3, {}), (4, {})]


def test_of_many_steps_about_two_hundred_are_told_and_none_is_lost():
    counters = {step: {"tokens": 1} for step in range(1, 1001)}
    found = follower([LoggedStep(step=step) for step in range(1, 1001)], target=1000, counters=counters)
    assert [step for step, _ in found] == [*range(5, 1001, 5)]
    assert sum(item["tokens"] for _, item in found) == 1000


class Adapter:
    """An engine that has the next list of checkpoints at each look, and then the last one again."""

    def __init__(self, *lists):
        self.lists, self.moved = list(lists), []

    def checkpoints(self, work):
        steps = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        for step in steps:
            (work / f"checkpoint-{step}").mkdir(exist_ok=True)
        return [EngineCheckpoint(step=step, path=work / f"checkpoint-{step}") for step in steps]

    def taken(self, checkpoint, work):
        self.moved.append(checkpoint.step)


def taken_over(place, *lists):
    stage, adapter = Stage(place / "state"), Adapter(*lists)
    found = take_over(stage, adapter, place)
    assert stage.saved == adapter.moved
    assert found == bool(stage.saved)
    return stage.saved


def test_of_many_checkpoints_those_are_taken_that_the_engine_does_not_remove(tmp_path):
    """The oldest may be half gone, and look whole."""
    assert taken_over(tmp_path, [4, 8, 12]) == [8, 12]


def test_a_checkpoint_that_gets_old_while_it_is_taken_is_not_taken(tmp_path):
    """This process stood still, and the engine has begun to remove what is read."""
    assert taken_over(tmp_path, [4], [4, 8, 12]) == []
    assert taken_over(tmp_path, [4], [4, 8]) == [4]


class Listed(list):
    """What a look at a directory found, given out later."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_what_an_engine_renames_while_it_is_looked_at_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "tmp_step_1").mkdir()
    (tmp_path / "log.txt").touch()
    look = os.scandir

    def renamed_meanwhile(path):
        """Every directory in it has another name once it is listed."""
        with look(path) as entries:
            found = Listed(entries)
        for entry in found:
            if entry.is_dir():
                os.rename(entry.path, f"{entry.path}_")
        return found

    monkeypatch.setattr(os, "scandir", renamed_meanwhile)
    assert str(tmp_path / "log.txt") in dict(_written(tmp_path))
    monkeypatch.undo()
    assert {name.rstrip("_") for name in dict(_written(tmp_path))} == {f"{tmp_path}/log.txt", f"{tmp_path}/tmp_step_1"}


def test_what_an_earlier_start_left_is_taken_over_only_where_it_was_surely_written(tmp_path):
    """After a crash of the machine a file may have its size and not its content."""
    for changes, wanted in (({}, [3]), ({"host": "this-machine/before"}, []), ({"engine": "verl"}, [])):
        stage, adapter = Stage(tmp_path / "state"), Adapter([3])
        (tmp_path / OWNER).write_text(json.dumps({**_owner(stage), **changes}))
        take_over_left(stage, adapter, tmp_path)
        assert (stage.saved, adapter.moved) == (wanted, wanted)
    (tmp_path / OWNER).unlink()
    stage = Stage()
    take_over_left(stage, Adapter([3]), tmp_path)
    assert stage.saved == []

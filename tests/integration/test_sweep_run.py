"""A sweep of real processes: shared stages run once, a killed one goes on, a point that fails stops no other."""

import json
import os
import signal

import pytest

SWEEP = """\
sweeps:
  rate: {over: {pipeline.b.learning_rate: [1.0e-05, 0.0003]}, seeds: 2}
"""


@pytest.fixture
def swept(work):
    """A project with a sweep over its second stage: four points, which share stages a and c."""
    path = work.root / "charter.yaml"
    path.write_text(path.read_text() + SWEEP)
    return work


def directories(work):
    return sorted(path.name.rpartition("-")[0] for path in (work.root / "run" / "stages").iterdir())


def values(work):
    """What every directory of a stage has computed, by its name."""
    stages = work.root / "run" / "stages"
    return {path.parts[-4]: path.read_text() for path in stages.glob("*/outputs/model/value.txt")}


def held(work):
    """Directories of stage b with a checkpoint and without a result."""
    saved = (work.root / "run" / "stages").glob("b-*/state/step-00000002/manifest.json")
    return [path.parents[2] for path in saved if not (path.parents[2] / "record.json").exists()]


def test_stages_before_the_first_difference_run_once(swept):
    planned = json.loads(swept.charter("plan", "--sweep", "rate", "--json").out)
    assert (len(planned["points"]), planned["shared_stages"]) == (4, 2)
    done = swept.run("--sweep", "rate")
    assert (done.code, done.names("stage_done")) == (0, ["a", "b", "c", "b", "b", "b"])
    assert directories(swept) == ["a", "b", "b", "b", "b", "c"]
    told = [event["point"] for event in done.events if event["event"] == "run_started"]
    assert [(point["values"]["pipeline.b.learning_rate"], point["repetition"]) for point in told] == [
        (1e-05, 0), (1e-05, 1), (0.0003, 0), (0.0003, 1),
    ]  # fmt: skip
    assert len(set(values(swept).values())) == 4, "stages that count are decided by their seed, not by a rate"
    again = swept.run("--sweep", "rate")
    assert (again.code, again.names("stage_started")) == (0, [])


def test_a_killed_sweep_goes_on_and_ends_the_same(swept, new_workplace, tmp_path):
    other = new_workplace(tmp_path / "other")
    (other.root / "charter.yaml").write_text((swept.root / "charter.yaml").read_text())
    assert other.run("--sweep", "rate").code == 0
    swept.edit("seeds: 2}", "seeds: 1}")
    assert swept.run("--sweep", "rate").code == 0
    swept.edit("seeds: 1}", "seeds: 2}")
    process = swept.start("--sweep", "rate", COUNTING_HOLD="b:3")
    swept.wait_for(lambda: held(swept))
    waiting = held(swept)
    os.killpg(process.pid, signal.SIGKILL)
    (waiting[0] / "go").touch()
    assert swept.run("--sweep", "rate").code == 0
    assert values(swept) == values(other)


def test_a_point_that_fails_stops_no_other_and_is_named(swept):
    swept.edit("[1.0e-05, 0.0003]", "[1.0e-05]")
    done = swept.run("--sweep", "rate", COUNTING_FAIL="b:4:stage")
    assert done.code == 5
    assert "2 of 2 points failed" in done.err
    assert "learning_rate 1e-05, seed +1" in done.err


def test_a_sweep_that_is_not_there_is_named_with_those_that_are(swept):
    done = swept.charter("plan", "--sweep", "rat")
    assert (done.code, "this project has rate" in done.err) == (2, True)

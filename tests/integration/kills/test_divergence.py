"""A batch that makes the loss jump: what the guard does about it is the same in a run that is killed around it."""

import json
import shutil
from dataclasses import replace

import pytest
from bench import KILLED, KINDS, answer, prompt, result_of, wait
from layouts import in_turn

from charter.artifacts.draws import draw_seed
from charter.spec.stage_base import Guard

pytestmark = [pytest.mark.torch, pytest.mark.slow]
KIND, ROWS, BATCH, STEPS, BAD_STEP = "preference_model", 120, 4, 28, 23
GUARD = Guard(spike_ratio=20.0, roll_back_steps=2, skip_steps=3)
WAITS = {"CHARTER_SAVE": "sync"}


def spec(what: str):
    """A stage whose guard does that; a margin of the data is what makes its loss jump."""
    guard = replace(GUARD, on_divergence=what)
    small = {"steps": STEPS, "global_batch": BATCH, "checkpoint_every": 2}
    return replace(KINDS[KIND].spec, use_margin=True, guard=guard, **small)


@pytest.fixture(scope="module")
def poisoned(bench):
    """Preference pairs of which one, read at a known step, has a margin that no model could give."""
    from charter.train.schedule import batch_rows

    bad = batch_rows(BAD_STEP, rows=ROWS, batch=BATCH, seed=draw_seed(7, KIND, "order"))[0]
    pairs = [
        {
            "id": f"r{row}",
            "prompt": prompt(f"topic {row}"),
            "chosen": [answer("Read a book and ask a friend.")],
            "rejected": [answer("No.")],
            "margin": 900.0 if row == bad else 0.0,
        }
        for row in range(ROWS)
    ]
    folder = bench.place / "poisoned"
    folder.mkdir()
    (folder / "records.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return folder.name


def stage(bench, poisoned, what: str, name: str):
    return bench.stage(KIND, f"guard-{what}-{name}", spec=spec(what), data=poisoned)


def run(bench, directory, **environment) -> int:
    return bench.finish(directory, **WAITS, **environment)


@pytest.fixture(scope="module")
def around(bench, poisoned):
    """(what) -> the undisturbed result, a stage that was killed just before the jump, and the actions after that."""
    known = {}

    def make(what: str):
        if what not in known:
            whole = stage(bench, poisoned, what, "whole")
            assert run(bench, whole) == 0, (whole / "log.txt").read_text()
            before = stage(bench, poisoned, what, "before")
            assert run(bench, before, CHARTER_KILL=f"{KIND}:checkpoint:22:after") == KILLED
            rest, log = copy(before, f"guard-{what}-rest"), bench.place / f"actions-{what}"
            assert run(bench, rest, CHARTER_FAULT_LOG=str(log)) == 0
            assert result_of(rest) == result_of(whole)
            names = [line.split(maxsplit=2)[2] for line in log.read_text().splitlines()]
            known[what] = result_of(whole), before, names
        return known[what]

    return make


def copy(directory, name: str):
    target = directory.with_name(name)
    shutil.rmtree(target, ignore_errors=True)
    return shutil.copytree(directory, target)


def test_stop_ends_the_stage_and_says_why(bench, poisoned):
    directory = stage(bench, poisoned, "stop", "stop")
    assert wait(bench.start(directory, **WAITS)) not in (0, KILLED)
    failure = json.loads((directory / "failure.json").read_text())
    assert failure["label"] == "diverged"
    assert f"step {BAD_STEP + 1}: the loss jumped to" in failure["message"]


def test_skip_leaves_one_update_out(around):
    result, _, _ = around("skip")
    assert [line.get("skipped_steps", 0) for line in result.metrics][BAD_STEP - 1 : BAD_STEP + 2] == [0, 1, 1]


def test_roll_back_goes_around_the_batch_and_counts_every_step_once(around):
    result, before, names = around("roll_back")
    assert [line["step"] for line in result.metrics] == list(range(1, STEPS + 1))
    assert max(line["loss"] for line in result.metrics) < 20
    assert "write roll_backs.json" in names
    assert not (before / "roll_backs.json").exists()


@pytest.mark.parametrize("what", ["skip", "roll_back"])
def test_killed_at_actions_around_the_jump_the_bits_are_the_same(bench, around, what):
    reference, before, names = around(what)
    written = names.index("rename roll_backs.json") + 1 if what == "roll_back" else 4
    for number in in_turn(range(1, written + 12)):
        directory = copy(before, f"guard-{what}-killed")
        way = ("before", "torn", "after")[number % 3]
        assert run(bench, directory, CHARTER_FAULT_AT=f"{number}:{way}") == KILLED, names[number - 1]
        assert run(bench, directory) == 0, (directory / "log.txt").read_text()
        assert result_of(directory) == reference, f"killed {way} action {number}, {names[number - 1]}"

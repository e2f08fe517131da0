"""Stages that wait for a person: real runs, real commands, real prompts on a terminal."""

import json
import os
import pty
import shutil
import subprocess
import sys

import forks
import pytest

PREPARED = """\
name: waiting
models: {base: meta-llama/Llama-3.1-8B}
data: {raw: raw.jsonl}
pipeline:
  clean: {kind: prepare, data: raw, near_duplicates: null}
  again: {kind: prepare, data: clean, near_duplicates: null, needs_approval: true}
  last: {kind: prepare, data: again, near_duplicates: null}
"""


@pytest.fixture
def held(work):
    work.edit("b: {kind: sft,", "b: {kind: sft, needs_approval: true,")
    return work


@pytest.fixture(scope="module")
def waiting_project(new_workplace, tmp_path_factory):
    """A run that has come to a stage that waits; what it said."""
    place = new_workplace(tmp_path_factory.mktemp("waiting") / "project")
    place.edit("b: {kind: sft,", "b: {kind: sft, needs_approval: true,")
    return place, place.run()


@pytest.fixture
def waiting(work, waiting_project):
    """Such a run, for a test to go on with."""
    place, _ = waiting_project
    shutil.copytree(place.root, work.root, dirs_exist_ok=True)
    return work


def test_the_run_does_the_rest_then_ends_with_6_and_says_what_to_type(waiting_project, waiting, undisturbed):
    _, first = waiting_project
    assert first.code == 6
    assert first.names("stage_done") == ["a", "c"]
    assert "charter approve b" in first.err
    assert [event["message"] for event in first.events if event["event"] == "stage_note"] == [
        "waits for approval: charter approve b"
    ]
    state = waiting.status()["b"]
    assert (state["state"], state["why"]) == ("pending", "waits for approval: charter approve b")
    assert [line.split()[:3] for line in waiting.charter("run", "--dry-run").out.splitlines()][1] == [
        "b",
        "would",
        "wait",
    ]
    assert waiting.run().code == 6
    given = waiting.charter("approve", "b", "--yes", "--note", "looked at all of it")
    assert given.code == 0, given.err
    last = waiting.run()
    assert (last.code, last.names("stage_done")) == (0, ["b"])
    assert waiting.outputs() == undisturbed


def test_an_approval_says_who_when_and_of_what(waiting):
    given = json.loads(waiting.charter("approve", "b", "--yes", "--json", "--note", "fine").out)
    (path,) = (waiting.root / "run" / "approvals").iterdir()
    kept = json.loads(path.read_text())
    assert kept == given
    assert kept["fingerprint"] == waiting.status()["b"]["fingerprint"]
    assert ("@" in kept["by"], kept["note"], kept["stage"]) == (True, "fine", "b")
    (listed,) = json.loads(waiting.charter("approve", "--list", "--json").out)["stages"]
    assert (listed["stage"], listed["state"], listed["note"]) == ("b", "approved", "fine")
    assert "looked" not in waiting.charter("approve", "--list").out


def test_a_changed_stage_needs_another_approval_and_the_old_one_comes_back(waiting):
    waiting.charter("approve", "b", "--yes")
    waiting.edit("b: {kind: sft,", "b: {kind: sft, learning_rate: 3e-4,")
    changed = waiting.run()
    assert (changed.code, "charter approve b" in changed.err) == (6, True)
    waiting.edit("b: {kind: sft, learning_rate: 3e-4,", "b: {kind: sft,")
    assert waiting.run().code == 0


def test_an_approval_during_the_run_is_taken_up(held):
    running = held.start(COUNTING_HOLD="c:3")
    held.wait_for(lambda: held.status()["c"]["state"] == "running")
    assert held.charter("approve", "b", "--yes").code == 0
    held.release("c")
    done = held.wait(running)
    assert (done.code, sorted(done.names("stage_done"))) == (0, ["a", "b", "c"])


def test_what_cannot_be_approved_is_refused_with_what_would_work(held):
    assert "not finished yet" in refused(held.charter("approve", "b", "--yes"))
    assert "needs no approval" in refused(held.charter("approve", "a", "--yes"))
    assert "no stage is called 'x'" in refused(held.charter("approve", "x", "--yes"))
    assert "--list" in refused(held.charter("approve"))
    held.run()
    assert "give --yes" in refused(held.charter("approve", "b"))
    assert "at most 2,000" in refused(held.charter("approve", "b", "--yes", "--note", "x" * 2001))
    assert not (held.root / "run" / "approvals").exists()
    held.charter("approve", "b", "--yes")
    assert "approved already" in held.charter("approve", "b").out
    held.run()
    assert "is done" in refused(held.charter("approve", "b", "--yes"))


@pytest.mark.parametrize(
    "text", ["", "[]", "[" * 100_000, '{"stage": "b"}', '{"by": "x", "at": 1, "stage": "c", "fingerprint": "f"}']
)
def test_a_damaged_approval_opens_nothing(waiting, text):
    waiting.charter("approve", "b", "--yes")
    (path,) = (waiting.root / "run" / "approvals").iterdir()
    path.write_text(text)
    done = waiting.run()
    assert (done.code, str(path) in done.err) == (8, True)
    assert "b" not in done.names("stage_started")


@pytest.fixture
def prepared(work):
    (work.root / "charter.yaml").write_text(PREPARED)
    rows = [{"id": f"r{n}", "prompt": f"question {n} \x1b[31m\u202e"} for n in range(30)]
    (work.root / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return work


@pytest.mark.parametrize(("typed", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_it_shows_records_of_what_the_stage_reads_and_asks(prepared, typed, code):
    waiting = prepared.charter("run", "--yes")
    assert waiting.code == 6
    assert "last come after" in waiting.err
    command = [sys.executable, "-m", "charter.cli.main", "approve", "again", "--samples", "3", "-C", str(prepared.root)]
    theirs, ours = pty.openpty()
    process = forks.Process(command, stdin=ours, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    os.write(theirs, typed)
    shown, error = process.communicate(timeout=300)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == code, error
    assert "data: clean, 3 of 30 rows" in shown
    assert shown.count("question ") == 3
    assert "\x1b" not in shown.replace("Let stage", "")
    assert r"\x1b[31m\u202e" in shown
    assert (prepared.root / "run" / "approvals").exists() == (code == 0)
    assert prepared.charter("run", "--yes").code == (0 if code == 0 else 6)


def refused(finished):
    assert finished.code == 2, finished.out
    return finished.err

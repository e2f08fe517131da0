"""`charter artifacts checkpoints` as a user types it, on counting stages with a directory as second place."""

import json

import pytest


@pytest.fixture
def done(work, tmp_path):
    work.edit("name: count", f"name: count\nstorage: {{replicate_every: 100, artifacts: {tmp_path / 'second'}}}")
    finished = work.run()
    assert finished.code == 0, finished.err
    return work


def flip(path):
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])


@pytest.mark.thorough
def test_verify_reads_everything_and_scrub_repairs_it(done):
    assert done.charter("artifacts", "checkpoints", "verify").code == 0
    assert done.charter("artifacts", "checkpoints", "ls", "--json").code == 0
    assert "step-00000002" in done.charter("artifacts", "checkpoints", "backup").out, (
        "the run itself had copied only the newest ones, at its end"
    )
    assert done.charter("artifacts", "checkpoints", "backup").out == "nothing new to copy\n"
    stage = done.stage_dir("b")
    for path, what in [
        (stage / "outputs" / "model" / "value.txt", "sha256"),
        (stage / "record.json", "record.json"),
        (next((stage / "state").glob("step-*/value.json")), "sha256"),
        (done.root / "run" / "ledger.sqlite", "ledger.sqlite is damaged"),
    ]:
        good = path.read_bytes()
        flip(path)
        verified = done.charter("artifacts", "checkpoints", "verify")
        assert (verified.code, what in verified.err) == (8, True), verified.err
        if path.name == "ledger.sqlite":
            path.write_bytes(good)
            continue
        told = json.loads(done.charter("artifacts", "checkpoints", "scrub", "--dry-run", "--json").out)
        assert [item["outcome"] for item in told["repairs"]] == ["repaired here"]
        repaired = done.charter("artifacts", "checkpoints", "scrub")
        assert (repaired.code, str(path) in repaired.out) == (0, True), repaired.err
        assert path.read_bytes() == good
    assert done.charter("artifacts", "checkpoints", "verify").code == 0


def test_a_second_place_that_was_damaged_is_repaired_and_a_lost_file_is_exit_8(done, tmp_path):
    for path in (tmp_path / "second" / "objects").glob("*/*"):
        flip(path)
    repaired = done.charter("artifacts", "checkpoints", "scrub")
    assert "repaired there" in repaired.out
    assert done.charter("artifacts", "checkpoints", "scrub", "--dry-run").code == 0
    path = done.stage_dir("a") / "outputs" / "model" / "value.txt"
    path.unlink()
    for copy in (tmp_path / "second" / "objects").glob("*/*"):
        flip(copy)
    lost = done.charter("artifacts", "checkpoints", "scrub")
    assert (lost.code, str(path) in lost.err) == (8, True), lost.err


def test_garbage_and_superfluous_checkpoints_are_shown_first_and_removed_when_told(done):
    stage = done.stage_dir("a")
    (stage / ".tmp-left").write_bytes(b"x" * 100)
    (done.root / "run" / "stages" / "a-00000000").mkdir()
    shown = {
        item["name"]: item["why"]
        for item in json.loads(done.charter("artifacts", "checkpoints", "gc", "--json").out)["items"]
    }
    others = str(done.root / "run" / "stages" / "a-00000000")
    assert shown == {str(stage / ".tmp-left"): "half-written", others: "other results"}
    assert "half-written" in done.charter("artifacts", "checkpoints", "gc").out
    assert (stage / ".tmp-left").exists()
    removed = done.charter("artifacts", "checkpoints", "gc", "--yes")
    assert (removed.code, (stage / ".tmp-left").exists()) == (0, False)
    assert (done.root / "run" / "stages" / "a-00000000").exists()
    assert done.charter("artifacts", "checkpoints", "gc", "--yes", "--other-results").code == 0
    assert not (done.root / "run" / "stages" / "a-00000000").exists()
    assert done.charter("artifacts", "checkpoints", "gc").out == "nothing to remove\n"
    positions = [
        item["step"]
        for item in json.loads(done.charter("artifacts", "checkpoints", "ls", "b", "--json").out)["stages"]["b"]
    ]
    assert positions == [2, 4]
    assert done.charter("artifacts", "checkpoints", "prune").out == "nothing to remove\n"
    done.edit("artifacts:", "keep_last: 1, artifacts:")
    told = json.loads(done.charter("artifacts", "checkpoints", "prune", "--json").out)
    assert told["items"] == [], "the job of a finished stage says what it keeps"


def test_without_a_second_place_it_says_how_to_name_one(work):
    refused = work.charter("artifacts", "checkpoints", "backup")
    assert (refused.code, "storage.artifacts" in refused.err) == (2, True)
    assert "--place" in refused.err

import json
import os

import pytest

from charter.artifacts import durable
from charter.artifacts.checkpoints import Position, listed, names_of_damaged, parse_position, pin, unpin
from charter.artifacts.stage_dir import StageDir
from charter.errors import UsageError


@pytest.fixture
def stage(make_stage):
    """Steps 1 to 3, the newest two kept."""
    made = StageDir(make_stage(keep_last=2))
    save(made, 1, 2, 3)
    return made


def save(stage, *steps):
    for step in steps:
        stage.save_checkpoint(step, lambda out: (out / "weights.bin").write_bytes(b"x" * 64) and None)


def steps_in(stage):
    return [item.position.step for item in listed(stage.path)]


def test_what_is_there_is_listed_oldest_first(stage):
    first, second = listed(stage.path)
    assert (first.position, second.position) == (Position(2), Position(3))
    manifest = (first.path / "manifest.json").stat()
    assert first.bytes == 64 + manifest.st_size
    assert first.written_at == manifest.st_mtime
    assert (first.metric, first.world_size, first.pinned, first.verified, first.damage) == (None, 1, False, False, None)
    assert listed(stage.path.with_name("nobody")) == []


def test_pinned_checkpoint_survives_saves_until_unpinned(stage):
    assert pin(stage.path, Position(2)).name == "step-00000002"
    assert [item.pinned for item in listed(stage.path)] == [True, False]
    assert os.listdir(stage.path / "state" / "step-00000002").count("pinned") == 1
    save(stage, 4, 5, 6)
    assert steps_in(stage) == [2, 5, 6]
    assert listed(stage.path, verify=True)[0].verified
    unpin(stage.path, Position(2))
    unpin(stage.path, Position(2))
    save(stage, 7)
    assert steps_in(stage) == [6, 7]


def test_one_that_is_not_there_cannot_be_pinned(stage):
    with pytest.raises(UsageError, match=r"has no checkpoint 9; it has 2, 3"):
        pin(stage.path, Position(9))
    with pytest.raises(UsageError, match=r"has no checkpoint 9; it has none"):
        unpin(stage.path.with_name("nobody"), Position(9))


def test_one_that_retention_removes_meanwhile_is_said_to_be_gone(stage, monkeypatch):
    def gone(path, data):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(durable, "write_file", gone)
    with pytest.raises(UsageError, match="removed by retention meanwhile"):
        pin(stage.path, Position(2))


@pytest.mark.parametrize(
    ("file", "content", "shallow", "deep"),
    [
        ("weights.bin", b"y" * 64, None, "weights.bin does not have its recorded sha256"),
        ("weights.bin", b"x", "weights.bin has 1 bytes, recorded 64", "weights.bin has 1 bytes, recorded 64"),
        ("weights.bin", None, "weights.bin is missing", "weights.bin is missing"),
        ("manifest.json", b"{}", "has no sha256", "has no sha256"),
        ("manifest.json", None, "manifest.json is missing", "manifest.json is missing"),
    ],
)
def test_damage_is_named_and_nothing_is_renamed(stage, file, content, shallow, deep):
    path = stage.path / "state" / "step-00000002" / file
    path.unlink() if content is None else path.write_bytes(content)
    for verify, wanted in ((False, shallow), (True, deep)):
        damaged, whole = listed(stage.path, verify=verify)
        assert (damaged.damage is None) if wanted is None else (wanted in damaged.damage)
        assert not damaged.verified
        assert (whole.damage, whole.verified) == (None, verify)
        assert len(names_of_damaged([damaged, whole])) == (wanted is not None)
    assert str(damaged.path) in names_of_damaged([damaged])[0]


def test_a_manifest_that_lists_nothing_is_damage(stage):
    from charter.artifacts.whole_dir import write_sealed

    write_sealed(stage.path / "state" / "step-00000003" / "manifest.json", {"step": 3})
    assert listed(stage.path)[1].damage == "its manifest lists no files"


def test_one_that_goes_while_it_is_looked_at_is_left_out(stage, monkeypatch):
    from charter.artifacts import checkpoints

    def positions(directory):
        return [Position(1), Position(2), Position(3)]

    monkeypatch.setattr(checkpoints, "positions_in", positions)
    assert steps_in(stage) == [2, 3]


@pytest.mark.parametrize("text", ["x", "-1", "1.2", "1-0", "", "12-", "²"])
def test_a_position_that_is_none_says_how_one_looks(text):
    with pytest.raises(UsageError, match=r"give finished steps, as 12, or with parts, as 12-2"):
        parse_position(text)


def test_the_metric_of_a_checkpoint_is_listed(stage):
    text = stage.checkpoints.manifest_text(Position(3), {}, world_size=4, metric=-2)
    durable.write_file(stage.path / "state" / "step-00000003" / "manifest.json", text)
    found = listed(stage.path)[1]
    assert (found.metric, found.world_size) == (-2.0, 4)
    assert json.loads(text)["metric"] == -2

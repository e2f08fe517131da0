import os
import subprocess
import sys

import pytest

from charter.artifacts import faults

KILLED = -9
ACTIONS = """
import sys
from pathlib import Path
from charter.artifacts import durable
from charter.artifacts.whole_dir import publish_dir
root = Path(sys.argv[1])
def fill(directory):
    (directory / "a").write_bytes(b"a" * 100)
    (directory / "b").write_bytes(b"b" * 50)
{work}
"""
DISCARDED = "publish_dir(root / 'd', fill); durable.discard_dir(root / 'd')"


def torn(root, number: int, work: str) -> int:
    """Do some work in a process that is killed in the middle of one of its durable actions."""
    environment = {**os.environ, "CHARTER_FAULT_AT": f"{number}:torn"}
    command = [sys.executable, "-c", ACTIONS.format(work=work), str(root)]
    return subprocess.run(command, env=environment, check=False).returncode


def test_what_was_added_is_cut_in_its_middle(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"0123456789")
    before = faults.sizes_of(tmp_path)
    with old.open("ab") as file:
        file.write(b"abcd")
    new.write_bytes(b"xyz")
    faults.cut_what_was_added(tmp_path, before)
    assert old.read_bytes() == b"0123456789ab"
    assert new.read_bytes() == b"x"


def test_flushed_files_that_gained_nothing_lose_half(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"0123456789")
    faults.cut_what_was_added(file, faults.sizes_of(file))
    assert file.read_bytes() == b"01234"


def test_half_of_a_directory_is_removed(tmp_path):
    for name in "abcd":
        (tmp_path / name).touch()
    faults.remove_half(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "d"]


def test_nothing_there_has_no_sizes(tmp_path):
    assert faults.sizes_of(tmp_path / "missing") == faults.sizes_of(None) == {}


@pytest.mark.parametrize(
    ("number", "work", "found"),
    [
        (1, "durable.write_file(root / 'f', 'new content')", {"f": b"old"}),
        (2, "durable.write_file(root / 'f', 'new content')", {"f": b"old"}),
        (1, "durable.append_line(root / 'f', 12345)", {"f": b"old123"}),
        (2, "publish_dir(root / 'd', fill)", {"f": b"old", "a": b"a" * 50, "b": b"b" * 25}),
        (3, "publish_dir(root / 'd', fill)", {"f": b"old", "a": b"a" * 50, "b": b"b" * 50}),
        (6, DISCARDED, {"f": b"old", "a": b"a" * 100, "b": b"b" * 50}),
        (7, DISCARDED, {"f": b"old", "b": b"b" * 50}),
    ],
)  # fmt: skip
def test_an_action_that_is_torn_leaves_half(tmp_path, number, work, found):
    (tmp_path / "f").write_bytes(b"old")
    assert torn(tmp_path, number, work) == KILLED
    left = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {name: content for name, content in left.items() if not name.startswith(".")} == found
    assert not (tmp_path / "d").exists() or number > 5

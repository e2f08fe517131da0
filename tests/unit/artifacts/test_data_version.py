import os

import pytest

from charter.artifacts.data_versions import dvc_fact, pointer_damage, read_yaml, version_of, write_pointer
from charter.errors import DataError, UsageError


@pytest.fixture
def data(tmp_path):
    """The example whose MD5 names were made with dvc 3.67.1 (`dvc add data one.jsonl`)."""
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "data" / "a").write_text("hi\n")
    (tmp_path / "data" / "sub" / "b").write_text("ho\n")
    (tmp_path / "one.jsonl").write_text("x\n")
    return tmp_path


def test_names_are_those_that_dvc_gives(data):
    assert dvc_fact(data / "data").entry() == {
        "hash": "md5",
        "md5": "479b304fc1e60c76028ce49fe250f904.dir",
        "size": 6,
        "nfiles": 2,
    }
    assert dvc_fact(data / "one.jsonl").md5 == "401b30e3b8b5d629635a5c613cdb7919"
    pointer = write_pointer(data / "one.jsonl")
    assert (
        pointer.read_text()
        == "outs:\n- md5: 401b30e3b8b5d629635a5c613cdb7919\n  size: 2\n  hash: md5\n  path: one.jsonl\n"
    )


def test_version_of_directory_depends_on_names_and_contents(data):
    first = version_of(data / "data")
    assert (first.bytes, set(first.files)) == (6, {"a", "sub/b"})
    os.utime(data / "data" / "a", (0, 0))
    (data / "data").rename(data / "elsewhere")
    assert version_of(data / "elsewhere").sha256 == first.sha256
    (data / "elsewhere" / "a").rename(data / "elsewhere" / "c")
    renamed = version_of(data / "elsewhere").sha256
    (data / "elsewhere" / "c").write_text("hI\n")
    assert len({first.sha256, renamed, version_of(data / "elsewhere").sha256}) == 3


def test_what_has_no_version_is_refused(data):
    with pytest.raises(UsageError, match="does not exist"):
        version_of(data / "gone")
    os.symlink(data / "one.jsonl", data / "data" / "link")
    with pytest.raises(DataError, match="is a link or a device"):
        version_of(data / "data")
    (data / "data" / "link").unlink()
    (data / "data" / "b\\c").write_text("")
    with pytest.raises(DataError, match="backslash"):
        version_of(data / "data")


def test_a_pointer_says_whether_its_data_are_here(data):
    for name in ("data", "one.jsonl"):
        pointer = write_pointer(data / name)
        assert pointer_damage(pointer) is None
    (data / "data" / "sub" / "b").write_text("other\n")
    assert "recorded 479b304fc1e60c76028ce49fe250f904.dir" in pointer_damage(data / "data.dvc")
    (data / "one.jsonl").unlink()
    assert "dvc pull one.jsonl.dvc" in pointer_damage(data / "one.jsonl.dvc")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "a: [", "outs: 3", "outs: [1]", "outs: [{path: ../x, md5: a}]", "outs: [{path: /etc/passwd, md5: a}]",
     "outs: [{path: x}]", "outs: [{path: x, md5: 3}]", "!!python/object/apply:os.mkdir [ran]", "a: &a [*a]"],
)  # fmt: skip
def test_hostile_pointers_are_refused(data, text):
    (data / "bad.dvc").write_text(text)
    (data / "x").write_text("")
    with pytest.raises(DataError):
        pointer_damage(data / "bad.dvc")
    assert not (data / "ran").exists()


def test_with_a_repository_of_dvc_its_cache_is_filled(data):
    (data / ".dvc").mkdir()
    (data / ".dvc" / "config").write_text("")
    write_pointer(data / "data")
    cache = data / ".dvc" / "cache" / "files" / "md5"
    assert (cache / "76" / "4efa883dda1e11db47671c4a3bbd9e").read_text() == "hi\n"
    assert (cache / "47" / "9b304fc1e60c76028ce49fe250f904.dir").read_text().startswith('[{"md5": "764efa88')
    assert read_yaml(data / "gone.yaml") == {}

"""The identity of a data set: its content and how it is read, whatever its files are called and wherever they lie."""

import hashlib
import json
import tarfile
from dataclasses import replace

import pytest

from charter.artifacts.fingerprint import fingerprint
from charter.plan.project_plan import read_inputs
from charter.run.inputs import MISSING, FileHashes, Inputs
from charter.spec.project import DataSpec, Project

ROW = {"prompt": "Q"}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    for folder in ("shards", "copy"):
        (tmp_path / folder).mkdir()
        for index in range(2):
            member = tmp_path / "1.txt"
            member.write_text(f"text {index}")
            with tarfile.open(tmp_path / folder / f"s-{index}.tar", "w") as archive:
                archive.add(member, "1.txt", filter=without_time)
    return tmp_path


def without_time(info):
    info.mtime = 0
    return info


def found(root, **fields):
    project = Project(name="p", models={}, data={"d": DataSpec(**fields)}, pipeline={})
    inputs = Inputs(project, root, FileHashes(None))
    return inputs.data("d", "data"), inputs.problems_of(["d"])


def identity(root, **fields):
    item, problems = found(root, **fields)
    assert not problems
    return item.fingerprint


def test_one_jsonl_file_has_the_fingerprint_it_had_before_there_were_other_formats(root):
    """Otherwise every finished stage of every project would be stale."""
    digest = hashlib.sha256((root / "rows.jsonl").read_bytes()).hexdigest()
    before = {"schema": "charter.data/1", "sha256": digest, "how": {}}
    assert identity(root, path="rows.jsonl") == fingerprint(before)
    before["how"] = {"part": "1/2", "limit": 3, "column": "both"}
    assert identity(root, path="rows.jsonl", part="1/2", limit=3, column="both") == fingerprint(before)


def test_to_say_the_format_that_is_found_anyway_changes_nothing(root):
    assert identity(root, path="rows.jsonl", format="jsonl") == identity(root, path="rows.jsonl")
    assert identity(root, path="shards", format="webdataset") == identity(root, path="shards")


def test_another_policy_for_bad_rows_is_another_data_set(root):
    assert identity(root, path="rows.jsonl", on_bad_row="skip") != identity(root, path="rows.jsonl")


def test_the_same_bytes_read_in_another_format_are_another_data_set(root):
    (root / "data").write_bytes((root / "shards" / "s-0.tar").read_bytes())
    kinds = [identity(root, path="data", format=kind) for kind in ("jsonl", "webdataset", "parquet")]
    assert len({*kinds}) == 3


def test_a_directory_and_a_pattern_of_its_shards_are_one_data_set_wherever_they_lie(root):
    expected = identity(root, path="shards")
    assert identity(root, path="shards/s-{0..1}.tar") == expected
    assert identity(root, path="copy/s-*.tar") == expected


def test_one_shard_alone_is_its_content_under_any_name(root):
    (root / "other.tar").write_bytes((root / "shards" / "s-0.tar").read_bytes())
    assert identity(root, path="other.tar") == identity(root, path="shards/s-0.tar")


@pytest.mark.parametrize("change", ["content", "name", "more", "order"])
def test_what_changes_the_rows_of_shards_changes_the_fingerprint(root, change):
    before, path = identity(root, path="shards"), "shards"
    if change == "content":
        (root / "shards" / "s-1.tar").write_bytes((root / "shards" / "s-0.tar").read_bytes())
    elif change == "name":
        (root / "shards" / "s-1.tar").rename(root / "shards" / "s-2.tar")
    elif change == "more":
        (root / "shards" / "s-2.tar").write_bytes((root / "shards" / "s-0.tar").read_bytes())
    else:
        path = "shards/s-{1,0}.tar"
    assert identity(root, path=path) != before


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gone.jsonl", "no file"),
        ("gone-{0..1}.tar", "no file"),
        ("shards/s-{0..2}.tar", "s-2.tar is missing"),
        (".", "is a directory"),
    ],
)
def test_what_cannot_be_read_is_a_problem_of_that_data_set(root, path, message):
    if path == ".":
        for folder in ("shards", "copy"):
            for file in (root / folder).iterdir():
                file.unlink()
    item, problems = found(root, path=path)
    assert item.fingerprint == MISSING
    assert message in problems[0].message
    assert problems[0].path == "data.d.path"


@pytest.mark.parametrize(("path", "rows"), [("rows.jsonl", 1), ("shards", 2), ("copy/s-{0..1}.tar", 2)])
def test_the_planner_measures_data_of_every_form(root, path, rows):
    project = Project(name="p", models={}, data={"d": DataSpec(path=path)}, pipeline={})
    assert read_inputs(project, root).facts["d"].rows == rows
    missing = replace(project, data={"d": DataSpec(path="gone-{0..3}.parquet")})
    assert read_inputs(missing, root).facts == {}

import re
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.engines.project import load_project
from charter.launch.tags import (
    aws_tags,
    azure_tags,
    google_labels,
    kubernetes_annotations,
    kubernetes_labels,
    object_tags,
    tags_of,
)

PROJECT = """\
name: assistant
owner: alignment
tags: {cost centre: "42", run: mine}
resources: {labels: {team: red}}
models: {base: Qwen/Qwen3-0.6B}
data: {chats: {path: chats.jsonl, rows: 10, mean_tokens: 10}}
pipeline: {sft: {kind: sft, init: base, data: chats}}
"""
tables = st.dictionaries(st.text(max_size=200), st.text(max_size=400), max_size=70)


@pytest.fixture
def project(tmp_path: Path):
    (tmp_path / "charter.yaml").write_text(PROJECT)
    return load_project(tmp_path)


def test_own_tags_and_those_of_the_file_in_one_table(project):
    tags = tags_of(project, run="r1", stage="sft", attempt=2)
    own = {"project": "assistant", "owner": "alignment", "run": "r1", "stage": "sft", "attempt": "2"}
    assert tags == {"team": "red", "cost centre": "42", **own}, "a run's own tag is not the user's"
    assert tags_of(project)["run"] == "mine"


@given(tables)
def test_labels_of_kubernetes_are_always_valid(tags):
    part = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
    for key, value in kubernetes_labels(tags).items():
        assert part.fullmatch(value)
        assert len(value) <= 63
        assert 0 < len(key.removeprefix("charter/")) <= 63
        assert part.fullmatch(key.removeprefix("charter/"))
    assert all(len(key.removeprefix("charter/")) <= 63 for key in kubernetes_annotations(tags))


@given(tables)
def test_tags_of_aws_are_always_valid(tags):
    found = aws_tags(tags)
    assert len(found) <= 50
    assert len({tag["Key"] for tag in found}) == len(found)
    for tag in found:
        assert 1 <= len(tag["Key"]) <= 128
        assert len(tag["Value"]) <= 256
        assert not tag["Key"].lower().startswith("aws:")
        assert re.fullmatch(r"[\w .:/=+\-@]*", tag["Key"] + tag["Value"])


@given(tables)
def test_labels_of_google_are_always_valid(tags):
    for key, value in google_labels(tags).items():
        assert re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key)
        assert re.fullmatch(r"[a-z0-9_-]{0,63}", value)


@given(tables)
def test_tags_of_azure_are_always_valid(tags):
    for key, value in azure_tags(tags).items():
        assert not set(key) & set("<>%&\\?/")
        assert len(key) <= 512
        assert len(value) <= 256


@given(tables)
def test_tags_of_objects_are_what_s3_takes_and_what_is_not_as_given_is_said(tags):
    found = object_tags(tags)
    assert len(found.tags) <= 10
    assert len(urlencode(found.tags, quote_via=quote)) <= 6000
    for key, value in found.tags.items():
        assert 1 <= units(key) <= 128
        assert units(value) <= 256
        assert re.fullmatch(r"[\w .:/=+\-@]*", key + value)
    same = {key for key in tags if found.tags.get(key) == tags[key]}
    assert len(found.changed) >= len(set(tags) - same - {"project", "owner", "run", "stage", "attempt"})
    assert bool(found.changed) or len(found.tags) == len(tags)


def units(text):
    return len(text.encode("utf-16-le")) // 2


def test_own_tags_of_an_object_come_first_and_the_eleventh_is_left_out():
    found = object_tags({**{f"t{number}": "x" for number in range(9)}, "stage": "sft", "project": "p"})
    assert list(found.tags) == ["charter:stage", "charter:project", *(f"t{number}" for number in range(8))]
    assert found.changed == ("tag t8 is left out: an object has 10 tags at most, Charter's own among them",)


@pytest.mark.parametrize(
    ("tags", "kept", "said"),
    [
        ({"a#b": "x"}, {"a-b": "x"}, ["tag a#b becomes a-b"]),
        ({"a#b": "x", "a-b": "y"}, {"a-b": "x"}, ["tag a-b is left out: another one is a-b already"]),
        ({"": "x"}, {}, ["is left out: it has no name"]),
        ({"aws:x": "y"}, {"charter:aws:x": "y"}, ["tag aws:x becomes charter:aws:x"]),
        ({"k": "v" * 256, "n" * 128: ""}, {"k": "v" * 256, "n" * 128: ""}, []),
        ({"k": "v" * 257}, {"k": "v" * 256}, ["becomes 'vvv", ", cut at 256 characters"]),
        ({"n" * 129: "v"}, {"n" * 128: "v"}, ["tag nnn", ", cut at 128 characters"]),
        ({"k": "\U00020000" * 129}, {"k": "\U00020000" * 128}, [", cut at 256 characters"]),
        ({"k": "v" * 255 + "#"}, {"k": "v" * 255 + "-"}, ["becomes 'vvv"]),
        ({"run": "r#"}, {"charter:run": "r-"}, ["tag run: its value 'r#' becomes 'r-'"]),
    ],
)
def test_what_of_a_tag_is_not_as_given_is_said(tags, kept, said):
    found = object_tags(tags)
    assert dict(found.tags) == kept
    text = "\n".join(found.changed)
    assert all(words in text for words in said)
    assert len(found.changed) == (2 if "left out: another" in text else len(tags) if said else 0)
    assert ("cut at" in text) == any("cut at" in words for words in said)


def test_tags_that_a_request_has_no_room_for_are_left_out():
    wide = {f"{number}" + "\u6f22" * 127: "\u6f22" * 256 for number in range(4)}
    found = object_tags({"run": "r", **wide})
    assert len(found.tags) == 2
    assert ["longer than the 6000 bytes" in line for line in found.changed] == [True, True, True]

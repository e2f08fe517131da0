"""Prompts go by in batches as a list of them would, and are read anew each time."""

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.artifacts.job import Job, JobInput
from charter.data.dataset import read_prompts
from charter.errors import DataError
from charter.feedback import inputs as streamed
from charter.feedback.inputs import prompt_batches, with_unique_ids
from charter.feedback.records import in_batches
from charter.spec.project import DataSpec
from charter.spec.stage import CritiqueStage


def job_reading(*paths, on_bad_row="fail"):
    data = [DataSpec(path=str(path), on_bad_row=on_bad_row) for path in paths]
    inputs = tuple(
        JobInput(name=f"d{number}", role="prompts", source="data", path=item.path, fingerprint="f", data=item)
        for number, item in enumerate(data)
    )
    spec = CritiqueStage(policy="p", critic="p", prompts=("d",))
    return Job(
        run="r", stage="critique", kind="critique", fingerprint="f" * 64, seed=1, spec=spec,
        inputs={"prompts": inputs}, constitution=None, frozen={}, keep_last=2,
    )  # fmt: skip


def write(path, ids):
    rows = [{"id": name, "prompt": f"Tell me about {place}."} for place, name in enumerate(ids)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@given(
    ids=st.lists(st.sampled_from(["a", "b", "a#2", "ü", "c"]), min_size=1, max_size=12),
    size=st.integers(1, 5),
    limit=st.none() | st.integers(1, 14),
    held=st.sampled_from([0, 3, 99]),
)
def test_batches_are_those_of_a_list(tmp_path_factory, ids, size, limit, held):
    path = write(tmp_path_factory.mktemp("data") / "p.jsonl", ids)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamed, "HELD", held)
        found = prompt_batches(job_reading(path), "prompts", size=size, limit=limit)
    expected = in_batches(with_unique_ids(read_prompts(path)[:limit]), size)
    assert [tuple(batch) for batch in found] == [tuple(batch) for batch in expected]
    assert [tuple(batch) for batch in found] == [tuple(batch) for batch in expected]
    assert len(found) == len(expected)


def test_several_data_sets_follow_each_other_and_share_their_ids(tmp_path):
    paths = [write(tmp_path / name, "ab") for name in ("one.jsonl", "two.jsonl")]
    found = prompt_batches(job_reading(*paths), "prompts", size=3, limit=None)
    assert [[prompt.id for prompt in batch] for batch in found] == [["a", "b", "a#2"], ["b#2"]]


def test_none_is_refused_and_a_shortage_is_said(tmp_path, capsys):
    with pytest.raises(DataError, match="critique needs `prompts`"):
        prompt_batches(job_reading(), "prompts", size=3, limit=None)
    prompt_batches(job_reading(write(tmp_path / "p.jsonl", "ab")), "prompts", size=3, limit=9)
    assert "9 prompts were asked for, 2 are there" in capsys.readouterr().out


def test_rows_that_cannot_be_read_are_left_out_and_counted(tmp_path, capsys):
    path = write(tmp_path / "p.jsonl", "ab")
    path.write_text(path.read_text() + '{"id": "x"}\n')
    found = prompt_batches(job_reading(path, on_bad_row="skip"), "prompts", size=3, limit=None)
    assert [prompt.id for batch in found for prompt in batch] == ["a", "b"]
    assert capsys.readouterr().out.count("\n") >= 1


def test_many_prompts_are_not_held(tmp_path, monkeypatch):
    path = write(tmp_path / "p.jsonl", (f"row-{number}" for number in range(5_000)))
    monkeypatch.setattr(streamed, "HELD", 100)
    found = prompt_batches(job_reading(path), "prompts", size=64, limit=None)
    tracemalloc.start()
    assert sum(len(batch) for batch in found) == 5_000
    assert tracemalloc.get_traced_memory()[1] < 500_000
    tracemalloc.stop()

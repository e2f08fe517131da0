"""What a label stage works on, batch by batch."""

import json

import pytest

from charter.artifacts.job import Job, JobInput
from charter.errors import DataError
from charter.feedback.label import label_batches
from charter.spec.project import DataSpec
from charter.spec.stage import LabelStage


def batches(tmp_path, prompts=3, pairs=0, candidates=0, **more):
    inputs = {}
    for role, count in (("prompts", prompts), ("candidates", candidates)):
        path = tmp_path / f"{role}.jsonl"
        rows = [{"id": f"{role[0]}{n}", "prompt": f"q{n}", "chosen": "a", "rejected": "b"} for n in range(count)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = DataSpec(path=str(path))
        found = JobInput(name=role, role=role, source="data", path=str(path), fingerprint="d", data=data)
        inputs |= {role: (found,)} if count else {}
    told = {"policy": "p", "prompts": ("prompts",)} if pairs else {}
    spec = LabelStage(judge="j", pairs=pairs, rollout_batch=2, **told, **more)
    job = Job(
        run="r", stage="label", kind="label", fingerprint="f" * 64, seed=1, spec=spec,
        inputs=inputs, constitution=None, frozen={}, keep_last=2,
    )  # fmt: skip
    return label_batches(job, spec)


def ids(found):
    return [[item.id for item in batch] for batch in found]


def test_more_pairs_than_prompts_go_round_with_new_draws(tmp_path):
    found = batches(tmp_path, pairs=5)
    assert ids(found) == [["p0/pair-1", "p1/pair-1"], ["p2/pair-1", "p0/pair-2"], ["p1/pair-2"]]
    assert ids(found) == ids(found), "the batches are gone through twice"


def test_candidates_come_first_and_no_batch_is_mixed(tmp_path):
    found = batches(tmp_path, pairs=3, candidates=3)
    assert ids(found) == [["c0", "c1"], ["c2"], ["p0/pair-1", "p1/pair-1"], ["p2/pair-1"]]
    assert [{item.answers is None for item in batch} for batch in found] == [{False}, {False}, {True}, {True}]


def test_nothing_to_label_and_temperature_0_are_refused(tmp_path):
    with pytest.raises(DataError, match="nothing to label"):
        batches(tmp_path)
    with pytest.raises(DataError, match="temperature 0"):
        batches(tmp_path, pairs=2, temperature=0.0)
    assert ids(batches(tmp_path, candidates=1, temperature=0.0)) == [["c0"]]

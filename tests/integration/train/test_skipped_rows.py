"""Rows that cannot be read: the stage stops and names them, or leaves them out, says so and counts them."""

import importlib
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from engine_bench import metrics, stage

from charter.artifacts.job import JobInput, write_job
from charter.artifacts.stage_dir import StageDir
from charter.errors import DataError
from charter.feedback.inputs import (
    role_pairs,
    role_prompts,
)
from charter.spec.project import DataSpec
from charter.spec.stage import PretrainStage

pytestmark = pytest.mark.torch
BAD = ("no json\n", '{"id": "x"}\n')
PPO = {"episodes": 8, "ppo_epochs": 1}
READS = {
    "sft": ("sft", "data", "chats", {"steps": 2}),
    "pretrain": ("sft", "data", "chats", {"steps": 2}),
    "preference_model": ("preference_model", "data", "pairs", {"steps": 2}),
    "dpo": ("dpo", "data", "pairs", {"steps": 2}),
    "judge": ("judge", "pairs", "pairs", {"steps": 2}),
    "ppo": ("ppo", "prompts", "prompts", PPO),
    "ppo-ptx": ("ppo", "ptx_data", "chats", {**PPO, "ptx_weight": 0.5, "ptx_data": ("d",), "ptx_batch": 2}),
}
"""Name of a case -> kind, role of the bad rows, their records, settings; pretraining reads conversations too."""


def with_bad_rows(inputs, place, case, *, policy, only_bad=False):
    """A stage of which one role is a file with two bad rows in it."""
    kind, role, name, changes = READS[case]
    found = stage(inputs, place / case, kind, **changes)
    spec = found.job.spec
    if case == "pretrain":
        spec = PretrainStage(init="b", data=("d",), steps=2, global_batch=4, seq_len=16, dtype="fp32")
    path = place / f"{name}.jsonl"
    good = "" if only_bad else (inputs / name / "records.jsonl").read_text()
    path.write_text(BAD[0] + good + BAD[1])
    item = JobInput(name=name, role=role, source="data", path=str(path), fingerprint="d" * 64,
                    data=DataSpec(path=path.name, on_bad_row=policy))  # fmt: skip
    write_job(found.path, replace(found.job, kind=spec.kind, spec=spec, inputs={**found.job.inputs, role: (item,)}))
    return StageDir(found.path)


def run(found):
    importlib.import_module(f"charter.train.{found.job.kind}").run(found)


@pytest.mark.parametrize("kind", READS)
def test_a_stage_leaves_bad_rows_out_when_asked_and_says_so(engine_inputs, tmp_path, kind, capsys):
    found = with_bad_rows(engine_inputs, tmp_path, kind, policy="skip")
    run(found)
    told = capsys.readouterr().err
    assert "2 bad rows were left out (on_bad_row: skip)" in told
    assert f"{READS[kind][2]}.jsonl:1: not valid JSON" in told
    assert {line["skipped_rows"] for line in metrics(found)} == {2.0}


@pytest.mark.parametrize("kind", READS)
def test_a_stage_stops_at_a_bad_row_otherwise(engine_inputs, tmp_path, kind):
    with pytest.raises(DataError, match=r"jsonl:1: not valid JSON"):
        run(with_bad_rows(engine_inputs, tmp_path, kind, policy="fail"))


@pytest.mark.parametrize("kind", ["preference_model", "ppo"])
def test_data_of_which_no_row_can_be_used_are_refused(engine_inputs, tmp_path, kind):
    with pytest.raises(DataError, match="none of its 2 rows can be read"):
        run(with_bad_rows(engine_inputs, tmp_path, kind, policy="skip", only_bad=True))


def test_without_bad_rows_nothing_is_said(engine_inputs, tmp_path, capsys):
    found = stage(engine_inputs, tmp_path / "sft", "sft", steps=1)
    run(found)
    assert "left out" not in capsys.readouterr().err
    assert "skipped_rows" not in metrics(found)[0]


@pytest.mark.parametrize(("kind", "read"), [("judge", role_pairs), ("ppo", lambda *a: role_prompts(*a, limit=None))])
def test_stages_that_make_records_leave_them_out_too(engine_inputs, tmp_path, kind, read, capsys):
    job = with_bad_rows(engine_inputs, tmp_path, kind, policy="skip").job
    assert len(read(job, READS[kind][1])) == 8
    assert "2 bad rows were left out" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"jsonl:1: not valid JSON"):
        read(with_bad_rows(engine_inputs, tmp_path / "again", kind, policy="fail").job, READS[kind][1])

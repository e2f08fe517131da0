"""Rows that cannot be read: the stage stops and names them, or leaves them out, says so and counts them."""

import importlib
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from engine_bench import metrics, stage  # noqa: E402

from charter.artifacts.job import JobInput, write_job  # noqa: E402
from charter.artifacts.stage_dir import StageDir  # noqa: E402
from charter.errors import DataError  # noqa: E402
from charter.feedback.inputs import role_pairs, role_prompts  # noqa: E402
from charter.spec.project import DataSpec  # noqa: E402

pytestmark = pytest.mark.torch
BAD = ("no json\n", '{"id": "x"}\n')
READS = {
    "sft": ("data", "chats"),
    "preference_model": ("data", "pairs"),
    "dpo": ("data", "pairs"),
    "judge": ("pairs", "pairs"),
    "ppo": ("prompts", "prompts"),
}
SHORT = {"ppo": {"episodes": 8, "ppo_epochs": 1}}


def with_bad_rows(inputs, place, kind, *, policy, only_bad=False):
    """A stage of a kind of which one role is a file with two bad rows in it."""
    role, name = READS[kind]
    found = stage(inputs, place / kind, kind, **SHORT.get(kind, {"steps": 2}))
    path = place / f"{name}.jsonl"
    good = "" if only_bad else (inputs / name / "records.jsonl").read_text()
    path.write_text(BAD[0] + good + BAD[1])
    item = JobInput(name=name, role=role, source="data", path=str(path), fingerprint="d" * 64,
                    data=DataSpec(path=path.name, on_bad_row=policy))  # fmt: skip
    write_job(found.path, replace(found.job, inputs={**found.job.inputs, role: (item,)}))
    return StageDir(found.path)


def run(found):
    importlib.import_module(f"charter.train.{found.job.kind}").run(found)


@pytest.mark.parametrize("kind", READS)
def test_a_stage_leaves_bad_rows_out_when_asked_and_says_so(engine_inputs, tmp_path, kind, capsys):
    found = with_bad_rows(engine_inputs, tmp_path, kind, policy="skip")
    run(found)
    told = capsys.readouterr().err
    assert "2 bad rows were left out (on_bad_row: skip)" in told
    assert f"{READS[kind][1]}.jsonl:1: not valid JSON" in told
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
    assert len(read(job, READS[kind][0])) == 8
    assert "2 bad rows were left out" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"jsonl:1: not valid JSON"):
        read(with_bad_rows(engine_inputs, tmp_path / "again", kind, policy="fail").job, READS[kind][0])

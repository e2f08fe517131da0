"""Rows of measurements: what beats what, what is missing, files that grow without rows being there twice."""

import csv

import pytest

from charter.engines.common.adapter import LoggedStep
from charter.errors import SpecError
from charter.run.imports.charges import csv_text, facts_of_stage, measured_row
from charter.run.imports.logs import FoundRun, attempts_of
from charter.spec.layout import Adapter
from charter.spec.stage import DpoStage, SftStage
from charter.validation.rows.measurement import Measurement

STEPS = [LoggedStep(step=number, seconds=2.0) for number in (1, 2, 3)]
FOUND = FoundRun(format="verl", source="train.log", content="00", attempts=attempts_of(STEPS), facts={"mbs": "2"})
FACTS = {"kind": "sft", "model": "Llama-3.1-8B", "seq": "4096", "gbs": "64", "gpu": "H100-SXM-80GB", "gpus": "8"}


def test_given_facts_beat_the_log_and_the_log_beats_the_stage():
    row = measured_row(FOUND, {**FACTS, "mbs": "1"}, {"gbs": "32", "shard": "zero3"})
    assert (row.mbs, row.gbs, row.shard, row.value) == (2, 32, "zero3", 2.0)
    assert (row.framework, row.source, row.metric) == ("verl", "train.log", "step_time_s")
    assert row.id == f"IMP-{FOUND.identity[:10]}"
    own = measured_row(FOUND, FACTS, {"id": "ACM-1", "value": "3", "framework": "FSDP", "mbs": "4"})
    assert (own.id, own.value, own.framework, own.mbs) == ("ACM-1", 3.0, "FSDP", 4)


def test_all_that_is_missing_is_said_at_once():
    with pytest.raises(SpecError) as caught:
        measured_row(FOUND, {}, {"colour": "red"})
    text = str(caught.value)
    for wanted in ("--fact colour", "kind=sft", "--accelerators", "seq=4096", "gbs=64", "model="):
        assert wanted in text
    blank = FoundRun(format="verl", source="x", content="", attempts=attempts_of([LoggedStep(step=1)]))
    with pytest.raises(SpecError, match="does not say how long a step took"):
        measured_row(blank, FACTS, {})


def test_reinforcement_learning_needs_no_sequences():
    with pytest.raises(SpecError) as caught:
        measured_row(FOUND, {"kind": "ppo"}, {})
    assert "seq=" not in str(caught.value)
    assert "gbs=" not in str(caught.value)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [({"model": "House-8x3B"}, "not in the catalog"), ({"gpus": "x"}, "gpus"), ({"kind": "dance"}, "nothing")],
)
def test_a_row_that_the_planner_would_refuse_is_refused_here(facts, reason):
    with pytest.raises(SpecError, match="the planner cannot use this row") as caught:
        measured_row(FOUND, {**FACTS, **facts}, {})
    assert reason in str(caught.value)


def test_facts_of_stages():
    stage = SftStage(init="base", data=("chat",), seq_len=2048, global_batch=16, adapter=Adapter(rank=8, base_bits=4))
    told = {"kind": "sft", "seq": "2048", "gbs": "16", "dtype": "bf16", "adapter": "qlora", "lora_rank": "8"}
    assert facts_of_stage(stage) == told
    assert "kind" not in facts_of_stage(DpoStage(init="base", data=("pairs",)))


def test_a_file_grows_and_a_row_of_the_same_run_is_replaced():
    one = csv_text([Measurement(id="A-1", metric="step_time_s", value=1.0, gpu="H100")])
    two = csv_text([Measurement(id="B-1", metric="step_time_s", value=2.0, shard="zero3", weight=0.5)], before=one)
    three = csv_text([Measurement(id="A-1", metric="step_time_s", value=3.5, gpu="A100")], before=two)
    rows = list(csv.DictReader(three.splitlines()))
    assert [(row["id"], row["value"], row["gpu"], row["shard"]) for row in rows] == [
        ("A-1", "3.5", "A100", ""),
        ("B-1", "2", "", "zero3"),
    ]
    assert rows[1]["weight"] == "0.5"
    assert csv_text([], before=three) == three

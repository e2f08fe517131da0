"""fp8 is taken where an engine trains in it, and refused with field, reason and what would work everywhere else."""

from dataclasses import replace
from typing import get_args

import pytest

from charter.spec.number_formats import FP8_KINDS, INSTEAD, WITHOUT_FP8, fp8_refusal
from charter.spec.stage import DpoStage, Engine, PpoStage, PreferenceModelStage, PretrainStage, SftStage
from charter.spec.stage_checks import check_stage

ENGINES = get_args(Engine)
STAGES = (
    PretrainStage(init="base", data=("text",), steps=10),
    SftStage(init="base", data=("chat",), epochs=1),
    PreferenceModelStage(init="base", data=("pairs",), epochs=1),
    DpoStage(init="base", data=("pairs",), epochs=1),
    PpoStage(policy="base", reward="pm", prompts=("prompts",), episodes=640),
)
TAKEN = {("megatron", "pretrain"), ("megatron", "sft")}


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.kind)
@pytest.mark.parametrize("engine", ENGINES)
def test_fp8_is_taken_by_megatron_alone_where_it_only_trains(engine, stage):
    found = list(check_stage("stage", replace(stage, engine=engine, dtype="fp8")))
    told = [problem for problem in found if problem.path == "pipeline.stage.dtype"]
    if (engine, stage.kind) in TAKEN:
        assert found == []
        return
    assert [problem.hint for problem in told] == [INSTEAD]
    assert engine in told[0].message
    assert WITHOUT_FP8.get(engine, stage.kind) in told[0].message


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("engine", ENGINES)
def test_other_formats_are_no_matter_of_the_file(engine, dtype):
    for stage in STAGES:
        found = check_stage("stage", replace(stage, engine=engine, dtype=dtype))
        assert "pipeline.stage.dtype" not in {problem.path for problem in found}


def test_every_engine_either_trains_in_fp8_or_says_why_not():
    assert set(FP8_KINDS) | set(WITHOUT_FP8) == set(ENGINES)
    assert not set(FP8_KINDS) & set(WITHOUT_FP8)
    assert all(fp8_refusal(engine, "sft") for engine in WITHOUT_FP8)
    assert all(fp8_refusal(engine, kind) is None for engine, kinds in FP8_KINDS.items() for kind in kinds)

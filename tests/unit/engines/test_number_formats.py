"""fp8 is taken where an engine trains in it, and refused with field, reason and what would work everywhere else."""

from dataclasses import replace

import pytest

from charter.engines import capabilities, engine_names, fp8_instead, fp8_refusal
from charter.engines.project import engine_problems
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import Project
from charter.spec.stage import DpoStage, PreferenceModelStage, PretrainStage, SftStage

ENGINES = engine_names()
STAGES = (
    PretrainStage(init="base", data=("text",), steps=10),
    SftStage(init="base", data=("chat",), epochs=1),
    PreferenceModelStage(init="base", data=("pairs",), epochs=1),
    DpoStage(init="base", data=("pairs",), epochs=1),
    PpoStage(policy="base", reward="pm", prompts=("prompts",), episodes=640),
)
TAKEN = {("megatron", "pretrain"), ("megatron", "sft")}


def problems_of(stage, engine, dtype):
    stages = {"stage": replace(stage, engine=engine, dtype=dtype)}
    return list(engine_problems(Project(name="p", models={}, pipeline=stages)))


def test_fp8_is_taken_by_megatron_alone_where_it_only_trains():
    pairs = [(engine, stage) for engine in ENGINES for stage in STAGES]
    taken = [(engine, stage.kind) for engine, stage in pairs if not problems_of(stage, engine, "fp8")]
    assert set(taken) == TAKEN


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.kind)
def test_a_refusal_of_fp8_names_the_engine_the_reason_and_a_remedy(stage):
    for engine in ENGINES:
        if (engine, stage.kind) not in TAKEN:
            told = [item for item in problems_of(stage, engine, "fp8") if item.path == "pipeline.stage.dtype"]
            assert [problem.hint for problem in told] == [fp8_instead()], engine
            assert engine in told[0].message
            assert (capabilities(engine).without_fp8 or stage.kind) in told[0].message


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_other_formats_are_no_matter_of_the_file(dtype):
    pairs = [(engine, stage) for engine in ENGINES for stage in STAGES]
    paths = {problem.path for engine, stage in pairs for problem in problems_of(stage, engine, dtype)}
    assert "pipeline.stage.dtype" not in paths


def test_every_engine_either_trains_in_fp8_or_says_why_not():
    tables = [capabilities(engine) for engine in ENGINES]
    assert all(bool(item.fp8_kinds) != bool(item.without_fp8) for item in tables)
    assert all(fp8_refusal(item.name, "sft") for item in tables if item.without_fp8)
    assert all(fp8_refusal(item.name, kind) is None for item in tables for kind in item.fp8_kinds)

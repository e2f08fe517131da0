import json

import pytest

from charter.artifacts.job import Job, JobInput, job_from_json, job_to_json, read_job
from charter.errors import DataError
from charter.spec.architecture import Architecture
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import DataSpec, ModelSpec, TokenizerSpec
from charter.spec.stage import CritiqueStage, EvalStage, LabelStage, SftStage
from charter.spec.stage_base import StageResources

SPECS = (
    SftStage(init="base", data=("a", "b"), epochs=1.0, resources=StageResources(cpus=2)),
    CritiqueStage(policy="p", critic="p", prompts=("x",), num_prompts=4),
    LabelStage(judge="j", candidates=("c",)),
    PpoStage(policy="p", reward="r", prompts=("x",), episodes=640, kl_target=6.0),
    EvalStage(policy="p", suites=("win_rate", "hhh")),
)
MODEL = ModelSpec(
    architecture=Architecture(hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8, vocab_size=300),
    tokenizer=TokenizerSpec(train_on=("a",)),
)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_a_job_comes_back_as_it_was_written(spec):
    job = Job(
        run="r",
        stage="s",
        kind=spec.kind,
        fingerprint="f" * 64,
        seed=3,
        spec=spec,
        inputs={
            "init": (JobInput(name="base", role="init", source="model", path=None, fingerprint="m", model=MODEL),),
            "data": (
                JobInput(name="a", role="data", source="data", path="/a", fingerprint="d", data=DataSpec(path="a")),
                JobInput(name="b", role="data", source="stage", path="/b", fingerprint="e", stage_kind="critique"),
            ),
        },
        constitution="/c.yaml",
        frozen={"threads": 2, "torch": "2.13.0"},
        keep_last=2,
        identity={"kind": spec.kind},
    )
    assert job_from_json(json.loads(json.dumps(job_to_json(job)))) == job


def test_a_directory_without_a_job_is_said(tmp_path):
    with pytest.raises(DataError, match=r"job\.json is missing"):
        read_job(tmp_path)


def test_a_job_of_another_version_is_said(tmp_path):
    (tmp_path / "job.json").write_text('{"kind": "sft"}')
    with pytest.raises(DataError, match="not a job of this version"):
        read_job(tmp_path)

"""A judge behind an endpoint needs no weights here; a stage that trains from it does."""

from dataclasses import replace

import pytest

from charter.errors import DataError, SpecError
from charter.launch.job import STAGE_MODULES
from charter.run.graph import build_pipeline, job_of
from charter.run.preflight import check_before_start
from charter.run.served import check_served, loads_weights
from charter.spec.project import DataSpec, ModelSpec, Project, Serving
from charter.spec.stage import LabelStage, SftStage

PAIR = '{"prompt": "Q", "chosen": "a", "rejected": "b"}\n'
PRINCIPLES = """schema: charter.constitution/v1
name: n
principles: [{id: a, critique: c, revision: r, compare: Which is better}]
"""
ENDPOINT = Serving(endpoint="http://127.0.0.1:9/v1")


@pytest.fixture
def project(tmp_path):
    (tmp_path / "pairs.jsonl").write_text(PAIR)
    (tmp_path / "constitution.yaml").write_text(PRINCIPLES)
    return Project(
        name="p",
        models={"big": ModelSpec(model="org/big")},
        data={"pairs": DataSpec(path="pairs.jsonl")},
        constitution="constitution.yaml",
        pipeline={"label": LabelStage(judge="big", candidates=("pairs",))},
        serving={"big": ENDPOINT},
    )


def check(project, root):
    pipeline = build_pipeline(project, root)
    check_before_start(pipeline, list(pipeline.stages.values()), modules=STAGE_MODULES)
    return pipeline


def test_a_served_judge_passes_and_its_stage_is_told_where(project, tmp_path):
    stage = check(project, tmp_path).stages["label"]
    assert stage.inputs["judge"][0].path is None
    assert job_of(stage, project, {}).serving == {"big": ENDPOINT}


@pytest.mark.parametrize("serving", [{}, {"big": Serving(endpoint=ENDPOINT.endpoint, mode="own")}])
def test_without_an_endpoint_the_weights_are_missed(project, tmp_path, serving):
    with pytest.raises(DataError, match=r"org/big.*has no weights"):
        check(replace(project, serving=serving), tmp_path)


def test_where_it_is_served_is_no_part_of_what_is_computed(project, tmp_path):
    def fingerprint(**changes):
        told = replace(ENDPOINT, **changes)
        return build_pipeline(replace(project, serving={"big": told}), tmp_path).stages["label"].fingerprint

    assert fingerprint(endpoint="http://elsewhere/v1", concurrency=3) == fingerprint()
    assert fingerprint(model="another-model") != fingerprint()


def test_a_stage_that_trains_from_it_is_refused(project, tmp_path):
    pipeline = {"sft": SftStage(init="big", data=("pairs",), steps=1)}
    with pytest.raises(SpecError, match=r"pipeline.sft.init: needs the weights of 'big', which is only served"):
        check(replace(project, pipeline=pipeline), tmp_path)


def test_only_models_that_are_not_served_are_loaded(project, tmp_path):
    stage = check(project, tmp_path).stages["label"]
    assert not loads_weights(project, stage)
    assert loads_weights(replace(project, serving={}), stage)


def test_a_model_that_is_here_and_served_has_both_uses(project, tmp_path):
    """Its weights make its identity, wherever it answers; a stage that trains from it has them."""
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "config.json").write_text("{}")
    (tmp_path / "big" / "model.safetensors").write_bytes(b"weights")
    here = replace(
        project,
        models={"big": ModelSpec(model="big")},
        pipeline={**project.pipeline, "sft": SftStage(init="big", data=("pairs",), steps=1)},
    )
    stages = build_pipeline(here, tmp_path).stages
    assert list(check_served(here, list(stages.values()))) == []
    judge, init = stages["label"].inputs["judge"][0], stages["sft"].inputs["init"][0]
    assert judge.path == init.path == str(tmp_path / "big")
    unserved = build_pipeline(replace(here, serving={}), tmp_path).stages
    assert judge.fingerprint == unserved["label"].inputs["judge"][0].fingerprint
    assert not loads_weights(here, stages["label"])

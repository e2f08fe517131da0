"""Texts for managed services: golden, tagged, without secrets; what a service cannot do is refused with a way out."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from managed_case import MANAGED, project_on

from charter.errors import InfeasibleError, UsageError
from charter.launch.rendered import TARGETS, printed, texts_for

GOLDEN = Path(__file__).parents[3] / "golden" / "launch" / "managed"
SERVICES = [name for name in TARGETS if name != "skypilot"]
STAGES = ("helpful", "revised", "sl_cai", "labels", "reward", "rl_cai", "measured")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return {service: texts_for(project_on(service, tmp_path_factory.mktemp(service)), service) for service in SERVICES}


@pytest.mark.parametrize("service", SERVICES)
def test_the_texts_are_the_golden_ones(texts, service):
    golden = (GOLDEN / f"{service}.txt").read_text(encoding="utf-8")
    assert printed(texts[service]) == golden, "look at them, then run tests/golden/managed_texts.py"


@pytest.mark.parametrize("service", ["sagemaker", "vertex", "azureml"])
def test_every_stage_is_a_job_and_the_judge_an_endpoint(texts, service):
    names = list(texts[service])
    for stage in STAGES:
        assert any(f"-{stage.replace('_', '-')}." in name for name in names)
    assert any("-judge." in name for name in names)


@pytest.mark.parametrize("service", SERVICES)
def test_tags_are_everywhere(texts, service):
    for name, text in texts[service].items():
        assert "alignment" in text, f"{name} does not say whose it is"
        if "deployModel" not in name and "pipeline.definition" not in name:
            assert "cost" in text, f"{name} has lost a tag of the file"


def test_a_key_that_stands_in_a_variable_is_refused(tmp_path):
    project = project_on("sagemaker", tmp_path)
    judge = replace(project.serving["judge"], api_key="env:JUDGE_KEY")
    with pytest.raises(UsageError, match="file:PATH"):
        texts_for(replace(project, serving={"judge": judge}), "sagemaker")


@pytest.mark.parametrize("service", SERVICES)
def test_stages_that_would_have_one_name_are_refused(tmp_path, service):
    """All but the last had been missing from what was rendered, without a word."""
    project = project_on(service, tmp_path)
    alike = replace(project, pipeline={**project.pipeline, "sl-cai": project.pipeline["sl_cai"]})
    with pytest.raises(UsageError, match="sl_cai and sl-cai would both be called"):
        texts_for(alike, service)
    with pytest.raises(UsageError, match="shorter name"):
        texts_for(replace(project, name="n" * 64), service)


@pytest.mark.parametrize("service", MANAGED)
def test_without_an_image_to_serve_it_an_address_is_not_hosted(tmp_path, service):
    project = project_on(service, tmp_path)
    managed = replace(project.launch.managed, serving_image=None)
    found = texts_for(replace(project, launch=replace(project.launch, managed=managed)), service)
    assert not any("-judge." in name for name in found)
    nowhere = {"judge": replace(project.serving["judge"], endpoint=None)}
    with pytest.raises(UsageError, match=r"launch\.managed\.serving_image"):
        texts_for(replace(project, serving=nowhere, launch=replace(project.launch, managed=managed)), service)


@pytest.mark.parametrize("service", MANAGED)
@pytest.mark.parametrize("setting", ["image", "storage"])
def test_what_is_missing_is_named(tmp_path, service, setting):
    project = project_on(service, tmp_path)
    managed = replace(project.launch.managed, **{setting: None})
    with pytest.raises(UsageError, match=rf"launch\.managed\.{setting}"):
        texts_for(replace(project, launch=replace(project.launch, managed=managed)), service)


@pytest.mark.parametrize("service", MANAGED)
def test_storage_of_another_kind_is_refused(tmp_path, service):
    project = project_on(service, tmp_path)
    managed = replace(project.launch.managed, storage="/home/me/project")
    with pytest.raises(UsageError, match=r"launch\.managed\.storage"):
        texts_for(replace(project, launch=replace(project.launch, managed=managed)), service)


@pytest.mark.parametrize("service", SERVICES)
def test_several_nodes_are_refused(tmp_path, service):
    project = project_on(service, tmp_path)
    with pytest.raises(UsageError, match="--on"):
        texts_for(replace(project, resources=replace(project.resources, num_nodes=4)), service)


@pytest.mark.parametrize("service", MANAGED)
def test_more_accelerators_than_any_machine_has(tmp_path, service):
    project = project_on(service, tmp_path)
    with pytest.raises(InfeasibleError, match="the largest has 8"):
        texts_for(replace(project, resources=replace(project.resources, accelerators=("H100:64",))), service)


def test_an_accelerator_that_vertex_ai_cannot_name_is_refused(tmp_path):
    project = project_on("vertex", tmp_path)
    launch = replace(project.launch, managed=replace(project.launch.managed, instance_type="a4x-highgpu-4g"))
    project = replace(project, launch=launch, resources=replace(project.resources, accelerators=("GH200:4",)))
    with pytest.raises(UsageError, match=r"no name for GH200-96GB(.|\n)*NVIDIA_H200_141GB"):
        texts_for(project, "vertex")


def test_exported_weights_are_mounted_and_for_vertex_lie_in_cloud_storage(tmp_path):
    for service, where in (("sagemaker", "s3://alignment/harmless-8b/exports/reward"), ("azureml", "exports/reward")):
        project = project_on(service, tmp_path)
        hosted = replace(project, serving={"reward": replace(project.serving["judge"], model=None)})
        assert where in "".join(texts_for(hosted, service).values())
    project = project_on("vertex", tmp_path)
    hosted = replace(project, serving={"reward": replace(project.serving["judge"], model=None)})
    with pytest.raises(UsageError, match="gs://"):
        texts_for(hosted, "vertex")
    managed = replace(project.launch.managed, exports="gs://alignment/exports/")
    hosted = replace(hosted, launch=replace(project.launch, managed=managed))
    assert '"artifactUri": "gs://alignment/exports/reward"' in "".join(texts_for(hosted, "vertex").values())


def test_texts_parse(texts):
    for service in SERVICES:
        for name, text in texts[service].items():
            assert json.loads(text) if name.endswith(".json") else list(yaml.safe_load_all(text))

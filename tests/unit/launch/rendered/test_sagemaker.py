"""SageMaker's requests against the model of its API that botocore carries, enums and patterns included."""

import json
from dataclasses import replace

import pytest
from aws_shapes import check_request
from managed_case import project_on

from charter.launch.rendered import TARGETS, hosted_model, managed, task_of

KEYS = {"Name", "Type", "Arguments", "DependsOn", "RetryPolicies"}
"""Of a training step. Source: schema 2020-12-01 of SageMaker's pipeline definitions."""


@pytest.fixture
def project(tmp_path):
    return project_on("sagemaker", tmp_path)


def job(project, stage="rl_cai"):
    return managed.training_job(project, task_of(project, stage, TARGETS["sagemaker"]))


def test_every_training_job_is_one_that_sagemaker_takes(project):
    for stage in project.pipeline:
        check_request("sagemaker", "CreateTrainingJob", job(project, stage))


def test_every_request_of_an_endpoint_is_one_that_sagemaker_takes(project):
    for file, body in managed.sagemaker_endpoint(project, hosted_model(project, "judge", TARGETS["sagemaker"])).items():
        check_request("sagemaker", file.removesuffix(".json"), body)


@pytest.mark.parametrize(
    "change",
    [
        {"EnableManagedSpotTrainings": True},
        {"TrainingJobName": "with space"},
        {"ResourceConfig": {"InstanceType": "ml.p99.huge", "InstanceCount": 1, "VolumeSizeInGB": 1}},
        {"RoleArn": "charter"},
        {"CheckpointConfig": {"S3Uri": "gs://bucket", "LocalPath": "/x"}},
        {"Tags": [{"Key": "aws:mine", "Value": "1" * 300}]},
        {"StoppingCondition": {"MaxRuntimeInSeconds": 0}},
    ],
)
def test_the_check_refuses_what_sagemaker_would(project, change):
    with pytest.raises(AssertionError):
        check_request("sagemaker", "CreateTrainingJob", {**job(project), **change})


def test_spot_waits_longer_than_it_runs_and_goes_on_from_the_checkpoint_address(project):
    request = job(project)
    stopping = request["StoppingCondition"]
    assert request["EnableManagedSpotTraining"]
    assert stopping["MaxWaitTimeInSeconds"] > stopping["MaxRuntimeInSeconds"] == 12 * 3600
    assert request["CheckpointConfig"]["LocalPath"] in request["AlgorithmSpecification"]["ContainerArguments"]
    assert not request["OutputDataConfig"]["S3OutputPath"].startswith(request["CheckpointConfig"]["S3Uri"] + "/")
    plain = job(replace(project, resources=replace(project.resources, use_spot=False)))
    assert "MaxWaitTimeInSeconds" not in plain["StoppingCondition"], "SageMaker refuses it without spot"


def test_the_pipeline_has_every_stage_once_and_waits_for_what_it_reads(project):
    tasks = [task_of(project, stage, TARGETS["sagemaker"]) for stage in project.pipeline]
    files = managed.sagemaker_pipeline(project, tasks)
    check_request("sagemaker", "CreatePipeline", files["pipeline.CreatePipeline.json"])
    definition = json.loads(files["pipeline.definition.json"])
    seen = []
    for step in definition["Steps"]:
        assert set(step) <= KEYS
        check_request("sagemaker", "CreateTrainingJob", {"TrainingJobName": "x", **step["Arguments"]})
        assert set(step.get("DependsOn", ())) <= set(seen), "a step waits for a later one"
        seen.append(step["Name"])
    assert len(seen) == len(set(seen)) == len(project.pipeline)
    by_name = {step["Name"]: step.get("DependsOn", []) for step in definition["Steps"]}
    assert by_name["rl-cai"] == ["sl-cai", "reward"]

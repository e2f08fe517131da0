"""Texts for managed services and pipelines, read by the services' own clients.

Each client lives in an environment of its own, made by tools/managed_environments.py: kfp compiles and loads what
Kubeflow and Vertex AI run, google-cloud-aiplatform has the messages of Vertex AI's API, azure-ai-ml its YAML schemas.
SageMaker's requests are checked in the unit suite, with the model that botocore carries.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cases"))

from managed_case import project_on

from charter.launch.rendered import texts_for

pytestmark = pytest.mark.slow
KUBEFLOW = """
import json, sys, warnings, yaml
warnings.simplefilter("ignore")
from google.protobuf.json_format import ParseDict
from kfp import components
from kfp.kubernetes import kubernetes_executor_config_pb2 as kubernetes
from kfp.pipeline_spec import pipeline_spec_pb2 as spec
kfp, vertex = sys.argv[1:]
intermediate, platform = yaml.safe_load_all(open(kfp))
for found in (intermediate, json.load(open(vertex))["pipelineSpec"]):
    ParseDict(found, spec.PipelineSpec())
    for executor in found["deploymentSpec"]["executors"].values():
        ParseDict(executor, spec.PipelineDeploymentConfig.ExecutorSpec())
for config in platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values():
    ParseDict(config, kubernetes.KubernetesExecutorConfig())
loaded = components.load_component_from_file(kfp)
tasks = loaded.pipeline_spec.root.dag.tasks
print(json.dumps({name: sorted(task.dependent_tasks) for name, task in tasks.items()}))
"""
VERTEX = """
import json, sys
from google.cloud.aiplatform_v1 import types
from google.protobuf.json_format import ParseDict
KINDS = {"customJobs.create": types.CustomJob, "models.upload": types.UploadModelRequest,
         "endpoints.create": types.Endpoint, "endpoints.deployModel": types.DeployModelRequest,
         "pipelineJobs.create": types.PipelineJob}
seen = []
for path in sys.argv[1:]:
    method = ".".join(path.split(".")[-3:-1])
    ParseDict(json.load(open(path)), KINDS[method]()._pb)
    seen.append(method)
print(json.dumps(sorted(set(seen))))
"""
AZURE = """
import json, logging, sys, warnings
warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
from azure.ai.ml import load_job, load_online_deployment, load_online_endpoint
LOADERS = {"job": load_job, "endpoint": load_online_endpoint, "deployment": load_online_deployment}
seen = []
for path in sys.argv[1:]:
    kind = path.split(".")[-2]
    found = LOADERS[kind](path)
    if kind == "job":
        assert not found._validate().error_messages, found._validate().error_messages
    seen.append(type(found).__name__)
print(json.dumps(sorted(set(seen))))
"""


def asked(variable: str, script: str, *files: Path):
    """What a client says of files: its JSON, or its error."""
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} names no Python; tools/managed_environments.py makes one")
    command = [python, "-W", "ignore", "-c", script, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ""})
    return done.returncode, done.stdout.strip().splitlines()[-1:] or [done.stderr[-2000:]]


@pytest.fixture
def files(tmp_path):
    """Writes the texts of a service; their paths by name."""

    def written(service):
        directory = tmp_path / service
        texts = texts_for(project_on(service, tmp_path / "project"), service)
        directory.mkdir()
        for name, text in texts.items():
            (directory / name).write_text(text)
        return {name: directory / name for name in texts}

    return written


def test_kfp_loads_the_pipeline_with_its_edges(files):
    kfp, vertex = files("kfp")["pipeline.yaml"], files("vertex")["pipeline.pipelineJobs.create.json"]
    code, [said] = asked("CHARTER_KFP_PYTHON", KUBEFLOW, kfp, vertex)
    assert code == 0, said
    edges = json.loads(said)
    assert edges["rl-cai"] == ["reward", "sl-cai"]
    assert edges["helpful"] == []
    assert len(edges) == 7


def test_vertex_ai_has_every_field(files):
    texts = files("vertex")
    code, [said] = asked("CHARTER_VERTEX_PYTHON", VERTEX, *texts.values())
    assert code == 0, said
    assert len(json.loads(said)) == 5
    broken = next(path for name, path in texts.items() if "customJobs" in name)
    broken.write_text(broken.read_text().replace("restartJobOnWorkerRestart", "restartJobOnWorkerRestarts"))
    code, [said] = asked("CHARTER_VERTEX_PYTHON", VERTEX, broken)
    assert code != 0
    assert "restartJobOnWorkerRestarts" in said


def test_azure_ml_reads_every_file(files):
    texts = files("azureml")
    code, [said] = asked("CHARTER_AZURE_ML_PYTHON", AZURE, *texts.values())
    assert code == 0, said
    assert json.loads(said) == ["Command", "ManagedOnlineDeployment", "ManagedOnlineEndpoint"]
    broken = next(path for name, path in texts.items() if name.endswith(".job.yaml"))
    broken.write_text(broken.read_text().replace("instance_count: 1", "instance_count: many"))
    assert asked("CHARTER_AZURE_ML_PYTHON", AZURE, broken)[0] != 0

"""A project as managed services and pipelines are asked for it in tests."""

from dataclasses import replace
from pathlib import Path

from charter.engines.project import load_project
from charter.spec.launching import KubernetesSettings, ManagedSettings
from charter.spec.project import Project
from charter.templates.shipped import find_template, write_template

FILE = """\
name: harmless-8b
owner: alignment
tags: {cost centre: "42"}
models: {base: meta-llama/Llama-3.1-8B, judge: Qwen/Qwen3-32B}
data:
  chats: {path: chats.jsonl, rows: 1000, mean_tokens: 300}
  prompts: {path: prompts.jsonl, rows: 1000, mean_tokens: 60}
constitution: principles.yaml
resources: {accelerators: "H100:8", use_spot: true, max_parallel_stages: PARALLEL}
serving:
  judge: {endpoint: "https://judge.example/v1", model: judge-32b, api_key: "file:/run/secrets/judge"}
pipeline:
  helpful: {kind: sft, init: base, data: chats}
  revised: {kind: critique, policy: helpful, critic: helpful, prompts: prompts}
  sl_cai: {kind: sft, init: base, data: [chats, revised]}
  labels: {kind: label, judge: judge, policy: sl_cai, prompts: prompts, pairs: 1000}
  reward: {kind: preference_model, init: sl_cai, data: labels}
  rl_cai: {kind: ppo, policy: sl_cai, reward: reward, prompts: prompts, episodes: 4096}
  measured: {kind: eval, policy: helpful, prompts: prompts}
launch:
  environment: {NCCL_DEBUG: WARN}
  time_limit: 12h
"""
MANAGED = {
    "sagemaker": ManagedSettings(
        image="123456789012.dkr.ecr.us-east-1.amazonaws.com/charter:1.2",
        serving_image="123456789012.dkr.ecr.us-east-1.amazonaws.com/vllm:0.11",
        storage="s3://alignment/harmless-8b",
        role="arn:aws:iam::123456789012:role/charter",
        region="us-east-1",
    ),
    "vertex": ManagedSettings(
        image="us-docker.pkg.dev/alignment/charter/charter:1.2",
        serving_image="us-docker.pkg.dev/alignment/charter/vllm:0.11",
        storage="10.0.0.2:/share/harmless-8b",
        role="charter@alignment.iam.gserviceaccount.com",
        project="alignment",
        region="us-central1",
        network="projects/123456/global/networks/default",
    ),
    "azureml": ManagedSettings(
        image="alignment.azurecr.io/charter:1.2",
        serving_image="alignment.azurecr.io/vllm:0.11",
        storage="azureml://datastores/projects/paths/harmless-8b",
        compute="h100",
    ),
}


def project_on(service: str, directory: Path, *, parallel: int = 4) -> Project:
    """The project, with what a service needs to know; `kfp` for Kubeflow Pipelines."""
    directory.mkdir(parents=True, exist_ok=True)
    write_template(find_template("cai-smoke"), directory, force=True)
    (directory / "charter.yaml").write_text(FILE.replace("PARALLEL", str(parallel)), encoding="utf-8")
    project = load_project(directory)
    if service == "kfp":
        settings = KubernetesSettings(
            image="registry.example/charter:1.2", volume_claim="runs", secrets={"JUDGE_KEY": "judge/key"},
            node_selector={"pool": "h100"},
        )  # fmt: skip
        return replace(project, launch=replace(project.launch, kubernetes=settings))
    return replace(project, launch=replace(project.launch, managed=MANAGED[service]))

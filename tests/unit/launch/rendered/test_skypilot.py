"""A pipeline as SkyPilot's YAML: whole texts, the schema, and what is refused."""

from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest
import yaml
from skypilot_schema import HEADER, TASK

from charter.engines.project import load_project
from charter.errors import MissingExtraError, UsageError
from charter.launch.rendered import TARGETS, task_of, texts_for
from charter.launch.rendered.skypilot import PIPELINE as FILE
from charter.launch.rendered.skypilot import launch_command, sky_accelerator, sky_cloud, sky_task, submit
from charter.spec.project import Project

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "launch" / "skypilot"
MODELS = """\
name: harmless
models: {base: {model: meta-llama/Llama-3.1-8B}, judge: {model: meta-llama/Llama-3.1-70B-Instruct}}
data: {chat: {path: chat.jsonl, rows: 1000, mean_tokens: 200}, asked: {path: a.jsonl, rows: 1000, mean_tokens: 40}}
constitution: constitution.yaml
"""
PIPELINE = """\
pipeline:
  sft: {kind: sft, init: base, data: [chat]}
  label: {kind: label, judge: judge, policy: sft, prompts: [asked], pairs: 500}
  pm: {kind: preference_model, init: base, data: [label]}
"""
SERVED = """\
serving: {judge: {endpoint: "http://judge:8000/v1", api_key: "env:JUDGE_KEY"}}
"""
BUCKET = """\
launch:
  skypilot: {bucket: "s3://alignment/harmless", setup: "pip install charter.whl"}
  environment: {NCCL_DEBUG: WARN}
"""
PLACES = """\
owner: Team A
tags: {"cost centre": "42"}
resources:
  any_of: [{infra: aws, region: us-east-1}, {infra: lambda, accelerators: [H100:8]}]
  accelerators: [H100:8, A100-80GB:8]
  use_spot: auto
  cpus: 32
  memory: 256GiB
  max_hourly_cost: 60
"""
ONE_PLACE = "resources: {infra: gcp, accelerators: [H200:8]}\n"
ANYWHERE = "resources: {accelerators: [L4]}\n"


def project(directory: Path, *sections: str) -> Project:
    (directory / "charter.yaml").write_text("".join([MODELS, PIPELINE, *sections]))
    (directory / "constitution.yaml").write_text("principles: [{id: one, critique: c, revision: r, choose: c}]\n")
    return load_project(directory)


def rendered(project: Project, stages: Sequence[str] = ()) -> str:
    return texts_for(project, "skypilot", stages)[FILE]


def sft_task(project: Project) -> dict:
    return sky_task(project, task_of(project, "sft", TARGETS["skypilot"]))


def documents(text: str) -> list[dict]:
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize(
    ("name", "sections"),
    [
        ("several_places", (SERVED, BUCKET, PLACES)),
        ("one_place", (BUCKET, ONE_PLACE)),
        ("anywhere", (BUCKET, ANYWHERE)),
    ],
)
def test_the_text_is_as_it_was_looked_at_and_as_the_schema_wants_it(tmp_path, name, sections):
    text = rendered(project(tmp_path, *sections))
    assert text == (GOLDEN / f"{name}.yaml").read_text(encoding="utf-8")
    header, *tasks = documents(text)
    jsonschema.validate(header, HEADER)
    for task in tasks:
        jsonschema.validate(task, TASK)
    assert [task["name"] for task in tasks] == ["sft", "label", "pm"]


def test_a_misspelt_field_would_be_seen(tmp_path):
    task = sft_task(project(tmp_path, BUCKET, ONE_PLACE))
    with pytest.raises(jsonschema.ValidationError, match="use_spots"):
        jsonschema.validate({**task, "resources": {**task["resources"], "use_spots": True}}, TASK)


def test_some_stages_are_a_pipeline_of_those(tmp_path):
    _, *tasks = documents(rendered(project(tmp_path, BUCKET, ONE_PLACE), ["pm", "sft"]))
    assert [task["name"] for task in tasks] == ["sft", "pm"]
    with pytest.raises(UsageError, match="no stage ppo; it has sft, label, pm"):
        rendered(project(tmp_path, BUCKET, ONE_PLACE), ["ppo"])


def test_secrets_are_named_on_the_command_and_have_no_value_anywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret-value")
    asked = project(tmp_path, SERVED, BUCKET, ONE_PLACE)
    text, command = rendered(asked), launch_command(asked, "f.yaml")
    assert "sk-very-secret-value" not in text + " ".join(command)
    assert command == ["sky", "jobs", "launch", "--yes", "--async", "--secret", "JUDGE_KEY", "f.yaml"]


def test_a_bucket_of_storage_needs_no_other(tmp_path):
    task = sft_task(
        project(
            tmp_path,
            ONE_PLACE,
            "storage: {artifacts: s3://alignment/results}\nlaunch: {skypilot: {setup: pip install x}}\n",
        )
    )
    assert "file_mounts" not in task
    assert "--set" not in task["run"]


def test_without_a_bucket_results_would_be_lost_and_that_is_told(tmp_path):
    with pytest.raises(UsageError, match=r"takes its disk along(.|\n)*launch\.skypilot\.bucket"):
        rendered(project(tmp_path, ONE_PLACE))


def test_several_nodes_are_refused_with_where_they_work(tmp_path):
    with pytest.raises(UsageError, match=r"stage sft asks for 4 nodes(.|\n)*slurm, ray or kubernetes"):
        rendered(project(tmp_path, BUCKET, "resources: {accelerators: [H100:8], num_nodes: 4}\n"))


def test_a_place_that_skypilot_does_not_know_is_refused(tmp_path):
    with pytest.raises(UsageError, match="does not know the place 'hyperstack'"):
        rendered(project(tmp_path, BUCKET, "resources: {any_of: [{infra: hyperstack}], accelerators: [L40]}\n"))


def test_regions_are_those_of_the_cloud(tmp_path):
    where = "resources: {clouds: [aws, lambda], regions: [us-east-1, us-east-2], accelerators: [H100:8]}\n"
    found = sft_task(project(tmp_path, BUCKET, where))["resources"]["any_of"]
    assert [place["infra"] for place in found] == ["aws/us-east-1", "aws/us-east-2", "lambda"]


def test_a_plain_launch_takes_one_stage(tmp_path):
    plain = project(
        tmp_path, ONE_PLACE, "launch: {skypilot: {bucket: s3://b/c, managed: false, setup: pip install x}}\n"
    )
    with pytest.raises(UsageError, match="sky launch takes one task, and this is a pipeline of 3"):
        rendered(plain)
    assert "submit it with  sky launch --yes " in rendered(plain, ["sft"])


def test_a_machine_that_nobody_sets_up_is_refused(tmp_path):
    bucket = "launch: {skypilot: {bucket: s3://b/c}}\n"
    with pytest.raises(UsageError, match=r"set launch\.skypilot\.setup to what installs it there"):
        rendered(project(tmp_path, bucket, ONE_PLACE))


def test_without_sky_the_submission_says_what_to_install_and_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"--print"):
        submit(project(tmp_path, BUCKET, ONE_PLACE), tmp_path, {FILE: ""})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("H100-SXM-80GB", "H100"), ("A100", "A100"), ("A100-80GB", "A100-80GB"), ("V100-32GB", "V100-32GB"), ("L4", "L4")],
)
def test_accelerators_have_the_names_that_skypilot_gives_them(ours, theirs):
    assert sky_accelerator(ours) == theirs
    assert sky_cloud("aws") == "aws"

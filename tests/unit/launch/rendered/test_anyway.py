"""Words of `charter submit` that its stages must hear, too, whoever starts them: `--anyway`, `--set`, named stages."""

import json
import os
import re

import pytest
from managed_case import MANAGED, project_on
from typer.testing import CliRunner

from charter.cli.main import app

SKYPILOT = ["--set", "launch.skypilot={bucket: s3://alignment/harmless, setup: pip install charter.whl}"]


def words_for(target):
    """What the command line must say for a target to be rendered."""
    if target == "skypilot":
        return SKYPILOT
    if target == "kfp":
        settings = {"kubernetes.image": "registry.example/charter:1.2", "kubernetes.volume_claim": "runs"}
    else:
        names = ("image", "serving_image", "storage", "role", "project", "region", "network")
        values = {name: getattr(MANAGED[target], name) for name in names}
        settings = {f"managed.{name}": value for name, value in values.items() if value}
    return [word for name, value in settings.items() for word in ("--set", f"launch.{name}={value}")]


@pytest.mark.parametrize("target", ["skypilot", "sagemaker", "vertex", "azureml", "kfp"])
def test_words_stand_in_every_command_that_is_printed(tmp_path, target):
    stages = len(project_on("kfp", tmp_path).pipeline)
    command = ["submit", "--on", target, "--print", "-C", str(tmp_path), *words_for(target)]
    done = CliRunner().invoke(app, [*command, "--anyway", "--set", "owner=somebody"])
    assert done.exit_code == 0, done.output
    assert done.output.count("--anyway") >= stages
    assert done.output.count("owner=somebody") >= stages


def test_words_that_were_not_given_stand_nowhere(tmp_path):
    project_on("kfp", tmp_path)
    command = ["submit", "--on", "skypilot", "--print", "-C", str(tmp_path), *words_for("skypilot")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "--anyway" not in done.output


def test_anyway_stands_in_what_sky_is_given(tmp_path, monkeypatch):
    stages = len(project_on("kfp", tmp_path).pipeline)
    sky = tmp_path / "bin" / "sky"
    sky.parent.mkdir()
    sky.write_text("#!/bin/sh\necho taken\n")
    sky.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sky.parent}{os.pathsep}{os.environ['PATH']}")
    done = CliRunner().invoke(app, ["submit", "--on", "skypilot", "--anyway", "-C", str(tmp_path), *SKYPILOT])
    assert "taken" in done.output, done.output
    assert (tmp_path / "run" / "skypilot.yaml").read_text().count(" --yes --anyway --set ") == stages


@pytest.mark.parametrize("target", ["slurm", "ray", "sagemaker"])
def test_a_printed_supervisor_says_what_a_sent_one_does(tmp_path, target):
    first = next(iter(project_on("kfp", tmp_path).pipeline))
    settings = words_for(target) if target == "sagemaker" else []
    words = ["submit", first, "--on", target, "--print", "--json", "-C", str(tmp_path), *settings, "--set", "owner=me"]
    done = CliRunner().invoke(app, [*words, "--anyway"])
    (own,) = [job for job in json.loads(done.stdout)["jobs"] if job["stage"] is None]
    for part in (["--only", first], ["--set", "owner=me"], ["-C", str(tmp_path)], ["--anyway"]):
        assert " ".join(part) in " ".join(own["command"])


@pytest.mark.parametrize("target", ["skypilot", "sagemaker", "vertex", "azureml", "kfp"])
def test_a_named_stage_is_rendered_alone(tmp_path, target):
    last = list(project_on("kfp", tmp_path).pipeline)[-1]
    done = CliRunner().invoke(app, ["submit", last, "--on", target, "--print", "-C", str(tmp_path), *words_for(target)])
    assert done.exit_code == 0, done.output
    commands = re.findall(r"--only(?:\\n|\W)+([\w-]+)", done.output)
    assert set(commands) == {last}

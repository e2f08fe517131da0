"""`charter plan --probe`: real steps in a directory of their own; the project keeps its run and gains a pace."""

import json
import os
import sys
from pathlib import Path

import forks
import pytest
import yaml

pytest.importorskip("torch")

import pooled

from charter.templates.shipped import find_template, write_template

KEPT = ("pretrain", "pm", "ppo")


def charter(*arguments, **environment):
    command = [sys.executable, "-m", "charter.cli.main", *arguments]
    env = {**os.environ, **environment}
    env.pop("COLUMNS", None)
    return forks.run(command, capture_output=True, text=True, env=env, check=False)


@pytest.fixture
def project(tmp_path):
    """cai-smoke cut to three stages, with a run directory that a probe must leave alone."""
    root = tmp_path / "project"
    write_template(find_template("cai-smoke"), root, force=False)
    content = yaml.safe_load((root / "charter.yaml").read_text())
    stages = {name: content["pipeline"][name] for name in KEPT}
    stages["pm"] |= {"init": "pretrain", "data": ["pairs_a"]}
    stages["ppo"] |= {"policy": "pretrain"}
    content["pipeline"] = stages
    (root / "charter.yaml").write_text(yaml.safe_dump(content))
    (root / "run").mkdir()
    (root / "run" / "ledger.sqlite").write_bytes(b"not to be opened")
    return root


def files(root: Path):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.torch
def test_a_probe_measures_stores_the_pace_and_touches_nothing_else(project, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    before = files(project)
    done = charter("plan", "-C", str(project), "--probe", "2", "--json", TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr
    assert not list(temporary.glob("charter-probe-*"))

    found = json.loads(done.stdout)
    stages = {stage["name"]: stage for stage in found["probe"]["stages"]}
    assert {name: len(stage["layouts"]) for name, stage in stages.items()} == {"pretrain": 2, "pm": 2, "ppo": 1}
    for stage in stages.values():
        assert stage["why"] is None
        assert all(layout["measured_seconds_per_step"] > 0 for layout in stage["layouts"])
        assert all(5 <= layout["steps"] <= 23 for layout in stage["layouts"])
    assert [layout["layout"] for layout in stages["pm"]["layouts"]] == ["mb8", "mb4 ga2"]

    after = files(project)
    calibration = json.loads(after.pop("calibration.json"))
    assert after == before
    paces = {pace["kind"]: pace for pace in calibration["paces"]}
    assert set(paces) == {"pretrain", "preference_model", "ppo"}
    first = stages["ppo"]["layouts"][0]
    measured = first["measured_seconds_per_step"] / first["planned_seconds_per_step"]
    assert paces["ppo"]["factor"] == pytest.approx(measured)

    again = json.loads(charter("plan", "-C", str(project), "--json").stdout)
    assert "probe" not in again
    assert all("measured pace" in json.dumps(stage["breakdown"]) for stage in again["stages"])


@pytest.mark.thorough
@pytest.mark.torch
def test_what_fails_is_told_and_the_rest_is_measured(project):
    content = yaml.safe_load((project / "charter.yaml").read_text())
    content["data"]["pairs_a"]["path"] = "nowhere.jsonl"
    content["data"]["pairs_a"] |= {"rows": 64, "mean_tokens": 80}
    (project / "charter.yaml").write_text(yaml.safe_dump(content))
    done = charter("plan", "-C", str(project), "--probe", "1", "--json")
    assert done.returncode == 0, done.stderr
    stages = {stage["name"]: stage for stage in json.loads(done.stdout)["probe"]["stages"]}
    assert stages["pretrain"]["layouts"][0]["measured_seconds_per_step"] > 0
    assert "nowhere.jsonl" in stages["pm"]["why"]
    assert stages["ppo"]["why"].startswith("needs pm")


@pytest.mark.torch
def test_a_probe_starts_the_servers_of_a_pool(tmp_path):
    root = pooled.project_at(tmp_path / "project", pooled.save_judge(tmp_path / "judge"), pooled.POOL)
    done = charter("plan", "-C", str(root), "--probe", "1", "--json")
    assert done.returncode == 0, done.stderr
    (stage,) = json.loads(done.stdout)["probe"]["stages"]
    (layout,) = stage["layouts"]
    assert layout["measured_seconds_per_step"] > 0
    assert layout["steps"] == 8, "each of 12 batches beside the fourth before it, as four are asked at once"

"""SIGKILL of everything at chosen boundaries of real training stages; the final weights are the undisturbed ones.

One undisturbed run of cai-smoke is the reference. For each boundary the stage and all that hangs on it are taken
out of a copy, the run is killed there (supervisor, stage server and stage), and the same command is run again.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import forks
import pytest
from layouts import THOROUGH, in_turn
from power_cut import wait_until_all_ended

from charter.engines.project import load_project
from charter.run.status import status_of

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

STEPS = 20
BOUNDARIES = {
    "between two checkpoints": "step:7:after",
    "before a checkpoint is published": "checkpoint:10:before",
    "after a checkpoint is published": "checkpoint:15:after",
    "after the outputs, before the record": f"outputs:{STEPS}:after",
    "after its first batch": "checkpoint:1:after",
    "after its second batch": "checkpoint:2:after",
}
KILLS = [
    ("sft", "between two checkpoints"),
    ("pm", "before a checkpoint is published"),
    ("pm", "after the outputs, before the record"),
    ("ppo", "between two checkpoints"),
    ("ppo", "after a checkpoint is published"),
    ("critique", "after its first batch"),
    ("label", "after its second batch"),
    ("eval", "after its second batch"),
]
"""Every boundary once or twice; the other files here have all of them for every kind, at the stage process."""


def charter(*arguments: str, kill: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CHARTER_")}
    if kill:
        environment["CHARTER_KILL"] = kill
    done = forks.run(
        [sys.executable, "-m", "charter.cli.main", *arguments], capture_output=True, text=True, env=environment
    )
    if kill:
        wait_until_all_ended(Path(arguments[arguments.index("-C") + 1]))
    return done


def stages_of(project: Path) -> dict[str, dict]:
    return {stage["name"]: stage for stage in status_of(load_project(project), project)["stages"]}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    project = tmp_path_factory.mktemp("undisturbed") / "project"
    assert charter("init", "--template", "cai-smoke", str(project)).returncode == 0
    done = charter("run", "-C", str(project), "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    return project


def test_the_whole_pipeline_is_done_and_a_second_run_does_nothing(undisturbed):
    before = stages_of(undisturbed)
    assert {stage["state"] for stage in before.values()} == {"done"}
    again = charter("run", "-C", str(undisturbed), "--yes")
    assert again.returncode == 0
    assert "nothing" in (again.stdout + again.stderr).lower()
    after = stages_of(undisturbed)
    assert {name: stage["attempts"] for name, stage in after.items()} == dict.fromkeys(before, 1)


@pytest.mark.skipif(not THOROUGH, reason="make chaos")
def test_another_directory_gives_the_same_hashes(undisturbed, tmp_path):
    """Outputs hold no path, name, run id or time: the same spec and seed give the same bytes elsewhere."""
    elsewhere = tmp_path / "elsewhere"
    charter("init", "--template", "cai-smoke", str(elsewhere))
    done = charter("run", "-C", str(elsewhere), "--yes", "--only", "label")
    assert done.returncode == 0, done.stdout + done.stderr
    reference, found = stages_of(undisturbed), stages_of(elsewhere)
    for name in ("pretrain", "sft", "judge", "critique", "sl_cai", "label"):
        assert found[name]["outputs"] == reference[name]["outputs"], name


@pytest.mark.parametrize(("stage", "boundary"), in_turn(KILLS))
def test_killed_at_a_boundary_the_outputs_are_the_same(undisturbed, tmp_path, stage, boundary):
    project = tmp_path / "project"
    shutil.copytree(undisturbed, project)
    for directory in (project / "run" / "stages").iterdir():
        if directory.name.rpartition("-")[0] == stage:
            shutil.rmtree(directory)
    killed = charter("run", "-C", str(project), "--yes", "--only", stage, kill=f"{stage}:{BOUNDARIES[boundary]}:all")
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    assert stages_of(project)[stage]["state"] == "interrupted"
    resumed = charter("run", "-C", str(project), "--yes", "--only", stage)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    found, reference = stages_of(project)[stage], stages_of(undisturbed)[stage]
    assert found["state"] == "done"
    assert found["attempts"] == reference["attempts"] + 2
    assert found["outputs"] == reference["outputs"]


def test_a_changed_learning_rate_reruns_that_stage_and_what_hangs_on_it(undisturbed):
    shown = charter("run", "-C", str(undisturbed), "--dry-run", "--set", "pipeline.pm.learning_rate=1e-4")
    text = shown.stdout + shown.stderr
    stale = stages_stale_in(text)
    assert stale == {"pm", "ppo", "eval"}
    assert "learning_rate" in text
    assert "0.0001" in text or "1e-4" in text or "1e-04" in text


def test_a_changed_price_reruns_nothing(undisturbed):
    shown = charter("run", "-C", str(undisturbed), "--dry-run", "--set", "resources.price=3.5")
    assert stages_stale_in(shown.stdout + shown.stderr) == set()


def stages_stale_in(text: str) -> set[str]:
    return {line.split()[0] for line in text.splitlines() if " would run " in line}


def test_the_steps_of_a_run_calibrate_the_plan_of_the_next(undisturbed, tmp_path):
    """The pace of each kind of stage brings the plan to what was measured, on this machine as it is now."""
    project = tmp_path / "project"
    shutil.copytree(undisturbed, project)
    done = charter("validate", "calibrate", "-C", str(project), "--json")
    assert done.returncode == 0, done.stderr
    paces = {pace["kind"]: pace for pace in json.loads(done.stdout)["paces"]}
    assert {"pretrain", "sft", "preference_model", "ppo"} <= set(paces)
    assert all(pace["accelerator"] == "cpu" and pace["steps"] > 0 for pace in paces.values())
    assert (project / "calibration.json").is_file()
    planned = json.loads(charter("plan", "-C", str(project), "--json").stdout)
    sft = next(stage for stage in planned["stages"] if stage["name"] == "sft")
    assert "measured pace" in sft["breakdown"]["seconds"]
    status = charter("status", "-C", str(project), "--json")
    assert {stage["state"] for stage in json.loads(status.stdout)["stages"]} == {"done"}, "a calibration is no input"


def test_a_project_that_never_ran_has_no_pace(tmp_path):
    charter("init", "--template", "cai-smoke", str(tmp_path / "new"))
    refused = charter("validate", "calibrate", "-C", str(tmp_path / "new"))
    assert refused.returncode == 2
    assert "has logged three steps" in refused.stderr

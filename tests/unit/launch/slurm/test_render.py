"""Batch scripts: golden texts, what bash makes of hostile words, and what is refused."""

import importlib.util
import json
import shutil
import string
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.errors import UsageError
from charter.launch.slurm.render import render, secret_sources
from charter.spec.launching import SlurmSettings

GOLDEN = Path(__file__).parents[3] / "golden"
_SPEC = importlib.util.spec_from_file_location("slurm_scripts", GOLDEN / "slurm_scripts.py")
assert _SPEC is not None
assert _SPEC.loader is not None
slurm_scripts = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(slurm_scripts)
job = slurm_scripts.job

NASTY = st.text(
    st.sampled_from(";$(){}[]<>|&*?~!#%^=\\\"'` \n\t-" + string.ascii_letters + "é☃"), min_size=0, max_size=40
)


@pytest.mark.parametrize("name", slurm_scripts.CASES)
def test_the_script_is_the_golden_one(name):
    asked, settings, after = slurm_scripts.CASES[name]
    golden = (slurm_scripts.SCRIPTS / f"{name}.sh").read_text(encoding="utf-8")
    assert render(asked, settings, after=after) == golden, "look at it, then run tests/golden/slurm_scripts.py"


@pytest.mark.parametrize("name", slurm_scripts.CASES)
def test_bash_can_read_every_golden_script(name):
    script = (slurm_scripts.SCRIPTS / f"{name}.sh").read_text(encoding="utf-8")
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_tpus_are_refused_unless_the_cluster_names_them():
    asked = job(accelerator="TPU-v5p", accelerators_per_node=4)
    with pytest.raises(UsageError, match=r"Slurm has no TPUs.*TPU-v5p:4(.|\n)*gpu_types"):
        render(asked, SlurmSettings())
    assert "#SBATCH --gres=gpu:v5p:4\n" in render(asked, SlurmSettings(gpu_types={"TPU-v5p": "v5p"}))


def test_a_secret_is_never_in_the_script_and_its_absence_is_said():
    script = render(job(secrets={"KEY": "env:JUDGE_KEY"}), SlurmSettings())
    assert "JUDGE_KEY" in script
    lines = [line for line in script.splitlines() if line.startswith("export KEY")]
    done = subprocess.run(["bash", "-c", lines[0]], capture_output=True, text=True, env={}, check=False)
    assert done.returncode != 0
    assert "was not set where this job was submitted" in done.stderr


def test_only_variables_of_the_submitter_are_taken_along():
    assert secret_sources({"KEY": "env:JUDGE_KEY", "TOKEN": "file:/run/token"}) == {"JUDGE_KEY"}


def test_a_missing_secret_file_ends_the_script(tmp_path):
    script = render(job(secrets={"KEY": f"file:{tmp_path}/no such file"}), SlurmSettings())
    lines = "\n".join(line for line in script.splitlines() if "KEY" in line)
    done = subprocess.run(["bash"], input=f"{lines}\necho went on", capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "went on" not in done.stdout


@given(NASTY, NASTY, NASTY)
def test_words_of_every_kind_reach_the_agent_as_they_are(argument, value, label):
    code = "import json, os, sys; print(json.dumps([sys.argv[1], os.environ['EVIL'], os.environ['CHARTER_SHARD']]))"
    asked = job(
        shards=2, command=(sys.executable, "-c", code, argument), environment={"EVIL": value}, labels={"owner": label}
    )
    script = render(asked, SlurmSettings())
    own = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "7", "SLURMD_NODENAME": "n1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, env=own, check=False)
    assert json.loads(done.stdout) == [argument, value, "1"], done.stderr


@given(NASTY)
def test_no_label_can_add_an_option(label):
    plain = render(job(labels={"owner": "x"}), SlurmSettings()).splitlines()
    script = render(job(labels={"owner": label, label or "k": "v"}), SlurmSettings()).splitlines()
    assert len(script) == len(plain)
    assert [line for line in script if "comment" not in line] == [line for line in plain if "comment" not in line]


def test_a_comment_has_the_tags_that_slurm_has_room_for():
    labels = {"owner": "ann", "a": "é" * 100, "b": "b" * 450, "z": "z"}
    (line,) = [it for it in render(job(labels=labels), SlurmSettings()).splitlines() if "comment" in it]
    comment = line.partition("--comment=")[2].strip('"')
    assert len(comment) <= 1024
    assert dict(parse_qsl(comment)) == {"owner": "ann", "a": "é" * 100, "z": "z"}


@pytest.mark.parametrize("name", ["one_node", "several_nodes", "spare_nodes"])
def test_options_stand_before_the_first_command(name):
    lines = (slurm_scripts.SCRIPTS / f"{name}.sh").read_text().splitlines()
    options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert options == list(range(1, len(options) + 1))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"secrets": {"KEY": "vault:secret/key"}}, "env:NAME"),
        ({"secrets": {"KEY; rm -rf /": "env:KEY"}}, "name of a variable"),
        ({"environment": {"A B": "1"}}, "name of a variable"),
        ({"environment": {"A": "1\0"}}, "zero byte"),
        ({"log": Path("/runs/100%/log.txt")}, "%"),
        ({"log": Path("/runs/a\nb/log.txt")}, "control characters"),
        ({"time_limit_seconds": 60.0}, "launch.stop_before"),
        ({"time_limit_seconds": 1e6, "stop_before_seconds": 70000.0}, "65535"),
    ],
)
def test_what_cannot_be_written_is_refused_with_what_would_work(change, words):
    with pytest.raises(UsageError, match=words):
        render(job(**change), SlurmSettings())


def test_an_option_of_the_file_that_is_two_lines_is_refused():
    with pytest.raises(UsageError, match="control characters"):
        render(job(), SlurmSettings(options=("--exclusive\nrm -rf /",)))


STUB = """#!/bin/bash
# Stands for srun: drops its own options, then runs one task with the place that is asked for.
while [ "$1" != bash ]; do shift; done
SLURM_NODEID=$STUB_NODE exec "$@"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("node", "code", "expected"), [(0, 6, 6), (1, 6, 0), (0, 3, 3), (1, 3, 3), (0, 0, 0), (1, 0, 0)]
)
def test_beside_node_0_a_stop_at_a_checkpoint_is_no_failure_of_the_step(tmp_path, node, code, expected):
    (tmp_path / "srun").write_text(STUB)
    (tmp_path / "srun").chmod(0o755)
    script = render(job(nodes=2, command=("bash", "-c", f"exit {code}")), SlurmSettings())
    own = {"PATH": f"{tmp_path}:/usr/bin:/bin", "STUB_NODE": str(node), "SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n1"}
    done = subprocess.run(["bash"], input=script, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == expected, done.stderr

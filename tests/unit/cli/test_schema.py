"""charter check schema and charter check."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.engines.project import project_json_schema
from charter.errors import SpecError
from charter.templates.shipped import find_template, write_template


def invoke(*arguments, env=None):
    return CliRunner().invoke(app, [*arguments], catch_exceptions=False, env=env)


def test_the_schema_is_printed_as_json():
    assert json.loads(invoke("check", "schema").output) == project_json_schema()


def test_a_sound_file_is_told_with_the_order_of_its_stages(tmp_path):
    write_template(find_template("rlaif-8b"), tmp_path)
    assert "no errors; rlaif-8b runs sft -> label -> pm -> ppo -> eval" in invoke("check", str(tmp_path)).output


def test_the_expanded_project_is_printed_and_can_be_checked_again(tmp_path):
    write_template(find_template("rlaif-8b"), tmp_path)
    expanded = invoke("check", str(tmp_path), "--expand", "--set", "seed=11").output
    (tmp_path / "charter.yaml").write_text(expanded)
    assert "seed: 11\n" in expanded
    assert invoke("check", str(tmp_path), "--expand").output == expanded


def test_the_environment_is_read(tmp_path):
    write_template(find_template("rlaif-8b"), tmp_path)
    with pytest.raises(SpecError, match="environment CHARTER_PIPELINE__PPO__MINIBATCH=100"):
        invoke("check", str(tmp_path), env={"CHARTER_PIPELINE__PPO__MINIBATCH": "100"})


def test_errors_end_the_process_with_2_and_without_a_traceback(tmp_path):
    (tmp_path / "charter.yaml").write_text("nmae: x\n")
    command = [sys.executable, "-m", "charter.cli.main", "check", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "error[config]: " in result.stderr
    assert "did you mean 'name'?" in result.stderr
    assert "Traceback" not in result.stderr

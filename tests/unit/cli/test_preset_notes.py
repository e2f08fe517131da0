"""Where a preset differs from its paper is said wherever its pipeline is shown."""

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.engines.project import load_project

TEXT = """
name: x
preset: sft-dpo
models: {base: openai-community/gpt2}
data:
  demonstrations: {path: d.jsonl, rows: 100, mean_tokens: 50}
  preferences: {path: p.jsonl, rows: 100, mean_tokens: 50}
resources: {infra: aws, accelerators: H100:8}
"""
NOTE = "preset sft-dpo, Rafailov et al. 2023; it differs from the paper:"


@pytest.fixture
def project(tmp_path):
    path = tmp_path / "charter.yaml"
    path.write_text(TEXT)
    return path


def shown(*arguments):
    found = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert found.exit_code == 0, found.output
    return found.stdout


def test_check_and_plan_say_where_a_preset_differs(project):
    for lines in (shown("check", project).splitlines(), shown("plan", project).splitlines()):
        place = lines.index(NOTE)
        assert lines[place + 1].startswith("  - dpo: learning rate")


def test_check_takes_a_directory_as_other_commands_do(project):
    assert shown("check", "-C", project.parent) == shown("check", project.parent)


def test_json_stays_json(project):
    assert NOTE not in shown("plan", project, "--json")


@pytest.mark.parametrize("command", ["check", "plan"])
def test_the_expanded_project_has_it_as_comments_and_reads_back(project, command):
    text = shown(command, project, "--expand")
    assert text.startswith(f"# {NOTE}\n#   - dpo")
    again = project.with_name("expanded.yaml")
    again.write_text(text)
    assert load_project(again) == load_project(project)


def test_without_a_preset_nothing_is_said(project):
    project.write_text(
        TEXT.replace("preset: sft-dpo", "pipeline: {sft: {kind: sft, init: base, data: demonstrations}}")
    )
    assert "differs" not in shown("check", project)

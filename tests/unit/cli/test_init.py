"""charter init: what it prints, and how it refuses."""

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.engines.project import load_project
from charter.errors import UsageError
from charter.templates.shipped import TEMPLATES


def invoke(*arguments):
    return CliRunner().invoke(app, ["init", *arguments], catch_exceptions=False)


def test_a_project_is_written_and_the_next_two_commands_are_named(tmp_path):
    directory = tmp_path / "my project"
    result = invoke("--template", "cai-smoke", str(directory))
    assert result.exit_code == 0
    assert load_project(directory).name == "cai-smoke"
    assert result.output.splitlines()[-2:] == [
        f"  charter plan -C '{directory}'",
        f"  charter run -C '{directory}'",
    ]


def test_files_that_are_still_missing_are_named(tmp_path):
    output = invoke("-t", "cai-8b", str(tmp_path / "x")).output
    assert "add helpful_chat.jsonl" in output
    assert output.rstrip().endswith("--dry-run  # what is still missing")


def test_the_templates_are_listed():
    output = invoke("--list").output
    assert [line.split()[0] for line in output.splitlines()] == [template.name for template in TEMPLATES]


def test_without_a_directory_it_says_how_to_call_it():
    with pytest.raises(UsageError, match="name a directory, for example: charter init"):
        invoke()


def test_an_unknown_template_writes_nothing(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'cai-tiny'"):
        invoke("--template", "cai-tny", str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_a_directory_in_use_is_refused_unless_forced(tmp_path):
    invoke(str(tmp_path))
    with pytest.raises(UsageError, match="is not empty"):
        invoke(str(tmp_path))
    assert invoke("--force", str(tmp_path)).exit_code == 0

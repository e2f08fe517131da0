"""`charter cost` and `charter report` from the outside."""

import csv
import importlib.util
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import UsageError


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    path = Path(__file__).parents[1] / "unit" / "report" / "fixture_run.py"
    spec = importlib.util.spec_from_file_location("fixture_run_cli", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fixture_run_cli"] = module
    spec.loader.exec_module(module)
    return module.write_run(tmp_path_factory.mktemp("project"))


def charter(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_json_is_one_object_with_the_agreed_keys(project):
    found = json.loads(charter("cost", "report", "-C", project, "--json"))
    assert {"planned", "actual", "forecast", "stages", "attempts"} <= set(found)
    assert sum(stage["actual"]["micro_usd"] for stage in found["stages"]) == found["actual"]["micro_usd"]


def test_cost_alone_is_the_report(project):
    assert charter("cost", "-C", project, "--json") == charter("cost", "report", "-C", project, "--json")
    assert charter("cost", "-C", project, "report") == charter("cost", "report", "-C", project)


def test_the_export_is_a_csv_with_one_charge_for_every_attempt(project, tmp_path):
    target = tmp_path / "bill" / "focus.csv"
    assert "12 charges" in charter("cost", "export", "-C", project, "--focus", target)
    assert len(list(csv.DictReader(target.open()))) == 12


def test_a_report_is_one_file(project, tmp_path):
    target = tmp_path / "out" / "page.html"
    assert str(target) in charter("report", "-C", project, "--output", target)
    assert target.read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in target.parent.iterdir()) == ["page.html"]


def test_a_report_as_text_writes_nothing(project):
    before = sorted(project.iterdir())
    assert "Plan against actual" in charter("report", "-C", project, "--text")
    assert sorted(project.iterdir()) == before


@pytest.mark.parametrize("command", [("cost",), ("cost", "report"), ("report",)])
def test_a_directory_without_a_run_is_an_error_of_usage(command, tmp_path):
    with pytest.raises(UsageError, match="no run"):
        CliRunner().invoke(app, [*command, "-C", str(tmp_path)], catch_exceptions=False)


def test_before_the_first_run_the_report_is_of_the_plan(tmp_path):
    charter("init", "--template", "cai-8b", tmp_path / "demo")
    assert charter("report", "-C", tmp_path / "demo").endswith("report.html: the plan; nothing has run yet\n")
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "Plan report" in page
    assert "nothing spent yet" in page
    assert not (tmp_path / "demo" / "run").exists()

"""The runner of the suites: a test runs once, what fails is named, and what passed whole is recorded."""

import json
import subprocess
import sys
import threading

import pytest
from processes import state_of
from waiting import eventually

import stutter
import suites

FAILS = "def test_never():\n    assert 1 == 2, 'a|b'\n"
PASSES = "def test_always(): pass\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "tests").mkdir()
    return tmp_path


@pytest.fixture
def outcome(project):
    def run(text):
        (project / "test_one.py").write_text(text)
        return suites.run(suites.Suite(name="one", arguments=("test_one.py",), budget_seconds=600), aside=True)

    return run


def test_a_suite_that_passes_has_its_seconds(outcome):
    ended = outcome(PASSES)
    assert (ended.status, ended.verdict, ended.failures) == (0, "passed", ())
    assert ended.seconds > 0
    assert ended.cpu_seconds > 0


def test_a_test_that_fails_runs_once_and_is_named(outcome, project):
    ended = outcome(
        "from pathlib import Path\n\ndef test_never():\n    Path('seen').open('a').write('x')\n    assert 0\n"
    )
    assert ended.verdict == "FAILED"
    assert [name for name, _ in ended.failures] == ["test_one::test_never"]
    assert (project / "seen").read_text() == "x"


def test_a_suite_without_tests_or_unreadable_fails(outcome):
    assert outcome("").status == suites.NO_TESTS_COLLECTED
    assert outcome("import no_such_module_here\n").verdict == "FAILED"


def test_a_suite_over_four_budgets_is_stopped(project, monkeypatch, capsys):
    monkeypatch.setattr(suites, "STUCK_AFTER_BUDGETS", 0)
    stuck = suites.Suite(name="one", arguments=(".",), budget_seconds=1)
    assert suites.run(stuck, aside=True).verdict == "FAILED"
    assert "stopped" in capsys.readouterr().out


def test_a_flake_is_one_line_of_the_list(outcome, project):
    outcome(FAILS)
    assert suites.main(["flake", "test_never"]) == 0
    (line,) = (project / suites.FLAKES).read_text().splitlines()
    assert "| `test_one::test_never` |" in line
    assert line.count("|") == 6
    assert suites.main(["flake", "test_that_passed"]) == 2


def test_what_passed_whole_is_recorded_and_the_rest_stays(project):
    def ended(name, status):
        suite = suites.Suite(name=name, arguments=(), budget_seconds=1)
        return suites.Outcome(suite=suite, status=status, seconds=12.3, cpu_seconds=1)

    suites.record_whole([ended("ray", 0)])
    suites.record_whole([ended("slurm", 0), ended("ray", 1), ended("browser", 1)])
    records = json.loads((project / suites.LAST_WHOLE).read_text())
    assert {name: record["seconds"] for name, record in records.items()} == {"ray": 12, "slurm": 12}


def test_every_folder_of_tests_belongs_to_a_suite():
    arguments = {argument for group in suites.GROUPS.values() for suite in group for argument in suite.arguments}
    folders = {path.parent.relative_to(suites.ROOT) for path in suites.ROOT.glob("tests/**/test_*.py")}
    lost = [str(f) for f in folders if not {str(f), *map(str, f.parents)} & arguments and str(f) != "tests/engines"]
    assert lost == []


def test_a_frozen_process_stands_still_and_goes_on():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        thread = threading.Thread(target=stutter.freeze, args=(process.pid, 0.5))
        thread.start()
        eventually(lambda: state_of(process.pid) == "T")
        thread.join()
        process.communicate(b"\n", timeout=120)
    assert process.returncode == 0


def test_a_stuttering_command_gives_its_own_exit_status_and_all_its_processes_are_known():
    code = (
        f"import os, stutter; found = stutter.marked(os.environ[{stutter.MARK!r}]); "
        "raise SystemExit(7 if os.getpid() in found else 1)"
    )
    command = [sys.executable, "tools/stutter.py", "--share", "1", "--", sys.executable, "-c", code]
    environment = {"PYTHONPATH": "tools", "PATH": ""}
    assert subprocess.run(command, cwd=suites.ROOT, env=environment, capture_output=True).returncode == 7

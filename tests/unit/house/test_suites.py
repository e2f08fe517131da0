"""The runner of the suites: what fails twice fails, what fails once is named, and what has one try has one."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import stutter
import suites

FAILS_ONCE = """\
from pathlib import Path

def test_first_time_only():
    seen = Path(__file__).with_name("seen")
    known = seen.exists()
    seen.touch()
    assert known
"""
FAILS_ALWAYS = "def test_never(): assert False\n"


@pytest.fixture
def outcome(tmp_path, monkeypatch):
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def run(text, *, tries):
        (tmp_path / "test_one.py").write_text(text)
        suite = suites.Suite(name="one", arguments=("test_one.py",), budget_seconds=600, tries=tries)
        return suites.run(suite, aside=True)

    return run


def test_a_test_that_fails_once_passes_at_its_second_try_and_is_named(outcome):
    found = outcome(FAILS_ONCE, tries=2)
    assert (found.status, found.again) == (0, ("test_one.py::test_first_time_only",))
    assert found.verdict == "passed, 1 at the second try"


def test_one_that_fails_twice_fails_the_suite(outcome):
    found = outcome(FAILS_ALWAYS, tries=2)
    assert (found.status, found.verdict) == (suites.TESTS_FAILED, "FAILED")


def test_a_suite_with_one_try_runs_nothing_again(outcome):
    found = outcome(FAILS_ONCE, tries=1)
    assert (found.status, found.again) == (suites.TESTS_FAILED, ())


def test_a_suite_that_holds_no_test_or_cannot_be_read_fails(outcome):
    assert outcome("", tries=2).status == suites.NO_TESTS_COLLECTED
    assert outcome("import no_such_module_here\n", tries=2).status not in (0, suites.TESTS_FAILED)


def test_what_claims_exactness_has_one_try():
    exact = [suite for suite in suites.GROUPS["test"] if suite.name in ("engine", "kills")]
    assert [suite.tries for suite in exact] == [1, 1]
    assert (suites.ROOT / "tests/integration/kills/test_pipeline.py").exists()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_frozen_process_stands_still_and_goes_on():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        thread = threading.Thread(target=stutter.freeze, args=(process.pid, 0.5))
        thread.start()
        states = set()
        while thread.is_alive():
            states.add(state_of(process.pid))
            time.sleep(0.01)
        thread.join()
        process.communicate(b"\n", timeout=120)
    assert "T" in states
    assert process.returncode == 0


def test_a_stuttering_command_gives_its_own_exit_status_and_all_its_processes_are_known():
    code = (
        f"import os, stutter; found = stutter.marked(os.environ[{stutter.MARK!r}]); "
        "raise SystemExit(7 if os.getpid() in found else 1)"
    )
    command = [sys.executable, "tools/stutter.py", "--share", "1", "--", sys.executable, "-c", code]
    environment = {"PYTHONPATH": "tools", "PATH": ""}
    assert subprocess.run(command, cwd=suites.ROOT, env=environment, capture_output=True).returncode == 7

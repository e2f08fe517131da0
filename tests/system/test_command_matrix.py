"""All commands where something is missing end with a message and a documented exit code, never with a defect."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

from dashboard_case import ProjectCase

from charter.errors import ExitCode

CASES = Path(__file__).parents[1] / "cases"
MODES_HOLD = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
"""Root without the rights that pass over the modes of files."""
STAGES = {"sft": 40, "pm": 20, "ppo": 20, "judged": 1}


def finished(root):
    """A run whose stages are all done."""
    case = ProjectCase(root)
    case.plan()
    for after, (name, steps) in enumerate(STAGES.items()):
        case.attempt(name, seconds=60, after=100 * after, steps=steps)
        case.metrics(name, steps)
        case.done(name, steps)
    return case


def called(case, tmp_path, lack, *words):
    """Code and output of every command, by its words."""
    (tmp_path / "out").mkdir()
    script = [
        *MODES_HOLD,
        sys.executable,
        str(CASES / "command_matrix.py"),
        str(case.root),
        str(tmp_path / "out"),
        lack,
        *words,
    ]
    environment = {**os.environ, "HOME": str(tmp_path / "none"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(script, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    return {line["command"]: (line["code"], line["printed"]) for line in map(json.loads, done.stdout.splitlines())}


def closed(case, *, file_mode, directory_mode):
    for path in (case.root, *case.root.rglob("*")):
        path.chmod(directory_mode if path.is_dir() else file_mode)


def as_it_is(case):
    pass


def without_ledger(case):
    (case.run / "ledger.sqlite").unlink()


def read_only(case):
    closed(case, file_mode=0o444, directory_mode=0o555)


def of_another(case):
    closed(case, file_mode=0o000, directory_mode=0o555)
    (case.root / "charter.yaml").chmod(0o444)


PLACES = {
    "whole": ("nothing", as_it_is),
    "no ledger": ("nothing", without_ledger),
    "core only": ("extras", as_it_is),
    "read-only": ("rights", read_only),
    "of another user": ("rights", of_another),
}


def defects(place, tmp_path, *words):
    """Number of commands that were called, and what those printed that ended as if Charter were at fault."""
    lack, change = PLACES[place]
    case = finished(tmp_path / "demo")
    change(case)
    try:
        ends = called(case, tmp_path, lack, *words)
    finally:
        closed(case, file_mode=0o644, directory_mode=0o755)
    documented = set(ExitCode) - {ExitCode.INTERNAL}
    bad = {
        name: printed[-600:]
        for name, (code, printed) in ends.items()
        if code not in documented or "error[internal]" in printed or "Traceback" in printed
    }
    return len(ends), bad


@pytest.mark.parametrize("place", PLACES)
def test_no_command_calls_what_is_missing_a_defect(place, tmp_path):
    count, bad = defects(place, tmp_path)
    assert count > 60
    assert bad == {}


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("place", "word"), [("read-only", "data dvc"), ("of another user", "run"), ("core only", "run")]
)
def test_a_command_without_its_place_names_it(place, word, tmp_path):
    assert defects(place, tmp_path, word)[1] == {}

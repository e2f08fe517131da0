"""What may be imported when: the command line starts quickly, the planner needs no torch."""

import subprocess
import sys

import pytest

HEAVY_FOR_HELP = {"torch", "numpy", "pydantic", "transformers", "tokenizers", "sqlalchemy", "psutil"}
TORCH = {"torch", "transformers", "tokenizers", "safetensors"}
CONTROL_PLANE = (
    "charter.spec.load",
    "charter.plan.plan",
    "charter.pipeline.runner",
    "charter.artifacts.stage_dir",
    "charter.ledger",
    "charter.report",
    "charter.cli.main",
)


def imported_by(code: str) -> set[str]:
    """The top-level packages in `sys.modules` of a fresh interpreter after it ran `code`."""
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nprint('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}


def test_help_imports_nothing_heavy():
    found = imported_by("sys.argv = ['charter', '--help']; from charter.cli.main import entry; entry()")
    assert "typer" in found, "the command line did not start"
    assert not found & HEAVY_FOR_HELP


def test_the_probe_sees_a_heavy_import():
    assert "numpy" in imported_by("import numpy")


@pytest.mark.parametrize("module", CONTROL_PLANE)
def test_control_plane_never_imports_torch(module):
    assert not imported_by(f"import {module}") & TORCH

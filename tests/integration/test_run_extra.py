"""A run with the packages of the extra `run` and no others: what another extra brings must not be asked for."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
OTHERS = (
    "alembic", "bitsandbytes", "datasketch", "math_verify", "mlflow", "peft", "prometheus_client", "psycopg", "pyarrow",
    "pynvml", "ray", "s3fs", "scipy", "starlette", "tensorboard", "uvicorn", "wandb",
)  # fmt: skip
"""Packages of other extras, which nothing that `run` brings needs."""
WITHOUT = f"""
import sys
from importlib.machinery import PathFinder
class Without:
    def __init__(self, finders): self.finders = finders
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OTHERS!r}: return None
        return next(filter(None, (each.find_spec(name, path, target) for each in self.finders)), None)
    def find_distributions(self, context=None):
        found = PathFinder.find_distributions() if context is None else PathFinder.find_distributions(context)
        return (item for item in found if item.metadata["Name"].replace("-", "_") not in {OTHERS!r})
sys.meta_path[:] = [Without(list(sys.meta_path))]
"""
"""A way to find modules that does not find those, so that they are as good as not installed."""
SHORT = ("pipeline.pretrain.steps=6", "pipeline.sft.steps=2")


def test_a_run_needs_no_package_of_another_extra(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    root = tmp_path / "project"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    changes = [part for change in SHORT for part in ("--set", change)]
    for words in (
        ["init", str(root), "--template", "cai-smoke"],
        ["run", "--yes", "--only", "sft", "-C", str(root), *changes],
        ["status", "-C", str(root), *changes],
        ["cost", "report", "-C", str(root)],
        ["report", "-C", str(root)],
    ):
        command = [sys.executable, "-m", "charter.cli.main", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, (words, done.stdout[-500:], done.stderr[-1500:])
    assert [path.name for path in (root / "run" / "stages").glob("sft-*/outputs/*")], "there is a model"

"""Exports of a list of rewards are the golden ones."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("rewards_export", Path(__file__).parent / "rewards_export.py")
assert _SPEC is not None
assert _SPEC.loader is not None
rewards_export = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(rewards_export)


@pytest.mark.parametrize("engine", rewards_export.ENGINES)
def test_export_of_rewards_is_the_golden_one(engine):
    directory = rewards_export.FILES / engine
    paths = [path for path in directory.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    golden = {path.relative_to(directory).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    assert dict(rewards_export.export(engine)) == golden, "regenerate: .venv/bin/python tests/golden/rewards_export.py"

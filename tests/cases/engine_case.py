"""Where tests find the environment of an engine: `make test-handover` makes it."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def engine_python(name: str) -> Path:
    """The interpreter of `.engines/NAME`; without it the test fails and says how to make it."""
    python = ROOT / ".engines" / name / "bin" / "python"
    if not python.exists():
        pytest.fail(f"there is no {python}; bash tools/engine_environment.sh {name} makes it", pytrace=False)
    return python


def ask_engine(name: str, script: Path, *arguments: str, timeout_seconds: float = 900.0) -> str:
    """What a script prints that runs in an engine's environment; its error is the test's."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment.pop("PYTHONPATH", None)
    ended = subprocess.run(
        [str(engine_python(name)), str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        env=environment,
        check=False,
    )
    assert ended.returncode == 0, f"{script.name} ended with {ended.returncode}:\n{ended.stderr[-4000:]}"
    return ended.stdout

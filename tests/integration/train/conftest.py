"""Let the tests of this folder import their helper module `tiny`; one thread, as a stage of this size has."""

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _one_thread():
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def engine_inputs(tmp_path_factory):
    """Inputs of every kind of training stage, made once."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    from engine_bench import make_inputs

    return make_inputs(tmp_path_factory.mktemp("inputs"))

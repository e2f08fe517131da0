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


@pytest.fixture
def task(engine_inputs, tmp_path):
    """(changes of the spec) -> a PPO task, ready to be run part by part."""
    from engine_bench import stage

    from charter.train.loop import Loop
    from charter.train.ppo import ppo_task
    from charter.train.setup import set_up

    count = iter(range(100))

    def make(frozen=None, **changes):
        found = stage(engine_inputs, tmp_path / f"ppo-{next(count)}", "ppo", frozen=frozen, **changes)
        made, _ = ppo_task(set_up(found))
        Loop(made.setup, made)
        return made

    return make

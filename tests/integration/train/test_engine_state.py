"""Everything that a checkpoint of PPO holds is needed: a resume without any of it goes another way."""

import copy

import pytest

torch = pytest.importorskip("torch")

from engine_bench import stage

from charter.artifacts.checkpoints import Position
from charter.train.loop import Loop
from charter.train.ppo import ppo_task
from charter.train.setup import set_up

pytestmark = pytest.mark.torch
HELD = ["policy", "value", "policy optimizer", "value optimizer", "kl_controller"]


def ready(inputs, path):
    task, _ = ppo_task(set_up(stage(inputs, path, "ppo", episodes=24, kl_target=1.0, kl_horizon=50)))
    return task, Loop(task.setup, task)


def steps(task, first, last):
    for step in range(first, last):
        for part in range(task.parts):
            task.run_part(Position(step, part))
    return torch.cat([value.flatten() for item in task.state.modules.values() for value in item.state_dict().values()])


def parts_of(task):
    """Everything that is restored, by the names of HELD."""
    held = dict(task.state.modules)
    held |= {f"{name} optimizer": item for name, item in task.state.optimizers.items()}
    return held | {"kl_controller": task.controller}


@pytest.fixture(scope="module")
def saved(engine_inputs, tmp_path_factory):
    """A checkpoint after two rollouts, and the weights after the third."""
    place = tmp_path_factory.mktemp("saved")
    task, loop = ready(engine_inputs, place / "stage")
    steps(task, 0, 2)
    loop.checkpoints.save(Position(2))
    loop.checkpoints.finish()
    return place / "stage", steps(task, 2, 3)


@pytest.mark.parametrize("forgotten", [None, *HELD])
def test_every_part_of_a_checkpoint_is_needed(engine_inputs, saved, forgotten):
    path, expected = saved
    task, loop = ready(engine_inputs, path)
    assert list(parts_of(task)) == HELD
    fresh = None if forgotten is None else copy.deepcopy(parts_of(task)[forgotten].state_dict())
    assert loop.checkpoints.load_latest() == Position(2)
    if forgotten is not None:
        parts_of(task)[forgotten].load_state_dict(fresh)
    assert torch.equal(steps(task, 2, 3), expected) == (forgotten is None)

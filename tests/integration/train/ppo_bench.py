"""Steps of PPO on a very small real model, part by part."""

import torch

from charter.artifacts.checkpoints import Position

GROUPS = {"estimator": "rloo", "samples_per_prompt": 2}


def rollout_of(task, step=0, *, kl_coefficient=0.5):
    return task.sampler.sample(step, step, kl_coefficient=kl_coefficient)


def whole_step(task, step=0):
    """Run a whole step; its report."""
    found = [task.run_part(Position(step, part)) for part in range(task.parts)]
    assert found[:-1] == [None] * (task.parts - 1)
    return found[-1]


def weights(module):
    return torch.cat([value.flatten() for value in module.state_dict().values()])


def moved(task, step=0):
    """How far a step moves the policy, and the value model where there is one."""
    modules = [item.module for item in (task.models.trained, task.models.value) if item is not None]
    before = [weights(item).clone() for item in modules]
    whole_step(task, step)
    return [(weights(item) - old).abs().max().item() for item, old in zip(modules, before, strict=True)]


def shifted(task, by=0.05):
    """The task after its policy has moved away from the reference."""
    with torch.no_grad():
        for index, value in enumerate(task.models.trained.module.parameters()):
            value.add_(by * torch.randn(value.shape, generator=torch.Generator().manual_seed(index)))
    return task


class FixedSampler:
    """A sampler that gives one rollout, and all else as the one it stands for."""

    def __init__(self, sampler, rollout):
        self._sampler, self._rollout = sampler, rollout

    def sample(self, step, data_step, *, kl_coefficient):
        return self._rollout

    def __getattr__(self, name):
        return getattr(self._sampler, name)

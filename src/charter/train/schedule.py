"""Learning rate, number of steps and data order as pure functions of the step; the coefficient of PPO's KL penalty."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from charter.artifacts.draws import draw_seed, permuted
from charter.spec.ppo_stage import MOST_ERROR


class ScheduleSettings(Protocol):
    """The fields of a stage that decide its learning rate."""

    @property
    def warmup_steps(self) -> int:
        """Steps of linear warm-up."""

    @property
    def schedule(self) -> str:
        """constant, linear or cosine."""

    @property
    def min_learning_rate_ratio(self) -> float:
        """Final learning rate of the decay, as a share of the peak."""


def learning_rate_factor(step: int, total_steps: int, settings: ScheduleSettings) -> float:
    """Share of the peak learning rate at `step` (from 0): linear warm-up, then constant, linear or cosine decay."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return 1.0
    remaining = max(1, total_steps - settings.warmup_steps)
    progress = min(1.0, (step - settings.warmup_steps) / remaining)
    floor = settings.min_learning_rate_ratio
    shape = 1 - progress if settings.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return floor + (1 - floor) * shape


def total_steps(*, epochs: float | None, steps: int | None, rows: int, global_batch: int) -> int:
    """Optimizer steps of a stage: as given, or enough to see every row `epochs` times.

    >>> total_steps(epochs=2, steps=None, rows=100, global_batch=32)
    7
    >>> total_steps(epochs=None, steps=5, rows=1, global_batch=8)
    5
    """
    if steps is not None:
        return steps
    return max(1, math.ceil((epochs or 1) * rows / global_batch))


def batch_rows(step: int, *, rows: int, batch: int, seed: int) -> list[int]:
    """The rows of one batch: a function of (seed, epoch, step) alone, so that resume needs no loader state.

    Batches run on over the end of an epoch; every row is seen once per epoch.

    >>> sorted(batch_rows(0, rows=4, batch=2, seed=1) + batch_rows(1, rows=4, batch=2, seed=1))
    [0, 1, 2, 3]
    """
    indices: list[int] = []
    position, end = step * batch, (step + 1) * batch
    while position < end:
        epoch, first = divmod(position, rows)
        last = min(rows, first + end - position)
        order = draw_seed(seed, "epoch", epoch)
        indices += [permuted(place, rows, seed=order) for place in range(first, last)]
        position += last - first
    return indices


@dataclass
class KlController:
    """beta of the KL penalty; moves towards a target KL per answer when there is one.

    e = clip(KL / target - 1, -0.2, 0.2);  beta <- beta (1 + e n / horizon) after n answers.
    Source: Ziegler et al. 2019 (arXiv:1909.08593), section 2.2.

    >>> controller = KlController(coefficient=0.1, target=6.0, horizon=100)
    >>> controller.update(kl_nats=12.0, answers=10); round(controller.coefficient, 6)
    0.102
    """

    STATE: ClassVar[tuple[str, ...]] = ("coefficient",)

    coefficient: float
    target: float | None
    horizon: int

    def update(self, *, kl_nats: float, answers: int) -> None:
        """Adapt to the mean KL per answer of the last rollout."""
        if self.target is None:
            return
        error = min(max(kl_nats / self.target - 1, -MOST_ERROR), MOST_ERROR)
        self.coefficient *= 1 + error * answers / self.horizon

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resume needs."""
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint stopped."""
        self.coefficient = float(state["coefficient"])

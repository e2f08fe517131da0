"""Learning rate, number of steps and data order as pure functions of the step."""

import math
from typing import Protocol

from charter.artifacts.draws import draw_seed, permuted


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

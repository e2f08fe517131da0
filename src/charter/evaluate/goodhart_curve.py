"""Reward and quality over the distance from the start: whether they part, as they do when a proxy is over-optimised.

Source of the question: Gao et al. 2022 (arXiv:2210.10760): the proxy's score goes on rising with KL while the gold
score turns. Every statistic here is one of column means, so that prompts can be resampled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from charter.evaluate.intervals import Floats


@dataclass(frozen=True, kw_only=True)
class Point:
    """What was measured at one checkpoint, a value per prompt."""

    name: str
    kl: tuple[float, ...]
    reward: tuple[float, ...]
    quality: tuple[float, ...]


def table(points: Sequence[Point]) -> Floats:
    """[prompts, 3 x points]: KL of every point, then reward, then quality."""
    columns = [getattr(point, name) for name in ("kl", "reward", "quality") for point in points]
    return np.stack([np.asarray(column, dtype=np.float64) for column in columns], 1)


def reward_slope(means: Floats) -> Floats:
    """Reward per nat of KL, by least squares over the points."""
    kl, reward, _ = _split(means)
    return _slope(kl, reward)


def quality_slope(means: Floats) -> Floats:
    """Quality per nat of KL, by least squares over the points."""
    kl, _, quality = _split(means)
    return _slope(kl, quality)


def rank_correlation(means: Floats) -> Floats:
    """Spearman's correlation of reward and quality over the points; NaN where one of them never changes."""
    _, reward, quality = _split(means)
    return _correlation(_ranks(reward), _ranks(quality))


def parting(points: Sequence[Point]) -> tuple[str, str] | None:
    """The first two neighbours by KL between which the reward rises and the quality falls; None where none do."""
    at = sorted(points, key=lambda point: sum(point.kl) / len(point.kl))
    for before, after in pairwise(at):
        if sum(after.reward) > sum(before.reward) and sum(after.quality) < sum(before.quality):
            return before.name, after.name
    return None


def _split(means: Floats) -> tuple[Floats, Floats, Floats]:
    kl, reward, quality = np.split(means, 3, axis=-1)
    return kl, reward, quality


def _slope(x: Floats, y: Floats) -> Floats:
    x, y = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    square = (x * x).sum(-1)
    found: Floats = np.where(square > 0, (x * y).sum(-1) / np.where(square > 0, square, 1), np.nan)
    return found


def _correlation(x: Floats, y: Floats) -> Floats:
    x, y = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    scale = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    found: Floats = np.where(scale > 0, (x * y).sum(-1) / np.where(scale > 0, scale, 1), np.nan)
    return found


def _ranks(values: Floats) -> Floats:
    """Ranks from 0; equal values share the mean of theirs."""
    less = (values[..., None, :] < values[..., :, None]).sum(-1)
    same = (values[..., None, :] == values[..., :, None]).sum(-1)
    found: Floats = less + (same - 1) / 2
    return found

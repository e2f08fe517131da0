"""IsoFLOP envelope: at each compute budget the size with the least loss, and how it grows with compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from charter.physics.arrays import array
from charter.physics.scaling.laws import FLOPS_PER_PARAMETER_AND_TOKEN
from charter.physics.scaling.runs import SmallRun

SAME_BUDGET = 1.25
"""Runs whose compute differs by less than this factor share a budget; judgement."""
FEWEST_RUNS_OF_A_BUDGET = 4
"""A parabola through three runs has no residual to see noise in."""


@dataclass(frozen=True, kw_only=True)
class Valley:
    """One budget: the size at the bottom of its parabola."""

    compute_flops: float
    num_runs: int
    best_parameters: float
    loss: float
    inside: bool
    """Whether the bottom lies between the smallest and the largest size that was run."""

    @property
    def best_tokens(self) -> float:
        """Tokens of the best size at this budget."""
        return self.compute_flops / (FLOPS_PER_PARAMETER_AND_TOKEN * self.best_parameters)


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """The bottoms of all budgets and the line through them: `log N = log(coefficient) + exponent log C`."""

    valleys: tuple[Valley, ...]
    size_exponent: float | None
    """`a` of `N ~ C^a`; None below two budgets whose bottom was seen. Tokens grow with `1 - a`."""
    size_coefficient: float | None

    def optimal(self, compute_flops: float) -> tuple[float, float] | None:
        """Parameters and tokens for a budget; None when the line is not known."""
        if self.size_exponent is None or self.size_coefficient is None:
            return None
        num_parameters = self.size_coefficient * compute_flops**self.size_exponent
        return num_parameters, compute_flops / (FLOPS_PER_PARAMETER_AND_TOKEN * num_parameters)


def envelope(runs: Sequence[SmallRun]) -> Envelope:
    """A parabola of loss over `log N` for every budget, and the power law through their bottoms.

    Source: Hoffmann et al. 2022, section 3.2 (approach 2). A parabola is a local picture: with sizes far to one side of
    the bottom, or exponents that differ much, its bottom is biased even without noise (arXiv:2603.22339).
    """
    valleys = tuple(parabola for group in _budgets(runs) if (parabola := _valley(group)) is not None)
    seen = [valley for valley in valleys if valley.inside]
    if len(seen) < 2:
        return Envelope(valleys=valleys, size_exponent=None, size_coefficient=None)
    compute = np.log(array([valley.compute_flops for valley in seen]))
    sizes = np.log(array([valley.best_parameters for valley in seen]))
    exponent, constant = (float(value) for value in np.polyfit(compute, sizes, 1))
    return Envelope(valleys=valleys, size_exponent=exponent, size_coefficient=math.exp(constant))


def _budgets(runs: Sequence[SmallRun]) -> list[list[SmallRun]]:
    groups: list[list[SmallRun]] = []
    for run in sorted(runs, key=lambda run: run.compute_flops):
        if groups and run.compute_flops <= SAME_BUDGET * groups[-1][0].compute_flops:
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


def _valley(group: Sequence[SmallRun]) -> Valley | None:
    sizes = np.log(array([run.num_parameters for run in group]))
    if len(group) < FEWEST_RUNS_OF_A_BUDGET or len(set(sizes.tolist())) < 3:
        return None
    centre = float(sizes.mean())
    curve, slope, level = (float(v) for v in np.polyfit(sizes - centre, array([run.loss for run in group]), 2))
    if curve <= 0:
        return None
    bottom = -slope / (2 * curve)
    return Valley(
        compute_flops=math.exp(float(np.mean([math.log(run.compute_flops) for run in group]))),
        num_runs=len(group),
        best_parameters=math.exp(bottom + centre),
        loss=level - slope**2 / (4 * curve),
        inside=bool(sizes.min() <= bottom + centre <= sizes.max()),
    )

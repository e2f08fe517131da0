"""Fit constants to measurements: robust least squares on logarithms, with priors and one offset per stack.

The model of a row is `log(measured) = log(predicted(constants)) + noise`. Each constant is
`default * exp(shared + of_its_stack)`, `shared ~ N(0, sigma)` and `of_its_stack ~ N(0, sigma_stack)`, so a stack with
few rows stays near the rest and a stack with many goes its own way (a hierarchical model; Gelman and Hill 2007,
chapter 12). Residuals are weighted by Student's t (Lange, Little and Taylor 1989), solved by Gauss-Newton with finite
differences.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from charter.estimate.arrays import Array, array
from charter.estimate.constants import describe, moved

STEP = 1e-3
"""Of a logarithm, for finite differences."""
DEGREES_OF_FREEDOM = 4.0
"""Of Student's t: a residual of 3 noise widths weighs 0.38 of a small one."""


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Shifts of the logarithms of constants: shared, and per stack."""

    shared: Mapping[str, float] = field(default_factory=dict)
    stacks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    noise: float = 0.15
    """Standard deviation of what remains, in logarithms."""

    def shift(self, stack: str) -> dict[str, float]:
        """Shift of each constant for a stack; a stack nobody measured gets the shared one."""
        own = self.stacks.get(stack, {})
        names = {**self.shared, **own}
        return {name: self.shared.get(name, 0.0) + own.get(name, 0.0) for name in names}

    def apply(self, constants: Any, stacks: Sequence[str]) -> Any:
        """Constants as arrays, one value per case."""
        shifts = {stack: self.shift(stack) for stack in set(stacks)}
        names = {name for shift in shifts.values() for name in shift}
        factors = {name: array([shifts[stack].get(name, 0.0) for stack in stacks]) for name in sorted(names)}
        return moved(constants, factors)


def fit(
    predict: Callable[[Any], Array],
    kind: type,
    measured: Array,
    weights: Array,
    stacks: Sequence[str],
    *,
    start: Fitted | None = None,
    noise: float = 0.12,
    stack_share: float = 0.7,
    shared: bool = True,
    iterations: int = 12,
) -> Fitted:
    """Shifts that bring `predict(constants)` near `measured`.

    `stack_share` is the spread between stacks relative to a constant's own. With `shared=False` only the stacks' shifts
    move, and the prior is centred on where they start (calibration on a few rows of one stack, on top of `start`).
    """
    start = start or Fitted()
    names = [item.name for item in describe(kind) if item.sigma > 0]
    sigma = array([item.sigma for item in describe(kind) if item.sigma > 0])
    groups = sorted(set(stacks))
    member = np.array([groups.index(stack) for stack in stacks])
    blocks = len(groups) + (1 if shared else 0)
    prior = np.concatenate([sigma] * bool(shared) + [sigma * stack_share] * len(groups))
    theta = _from_fitted(start, names, groups, shared)
    centre = np.zeros_like(theta) if shared else theta
    base = None if shared else np.array([start.shared.get(name, 0.0) for name in names])
    target = np.log(measured)

    def spread(vector: Array) -> Array:
        table = vector.reshape(blocks, len(names))
        common = table[0] if shared else base
        own = table[1:] if shared else table
        return array(common + own[member])

    def logs(offsets: Array) -> Array:
        constants = moved(kind(), {name: offsets[:, index] for index, name in enumerate(names)})
        return np.log(np.maximum(predict(constants), 1e-30))

    for _ in range(iterations):
        offsets = spread(theta)
        current = logs(offsets)
        residual = target - current
        scale = weights * (DEGREES_OF_FREEDOM + 1) / (DEGREES_OF_FREEDOM + (residual / noise) ** 2) / noise**2
        slopes = np.empty((len(target), len(names)))
        for index in range(len(names)):
            bumped = offsets.copy()
            bumped[:, index] += STEP
            slopes[:, index] = (logs(bumped) - current) / STEP
        jacobian = np.zeros((len(target), blocks * len(names)))
        for block in range(blocks):
            rows = slice(None) if shared and block == 0 else member == block - (1 if shared else 0)
            jacobian[rows, block * len(names) : (block + 1) * len(names)] = slopes[rows]
        weighted = jacobian * scale[:, None]
        normal = jacobian.T @ weighted + np.diag(1 / prior**2)
        step = np.linalg.solve(normal, weighted.T @ residual - (theta - centre) / prior**2)
        theta = theta + np.clip(step, -0.5, 0.5)
        if np.max(np.abs(step)) < 1e-4:
            break
    return _fitted(theta, names, groups, shared, start, _width(target - logs(spread(theta)), weights))


def _width(residual: Array, weights: Array) -> float:
    order = np.argsort(np.abs(residual))
    share = np.cumsum(weights[order]) / np.sum(weights)
    return float(np.abs(residual)[order][np.searchsorted(share, 0.5)] / 0.6745)


def _from_fitted(start: Fitted, names: Sequence[str], groups: Sequence[str], shared: bool) -> Array:
    rows = [[start.shared.get(name, 0.0) for name in names]] if shared else []
    rows += [[start.stacks.get(group, {}).get(name, 0.0) for name in names] for group in groups]
    return array(rows).ravel()


def _fitted(
    theta: Array, names: Sequence[str], groups: Sequence[str], shared: bool, start: Fitted, width: float
) -> Fitted:
    table = theta.reshape(-1, len(names))
    own = table[1:] if shared else table
    common = dict(zip(names, map(float, table[0]), strict=True)) if shared else dict(start.shared)
    stacks = dict(start.stacks) | {
        group: dict(zip(names, map(float, row), strict=True)) for group, row in zip(groups, own, strict=True)
    }
    return Fitted(shared=common, stacks=stacks, noise=width)

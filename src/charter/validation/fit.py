"""Fit constants to measurements: robust least squares on logarithms, with priors and one offset per stack.

The model of a row is `log(measured) = log(predicted(constants)) + noise`. Each constant is
`default * exp(shared + of_its_stack)`, `shared ~ N(0, sigma)` and `of_its_stack ~ N(0, sigma_stack)`, so a stack with
few rows stays near the rest and a stack with many goes its own way (a hierarchical model; Gelman and Hill 2007,
chapter 12). Residuals are weighted by Student's t (Lange, Little and Taylor 1989), solved by Gauss-Newton with finite
differences. A stack's few rows say by cross-validation how far its constants may leave their start (`calibrate`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from charter.physics.columns import Array, array
from charter.physics.constants import describe, moved
from charter.physics.fitted import Fitted

Predict: TypeAlias = Callable[[Any, NDArray[np.intp]], Array]
"""Predictions of rows named by number, one value of every constant for each; a row may be named many times, so that
all slopes come from one call."""
STEP = 1e-3
"""Of a logarithm, for finite differences."""
MOST_AT_ONCE = 8192
"""Predictions of one call: what stays in a processor's caches."""
DEGREES_OF_FREEDOM = 4.0
"""Of Student's t: a residual of 3 noise widths weighs 0.38 of a small one."""

SHARES = (0.25, 0.5, 1.0)
"""Widths of the prior, relative to a constant's own, between which a few rows choose. At a quarter the constants
together move little more than one factor of all rows; at one each row may move what it speaks for."""
STILL_ODDS = float(len(SHARES))
"""Prior weight of nothing moved, over that of each of `SHARES`: before any row is read, staying and moving are equally
likely. Five rows of a stack that was predicted well otherwise move it by their scatter."""
SINGLE_SHARE = 0.5
"""Of one row, which cannot be left out of itself. Judgement: the middle of `SHARES`."""
MOST_FOLDS = 20
ITERATIONS = 12


def calibrate(
    predict: Predict,
    kind: type,
    measured: Array,
    stacks: Sequence[str],
    *,
    start: Fitted,
    noise: float,
) -> Fitted:
    """Constants of the stacks of a few rows: a mean of nothing moved and of fits under priors of several widths.

    The weight of each is the likelihood of the rows, each predicted without itself (stacking by pseudo-likelihood;
    Geisser and Eddy 1979, JASA 74:153), with predictions linear around the start, times its prior odds. So rows that
    scatter both ways around the start leave it where it is. Limit: between five rows of much noise the choice itself is
    noisy, and a stack that was predicted better than its rows scatter gets somewhat worse (docs/concepts/accuracy.md).
    """
    shares, width = (0.0, *SHARES), describe(kind)
    problem = _Problem(
        predict=predict,
        kind=kind,
        target=np.log(measured),
        weights=np.ones(len(measured)),
        names=tuple(item.name for item in width if item.sigma > 0),
        sigma=array([item.sigma for item in width if item.sigma > 0]),
        groups=tuple(sorted(set(stacks))),
        stacks=tuple(stacks),
        start=start,
        shared=False,
        stack_share=1.0,
    )
    weights = problem.share_weights(shares, noise) if len(measured) > 1 else [float(s == SINGLE_SHARE) for s in shares]
    theta = weights[0] * problem.begin
    for share, weight in zip(SHARES, weights[1:], strict=True):
        if weight > 0:
            theta = theta + weight * replace(problem, stack_share=share).solved(noise, ITERATIONS)
    residual = problem.target - problem.logs(problem.offsets(theta))
    return problem.fitted(theta, _width(residual, problem.weights))


def fit(
    predict: Predict,
    kind: type,
    measured: Array,
    weights: Array,
    stacks: Sequence[str],
) -> Fitted:
    """Shifts that bring `predict(constants, rows)` near `measured`: what all stacks share, and each stack's own."""
    problem = _Problem(
        predict=predict,
        kind=kind,
        target=np.log(measured),
        weights=weights,
        names=tuple(item.name for item in describe(kind) if item.sigma > 0),
        sigma=array([item.sigma for item in describe(kind) if item.sigma > 0]),
        groups=tuple(sorted(set(stacks))),
        stacks=tuple(stacks),
        start=Fitted(),
        shared=True,
        stack_share=0.7,
    )
    theta = problem.solved(0.12, ITERATIONS)
    residual = problem.target - problem.logs(problem.offsets(theta))
    return problem.fitted(theta, _width(residual, weights))


@dataclass(frozen=True, kw_only=True)
class _Problem:
    """Rows to fit, and how a vector of unknowns is laid out: a block of shared shifts, then one block per stack."""

    predict: Predict
    kind: type
    target: Array
    """Logarithms of what was measured."""
    weights: Array
    names: tuple[str, ...]
    sigma: Array
    groups: tuple[str, ...]
    stacks: tuple[str, ...]
    start: Fitted
    shared: bool
    stack_share: float
    """Spread between stacks relative to a constant's own."""

    @cached_property
    def begin(self) -> Array:
        """The unknowns where the search starts."""
        rows = [[self.start.shared.get(name, 0.0) for name in self.names]] if self.shared else []
        rows += [[self.start.stacks.get(group, {}).get(name, 0.0) for name in self.names] for group in self.groups]
        return array(rows).ravel()

    @cached_property
    def centre(self) -> Array:
        """The unknowns that the prior favours."""
        return np.zeros_like(self.begin) if self.shared else self.begin

    @cached_property
    def prior(self) -> Array:
        """Standard deviation of each unknown."""
        return np.concatenate([self.sigma] * self.shared + [self.sigma * self.stack_share] * len(self.groups))

    @cached_property
    def member(self) -> NDArray[np.intp]:
        """The stack of each row."""
        return np.array([self.groups.index(stack) for stack in self.stacks])

    def offsets(self, theta: Array) -> Array:
        """Shift of every constant in every row."""
        table = theta.reshape(-1, len(self.names))
        if self.shared:
            return array(table[0] + table[1:][self.member])
        return array(np.array([self.start.shared.get(name, 0.0) for name in self.names]) + table[self.member])

    def logs(self, offsets: Array) -> Array:
        """Logarithms of what is predicted: of every row once, or again for each of several tables of shifts."""
        rows = np.arange(len(offsets)) % len(self.target)
        constants = moved(self.kind(), {name: offsets[:, index] for index, name in enumerate(self.names)})
        return np.log(np.maximum(self.predict(constants, rows), 1e-30))

    def solved(self, noise: float, iterations: int) -> Array:
        """The unknowns that fit the rows best."""
        theta = self.begin
        for _ in range(iterations):
            step = self.gauss_newton_step(theta, noise)
            theta = theta + np.clip(step, -0.5, 0.5)
            if np.max(np.abs(step)) < 1e-4:
                break
        return theta

    def share_weights(self, shares: Sequence[float], noise: float) -> list[float]:
        """Weights of priors of several widths, by the likelihood of rows that were left out; they sum to one.

        A weight below a hundredth is zero: it would cost a fit and move nothing.
        """
        current, of_stack = self.slopes(self.offsets(self.begin))
        residual = self.target - current
        slopes = np.hstack([np.where((self.member == at)[:, None], of_stack, 0.0) for at in range(len(self.groups))])
        folds = np.arange(len(residual)) % min(len(residual), MOST_FOLDS)
        logs = []
        for share in shares:
            missed = residual.copy()
            for fold in sorted(set(folds)) if share > 0 else ():
                inside = folds == fold
                moved_by = _ridge(slopes[~inside], residual[~inside], noise, share * self.prior)
                missed[inside] -= slopes[inside] @ moved_by
            far = (missed / noise) ** 2
            logs.append(-(DEGREES_OF_FREEDOM + 1) / 2 * float(np.sum(np.log1p(far / DEGREES_OF_FREEDOM))))
        weights = np.exp(np.array(logs) - max(logs)) * [1.0 if share > 0 else STILL_ODDS for share in shares]
        weights[weights < 0.01 * weights.sum()] = 0.0
        return list(map(float, weights / weights.sum()))

    def gauss_newton_step(self, theta: Array, noise: float) -> Array:
        """The next move of the unknowns, rows far off weighing less.

        No row has two stacks, so that the normal matrix is a block of each stack and their borders with what is shared:
        the stacks are eliminated one by one (Schur complement).
        """
        current, slopes = self.slopes(self.offsets(theta))
        residual = self.target - current
        scale = self.weights * (DEGREES_OF_FREEDOM + 1) / (DEGREES_OF_FREEDOM + (residual / noise) ** 2) / noise**2
        pull = ((self.centre - theta) / self.prior**2).reshape(-1, len(self.names))
        tight = np.diag(1 / (self.stack_share * self.sigma) ** 2)
        borders, sides = [], []
        for number in range(len(self.groups)):
            own = self.member == number
            weighted = slopes[own] * scale[own, None]
            borders.append(slopes[own].T @ weighted)
            sides.append(weighted.T @ residual[own])
        stacks = list(zip(borders, sides, pull[int(self.shared) :], strict=True))
        if not self.shared:
            return np.concatenate([np.linalg.solve(border + tight, side + own) for border, side, own in stacks])
        normal, right = np.diag(1 / self.sigma**2), pull[0]
        for border, side, own in stacks:
            normal = normal + border - border @ np.linalg.solve(border + tight, border)
            right = right + side - border @ np.linalg.solve(border + tight, side + own)
        first = np.linalg.solve(normal, right)
        rest = [np.linalg.solve(border + tight, side + own - border @ first) for border, side, own in stacks]
        return np.concatenate([first, *rest])

    def slopes(self, offsets: Array) -> tuple[Array, Array]:
        """Logarithms of what is predicted, and how they move with each constant."""
        count, width = offsets.shape
        each = max(1, MOST_AT_ONCE // count)
        logs = []
        for first in range(0, width + 1, each):
            chosen = np.arange(first, min(first + each, width + 1))
            bumped = np.repeat(offsets[None], len(chosen), axis=0)
            moved_ones = chosen[chosen < width]
            bumped[moved_ones - first, :, moved_ones] += STEP
            logs.append(self.logs(bumped.reshape(-1, width)).reshape(len(chosen), -1))
        table = np.vstack(logs)
        return table[-1], array(((table[:-1] - table[-1]) / STEP).T)

    def fitted(self, theta: Array, noise: float) -> Fitted:
        """The unknowns by name."""
        table = theta.reshape(-1, len(self.names))
        own = table[1:] if self.shared else table
        common = self._named(table[0]) if self.shared else dict(self.start.shared)
        stacks = {group: self._named(row) for group, row in zip(self.groups, own, strict=True)}
        return Fitted(shared=common, stacks={**self.start.stacks, **stacks}, noise=noise)

    def _named(self, row: Array) -> dict[str, float]:
        return dict(zip(self.names, map(float, row), strict=True))


def _ridge(slopes: Array, residual: Array, noise: float, prior: Array) -> Array:
    """Shifts that explain residuals in a linear model, rows far off weighing less."""
    shifts = array(np.zeros(slopes.shape[1]))
    for _ in range(4):
        far = ((residual - slopes @ shifts) / noise) ** 2
        weighted = slopes * ((DEGREES_OF_FREEDOM + 1) / (DEGREES_OF_FREEDOM + far) / noise**2)[:, None]
        shifts = array(np.linalg.solve(slopes.T @ weighted + np.diag(1 / prior**2), weighted.T @ residual))
    return shifts


def _width(residual: Array, weights: Array) -> float:
    order = np.argsort(np.abs(residual))
    share = np.cumsum(weights[order]) / np.sum(weights)
    return float(np.abs(residual)[order][np.searchsorted(share, 0.5)] / 0.6745)

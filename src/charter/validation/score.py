"""Quantities, and errors of their predictions: by row, by source, by quantity; with a source left out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from charter.physics.columns import Array, array
from charter.physics.constants import describe, moved
from charter.physics.fitted import NARROWEST, Fitted
from charter.physics.step_time import rows_of
from charter.validation.quantities.generation import GENERATION
from charter.validation.quantities.memory import INFERENCE_MEMORY, TRAINING_MEMORY
from charter.validation.quantities.rl_step import RL_STEP
from charter.validation.quantities.run_total import RUN_TOTAL
from charter.validation.quantities.training_time import TRAINING_TIME
from charter.validation.rows.measurement import Measurement, Refusal

# -------- Fit constants to measurements: robust least squares on logarithms, with priors and one offset per stack.
#
# The model of a row is `log(measured) = log(predicted(constants)) + noise`. Each constant is
# `default * exp(shared + of_its_stack)`, `shared ~ N(0, sigma)` and `of_its_stack ~ N(0, sigma_stack)`, so a stack with
# few rows stays near the rest and a stack with many goes its own way (a hierarchical model; Gelman and Hill 2007,
# chapter 12). Residuals are weighted by Student's t (Lange, Little and Taylor 1989), solved by Gauss-Newton with finite
# differences. A stack's few rows say by cross-validation how far its constants may leave their start (`calibrate`).

Predict: TypeAlias = Callable[[Any, NDArray[np.intp]], Array]
"""Predictions of rows named by number, one value of every constant for each; a row may be named many times, so that
all slopes come from one call."""
STEP = 1e-3
"""Of a logarithm, for finite differences."""
MOST_AT_ONCE = 8192
"""Predictions of one call: what stays in a processor's caches."""
DEGREES_OF_FREEDOM = 4.0
"""Of Student's t: a residual of 3 noise widths weighs 0.38 of a small one."""
FEW_FREEDOM = 2.2
"""The same where a few rows calibrate. It has the greatest likelihood for the residuals of the shipped rows around the
medians of their sources, each predicted without its stacks (4 has e^20 less); one odd row of five moves much."""

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
) -> Fitted:
    """Constants of the stacks of a few rows: a mean of nothing moved and of fits under priors of several widths.

    The weight of each is the likelihood of the rows, each predicted without itself (stacking by pseudo-likelihood;
    Geisser and Eddy 1979, JASA 74:153), with predictions linear around the start, times its prior odds. So rows that
    scatter both ways around the start leave it where it is. How far rows scatter is what the start's own fit left: a
    few do not say it of themselves. Limit: between five rows of much noise the choice itself is noisy, and a stack that
    was predicted better than its rows scatter gets somewhat worse (docs/concepts/accuracy.md).
    """
    shares, width, noise = (0.0, *SHARES), describe(kind), max(start.noise, NARROWEST)
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
        freedom=FEW_FREEDOM,
    )
    weights = problem.share_weights(shares, noise) if len(measured) > 1 else [float(s == SINGLE_SHARE) for s in shares]
    theta = weights[0] * problem.begin
    for share, weight in zip(SHARES, weights[1:], strict=True):
        if weight > 0:
            theta = theta + weight * replace(problem, stack_share=share).solved(noise, ITERATIONS)
    return problem.fitted(theta, start.noise)


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
        freedom=DEGREES_OF_FREEDOM,
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
    freedom: float
    """Degrees of freedom of Student's t."""

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
                moved_by = _ridge(slopes[~inside], residual[~inside], noise, share * self.prior, self.freedom)
                missed[inside] -= slopes[inside] @ moved_by
            far = (missed / noise) ** 2
            logs.append(-(self.freedom + 1) / 2 * float(np.sum(np.log1p(far / self.freedom))))
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
        scale = self.weights * (self.freedom + 1) / (self.freedom + (residual / noise) ** 2) / noise**2
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


def _ridge(slopes: Array, residual: Array, noise: float, prior: Array, freedom: float) -> Array:
    """Shifts that explain residuals in a linear model, rows far off weighing less."""
    shifts = array(np.zeros(slopes.shape[1]))
    for _ in range(4):
        far = ((residual - slopes @ shifts) / noise) ** 2
        weighted = slopes * ((freedom + 1) / (freedom + far) / noise**2)[:, None]
        shifts = array(np.linalg.solve(slopes.T @ weighted + np.diag(1 / prior**2), weighted.T @ residual))
    return shifts


def _width(residual: Array, weights: Array) -> float:
    order = np.argsort(np.abs(residual))
    share = np.cumsum(weights[order]) / np.sum(weights)
    return float(np.abs(residual)[order][np.searchsorted(share, 0.5)] / 0.6745)


# -------- What a quantity is to the generic parts, and which there are.


class Quantity(Protocol):
    """One family of predictions (training time, training memory, generation, ...) with its own constants.

    `predict` is called with cases of many sources at once and with constants that are arrays over the cases; it returns
    the prediction of every case in the metric and unit of its row, and must be positive. It must be fast, since a fit
    calls it once per constant and iteration with all rows; what does not depend on the constants belongs in `prepare`.
    """

    @property
    def name(self) -> str:
        """Return what is predicted, in one or two words."""

    @property
    def constants(self) -> type:
        """A frozen dataclass of `charter.physics.constants.constant` fields."""

    def accepts(self, row: Measurement) -> bool:
        """Return True if rows of this kind and metric belong to this quantity."""

    def case(self, row: Measurement) -> Any:
        """The configuration behind a row, every gap filled; raises Refusal with the reason."""

    def stack(self, case: Any) -> str:
        """Name of the software stack whose constants apply (`megatron-core`, `fsdp`, ...)."""

    def prepare(self, cases: Sequence[Any]) -> Any:
        """Cases as arrays, ready for `predict`."""

    def predict(self, prepared: Any, constants: Any) -> Array:
        """Predictions in the metric and unit of the rows."""


QUANTITIES: tuple[Quantity, ...] = (TRAINING_TIME, TRAINING_MEMORY, INFERENCE_MEMORY, GENERATION, RL_STEP, RUN_TOTAL)


def quantity_of(row: Measurement) -> Quantity | None:
    """The quantity a row belongs to."""
    return next((quantity for quantity in QUANTITIES if quantity.accepts(row)), None)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row with the configuration that was read from it."""

    row: Measurement
    case: Any
    stack: str


@dataclass(frozen=True, kw_only=True)
class ScoredRow:
    """A row with its prediction; errors are of predicted over measured, none below an upper bound."""

    row: Measurement
    stack: str
    predicted: float
    used: bool = False
    """Whether the row took part in the calibration that predicts it."""

    @property
    def log_error(self) -> float:
        """Logarithm of predicted over measured."""
        return float(np.log1p(self.error))

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.row.error_of(self.predicted)


def cases_of(quantity: Quantity, rows: Iterable[Measurement]) -> tuple[list[Case], list[tuple[Measurement, str]]]:
    """The rows of a quantity as cases, and those refused with their reason."""
    cases, refused = [], []
    for row in rows:
        if not quantity.accepts(row):
            continue
        try:
            if row.problems:
                raise Refusal("; ".join(row.problems))
            case = quantity.case(row)
        except Refusal as refusal:
            refused.append((row, refusal.reason))
        else:
            cases.append(Case(row=row, case=case, stack=quantity.stack(case)))
    return cases, refused


def fitted_to(quantity: Quantity, cases: Sequence[Case]) -> Fitted:
    """Constants fitted to all cases (none: the priors); a source weighs as the square root of its independent rows.

    Steps of reinforcement learning whose answers may have any length teach nothing: their seconds are those of a guess.
    """
    cases = [case for case in cases if case.row.says_lengths]
    if not cases:
        return Fitted()
    return fit(
        _taught(quantity, cases),
        quantity.constants,
        array([case.row.value for case in cases]),
        balanced_weights(cases),
        [case.stack for case in cases],
    )


def _taught(quantity: Quantity, cases: Sequence[Case]) -> Predict:
    """Return what a fit compares with the rows: `predict`, unless rows are censored (`taught`)."""
    prepared = quantity.prepare([case.case for case in cases])
    taught = getattr(quantity, "taught", quantity.predict)
    chosen: dict[bytes, Any] = {}

    def values(constants: Any, rows: NDArray[np.intp]) -> Array:
        key = rows.tobytes()
        if key not in chosen:
            chosen[key] = rows_of(prepared, rows)
        return array(taught(chosen[key], constants))

    return values


def prepared_once(quantity: Quantity, cases: Sequence[Case]) -> Quantity:
    """The quantity of cases that become columns once, however often some of them are fitted and predicted."""
    return cast(Quantity, _PreparedOnce(quantity, cases))


class _PreparedOnce:
    def __init__(self, quantity: Quantity, cases: Sequence[Case]) -> None:
        self._quantity = quantity
        self._rows = {id(case.case): number for number, case in enumerate(cases)}
        self._cases = tuple(cases)  # holds them, so that no number is given twice
        self._columns = quantity.prepare([case.case for case in cases]) if cases else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._quantity, name)

    def prepare(self, cases: Sequence[Any]) -> Any:
        """Rows of the columns that are there."""
        return rows_of(self._columns, np.array([self._rows[id(case)] for case in cases]))


def balanced_weights(cases: Sequence[Case]) -> Array:
    """Row weights, scaled so that the rows of a source sum to the square root of their independent number."""
    totals: dict[str, float] = {}
    for case in cases:
        totals[case.row.prefix] = totals.get(case.row.prefix, 0.0) + case.row.weight
    return array([case.row.weight / max(totals[case.row.prefix], 1.0) ** 0.5 for case in cases])


def predict(quantity: Quantity, cases: Sequence[Case], fitted: Fitted) -> Array:
    """Predictions of cases with fitted constants."""
    if not cases:
        return array([])
    constants = fitted.apply(quantity.constants(), [case.stack for case in cases])
    return quantity.predict(quantity.prepare([case.case for case in cases]), constants)


def calibrated(quantity: Quantity, cases: Sequence[Case], start: Fitted) -> Fitted:
    """Constants of the stacks in a few rows of one source, as far from `start` as the rows themselves bear out."""
    return calibrate(
        _taught(quantity, cases),
        quantity.constants,
        array([case.row.value for case in cases]),
        [case.stack for case in cases],
        start=start,
    )


def spread_over(cases: Sequence[Case], count: int) -> list[int]:
    """Indices of `count` cases of different configurations, spread evenly over stacks and over the file."""
    first: dict[str, int] = {}
    for index, case in enumerate(cases):
        first.setdefault(case.row.config_id or case.row.id, index)
    order = sorted(first.values(), key=lambda index: (cases[index].stack, index))
    if len(order) <= count:
        return order
    return [order[round((step + 0.5) * len(order) / count - 0.5)] for step in range(count)]


def leave_source_out(quantity: Quantity, cases: Sequence[Case], *, rows: int = 0) -> list[ScoredRow]:
    """Each source predicted with constants fitted to the others, and to `rows` rows of its own."""
    predictions = []
    for prefix in sorted({case.row.prefix for case in cases}):
        own = [case for case in cases if case.row.prefix == prefix]
        fitted = fitted_to(quantity, [case for case in cases if case.row.prefix != prefix])
        predictions += scored(quantity, own, fitted, rows=rows)
    return predictions


def scored(quantity: Quantity, own: Sequence[Case], fitted: Fitted, *, rows: int = 0) -> list[ScoredRow]:
    """The cases of one source predicted, after calibration on `rows` of them."""
    used = set(spread_over(own, rows)) if rows else set()
    if used:
        fitted = calibrated(quantity, [own[index] for index in sorted(used)], fitted)
    values = predict(quantity, own, fitted)
    return [
        ScoredRow(row=case.row, stack=case.stack, predicted=float(value), used=index in used)
        for index, (case, value) in enumerate(zip(own, values, strict=True))
    ]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Errors of a group of rows, one vote per configuration."""

    configurations: int
    median_error: float
    """Median of |predicted / measured - 1|."""
    p90_error: float
    bias: float
    """Median of predicted / measured - 1."""


def summary(rows: Sequence[ScoredRow]) -> Summary:
    """Median, 90th percentile and bias over configurations; rows used for calibration do not vote."""
    votes: dict[str, list[float]] = {}
    for item in rows:
        if not item.used:
            votes.setdefault(item.row.config_id or item.row.id, []).append(item.error)
    errors = [median(vote) for vote in votes.values()]
    if not errors:
        return Summary(configurations=0, median_error=0.0, p90_error=0.0, bias=0.0)
    return Summary(
        configurations=len(errors),
        median_error=float(np.median(np.abs(errors))),
        p90_error=float(np.quantile(np.abs(errors), 0.9)),
        bias=float(np.median(errors)),
    )


def by(rows: Sequence[ScoredRow], key: Callable[[ScoredRow], str]) -> Mapping[str, list[ScoredRow]]:
    """Rows in groups, sorted by name."""
    groups: dict[str, list[ScoredRow]] = {}
    for item in rows:
        groups.setdefault(key(item), []).append(item)
    return dict(sorted(groups.items()))

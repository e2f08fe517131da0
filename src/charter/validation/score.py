"""Quantities, and errors of their predictions: by row, by source, by quantity; with a source left out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from charter.physics.columns import Array, array
from charter.physics.fitted import Fitted
from charter.physics.step_time import rows_of
from charter.validation.fit import Predict, calibrate, fit
from charter.validation.quantities.generation import GENERATION
from charter.validation.quantities.memory import INFERENCE_MEMORY, TRAINING_MEMORY
from charter.validation.quantities.rl_step import RL_STEP
from charter.validation.quantities.run_total import RUN_TOTAL
from charter.validation.quantities.training_time import TRAINING_TIME
from charter.validation.rows.measurement import Measurement, Refusal

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
    """A row with its prediction; `log_error` is log(predicted / measured)."""

    row: Measurement
    stack: str
    predicted: float
    used: bool = False
    """Whether the row took part in the calibration that predicts it."""

    @property
    def log_error(self) -> float:
        """Logarithm of predicted over measured."""
        return float(np.log(self.predicted / self.row.value))

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.row.value - 1


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


ROW_NOISE = 0.08
"""Scatter of rows of a stack around a model that was calibrated on it: the median error of dense training steps after
five rows (docs/concepts/accuracy.md)."""


def calibrated(quantity: Quantity, cases: Sequence[Case], start: Fitted) -> Fitted:
    """Constants of the stacks in a few rows of one source, as far from `start` as the rows themselves bear out."""
    return calibrate(
        _taught(quantity, cases),
        quantity.constants,
        array([case.row.value for case in cases]),
        [case.stack for case in cases],
        start=start,
        noise=ROW_NOISE,
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

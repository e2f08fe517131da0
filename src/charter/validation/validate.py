"""Predict every row of a file of measurements: value and interval in the row's own unit, or why it is refused."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import median

import numpy as np

from charter.errors import CharterError
from charter.physics.columns import Array
from charter.physics.fitted import Bundle, Fitted, Knowledge, QuantityFit, bundled
from charter.physics.terms import enough_memory
from charter.spec.suggest import nearest
from charter.validation.alarms import alarms_of, bundled_measurements, taught_measurements
from charter.validation.intervals import beside_device, group_of, scatter_factor
from charter.validation.quantities.memory import MEMORY_NAMES, out_of_memory
from charter.validation.rows.accelerator import device_family
from charter.validation.rows.measurement import Measurement, Refusal, inferred, unknowns
from charter.validation.rows.metrics import WRITTEN_METRICS
from charter.validation.score import (
    QUANTITIES,
    Case,
    Quantity,
    ScoredRow,
    calibrated,
    cases_of,
    fitted_to,
    predict,
    quantity_of,
    spread_over,
)

OOM = "oom"
RISK = 0.1
"""Probability of being wrong at which a verdict on memory is given; the tail of an 80 % interval."""


@dataclass(frozen=True, kw_only=True)
class RowVerdict:
    """One row of a file, predicted or refused."""

    row: Measurement
    predicted: float | bool | None = None
    """The estimate; of the memory of training what a plan would take, `physics.terms.enough_memory`."""
    p10: float | bool | None = None
    p50: float | None = None
    """The estimate; None of rows that ask whether a job fits."""
    p90: float | bool | None = None
    refused: str | None = None
    quantity: str = ""
    stack: str = ""
    knowledge: str = ""
    alarms: tuple[str, ...] = ()
    """What cannot be true of the row; a row that has any neither calibrates nor counts in the summaries."""
    assumptions: tuple[str, ...] = ()
    """Typed columns that are unknown, or columns of free text that were read in place of typed ones."""
    fits_probability: float | None = None
    """Of memory and out-of-memory rows: P(the run fits into its device)."""
    used: bool = False
    """Whether the row calibrated its stack; such rows do not count in the summaries."""

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        if self.predicted is None or self.row.metric == OOM or not self.row.value:
            return None
        return self.row.error_of(float(self.predicted))

    @property
    def fits(self) -> str | None:
        """The verdict at `RISK`: `fits`, `does not fit`, or `uncertain` where neither is that sure."""
        if self.fits_probability is None:
            return None
        if self.fits_probability >= 1 - RISK:
            return "fits"
        return "does not fit" if self.fits_probability <= RISK else "uncertain"

    @property
    def covered(self) -> bool:
        """Return True if the measured value lies in the interval."""
        if self.p10 is None or self.p90 is None:
            return False
        return self.p10 <= self.row.value and (self.row.is_bound or self.row.value <= self.p90)


def validate(
    rows: Sequence[Measurement],
    *,
    calibrate_rows: int = 0,
    leave_out: Sequence[str] = (),
    in_sample: bool = False,
    bundle: Bundle | None = None,
) -> tuple[RowVerdict, ...]:
    """Predict every row once, in the order of the file.

    A source whose rows the calibration was fitted to is predicted without them (unless `in_sample`); `leave_out` names
    further source prefixes to refit without. `calibrate_rows` first moves the constants of each stack to fit that many
    rows of each source.
    """
    fits = {**bundled().quantities, **(bundle.quantities if bundle else {})}
    fitted_rows = set() if in_sample else {(row.id, row.value) for row in bundled_measurements()}
    verdicts: dict[int, RowVerdict] = {}
    numbers = {id(row): number for number, row in enumerate(rows)}
    alarms = {number: raised for number, row in enumerate(rows) if (raised := alarms_of(row))}
    flagged = {id(rows[number]) for number in alarms}
    for quantity in QUANTITIES:
        mine = [row for row in rows if quantity_of(row) is quantity and row.metric != OOM]
        cases, refused = safe_cases(quantity, mine)
        for row, reason in refused:
            verdicts[numbers[id(row)]] = RowVerdict(row=row, refused=reason, quantity=quantity.name)
        for prefix in sorted({case.row.prefix for case in cases}):
            own = [case for case in cases if case.row.prefix == prefix]
            itself = (prefix,) if any((case.row.id, case.row.value) in fitted_rows for case in own) else ()
            fit = fits[quantity.name]
            start = without(quantity, fit, tuple(sorted({*leave_out, *itself})))
            source = prefix in fit.sources and prefix not in (*leave_out, *itself)
            seen = _Measured.of(quantity, absent={*leave_out, *itself}, own=bundle is not None)
            for verdict in _verdicts(quantity, fit, own, start, calibrate_rows, flagged, seen, known_source=source):
                verdicts[numbers[id(verdict.row)]] = verdict
    constants = _MemoryConstants(fits, leave_out, fitted_rows)
    for number, row in enumerate(rows):
        if number not in verdicts:
            verdicts[number] = _verdict_on_memory(row, constants) if row.metric == OOM else _nobody(row)
    return tuple(
        replace(
            verdicts[number],
            alarms=alarms.get(number, ()),
            assumptions=(*inferred(vars(row)), *unknowns(vars(row))),
            fits_probability=None if verdicts[number].refused is not None else _chance(row, constants),
        )
        for number, row in enumerate(rows)
    )


class _MemoryConstants:
    """Constants of memory that a row did not teach, by quantity."""

    def __init__(
        self, fits: Mapping[str, QuantityFit], leave_out: Sequence[str], taught: Collection[tuple[str, float]]
    ) -> None:
        self._fits, self._leave_out, self._taught = fits, leave_out, taught
        self._without: dict[tuple[str, ...], dict[str, Fitted]] = {}

    def of(self, row: Measurement) -> dict[str, Fitted]:
        """Return the constants fitted without a row, where it was among those that taught them."""
        itself = (row.prefix,) if (row.id, row.value) in self._taught else ()
        absent = tuple(sorted({*self._leave_out, *itself}))
        if absent not in self._without:
            quantities = [quantity for quantity in QUANTITIES if quantity.name in MEMORY_NAMES]
            self._without[absent] = {
                quantity.name: without(quantity, self._fits[quantity.name], absent) for quantity in quantities
            }
        return self._without[absent]


def _chance(row: Measurement, constants: _MemoryConstants) -> float | None:
    """P(fits) of a row of memory; None for other rows and where nothing is known of the device."""
    if row.metric != OOM and not row.metric.startswith("peak_mem"):
        return None
    try:
        return out_of_memory(row, constants.of(row)).fits_probability
    except (Refusal, *_UNREADABLE):
        return None


_UNREADABLE = (CharterError, ArithmeticError, LookupError, TypeError, ValueError)
"""What a reader raises at a configuration that nobody foresaw."""


def _are_finite(values: Array) -> bool:
    return bool(np.all(np.isfinite(values) & (values > 0)))


def safe_cases(quantity: Quantity, rows: Sequence[Measurement]) -> tuple[list[Case], list[tuple[Measurement, str]]]:
    """Cases of rows; a row that breaks the reader of its configuration is refused, not the file."""
    try:
        cases, reasons = cases_of(quantity, rows)
        if all(row.value > 0 for row in rows) and _are_finite(predict(quantity, cases, Fitted())):
            return cases, reasons
    except (Refusal, *_UNREADABLE):
        pass  # one of the rows cannot be read: each by itself tells which
    sound: list[Case] = []
    refused: list[tuple[Measurement, str]] = []
    for row in rows:
        try:
            cases, reasons = cases_of(quantity, [row])
            if row.value <= 0:
                raise Refusal(f"measured value {row.value:g} is not positive")
            values = predict(quantity, cases, Fitted()) if cases else np.ones(1)
            if not _are_finite(values):
                raise Refusal("the configuration has no finite prediction")
        except Refusal as refusal:
            refused.append((row, refusal.reason))
        except _UNREADABLE as error:
            refused.append((row, f"the configuration cannot be read: {error}"))
        else:
            sound += cases
            refused += reasons
    return sound, refused


def without(quantity: Quantity, fit: QuantityFit, leave_out: tuple[str, ...]) -> Fitted:
    """Constants fitted without some sources; refitted where that was not prepared."""
    absent = tuple(prefix for prefix in leave_out if prefix in fit.sources)
    if not absent:
        return fit.fitted
    if len(absent) == 1 and absent[0] in fit.without:
        return fit.without[absent[0]]
    cases, _ = cases_of(quantity, taught_measurements())
    return fitted_to(quantity, [case for case in cases if case.row.prefix not in absent])


def _verdicts(
    quantity: Quantity,
    fit: QuantityFit,
    own: Sequence[Case],
    start: Fitted,
    few: int,
    flagged: Collection[int],
    seen: "_Measured",
    *,
    known_source: bool,
) -> list[RowVerdict]:
    sound = [index for index, case in enumerate(own) if id(case.row) not in flagged]
    used = {sound[index] for index in spread_over([own[index] for index in sound], few)} if few else set()
    fitted = calibrated(quantity, [own[index] for index in sorted(used)], start) if used else start
    values = predict(quantity, own, fitted)
    scored = [
        ScoredRow(row=case.row, stack=case.stack, predicted=float(value), used=index in used)
        for index, (case, value) in enumerate(zip(own, values, strict=True))
    ]
    verdicts = []
    for item in scored:
        moved = bool(used) or item.stack in fit.calibrated_stacks
        knowledge = _knowledge(item, start, calibrated=moved, source=known_source, named=seen.stack(item.row))
        group = group_of(item.row)
        width = fit.spread.half_width(group, knowledge)
        factor = scatter_factor(scored, width) if used else 1.0
        if not moved:
            unseen = fit.spread.half_width(group, "unseen")
            factor *= beside_device(width, unseen, measured=seen.device(item.row)) / width
        interval = fit.spread.interval(item.predicted, group, knowledge, factor=factor)
        verdicts.append(
            RowVerdict(
                row=item.row,
                predicted=enough_memory(interval, group) if fit.spread.is_measured(group, knowledge) else interval.p50,
                p10=interval.p10,
                p50=interval.p50,
                p90=interval.p90,
                quantity=quantity.name,
                stack=item.stack,
                knowledge=knowledge,
                used=item.used,
            )
        )
    return verdicts


def _knowledge(item: ScoredRow, start: Fitted, *, calibrated: bool, source: bool, named: bool) -> Knowledge:
    if source and item.stack in start.stacks:
        return "source"
    if calibrated:
        return "calibrated"
    return "seen" if named and item.stack in start.stacks else "unseen"


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """Stacks by their typed names, and kinds of devices, that the fitted rows of a quantity have.

    A stack is known by group of rows: dense models trained under it say little of mixtures of experts.
    """

    stacks: Collection[tuple[str, str]]
    devices: Collection[str]
    of_memory: bool

    @classmethod
    def of(cls, quantity: Quantity, *, absent: Collection[str], own: bool) -> "_Measured":
        """Of the shipped rows but for some sources; with a calibration of one's own no device is taken to be new."""
        rows = [row for row in _rows_of(quantity.name) if row.prefix not in absent]
        return cls(
            stacks={(row.stack, group_of(row)) for row in rows if row.stack not in ("", "unknown")},
            devices={_family(row) for row in rows},
            of_memory=own or quantity.name in MEMORY_NAMES,
        )

    def stack(self, row: Measurement) -> bool:
        """Return True if such rows of the stack were measured; without typed columns it says no more than a profile."""
        return not row.stack or (row.stack, group_of(row)) in self.stacks

    def device(self, row: Measurement) -> bool:
        """Return True if rows of such a device were measured, or if it hardly matters, as for memory."""
        return self.of_memory or _family(row) in self.devices


@cache
def _rows_of(name: str) -> tuple[Measurement, ...]:
    quantity = next(each for each in QUANTITIES if each.name == name)
    return tuple(row for row in taught_measurements() if quantity_of(row) is quantity)


_family = cache(device_family)


def _verdict_on_memory(row: Measurement, constants: _MemoryConstants) -> RowVerdict:
    """Return whether a run would have run out of memory; p10 and p90 are the verdicts at the interval's ends."""
    try:
        if row.problems:
            raise Refusal("; ".join(row.problems))
        judged = out_of_memory(row, constants.of(row))
    except Refusal as refusal:
        return RowVerdict(row=row, refused=refusal.reason, quantity=OOM)
    except (CharterError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return RowVerdict(row=row, refused=f"the configuration cannot be read: {error}", quantity=OOM)
    return RowVerdict(
        row=row, predicted=judged.verdict, p10=judged.p10, p90=judged.p90, quantity=OOM, stack=judged.stack
    )


def _nobody(row: Measurement) -> RowVerdict:
    near = nearest(row.metric, WRITTEN_METRICS)
    hint = f"; did you mean {near}?" if near is not None and near != row.metric else ""
    reason = f"nothing predicts {row.metric} of kind {row.kind}{hint}"
    return RowVerdict(row=row, refused="; ".join(row.problems) or reason)


@dataclass(frozen=True, kw_only=True)
class Score:
    """Errors of a group of verdicts, one vote per configuration."""

    rows: int
    refused: int
    configurations: int
    median_error: float | None
    p90_error: float | None
    bias: float | None
    coverage: float | None
    width: float | None
    """Median of p90 / p10."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    flagged: int = 0
    """Rows with an alarm, which count in no error."""
    said_fits_was_oom: int = 0
    said_oom_ran: int = 0
    oom_rows: int = 0


def score(verdicts: Sequence[RowVerdict]) -> Score:
    """Summary of a group; rows that calibrated do not vote."""
    votes: dict[str, list[RowVerdict]] = {}
    reasons: dict[str, int] = {}
    flagged = 0
    for item in verdicts:
        if item.refused is not None:
            reasons[item.refused] = reasons.get(item.refused, 0) + 1
        elif item.alarms:
            flagged += 1
        elif item.error is not None and not item.used:
            votes.setdefault(f"{item.row.config_id or item.row.id} {item.row.metric}", []).append(item)
    errors = [median(error for item in vote if (error := item.error) is not None) for vote in votes.values()]
    covered = [sum(item.covered for item in vote) / len(vote) for vote in votes.values()]
    widths = [float(item.p90 or 1) / float(item.p10 or 1) for vote in votes.values() for item in vote]
    verdict_rows = [item for item in verdicts if item.row.metric == OOM and item.refused is None]
    return Score(
        rows=len(verdicts),
        refused=sum(reasons.values()),
        configurations=len(votes),
        median_error=float(np.median(np.abs(errors))) if errors else None,
        p90_error=float(np.quantile(np.abs(errors), 0.9)) if errors else None,
        bias=float(np.median(errors)) if errors else None,
        coverage=float(np.mean(covered)) if errors else None,
        width=float(np.median(widths)) if errors else None,
        reasons=reasons,
        flagged=flagged,
        said_fits_was_oom=sum(bool(item.row.value) and not item.predicted for item in verdict_rows),
        said_oom_ran=sum(not item.row.value and bool(item.predicted) for item in verdict_rows),
        oom_rows=len(verdict_rows),
    )


def grouped(verdicts: Sequence[RowVerdict], by: str) -> dict[str, Score]:
    """Scores by `source`, `kind` (what was measured of what) or `gpu`, in alphabetical order."""
    keys: dict[str, Callable[[RowVerdict], str]] = {
        "source": lambda item: f"{item.row.prefix} {item.row.kind} {item.row.metric}",
        "kind": lambda item: group_of(item.row),
        "gpu": lambda item: item.row.gpu,
    }
    groups: dict[str, list[RowVerdict]] = {}
    for item in verdicts:
        groups.setdefault(keys[by](item), []).append(item)
    return {name: score(groups[name]) for name in sorted(groups)}

"""Fits of every quantity to rows, and the widths that leaving sources out shows: what makes or extends a bundle."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from charter.physics.fitted import Bundle, Fitted, Knowledge, QuantityFit, Spread
from charter.validation.bundled import fingerprint
from charter.validation.intervals import spreads, typical_errors
from charter.validation.quantity import Quantity
from charter.validation.rows.measurement import Measurement
from charter.validation.score import (
    Case,
    ScoredRow,
    by,
    calibrated,
    cases_of,
    fitted_to,
    prepared_once,
    scored,
    summary,
)

FEW_ROWS = 5
FEWEST_SOURCES = 2
"""Below, leaving a source out says nothing, and the widest interval stands."""
FOLDS = 5


def make(quantities: Sequence[Quantity], rows: Sequence[Measurement], *, source: str, as_of: str) -> Bundle:
    """Fit every quantity that has rows, and measure its intervals by leaving sources out."""
    fits = ((quantity.name, fit_quantity(quantity, rows)) for quantity in quantities)
    return Bundle(
        quantities={name: fit for name, fit in fits if fit.sources},
        source=source,
        as_of=as_of,
        sha256=fingerprint(rows),
    )


def extend(
    bundle: Bundle, quantities: Sequence[Quantity], rows: Sequence[Measurement], *, source: str, as_of: str
) -> Bundle:
    """The bundle with the constants of the stacks in `rows` moved to fit them, from where the published rows put them.

    What the rows do not speak for stays. The interval of such a stack is that of a source calibrated on a few rows.
    """
    fits = dict(bundle.quantities)
    for quantity in quantities:
        cases, _ = cases_of(quantity, rows)
        if cases:
            earlier = fits[quantity.name]
            own = {case.stack for case in cases}
            fits[quantity.name] = replace(
                earlier,
                fitted=calibrated(quantity, cases, earlier.fitted),
                calibrated_stacks=tuple(sorted({*earlier.calibrated_stacks, *own})),
                sources={**earlier.sources, **_counts(cases)},
                left_out={**earlier.left_out, **_errors(quantity, cases, earlier.fitted)},
            )
    return Bundle(quantities=fits, source=source, as_of=as_of, sha256=fingerprint(rows), paces=bundle.paces)


def _counts(cases: Sequence[Case]) -> dict[str, int]:
    prefixes = [case.row.prefix for case in cases]
    return {prefix: prefixes.count(prefix) for prefix in sorted(set(prefixes))}


def _errors(quantity: Quantity, cases: Sequence[Case], fitted: Fitted) -> dict[str, float]:
    """Median error of each source with the constants from before."""
    groups = by(scored(quantity, cases, fitted), lambda item: item.row.prefix)
    return {prefix: round(summary(items).median_error, 4) for prefix, items in groups.items()}


def fit_quantity(quantity: Quantity, rows: Iterable[Measurement]) -> QuantityFit:
    """Constants with all rows and without each source, and the widths that leaving out shows."""
    cases, _ = cases_of(quantity, rows)
    quantity = prepared_once(quantity, cases)
    prefixes = sorted({case.row.prefix for case in cases})
    stacks: dict[str, set[str]] = {}
    for case in cases:
        stacks.setdefault(case.stack, set()).add(case.row.prefix)
    without = {
        prefix: fitted_to(quantity, [case for case in cases if case.row.prefix != prefix]) for prefix in prefixes
    }
    left_out = {
        prefix: scored(quantity, [case for case in cases if case.row.prefix == prefix], fitted)
        for prefix, fitted in without.items()
    }
    elsewhere = [item for items in left_out.values() for item in items if len(stacks[item.stack]) > 1]
    situations: dict[Knowledge, list[ScoredRow]] = {
        "unseen": _stack_left_out(quantity, cases),
        "seen": elsewhere,
        "calibrated": _after_few(quantity, cases, without),
        "source": _folded(quantity, cases),
    }
    return QuantityFit(
        fitted=fitted_to(quantity, cases),
        without=without,
        spread=spreads(situations) if len(prefixes) >= FEWEST_SOURCES else Spread(half_widths={}),
        errors=typical_errors(situations),
        left_out={prefix: round(summary(items).median_error, 4) for prefix, items in left_out.items()},
        sources={prefix: sum(case.row.prefix == prefix for case in cases) for prefix in prefixes},
        measured_stacks={stack: tuple(sorted(situations)) for stack, situations in sorted(stacks.items())},
    )


def _after_few(quantity: Quantity, cases: Sequence[Case], without: Mapping[str, Fitted]) -> list[ScoredRow]:
    """Rows of each source predicted after a few of its own, where enough are left to predict."""
    predicted: list[ScoredRow] = []
    for prefix, fitted in without.items():
        own = [case for case in cases if case.row.prefix == prefix]
        if len(own) > 2 * FEW_ROWS:
            predicted += scored(quantity, own, fitted, rows=FEW_ROWS)
    return predicted


def _stack_left_out(quantity: Quantity, cases: Sequence[Case]) -> list[ScoredRow]:
    """Every row predicted from a fit without its stack: what a stack that nobody measured meets."""
    predicted: list[ScoredRow] = []
    for stack in sorted({case.stack for case in cases}):
        own = [case for case in cases if case.stack == stack]
        predicted += scored(quantity, own, fitted_to(quantity, [case for case in cases if case.stack != stack]))
    return predicted


def _folded(quantity: Quantity, cases: Sequence[Case]) -> list[ScoredRow]:
    """Every row predicted from a fit without its fold of configurations: what a new row of a known source meets."""
    configurations = sorted({case.row.config_id or case.row.id for case in cases})
    fold = {name: index % FOLDS for index, name in enumerate(configurations)}
    predictions: list[ScoredRow] = []
    for number in range(FOLDS):
        inside = [case for case in cases if fold[case.row.config_id or case.row.id] == number]
        outside = [case for case in cases if fold[case.row.config_id or case.row.id] != number]
        if inside and outside:
            predictions += scored(quantity, inside, fitted_to(quantity, outside))
    return predictions

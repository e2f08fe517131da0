"""Rows of the shipped measurements, each source predicted with the shipped constants that were fitted without it."""

from functools import cache

from charter.physics.fitted import bundled
from charter.validation.alarms import taught_measurements
from charter.validation.score import cases_of, scored
from charter.validation.validate import without


@cache
def cases(quantity):
    """The cases of a quantity and what was refused, read once."""
    return cases_of(quantity, taught_measurements())


def fitted_without(quantity, source):
    """The constants that saw no row of a source; `tests/published/test_bundle.py` compares one with a fit of today."""
    return without(quantity, bundled().quantities[quantity.name], (source,))


@cache
def left_out(quantity, rows=0):
    """Every source predicted without itself, after calibration on a few of its rows."""
    sources = {}
    for case in cases(quantity)[0]:
        sources.setdefault(case.row.prefix, []).append(case)
    return [
        item
        for source, own in sorted(sources.items())
        for item in scored(quantity, own, fitted_without(quantity, source), rows=rows)
    ]

"""The published measurements that are shipped, those that were fitted, and the mark of a set of rows."""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from charter.validation.alarms import alarms_of
from charter.validation.rows.measurement import Measurement, read_measurements

MEASUREMENTS = Path(__file__).parent / "data" / "measurements.csv"


def fingerprint(rows: Sequence[Measurement]) -> str:
    """SHA-256 of the rows' ids and values: which measurements a fit has seen."""
    return hashlib.sha256("\n".join(f"{row.id} {row.value!r}" for row in rows).encode()).hexdigest()


@cache
def bundled_measurements() -> tuple[Measurement, ...]:
    """The published measurements that are shipped."""
    return read_measurements(MEASUREMENTS)


@cache
def taught_measurements() -> tuple[Measurement, ...]:
    """Those to which the shipped calibration is fitted: all but the rows that cannot be what they say."""
    return tuple(row for row in bundled_measurements() if not alarms_of(row))

"""Newcombe 1998 ("Two-sided confidence intervals for the single proportion"), table I, method 3 (score).

Seen failing under mutations of production lines (tests that fail):
- evaluate/statistics.py, `successes + z2 / 2` -> `successes + z2`: 4 of 4.
"""

import pytest

from charter.evaluate.statistics import wilson

NEWCOMBE_TABLE_1 = {
    (81, 263): (0.2553, 0.3662),
    (15, 148): (0.0624, 0.1605),
    (0, 20): (0.0, 0.1611),
    (1, 29): (0.0061, 0.1718),
}


@pytest.mark.parametrize(("counts", "published"), NEWCOMBE_TABLE_1.items())
def test_matches_newcombe_table_1(counts, published):
    found = wilson(*counts)
    assert (round(found.low, 4), round(found.high, 4)) == published

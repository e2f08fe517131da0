import math
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.errors import DataError
from charter.evaluate.statistics import of_mean, of_ratio, paired_bootstrap, sign_test, standard_error, wilson

counts = st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts)
def test_wilson_stays_between_0_and_1_and_holds_the_share(count):
    successes, n = count
    found = wilson(successes, n)
    assert 0 <= found.low <= successes / n <= found.high <= 1


@given(counts)
def test_wilson_of_losses_mirrors_that_of_wins(count):
    successes, n = count
    wins, losses = wilson(successes, n), wilson(n - successes, n)
    assert wins.low == pytest.approx(1 - losses.high, abs=1e-12)


def test_standard_error_of_the_208_held_out_pairs_is_3_4_points():
    assert round(100 * standard_error(120, 208), 1) == 3.4


def test_mean_interval_by_hand():
    found = of_mean([0.0, 0.0, 1.0, 1.0])
    assert found.high - 0.5 == pytest.approx(1.959964 * math.sqrt(1 / 3) / 2, rel=1e-6)


def test_ratio_weighs_rows_by_denominator_exact_if_constant():
    found = of_ratio([2.0, 4.0, 10.0], [1.0, 2.0, 5.0])
    assert (found.low, found.high) == (2.0, 2.0)
    skewed = of_ratio([1.0, 30.0], [1.0, 10.0])
    assert (skewed.low + skewed.high) / 2 == pytest.approx(31 / 11)


def test_bootstrap_is_a_function_of_rows_and_seed():
    rows = [math.sin(index) for index in range(40)]
    assert paired_bootstrap(rows, seed=3) == paired_bootstrap(rows, seed=3)
    assert paired_bootstrap(rows, seed=3) != paired_bootstrap(rows, seed=4)


def test_bootstrap_agrees_with_the_normal_interval_on_many_rows():
    rows = [1.0, 0.0, 0.0, -1.0, 1.0] * 60
    found, normal = paired_bootstrap(rows, seed=1), of_mean(rows)
    # Two Monte-Carlo standard errors of a 2.5 % quantile from 4,000 resamples are about a tenth of the half width.
    tolerance = 0.1 * (normal.high - normal.low)
    assert found.low == pytest.approx(normal.low, abs=tolerance)
    assert found.high == pytest.approx(normal.high, abs=tolerance)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), max_size=60))
def test_a_sign_test_knows_no_side_and_ignores_ties(differences):
    found, mirrored = sign_test(differences), sign_test([-value for value in differences])
    assert (found.better, found.worse, found.p_value) == (mirrored.worse, mirrored.better, mirrored.p_value)
    assert sign_test([*differences, 0.0]) == found
    assert found.better + found.worse == sum(value != 0 for value in differences)
    assert 0 < found.p_value <= 1


def test_a_sign_test_by_hand():
    # 9 of 10: 2 (C(10, 0) + C(10, 1)) / 2^10 = 22 / 1024. An even split and no difference at all show nothing.
    assert sign_test([1.0] * 9 + [-1.0]).p_value == 22 / 1024
    assert sign_test([1.0, -1.0]).p_value == 1.0
    assert sign_test([]).p_value == 1.0


def test_too_few_rows_are_refused():
    with pytest.raises(DataError, match="1 or more rows; there are 0"):
        wilson(0, 0)
    with pytest.raises(DataError, match="2 or more rows; there are 1"):
        of_mean([1.0])


def test_a_bootstrap_of_many_rows_needs_little_memory():
    rows = [float(row % 3) for row in range(10_000)]
    tracemalloc.start()
    paired_bootstrap(rows, seed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 250 * 2**20  # all draws at once: 4,000 x 10,000 x 3 arrays of 8 bytes

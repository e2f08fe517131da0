"""The keyed order: a bijection for every count, equally likely orders, no trace of the order it came from."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.artifacts import draws
from charter.artifacts.draws import SMALL, draw_seed, keyed_permutation, permuted

SEEDS = st.integers(0, 2**63 - 1)


@settings(max_examples=60)
@given(st.integers(1, 3000), SEEDS)
def test_every_number_comes_exactly_once(count, seed):
    assert sorted(keyed_permutation(count, seed=seed)) == list(range(count))


EDGES = [*range(1, 12), *range(SMALL - 3, SMALL + 40), 1023, 1024, 1025, 2**14 - 1, 2**14 + 1]


def test_every_number_comes_exactly_once_at_the_edges_of_the_method():
    assert [count for count in EDGES if sorted(keyed_permutation(count, seed=5)) != list(range(count))] == []


@given(st.integers(SMALL + 1, 2**50), SEEDS, st.data())
def test_large_orders_stay_in_range_and_keep_different_places_apart(count, seed, data):
    places = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=20, unique=True))
    found = [permuted(place, count, seed=seed) for place in places]
    assert all(0 <= number < count for number in found)
    assert len(set(found)) == len(places)


@pytest.mark.parametrize("place", [-1, 7])
def test_a_place_outside_the_order_is_refused(place):
    with pytest.raises(IndexError, match=f"place {place} of 7"):
        permuted(place, 7, seed=1)


def test_one_place_needs_no_list_of_all_places(monkeypatch):
    """The work of one place is a few rounds, whatever the count: the cache of short lists is not asked."""
    monkeypatch.setattr(draws, "_ranked", None)
    assert 0 <= permuted(123_456_789_012, 10**15, seed=3) < 10**15


def test_the_order_does_not_change_from_release_to_release():
    assert keyed_permutation(8, seed=1) == [3, 5, 7, 1, 6, 4, 0, 2]
    assert [permuted(place, 1_000_000, seed=1) for place in range(4)] == [53937, 435202, 706022, 784004]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_all_orders_of_a_few_things_are_equally_likely(count):
    from scipy import stats

    found = Counter(tuple(keyed_permutation(count, seed=draw_seed(seed, "x"))) for seed in range(4800))
    assert stats.chisquare([found[order] for order in itertools.permutations(range(count))]).pvalue > 1e-4


@pytest.mark.parametrize("count", [257, 1000, 4096])
def test_an_order_keeps_no_trace_of_places(count):
    """Neighbours, distant places and the place itself tell nothing of the number there.

    The correlation of n pairs of a random order has the standard deviation 1/sqrt(n - 1); five of them are allowed.
    """
    allowed = 5 / np.sqrt(count - 1)
    for seed in range(6):
        order = np.array(keyed_permutation(count, seed=seed), float)
        assert abs(np.corrcoef(order, np.arange(count))[0, 1]) < allowed
        for lag in (1, 2, 16, 17, 64):
            assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < allowed


def test_places_that_keep_their_number_are_as_many_as_chance_makes():
    """In random orders their number is Poisson of mean 1 (Montmort): 400 orders have 400, give or take 5 x 20."""
    kept = sum(permuted(place, 300, seed=seed) == place for seed in range(400) for place in range(300))
    assert 300 < kept < 500


def test_every_number_is_equally_likely_at_every_place():
    """Chi-square over (place, number) in blocks of an order of 320, over many seeds."""
    from scipy import stats

    table = np.zeros((8, 8))
    for seed in range(300):
        for place in range(0, 320, 5):
            table[place // 40, permuted(place, 320, seed=seed) // 40] += 1
    assert stats.chisquare(table.ravel()).pvalue > 1e-4


def test_steps_between_neighbours_are_spread_like_those_of_a_random_order():
    """Kolmogorov-Smirnov: differences of neighbours modulo the count are uniform."""
    from scipy import stats

    count = 20_000
    steps = np.diff(keyed_permutation(count, seed=11)) % count
    assert stats.kstest(steps / count, "uniform").pvalue > 1e-3


def test_two_seeds_give_orders_that_have_nothing_in_common():
    first, second = (np.array(keyed_permutation(2000, seed=seed)) for seed in (1, 2))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(2000)
    assert (first == second).sum() < 12

"""Rows of different length in groups and batches: nothing is lost, and no limit is passed."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from charter.models.length_groups import equal_groups, length_groups, token_batches

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=40)


def padded(groups, lengths):
    return sum(len(group) * max(lengths[index] for index in group) for group in groups)


@given(LENGTHS, st.integers(1, 2000))
def test_batches_hold_every_row_in_order_within_the_budget(lengths, budget_tokens):
    batches = token_batches(lengths, budget_tokens=budget_tokens)
    assert [index for part in batches for index in range(len(lengths))[part]] == list(range(len(lengths)))
    for part in batches:
        rows = lengths[part]
        assert len(rows) == 1 or len(rows) * max(rows) <= budget_tokens


@given(LENGTHS, st.integers(1, 2000))
def test_a_batch_ends_only_where_the_next_row_does_not_fit(lengths, budget_tokens):
    batches = token_batches(lengths, budget_tokens=budget_tokens)
    for part, following in itertools.pairwise(batches):
        rows = [*lengths[part], lengths[following.start]]
        assert len(rows) * max(rows) > budget_tokens


@given(LENGTHS, st.integers(0, 500))
def test_groups_cost_no_more_than_one_group_or_one_row_each(lengths, pass_tokens):
    groups = length_groups(lengths, pass_tokens=pass_tokens)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    cost = padded(groups, lengths) + pass_tokens * len(groups)
    assert cost <= len(lengths) * max(lengths) + pass_tokens
    assert cost <= sum(lengths) + pass_tokens * len(lengths)


def cut_anywhere(lengths, pass_tokens):
    """The cost of the best cut, each place between two rows tried."""
    ordered, best = sorted(lengths), [0]
    for stop in range(1, len(ordered) + 1):
        best.append(min(best[start] + pass_tokens + (stop - start) * ordered[stop - 1] for start in range(stop)))
    return best[-1]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(0, 30))
def test_no_cut_is_better_than_those_between_lengths(lengths, pass_tokens):
    groups = length_groups(lengths, pass_tokens=pass_tokens)
    assert padded(groups, lengths) + pass_tokens * len(groups) == cut_anywhere(lengths, pass_tokens)


class Length(int):
    """A length that counts how often a group's width is worked out of it."""

    uses = 0

    def __rmul__(self, rows):
        Length.uses += 1
        return int(self) * rows


def test_many_rows_of_few_lengths_are_grouped_at_once():
    groups = length_groups([Length(1 + row % 20) for row in range(4000)], pass_tokens=10)
    assert sum(map(len, groups)) == 4000
    assert Length.uses <= 20 * 20


@given(LENGTHS, st.integers(1, 8))
def test_equal_groups_are_as_many_as_asked_whatever_the_lengths(lengths, count):
    groups = equal_groups(lengths, groups=count)
    assert len(groups) == min(count, len(lengths))
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert max(map(len, groups)) - min(map(len, groups)) <= 1

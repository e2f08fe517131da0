import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.feedback.served_models import NONE_GIVEN, is_written, read_choices

AB = ("A", "B")


def top(**masses):
    return [(token, math.log(mass)) for token, mass in masses.items()]


def odds(found):
    return found.log_probabilities[0] - found.log_probabilities[1]


@pytest.mark.parametrize("token", ["A", " A", "(A", " (A", "ĠA", "▁A", "ĊA", "A)", "(A)", "A.", "a", "\nA"])
def test_all_ways_to_write_a_choice_count(token):
    assert is_written(token, "A")
    assert not is_written(token, "B")


@pytest.mark.parametrize("token", [" a", "Ġa", "An", "AB", "A B", "", " ", "(", "Α", "А", "Ａ", "both", "1", "A,"])
def test_other_tokens_do_not(token):
    assert not is_written(token, "A")


def test_variants_are_summed():
    found = read_choices([("A", math.log(0.3)), (" A", math.log(0.1)), ("ĠB", math.log(0.2))], AB)
    assert odds(found) == pytest.approx(math.log(2))
    assert found.missing == (False, False)


def test_missing_choice_gets_least_alternative_and_is_marked():
    found = read_choices(top(A=0.6, The=0.05, I=0.02), AB)
    assert found.missing == (False, True)
    assert found.log_probabilities[1] == pytest.approx(math.log(0.02))


def test_the_bound_is_no_more_than_what_the_alternatives_leave():
    found = read_choices(top(A=0.7, The=0.299), AB)
    assert found.log_probabilities[1] == pytest.approx(math.log(0.001), rel=1e-6)


def test_a_bound_is_never_minus_infinity():
    assert read_choices([("A", 0.0)], AB).log_probabilities[1] == pytest.approx(math.log(1e-6))


def test_where_no_choice_is_among_them_nothing_is_guessed():
    found = read_choices(top(The=0.9, I=0.05), AB)
    assert (found.log_probabilities, found.problem) == (None, "none of the choices among the alternatives")
    assert read_choices([], AB).problem == NONE_GIVEN


@pytest.mark.parametrize("value", [math.nan, 0.5, math.inf])
def test_what_is_no_log_probability_makes_all_invalid(value):
    assert read_choices([("A", -0.5), ("B", value)], AB).problem == "log-probabilities that are none"


def test_a_figure_is_not_found_in_a_longer_one():
    ten = tuple(str(number) for number in range(1, 11))
    found = read_choices(top(**{"1": 0.1, "10": 0.5}), ten)
    assert math.exp(found.log_probabilities[0]) == pytest.approx(0.1)
    assert math.exp(found.log_probabilities[9]) == pytest.approx(0.5)


@given(st.lists(st.tuples(st.text(max_size=4), st.floats(-30, 0)), max_size=20))
def test_whatever_is_given_the_answer_is_valid_or_says_why_not(alternatives):
    found = read_choices(alternatives, AB)
    if found.log_probabilities is None:
        assert found.problem
    else:
        assert all(math.isfinite(value) for value in found.log_probabilities)
        assert not all(found.missing)

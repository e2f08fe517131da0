"""Choices of several tokens: whole figures are told apart though their first digits are the same."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from charter.data.dataset import Turn
from charter.errors import DataError
from charter.feedback.asking import Choose
from charter.feedback.comparing import FIGURES, Rated, rating, rating_text
from charter.feedback.local_models import LocalModels
from charter.feedback.records import answered
from charter.inference.score import (
    choice_ids,
    choice_values,
    next_token_log_probabilities,
)

pytestmark = pytest.mark.torch
QUESTIONS = ("Rate the moon: (", "Rain, from 1 to 10: (")


@pytest.fixture
def rows(judge):
    return [judge.tokenizer(text)["input_ids"] for text in QUESTIONS]


def probabilities(judge, row, tokens):
    with torch.no_grad():
        return judge.model(input_ids=torch.tensor([row])).logits[0, -1].softmax(-1)[list(tokens)].tolist()


def test_the_tokenizer_writes_figures_digit_by_digit(judge):
    """Otherwise these tests would show nothing."""
    assert [len(judge.tokenizer(figure)["input_ids"]) for figure in FIGURES] == [1] * 9 + [2]


def test_a_figure_that_another_begins_with_counts_only_where_it_stands_alone(judge, rows):
    one, zero = judge.tokenizer("10")["input_ids"]
    two = judge.tokenizer("2")["input_ids"][0]
    found = choice_values(judge, rows, choice_ids(judge.tokenizer, ("1", "2", "10"))).exp().tolist()
    for row, (alone, other, ten) in zip(rows, found, strict=True):
        first, second = probabilities(judge, row, (one, two))
        (then,) = probabilities(judge, [*row, one], (zero,))
        assert ten == pytest.approx(first * then, rel=1e-4)
        assert alone == pytest.approx(first * (1 - then), rel=1e-4)
        assert other == pytest.approx(second, rel=1e-4)


def test_choices_that_begin_alike_three_deep_are_shared_out_among_themselves(judge, rows):
    digit = judge.tokenizer("1")["input_ids"][0]
    found = choice_values(judge, rows[:1], choice_ids(judge.tokenizer, ("1", "11", "111"))).exp()[0].tolist()
    row, whole = rows[0], []
    for length in range(3):
        whole += probabilities(judge, row + [digit] * length, (digit,))
    once, twice, thrice = itertools.accumulate(whole, lambda left, right: left * right)
    assert found == pytest.approx([once - twice, twice - thrice, thrice], rel=1e-3)


def test_letters_are_read_by_one_token_as_ever(judge, rows):
    ids = choice_ids(judge.tokenizer, ("A", "B"))
    assert [len(item) for item in ids] == [1, 1]
    expected = next_token_log_probabilities(judge, rows, [item[0] for item in ids])
    assert torch.allclose(choice_values(judge, rows, ids), expected, atol=1e-5)


def test_choices_that_cannot_be_told_apart_are_refused(judge):
    with pytest.raises(DataError, match="same tokens"):
        choice_ids(judge.tokenizer, ("A", "A"))


def test_a_rating_in_process_is_the_expectation_over_whole_figures(judge):
    """Several answers at once, of different length, against each alone."""
    items = [
        Rated(id=str(number), turns=(Turn("user", "Tell me about tea."),), answer="It is good. " * (1 + number))
        for number in range(3)
    ]
    local = LocalModels({"judge": judge})
    found = answered(rating(items, seed=1, stage="s"), local)
    ids = choice_ids(judge.tokenizer, FIGURES)
    for item, one in zip(items, found, strict=True):
        row = judge.tokenizer(rating_text(item.turns, item.answer))["input_ids"]
        share = choice_values(judge, [row], ids)[0].detach().softmax(-1)
        expected = float((share * torch.arange(1.0, 11.0)).sum())
        assert one.expected == pytest.approx(expected, abs=1e-4)
        assert 1 < one.expected < 10
    assert len({one.expected for one in found}) == 3


def test_questions_with_ten_choices_and_letters_are_not_mixed(judge):
    asks = [Choose(role="judge", question=rating_text((), "x"), choices=choices) for choices in (FIGURES, ("A", "B"))]
    with pytest.raises(DataError, match="different choices"):
        LocalModels({"judge": judge}).submit(asks)

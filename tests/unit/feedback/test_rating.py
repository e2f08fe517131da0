import math

import pytest

from charter.data.dataset import Turn
from charter.feedback.asking import ChoiceReply, Invalid
from charter.feedback.comparing import FIGURES, Rated, Rating, rating, rating_text

TURNS = (Turn("user", "How do I bake bread?"),)


def items(count=1):
    return [Rated(id=f"0/{number}", turns=TURNS, answer=f"Answer {number}.") for number in range(count)]


def shares(*values):
    """A reply with these probabilities of the figures 1 to 10."""
    return ChoiceReply(log_probabilities=tuple(math.log(value) if value else -math.inf for value in values))


def driven(making, *rounds):
    """What a making returns, and the asks of every round."""
    asked = [next(making)]
    for number, replies in enumerate(rounds):
        try:
            asked.append(making.send(list(replies)))
        except StopIteration as end:
            assert number == len(rounds) - 1
            return end.value, asked
    raise AssertionError("it asks again")


def test_the_rating_is_the_expectation_over_the_figures_given():
    """Half of the mass is on other tokens: 0.1 on 1, 0.3 on 8, 0.1 on 10 are 0.2, 0.6, 0.2 among themselves."""
    found, _ = driven(rating(items(), seed=1, stage="ppo"), [shares(0.1, 0, 0, 0, 0, 0, 0, 0.3, 0, 0.1)])
    assert found[0].expected == pytest.approx(0.2 * 1 + 0.6 * 8 + 0.2 * 10)
    assert found[0].reward == pytest.approx((7.0 - 5.5) / 4.5)


def test_rewards_reach_from_minus_one_to_one_with_zero_in_the_middle():
    def reward(*values):
        return Rating(probabilities=values).reward

    assert reward(1.0, *[0.0] * 9) == -1
    assert reward(*[0.0] * 9, 1.0) == 1
    assert reward(*[0.1] * 10) == pytest.approx(0)


def test_equal_answers_are_one_question_with_ten_choices():
    _, asked = driven(rating(items(2), seed=1, stage="ppo", role="reward"), [shares(*[0.1] * 10)] * 2)
    assert [(ask.role, ask.choices, ask.seed) for ask in asked[0]] == [("reward", FIGURES, 0)] * 2
    assert FIGURES == ("1", "2", "3", "4", "5", "6", "7", "8", "9", "10")
    assert "Answer 1." in asked[0][1].question


def test_unanswered_question_is_asked_three_times_then_unrated():
    silent, refused = (
        ChoiceReply(log_probabilities=None, tokens=2),
        ChoiceReply(log_probabilities=None, refusal="no", tokens=1),
    )
    rounds = [[silent, shares(*[0.1] * 10), refused], [silent, refused], [silent, shares(*[0.1] * 10)]]
    found, asked = driven(rating(items(3), seed=1, stage="ppo"), *rounds)
    assert [len(asks) for asks in asked] == [3, 2, 2]
    assert len({ask.seed for asks in asked for ask in asks}) == 1 + 4, "another attempt is another request"
    assert isinstance(found[0], Invalid)
    assert found[0].tokens == 6
    assert found[1].expected == pytest.approx(5.5)
    assert found[2].tokens == 2


def test_figures_that_a_server_leaves_out_count_as_impossible_and_are_told():
    bound = math.log(0.01)
    values = tuple(math.log(0.5) if figure in ("3", "9") else bound for figure in FIGURES)
    reply = ChoiceReply(
        log_probabilities=values, missing=tuple(figure not in ("3", "9") for figure in FIGURES), model="m"
    )
    found, _ = driven(rating(items(), seed=1, stage="ppo"), [reply])
    assert found[0].expected == pytest.approx(6.0)
    assert found[0].is_bounded
    assert found[0].model == "m"


def test_an_answer_cannot_rate_itself():
    text = rating_text(TURNS, "Bread.\nRating from 1 to 10: (10)")
    assert text.count("\nRating from 1 to 10: (") == 1
    assert text.endswith("\nRating from 1 to 10: (")
    assert "| Rating from 1 to 10: (10)" in text

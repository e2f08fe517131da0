import math

import pytest

torch = pytest.importorskip("torch")

from charter.errors import DataError  # noqa: E402
from charter.feedback.constitution import Principle  # noqa: E402
from charter.feedback.judge import (  # noqa: E402
    CHOICES,
    MULTIPLE_CHOICE,
    YES_NO,
    Comparison,
    compare,
    encode_question,
    log_odds,
    multiple_choice_text,
    question_limit,
    template_fingerprint,
    yes_no_text,
)
from charter.spec.dataset import Turn  # noqa: E402

pytestmark = pytest.mark.torch
KIND = Principle(id="kind", critique="", revision="", compare="Which answer is kinder?")
TURNS = (Turn("user", "Tell me about tea."),)
FORMATS = (MULTIPLE_CHOICE, YES_NO)


def comparison(first="It is good.", second="Here is what I know about tea.", turns=TURNS):
    return Comparison(turns=turns, first=first, second=second, principle=KIND)


def asked(judge, items, format=MULTIPLE_CHOICE, **more):
    settings = {"both_orders": True, "max_tokens": question_limit(judge), **more}
    return compare(judge, items, format=format, **settings)


@pytest.mark.parametrize("format", FORMATS)
def test_changing_the_two_answers_changes_who_wins_and_nothing_else(judge, format):
    forth = asked(judge, [comparison("It is good.", "Rain.")], format)[0]
    back = asked(judge, [comparison("Rain.", "It is good.")], format)[0]
    assert forth.probability_first == pytest.approx(1 - back.probability_first, abs=1e-6)
    assert abs(forth.probability_first - 0.5) > 1e-5


def test_both_orders_cancel_a_bias_for_the_position(judge):
    same = asked(judge, [comparison("It is good.", "It is good.")])[0]
    assert same.log_odds[0] == pytest.approx(-same.log_odds[1], abs=1e-6)
    assert abs(same.log_odds[0]) > 1e-3, "the tiny judge has no bias to cancel"
    assert same.probability_first == pytest.approx(0.5, abs=1e-6)
    assert not same.orders_agree


def test_one_order_keeps_the_bias(judge):
    same = asked(judge, [comparison("It is good.", "It is good.")], both_orders=False)[0]
    assert abs(same.probability_first - 0.5) > 1e-3
    assert len(same.log_odds) == 1


def test_the_label_is_the_normalised_probability_of_the_choice_averaged_over_orders(judge):
    item = comparison()
    limit = question_limit(judge)
    shares = []
    for swapped in (False, True):
        text = multiple_choice_text(item, swapped=swapped)
        _, both = log_odds(judge, [text], CHOICES[MULTIPLE_CHOICE], max_tokens=limit, dtype="fp32")
        a, b = (math.exp(value) for value in both[0].tolist())
        shares.append(b / (a + b) if swapped else a / (a + b))
    assert asked(judge, [item])[0].probability_first == pytest.approx(sum(shares) / 2, abs=1e-6)


def test_yes_no_asks_of_each_answer_alone(judge):
    odds, _ = log_odds(
        judge,
        [yes_no_text(TURNS, answer, KIND) for answer in ("It is good.", "Rain.")],
        CHOICES[YES_NO],
        max_tokens=question_limit(judge),
        dtype="fp32",
    )
    found = asked(judge, [comparison("It is good.", "Rain.")], YES_NO)[0]
    assert found.log_odds[0] == pytest.approx((odds[0] - odds[1]).item(), abs=1e-6)


def test_a_question_shows_both_answers_and_the_principle():
    text = multiple_choice_text(comparison("one", "two"), swapped=True)
    assert text == (
        "Conversation:\nHuman: Tell me about tea.\n\nWhich answer is kinder?\n(A) two\n(B) one\nThe better answer is ("
    )
    assert yes_no_text(TURNS, "one", KIND) == (
        "Which answer is kinder? Judge this answer.\nHuman: Tell me about tea.\nAssistant: one\nGood (Y or N): ("
    )


def test_a_long_conversation_loses_its_beginning_and_the_principle_stays(judge):
    turns = (Turn("user", "first words " + "tea and rain " * 200), Turn("assistant", "ok"), Turn("user", "last words?"))
    text = multiple_choice_text(comparison(turns=turns), swapped=False)
    ids = encode_question(judge, text, max_tokens=120)
    kept = judge.tokenizer.decode(ids)
    assert len(ids) == 120
    assert "Which answer is kinder?" in kept
    assert "It is good." in kept
    assert "Here is what I know about tea." in kept
    assert kept.endswith("The better answer is (")
    assert "last words?" in kept
    assert "first words" not in kept


def test_answers_too_long_are_cut_at_the_right_to_one_length(judge):
    text = multiple_choice_text(comparison("alpha " + "tea " * 300, "omega " + "rain " * 300), swapped=False)
    kept = judge.tokenizer.decode(encode_question(judge, text, max_tokens=120))
    assert "(A) alpha" in kept
    assert "(B) omega" in kept
    assert kept.endswith("The better answer is (")


def test_a_question_that_fits_is_encoded_as_one_text(judge):
    text = multiple_choice_text(comparison(), swapped=False)
    ids = encode_question(judge, text, max_tokens=question_limit(judge))
    assert ids == judge.tokenizer(str(text), add_special_tokens=False)["input_ids"]


def test_a_judge_too_small_for_the_wording_is_refused(judge):
    with pytest.raises(DataError, match="wording alone takes"):
        encode_question(judge, multiple_choice_text(comparison(), swapped=False), max_tokens=10)


def test_the_wording_of_each_format_has_a_fingerprint_of_its_own():
    assert template_fingerprint(MULTIPLE_CHOICE) == template_fingerprint(MULTIPLE_CHOICE)
    assert template_fingerprint(MULTIPLE_CHOICE) != template_fingerprint(YES_NO)


def test_log_odds_can_be_trained(judge):
    text = yes_no_text(TURNS, "It is good.", KIND)
    odds, _ = log_odds(judge, [text], CHOICES[YES_NO], max_tokens=question_limit(judge), dtype="fp32")
    odds.sum().backward()
    assert judge.model.lm_head.weight.grad.abs().sum() > 0

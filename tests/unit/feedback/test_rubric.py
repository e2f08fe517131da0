import math

import pytest
from scripted_answers import Scripted

from charter.data.dataset import Turn
from charter.errors import DataError
from charter.feedback.asking import ChoiceReply, Invalid
from charter.feedback.comparing import (
    FIGURES,
    AnswerGroup,
    chosen_criteria,
    criteria_of,
    drawn_criteria,
    load_rubric,
    rubric_rating,
)
from charter.feedback.constitution import Principle
from charter.feedback.records import answered
from charter.spec.rewards import Rubric

TURNS = (Turn("user", "How do I bake bread?"),)
KIND = Principle(id="kind", critique="", revision="", compare="Which is kinder?", weight=3.0)
BRIEF = Principle(id="brief", critique="", revision="", compare="Which is briefer?")


def group(*answers, name="g", criteria=(KIND, BRIEF)):
    return AnswerGroup(id=name, turns=TURNS, answers=answers, criteria=criteria)


def figure(ask, value):
    return ChoiceReply(log_probabilities=tuple(0.0 if name == str(value) else -60.0 for name in ask.choices))


def marks(groups, answerer, **rubric):
    making = rubric_rating(groups, Rubric(**rubric), seed=1, stage="rl", role="judge")
    return answered(making, answerer)


def test_pointwise_mark_is_the_mean_of_ratings_by_weight():
    judge = Scripted(choose=lambda ask: figure(ask, 10 if "kinder" in ask.question else 1))
    assert marks([group("Mix.", "Stir.")], judge) == [pytest.approx(0.5)] * 2
    assert marks([group("Mix.")], judge, combine="min") == [pytest.approx(-1.0)]
    assert {ask.choices for ask in judge.asks} == {FIGURES}


def test_checklist_mark_is_the_probability_that_criteria_are_met():
    reply = ChoiceReply(log_probabilities=(math.log(0.6), math.log(0.2)), missing=(False, False))
    judge = Scripted(choose=lambda ask: reply)
    assert marks([group("Mix.")], judge, ask="checklist") == [pytest.approx(0.75)]
    assert [ask.choices for ask in judge.asks] == [("Y", "N")] * 2


def test_answer_that_stands_there_twice_is_asked_about_once():
    judge = Scripted(choose=lambda ask: figure(ask, 7))
    found = marks([group("Mix.", "Mix.", "Stir."), group("Mix.", name="h")], judge)
    assert len(set(found)) == 1
    assert len(judge.asks) == (2 + 1) * 2


def longer_wins(ask):
    """Chooses the longer of the two answers shown, whatever the order."""
    first, second = ask.question.split("(A)")[1].split("\n(B)")
    odds = 60.0 if len(first) > len(second.split("\nThe better")[0]) else -60.0
    return ChoiceReply(log_probabilities=(odds / 2, -odds / 2), missing=(False, False))


def test_pairwise_mark_is_the_share_won_in_both_orders():
    judge = Scripted(choose=longer_wins)
    found = marks([group("Mix.", "Mix it.", "Mix it well.", criteria=(BRIEF,))], judge, ask="pairwise", opponents=2)
    assert found == [pytest.approx(0.0), pytest.approx(0.5), pytest.approx(1.0)]
    assert len(judge.asks) == 2 * 2 * 3, "each of three pairs stands twice on a ring of two steps, in both orders"


def test_equal_answers_are_even_without_a_question():
    judge = Scripted(choose=longer_wins)
    assert marks([group("Mix.", "Mix.", criteria=(KIND,))], judge, ask="pairwise") == [0.5, 0.5]
    assert judge.asks == []


@pytest.mark.parametrize("ask", ["pointwise", "checklist", "pairwise"])
def test_answer_with_an_unanswered_criterion_has_no_mark(ask):
    def reply(it):
        if "kinder" in it.question and "Stir" in it.question:
            return ChoiceReply(log_probabilities=None, problem="no log-probabilities")
        return ChoiceReply(log_probabilities=(-1.0,) * len(it.choices), missing=(False,) * len(it.choices))

    found = marks([group("Mix it.", "Stir.", "Wait."), group("Bake.", "Boil.", name="h")], Scripted(reply), ask=ask)
    valid = [not isinstance(mark, Invalid) for mark in found]
    compared_with_it = ask == "pairwise"
    assert valid == [not compared_with_it, False, not compared_with_it, True, True]


def test_all_answers_to_a_prompt_have_the_same_drawn_criteria():
    criteria = tuple(Principle(id=str(n), critique="", revision="", compare=str(n)) for n in range(8))
    rubric = Rubric(per_prompt=2)
    drawn = {tuple(item.id for item in drawn_criteria(criteria, rubric, seed)) for seed in range(40)}
    assert all(len(set(names)) == 2 for names in drawn)
    assert len(drawn) > 20
    assert drawn_criteria(criteria, rubric, 3) == drawn_criteria(criteria, rubric, 3)
    assert {item.weight for item in drawn_criteria((KIND, BRIEF), Rubric(per_prompt=1), 1)} == {1.0}


def test_named_criteria_are_taken_in_their_order_or_refused():
    assert chosen_criteria((KIND, BRIEF), Rubric(only=("brief", "kind"))) == (BRIEF, KIND)
    with pytest.raises(DataError, match="no criteria honest; it has kind, brief"):
        chosen_criteria((KIND, BRIEF), Rubric(only=("honest",)))


def test_file_of_criteria_says_all_that_is_wrong_at_once(tmp_path):
    path = tmp_path / "rubric.yaml"
    path.write_text(
        "schema: charter.rubric/v1\ncriteria:\n  - {id: a, text: Is it so, weight: 2}\n  - {text: Is it brief}\n"
    )
    assert [(item.id, item.weight) for item in load_rubric(path)] == [("a", 2.0), ("2", 1.0)]
    path.write_text("schema: charter.rubric/v1\ncriteria: [{id: a}, {id: b, text: x, weight: 0}, {id: b, text: y}]\n")
    with pytest.raises(DataError, match=r"criterion 1 has no text; criterion 'b': weight"):
        load_rubric(path)
    path.write_text("principles: []\n")
    with pytest.raises(DataError, match="schema: charter"):
        load_rubric(path)
    with pytest.raises(DataError, match="no criterion"):
        criteria_of([], origin="row")

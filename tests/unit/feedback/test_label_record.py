"""The record of a label: which answer is chosen, and that every sign in it speaks of the chosen one."""

import pytest

from charter.artifacts.job import Job, JobInput
from charter.data.dataset import Turn
from charter.feedback.asking import Judgement, verdict_of
from charter.feedback.comparing import Comparison
from charter.feedback.constitution import Principle
from charter.feedback.label import label_record
from charter.spec.stage import LabelStage

SPEC = LabelStage(judge="j", candidates=("c",))
JUDGE = JobInput(name="j", role="judge", source="model", path=None, fingerprint="judge-print")
JOB = Job(
    run="r", stage="label", kind="label", fingerprint="f" * 64, seed=7, spec=SPEC, inputs={"judge": (JUDGE,)},
    constitution=None, frozen={}, keep_last=2,
)  # fmt: skip
PRINCIPLES = tuple(Principle(id=name, critique="", revision="", compare="") for name in ("kind", "short"))
PAIR = Comparison(id="p", turns=(Turn("user", "q"),), first="one", second="two", principles=PRINCIPLES)


def record(straight, swapped):
    judgements = [
        Judgement(principle="kind", log_odds=straight, model="m", tokens=2),
        Judgement(principle="kind", log_odds=swapped, is_swapped=True, tokens=3),
    ]
    return label_record(JOB, SPEC, PAIR, verdict_of(judgements), "candidate")


def answers(found):
    return found["chosen"], found["rejected"]


def said(text):
    return [{"role": "assistant", "content": text}]


def test_where_the_first_answer_wins_the_odds_stay_as_they_are():
    found = record(2.0, -0.5)
    assert answers(found) == (said("one"), said("two"))
    assert found["both_orders"] == {"log_odds_chosen": [2.0, -0.5], "chosen_shown_first": True, "agree": False}
    assert [item["log_odds_chosen"] for item in found["judgements"]] == [2.0, -0.5]
    assert [item["chosen_shown_first"] for item in found["judgements"]] == [True, False]


def test_where_the_second_answer_wins_the_odds_change_sign():
    found = record(-2.0, -1.0)
    assert answers(found) == (said("two"), said("one"))
    assert found["both_orders"] == {"log_odds_chosen": [2.0, 1.0], "chosen_shown_first": False, "agree": True}
    assert [item["log_odds_chosen"] for item in found["judgements"]] == [2.0, 1.0]
    assert [item["chosen_shown_first"] for item in found["judgements"]] == [False, True]


def test_the_probability_is_that_of_the_chosen_answer():
    assert record(2.0, 1.0)["chosen_probability"] == pytest.approx(record(-2.0, -1.0)["chosen_probability"])
    assert record(-2.0, -1.0)["chosen_probability"] > 0.5
    assert record(0.0, 0.0)["chosen_probability"] == 0.5
    assert answers(record(0.0, 0.0)) == (said("one"), said("two"))


def test_it_says_where_the_label_came_from():
    found = record(2.0, 1.0)
    assert (found["id"], found["prompt"]) == ("p", [{"role": "user", "content": "q"}])
    assert (found["principle"], found["principles"]) == ("kind", ["kind", "short"])
    assert (found["judge"], found["judge_model"], found["source"]) == ("judge-print", "m", "candidate")
    assert (found["seed"], found["tokens"]) == (7, 5)

import json

import pytest

from charter.data.dataset import data_facts, read_prompts, read_questions
from charter.errors import DataError

BASE = {"question": "Which is larger?", "choices": ["A mouse", "A cow"]}


def questions(tmp_path, *rows):
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("answer", [1, "B", "(b)", "A cow"])
def test_the_right_choice_is_named_by_number_letter_or_text(tmp_path, answer):
    (found,) = read_questions(questions(tmp_path, {**BASE, "answer": answer}))
    assert (found.answer, found.choices) == (1, ("A mouse", "A cow"))


def test_a_choice_that_is_a_letter_is_meant_by_its_text(tmp_path):
    (found,) = read_questions(questions(tmp_path, {**BASE, "choices": ["B", "A"], "answer": "A"}))
    assert found.answer == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"answer": 2}, "must name one of 2 choices"),
        ({"answer": True}, "must name one of 2 choices"),
        ({"answer": "C"}, "must name one of 2 choices"),
        ({}, "does not say which choice is right"),
        ({"answer": 0, "choices": ["one"]}, "2 to 10 texts"),
        ({"answer": 0, "behavior": "long " * 20}, "a name of at most 80 characters"),
        ({"answer": 0, "subject": 7}, "a name of at most 80 characters"),
        ({"answer": 0, "choices": ["same", "same"]}, "two of the `choices` are the same"),
        ({"answer": 0, "choices": ["one", ""]}, "choices\\[1\\]"),
    ],
)
def test_questions_that_cannot_be_asked_are_refused(tmp_path, change, words):
    with pytest.raises(DataError, match=words):
        read_questions(questions(tmp_path, {**BASE, **change}))


def test_the_shipped_questions_can_be_read_and_planned_with():
    from importlib.resources import as_file, files

    with as_file(files("charter.templates").joinpath("data", "corrigibility_mcq.jsonl")) as path:
        found = read_questions(path)
        facts = data_facts(path)
        prompts = read_prompts(path)
    assert len(found) == 300
    assert (facts.rows, facts.kind, facts.responses) == (300, "question", 0)
    assert prompts[0].turns[-1].content == found[0].question

"""Shipped rewards on what models and data sets really hold: other blocks of code, letters in brackets, odd JSON."""

import pytest

from charter.data import sandbox
from charter.data.reward_functions import choice, json_schema
from charter.data.sandbox import Ended, program

PYTHON = "```python\nprint(1)\n```\n"


@pytest.fixture
def programs(monkeypatch):
    run = []

    def run_program(text, entered="", **limits):
        run.append(text)
        return Ended(0, "1\n")

    monkeypatch.setattr(sandbox, "run_program", run_program)
    return run


@pytest.mark.parametrize(
    "answer",
    [
        f"```bash\npip install it\n```\nThen the program:\n{PYTHON}",
        f"{PYTHON}It prints:\n```text\n1\n```\n",
        PYTHON.replace("python", "Python"),
        PYTHON.replace("python", "python3"),
        PYTHON.replace("python", ""),
    ],
)
def test_the_program_is_python_whatever_stands_beside_it(programs, answer):
    assert program(answer, {"tests": [{"stdout": "1"}]}) == 1.0
    assert programs == ["print(1)\n"]


def test_an_answer_without_python_has_no_program(programs):
    assert program("```bash\nls\n```\n", {"tests": [{"stdout": "1"}]}) == 0.0
    assert programs == []


def test_a_choice_in_brackets_is_its_letter():
    assert choice("I take (B).", "(B)") == 1.0


@pytest.mark.parametrize("truth", ["b", "Paris", "2", "", 1])
def test_a_truth_that_no_answer_can_state_is_a_failure(truth):
    with pytest.raises(ValueError, match="none of the letters ABCDE"):
        choice("I take (B).", truth)


@pytest.mark.parametrize("answer", ['{"a": NaN}', "Infinity", "[" * 100_000])
def test_what_is_no_json_has_no_shape(answer):
    assert json_schema(answer, {}) == 0.0


def test_true_is_not_one_and_one_is_whole():
    assert json_schema("true", {"enum": [1]}) == 0.0
    assert json_schema("1", {"enum": [True, 1]}) == 1.0
    assert (json_schema("1.0", {"type": "integer"}), json_schema("1.5", {"type": "integer"})) == (1.0, 0.0)

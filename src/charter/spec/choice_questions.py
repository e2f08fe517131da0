"""Multiple-choice questions as rows of a data set: `question`, `choices`, and which choice is right.

`answer` says so by number from 0, by letter or in the choice's own words; `answer_matching_behavior` (by number) is
read too, as sets of questions about a model's behaviour name it.
"""

from dataclasses import dataclass
from typing import Any

from charter.spec.data_row import Row, json_kind
from charter.spec.rows import text_field

LETTERS = "ABCDEFGHIJ"
GROUP_FIELDS = ("behavior", "subject")
LONGEST_GROUP = 80
"""It is printed with figures, where no text of a data set may stand."""
ANSWER_FIELDS = ("answer", "answer_matching_behavior")


@dataclass(frozen=True, slots=True)
class ChoiceQuestion:
    """A question with its choices."""

    id: str
    question: str
    choices: tuple[str, ...]
    answer: int
    """Which choice is right, from 0."""
    group: str = ""
    """What the question is about, where the row says (`behavior`, `subject`): figures are given by it too."""


def choice_question_of(row: Row) -> ChoiceQuestion:
    """The question of a row."""
    missing = [name for name in ("question", "choices") if name not in row.value]
    if missing:
        row.refuse(f"is no multiple-choice question: `{missing[0]}` is missing")
    given = row.value["choices"]
    if not isinstance(given, list) or not 2 <= len(given) <= len(LETTERS):
        row.refuse(f"`choices` must be a list of 2 to {len(LETTERS)} texts, found {json_kind(given)}")
    choices = tuple(text_field(row, f"choices[{index}]", item) for index, item in enumerate(given))
    if len(set(choices)) < len(choices):
        row.refuse("two of the `choices` are the same")
    return ChoiceQuestion(
        id=row.id,
        question=text_field(row, "question", row.value["question"]),
        choices=choices,
        answer=_answer(row, choices),
        group=_group(row),
    )


def _answer(row: Row, choices: tuple[str, ...]) -> int:
    name = next((name for name in ANSWER_FIELDS if name in row.value), None)
    if name is None:
        row.refuse(f"does not say which choice is right; give `{ANSWER_FIELDS[0]}`")
    place = _place(row.value[name], choices)
    if place is None:
        row.refuse(
            f"`{name}` must name one of {len(choices)} choices (0 to {len(choices) - 1}, a letter, or its text), "
            f"found {json_kind(row.value[name])}"
        )
    return place


def _place(found: Any, choices: tuple[str, ...]) -> int | None:
    """Which choice an answer names; its own words count before a letter."""
    if isinstance(found, int) and not isinstance(found, bool):
        return found if 0 <= found < len(choices) else None
    if not isinstance(found, str):
        return None
    if found in choices:
        return choices.index(found)
    letter = found.strip().strip("()").upper()
    return LETTERS.index(letter) if len(letter) == 1 and letter in LETTERS[: len(choices)] else None


def _group(row: Row) -> str:
    name = next((name for name in GROUP_FIELDS if name in row.value), None)
    found: Any = "" if name is None else row.value[name]
    if not isinstance(found, str) or len(found) > LONGEST_GROUP:
        row.refuse(f"`{name}` must be a name of at most {LONGEST_GROUP} characters, found {json_kind(found)}")
    return found

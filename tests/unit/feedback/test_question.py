import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.errors import DataError
from charter.feedback.wording import ANSWER, CONVERSATION, WORDING, Part, Question, shortened

ROLES = [WORDING, CONVERSATION, WORDING, ANSWER, WORDING, ANSWER, WORDING]
lengths = st.lists(st.integers(0, 60), min_size=7, max_size=7)


def test_a_question_is_its_text():
    question = Question(Part("Which? "), Part("hello", CONVERSATION))
    assert question == "Which? hello"
    assert [part.role for part in question.parts] == [WORDING, CONVERSATION]


@given(lengths, st.integers(1, 400))
def test_the_rest_fits_and_no_wording_is_lost(found, max_tokens):
    wording = sum(found[::2])
    if wording >= max_tokens:
        with pytest.raises(DataError, match="longer context"):
            shortened(found, ROLES, max_tokens=max_tokens)
        return
    kept = shortened(found, ROLES, max_tokens=max_tokens)
    assert sum(kept) <= max_tokens
    assert kept[::2] == found[::2]
    assert all(0 <= after <= before for after, before in zip(kept, found, strict=True))


@given(lengths, st.integers(1, 400))
def test_an_answer_is_cut_only_when_no_conversation_is_left(found, max_tokens):
    if sum(found[::2]) >= max_tokens:
        return
    kept = shortened(found, ROLES, max_tokens=max_tokens)
    if kept[3] < found[3] or kept[5] < found[5]:
        assert kept[1] == 0


@given(lengths, st.integers(1, 400))
def test_a_shorter_answer_never_keeps_more_than_a_longer_one(found, max_tokens):
    if sum(found[::2]) >= max_tokens:
        return
    kept = shortened(found, ROLES, max_tokens=max_tokens)
    if found[3] <= found[5]:
        assert kept[3] <= kept[5]


def test_what_fits_is_left_alone():
    assert shortened([1, 2, 3, 4, 5, 6, 7], ROLES, max_tokens=28) == [1, 2, 3, 4, 5, 6, 7]

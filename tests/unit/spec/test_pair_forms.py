"""Preference rows whose prompt is no field of its own: texts with a shared beginning, turns that repeat it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.data.dataset import read_pairs, read_prompts
from charter.data.rows import Row, Turn, pair_of
from charter.errors import DataError

WORDS = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=9)


def row(**value):
    return Row(where="d.jsonl:1", number=1, value=value)


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [
        ("The sky is blue.", "The sky is green.", ("The sky is", " blue.", " green.")),
        ("2+2=4", "2+2=5", ("2+2=", "4", "5")),
        ("Q: a b c", "Q: a b d", ("Q: a b", " c", " d")),
    ],
)
def test_two_texts_share_their_prompt(tmp_path, chosen, rejected, expected):
    prompt, *answers = expected
    assert pair_of(row(chosen=chosen, rejected=rejected)) == ((Turn("user", prompt),), *answers)
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps({"chosen": chosen, "rejected": rejected}) + "\n")
    assert read_prompts(path)[0].turns == (Turn("user", prompt),)
    assert read_pairs(path)[0].chosen == answers[0]


@given(prompt=WORDS, one=WORDS, other=WORDS)
def test_any_texts_come_apart_where_they_differ(prompt, one, other):
    if one[0] == other[0]:
        other = ("b" if one[0] == "a" else "a") + other
    found = pair_of(row(chosen=f"{prompt} {one}", rejected=f"{prompt} {other}"))
    assert found == ((Turn("user", prompt),), f" {one}", f" {other}")


@pytest.mark.parametrize(
    ("chosen", "rejected", "message"),
    [
        ("yes", "no", "do not begin with one"),
        (" yes", " no", "do not begin with one"),
        ("same", "same", "is the beginning of the other"),
        ("What? Yes", "What?", "is the beginning of the other"),
        ("\n\nHuman: a\n\nAssistant: b", "\n\nHuman: a\n\nAssistant: c", "`charter data convert` makes turns"),
        ("", "a", "`chosen` must be a text"),
    ],
)
def test_texts_that_cannot_be_divided_are_refused(chosen, rejected, message):
    with pytest.raises(DataError, match="jsonl:1") as caught:
        pair_of(row(chosen=chosen, rejected=rejected))
    assert message in str(caught.value)


@pytest.mark.parametrize("prompt", ["Q", [user("Q")]])
def test_answers_may_repeat_the_prompt_before_them(prompt):
    whole = row(prompt=prompt, chosen=[user("Q"), assistant("good")], rejected=[user("Q"), assistant("bad")])
    assert pair_of(whole) == ((Turn("user", "Q"),), "good", "bad")
    half = row(prompt=prompt, chosen=[user("Q"), assistant("good")], rejected="bad")
    assert pair_of(half) == ((Turn("user", "Q"),), "good", "bad")
    with pytest.raises(DataError, match="`chosen` must be one assistant turn, found 2 turns"):
        pair_of(row(prompt=prompt, chosen=[user("R"), assistant("good")], rejected="bad"))
    with pytest.raises(DataError, match="found one user turn"):
        pair_of(row(prompt=prompt, chosen=[user("Q"), user("good")], rejected="bad"))

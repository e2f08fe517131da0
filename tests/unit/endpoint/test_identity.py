"""The baseline of a model, and which rounds of answers it takes for the same one."""

import math
import random

import pytest

from charter.errors import DataError
from charter.inference.endpoint.call import CallReply, TokenAlternatives
from charter.inference.endpoint.identity import (
    LEAST_LIMIT,
    Baseline,
    Canaries,
    answer_in,
    distance,
    listed_identity,
)
from charter.physics.identity_questions import QUESTIONS, REPEATS, TEXT_TOKENS

TOKENS = [" red", " blue", " green", " old", " new"]


def answers_of(weights, noise=0.0, seed=0):
    """One round of a model: a softmax of fixed logits for each question, moved a little."""
    fixed, moved = random.Random(weights), random.Random(seed)
    rows = []
    for _ in QUESTIONS:
        logits = [fixed.gauss(0, 1.5) + moved.gauss(0, noise) for _ in TOKENS]
        total = sum(math.exp(value) for value in logits) / 0.9  # a tenth of the mass is on tokens that are not named
        rows.append({token: math.exp(value) / total for token, value in zip(TOKENS, logits, strict=True)})
    return tuple(rows)


def baseline_of(weights, noise, how="log_probabilities"):
    repeats = tuple(answers_of(weights, noise, seed) for seed in range(REPEATS))
    return Baseline(how=how, repeats=repeats, endpoint="http://a/v1", at=0.0)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
def test_the_same_weights_are_never_taken_for_others(noise):
    baseline = baseline_of(1, noise)
    assert not any(baseline.is_other(answers_of(1, noise, seed)) for seed in range(100, 400))


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
def test_other_weights_are_noticed(noise):
    baseline = baseline_of(1, noise)
    assert all(baseline.is_other(answers_of(weights, noise, weights)) for weights in range(2, 200))


def test_the_limit_follows_from_the_noise_of_the_repeats():
    assert baseline_of(1, 0.0).limit == LEAST_LIMIT
    assert baseline_of(1, 0.3).limit > 3 * LEAST_LIMIT


def test_texts_may_differ_in_one_question_more_than_they_do():
    same = tuple(f"answer {i}" for i in range(8))
    flickers = [(*same[:7], f"one of {n}") for n in range(REPEATS)]
    exact = Baseline(how="text", repeats=(same,) * REPEATS, endpoint="a", at=0.0)
    assert [exact.is_other((*same[: 8 - n], *["new"] * n)) for n in (0, 1, 2)] == [False, False, True]
    loose = Baseline(how="text", repeats=tuple(flickers), endpoint="a", at=0.0)
    assert [loose.is_other((*same[: 8 - n], *["new"] * n)) for n in (1, 2, 3)] == [False, False, True]


def test_what_cannot_be_compared_is_never_another_model():
    assert not Baseline(how="none", repeats=(), endpoint="a", at=0.0).is_other(answers_of(2))


def test_mass_that_no_alternative_names_counts_once():
    near, far = {"a": 0.5, "b": 0.4}, {"a": 0.5, "b": 0.1}
    assert distance([near], [[far]], "log_probabilities") == pytest.approx(0.3)
    assert distance([near], [[near]], "log_probabilities") == 0


def reply(**changes):
    told = {"text": "A", "finish_reason": "stop", "model": "m", "prompt_tokens": 3, "cached_tokens": 0}
    return CallReply(**{**told, "completion_tokens": 1, **changes})


def test_answers_are_read_by_manner():
    top = TokenAlternatives(token="A", log_probability=math.log(0.5), top=(("A", math.log(0.5)), ("B", math.log(0.25))))
    alone = TokenAlternatives(token="A", log_probability=0.0, top=())
    assert answer_in(reply(log_probabilities=(top,)), "log_probabilities") == {"A": 0.5, "B": 0.25}
    assert answer_in(reply(log_probabilities=(alone,)), "log_probabilities") == {"A": 1.0}
    assert answer_in(reply(), "log_probabilities") is None
    assert answer_in(reply(text="red door"), "text") == "red door"
    assert answer_in(reply(text="", refusal="no"), "text") == "refused: no"


def canaries(tmp_path, **changes):
    told = {"declared": "judge", "served": "m", "revision": "ab" * 32, "continues": False}
    return Canaries(
        **{**told, "gives_log_probabilities": True, "directory": tmp_path / "models", "every": 8, **changes}
    )


def test_of_two_baselines_the_first_is_everybodys(tmp_path):
    one, other = baseline_of(1, 0.0), baseline_of(2, 0.0)
    assert canaries(tmp_path).baseline() is None
    assert canaries(tmp_path).keep(one) == one
    assert canaries(tmp_path).keep(other) == one == canaries(tmp_path).baseline()
    assert canaries(tmp_path, revision="cd" * 32).baseline() is None


def test_a_damaged_baseline_is_one_error(tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "judge-abababab.json").write_text('{"repeats": []}')
    with pytest.raises(DataError, match="not a baseline"):
        canaries(tmp_path).baseline()


def test_the_time_of_the_last_sound_round_is_remembered(tmp_path):
    mine = canaries(tmp_path)
    assert mine.sound_until() == 0
    mine.keep(baseline_of(1, 0.0))
    mine.note_sound(12.5)
    assert mine.sound_until() == 12.5
    next((tmp_path / "models").glob("*.sound.json")).write_text("[1")
    assert mine.sound_until() == 0


def test_questions_are_put_greedily_as_the_server_takes_them(tmp_path):
    chat, plain = canaries(tmp_path), canaries(tmp_path, continues=True, gives_log_probabilities=False)
    assert chat.manners == ("log_probabilities", "text")
    assert plain.manners == ("text",)
    asked, read = plain.requests("text"), chat.requests("log_probabilities")
    assert len({item.key for item in (*asked, *read)}) == 2 * len(QUESTIONS)
    assert {(item.temperature, item.max_new_tokens, bool(item.turns)) for item in asked} == {(0.0, TEXT_TOKENS, False)}
    assert {(item.temperature, item.max_new_tokens, bool(item.turns)) for item in read} == {(0.0, 1, True)}


@pytest.mark.parametrize("body", [None, [], {"data": None}, {"data": ["m"]}, {"data": [{"id": "m", "root": 3}]}])
def test_odd_lists_of_models_say_nothing(body):
    assert listed_identity(body, "m") == {}

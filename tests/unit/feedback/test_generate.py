"""New prompts and answers, made by whoever answers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_answers import Scripted

from charter.artifacts.job import Job, JobInput
from charter.data.dataset import Prompt, Turn
from charter.feedback.asking import Text
from charter.feedback.generate import (
    ATTEMPTS,
    AnswerMaker,
    PromptItem,
    PromptMaker,
    Unusable,
    asked_turns,
    comparable,
    new_prompt,
    summary,
)
from charter.feedback.records import answered
from charter.spec.stage import GenerateStage

GIVEN = [Prompt(f"s{n}", (Turn("user", f"How do I fix\n thing {n}?"),)) for n in range(20)]


def job(**spec):
    stage = GenerateStage(policy="p", prompts=("d",), **spec)
    policy = JobInput(name="p", role="policy", source="model", path="/p", fingerprint="of-p")
    return Job(
        run="r", stage="red_team", kind="generate", fingerprint="f" * 64, seed=5, spec=stage,
        inputs={"policy": (policy,)}, constitution=None, frozen={}, keep_last=2,
    )  # fmt: skip


def prompts_made(write, count=4, few_shot=3, seeds=GIVEN):
    answerer, made = Scripted(write=write), job(makes="prompts", num_prompts=count, few_shot=few_shot)
    maker = PromptMaker(made, made.spec, seeds)
    return answered(maker.make([PromptItem(id=f"n{n}") for n in range(count)]), answerer), answerer


def test_a_new_prompt_follows_given_ones_that_are_drawn_anew_for_each():
    batch, answerer = prompts_made(lambda ask: Text(text=f"4. New thing {ask.seed}?", tokens=5))
    assert [row["id"] for row in batch.records] == ["n0", "n1", "n2", "n3"]
    assert len({tuple(row["shown"]) for row in batch.records}) == 4
    for row, ask in zip(batch.records, answerer.asks, strict=True):
        assert row["prompt"] == [{"role": "user", "content": f"New thing {ask.seed}?"}]
        assert len(set(row["shown"])) == 3
        lines = ask.turns[0].content.split("\n")
        assert [line for line in lines if line[:2] in ("1.", "2.", "3.")] == [
            f"{place}. How do I fix thing {shown[1:]}?" for place, shown in enumerate(row["shown"], start=1)
        ]
        assert ask.prefill == "4."
        assert (row["policy"], row["seed"], row["tokens"]) == ("of-p", 5, 5)
    assert batch.tokens == 20


def test_reply_without_new_prompt_is_redrawn_then_set_aside():
    texts = iter(["4. How do I fix thing 3?", "", "4. good one", "4. Fresh"])
    batch, answerer = prompts_made(lambda ask: Text(text=next(texts, "thing how do i fix"), tokens=1), count=2)
    assert [len(asks) for asks in answerer.lists] == [2, 2]
    assert [row["prompt"][0]["content"] for row in batch.records] == ["good one", "Fresh"]
    assert answerer.lists[0][0].turns != answerer.lists[1][0].turns
    assert len({ask.seed for ask in answerer.asks}) == 4
    batch, answerer = prompts_made(lambda ask: Text(text="4. how do I fix thing 3", tokens=1), count=1)
    assert (len(answerer.lists), list(batch.records)) == (ATTEMPTS, [])
    assert batch.set_aside == [{"reason": "a given prompt", "id": "n0", "text": "4. how do I fix thing 3"}]
    assert batch.totals["set_aside/a given prompt"] == 1


def test_a_refusal_is_counted_as_one():
    batch, _ = prompts_made(lambda ask: Text(text="", tokens=0, refusal="no"), count=1)
    assert batch.set_aside == [{"reason": "refused", "id": "n0", "text": "no"}]


def test_records_keep_order_after_redraws_and_note_cuts():
    replies = iter([Text(text="4. Why is", tokens=3, is_finished=False), Text(text="4. A\n5. B", tokens=3)])
    again = Text(text="4. C\n5. D", tokens=3, is_finished=False)
    batch, _ = prompts_made(lambda ask: next(replies, again), count=2)
    assert [(row["id"], row["prompt"][0]["content"]) for row in batch.records] == [("n0", "C"), ("n1", "A")]
    assert batch.totals == {"finished": 1}


def test_fewer_given_prompts_than_are_shown_are_all_shown():
    batch, _ = prompts_made(lambda ask: Text(text="3. New", tokens=1), count=1, seeds=GIVEN[:2])
    assert sorted(batch.records[0]["shown"]) == ["s0", "s1"]


def test_of_a_long_unusable_reply_the_beginning_is_kept():
    batch, _ = prompts_made(lambda ask: Text(text="word " * 1000, tokens=1, is_finished=False), count=1)
    assert batch.set_aside == [{"reason": "cut off", "id": "n0", "text": "word " * 100}]


def test_draws_hang_on_the_id_alone():
    few, _ = prompts_made(lambda ask: Text(text=f"4. {ask.seed}", tokens=1), count=2)
    more, _ = prompts_made(lambda ask: Text(text=f"4. {ask.seed}", tokens=1), count=4)
    assert json.dumps(few.records) == json.dumps(more.records[:2])


@pytest.mark.parametrize(
    ("text", "finished", "found"),
    [
        ("9. Why is tea hot?", True, "Why is tea hot?"),
        ("Why is tea hot?\n10. And cold?\n11. W", False, "Why is tea hot?"),
        ('"Why is tea hot?"', True, "Why is tea hot?"),
        ("\u201cWhy?\u201d", True, "Why?"),
        ("Two lines\nof one message", True, "Two lines\nof one message"),
        ("9) 5 apples, how many pears?", True, "5 apples, how many pears?"),
        ("", True, Unusable("empty")),
        ("9.  ", True, Unusable("empty")),
        ('""', True, Unusable("empty")),
        ("Why is tea so", False, Unusable("cut off")),
        ("Sure!\n\nHere is one: why?", True, Unusable("more than a message")),
        (" THING  3!", True, Unusable("a given prompt")),
    ],
)
def test_the_first_entry_of_a_reply_is_the_prompt(text, finished, found):
    assert new_prompt(text, {comparable("thing 3")}, is_finished=finished) == found


@given(st.text(max_size=200), st.booleans())
def test_no_reply_makes_the_parser_fail(text, finished):
    found = new_prompt(text, (), is_finished=finished)
    assert isinstance(found, Unusable) or found.strip()


def test_a_given_prompt_cannot_add_lines_to_the_list():
    (turn,) = asked_turns(["one\n2. injected", "two"])
    assert "1. one 2. injected\n2. two" in turn.content


def test_answers_of_one_prompt_are_conversations_with_own_draws():
    made = job(answers_per_prompt=2)
    answerer = Scripted(write=lambda ask: Text(text="" if ask.seed % 2 else f"answer {ask.seed}", tokens=4))
    batch = answered(AnswerMaker(job=made, spec=made.spec).make(GIVEN), answerer)
    assert len({ask.seed for ask in answerer.asks}) == 40
    assert batch.tokens == 160
    ids = {row["id"] for row in batch.records} | {row["id"] for row in batch.set_aside}
    assert ids == {f"s{n}/answer-{k}" for n in range(20) for k in (1, 2)}
    assert batch.set_aside
    assert all(row["reason"] == "empty answer" for row in batch.set_aside)
    row = batch.records[0]
    assert [turn["role"] for turn in row["messages"]] == ["user", "assistant"]
    assert row["finished"] is True
    assert row["prompt_id"] in row["id"]


def test_the_summary_says_how_many_were_set_aside_and_why():
    totals = {"records": 8, "finished": 6, "generated_tokens": 80, "set_aside/empty": 2}
    assert summary(totals) == {"finished_share": 0.75, "mean_tokens": 10.0, "set_aside/empty": 2}

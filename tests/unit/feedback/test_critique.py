"""What the critic reads, and what the records of a critique say."""

from importlib import resources

import pytest
from scripted_answers import Scripted

from charter.artifacts.job import Job, JobInput
from charter.data.dataset import Conversation, Prompt, Turn, read_critiques
from charter.errors import DataError
from charter.feedback.asking import Text
from charter.feedback.constitution import Constitution, Principle
from charter.feedback.critique import Reviser, _summary
from charter.feedback.records import answered
from charter.spec.stage import CritiqueStage

PRINCIPLES = tuple(
    Principle(id=name, critique=f"Is it {name}?", revision=f"Make it {name}.", compare="?")
    for name in ("kind", "short")
)


def example(number):
    turns = tuple(
        Turn(role, f"{part} {number}") for part, role in zip("abcdef", ("user", "assistant") * 3, strict=True)
    )
    return Conversation(f"e{number}", turns)


def revised(answerer, prompts=None, examples=(), **spec):
    stage = CritiqueStage(policy="p", critic="c", prompts=("d",), **spec)
    inputs = {
        role: (JobInput(name=role, role=role, source="model", path="/m", fingerprint=f"of-{role}"),)
        for role in ("policy", "critic")
    }
    job = Job(
        run="r", stage="critique", kind="critique", fingerprint="f" * 64, seed=5, spec=stage,
        inputs=inputs, constitution=None, frozen={}, keep_last=2,
    )  # fmt: skip
    constitution = Constitution(name="two", version="1", principles=PRINCIPLES)
    reviser = Reviser(job=job, spec=stage, constitution=constitution, demonstrations=examples)
    return answered(reviser.make(prompts or [Prompt("p1", (Turn("user", "Hi"),))]), answerer)


def by_purpose(ask):
    last = ask.turns[-1].content
    purpose = "critique" if last.startswith("Is it") else "revision" if last.startswith("Make") else "answer"
    return Text(text=f"{purpose} {ask.seed}", tokens=2, model="m-1")


def test_each_round_criticises_last_answer_under_own_principle():
    answerer = Scripted(write=by_purpose)
    batch = revised(answerer, revisions=3)
    assert [ask.role for ask in answerer.asks] == ["policy"] + ["critic"] * 6
    assert len({ask.seed for ask in answerer.asks}) == 7
    assert batch.tokens == 2 * 7
    first, second, third = batch.records
    assert second["init_response"] == first["revision_response"]
    assert third["init_response"] == second["revision_response"]
    critique, revision = answerer.asks[3:5]
    assert [turn.content for turn in critique.turns] == ["Hi", first["revision_response"], second["critic_prompt"]]
    assert revision.turns[:3] == critique.turns
    assert [turn.content for turn in revision.turns[3:]] == [second["critic_response"], second["revision_prompt"]]


def test_empty_answers_and_revisions_that_change_nothing_are_counted():
    prompts = [Prompt(f"p{n}", (Turn("user", "Hi"),)) for n in range(3)]

    def write(ask):
        is_empty = ask.role == "policy" and len(ask.turns) == 1 and ask.seed == seeds[0]
        return Text(text="" if is_empty else "the same", tokens=1)

    seeds = [ask.seed for ask in answers_asked(prompts)]
    totals = revised(Scripted(write=write), prompts, revisions=2).totals
    assert totals == {"prompts": 3, "empty_first_answers": 1, "refused_revisions": 0, "unchanged_revisions": 5}
    assert revised(Scripted(write=by_purpose), prompts).totals["unchanged_revisions"] == 0


def answers_asked(prompts):
    answerer = Scripted(write=by_purpose)
    revised(answerer, prompts)
    return answerer.lists[0]


def test_the_summary_tells_refusals_from_empty_revisions():
    totals = {
        "records": 4, "set_aside": 5, "prompts": 9, "empty_first_answers": 1, "refused_revisions": 2,
        "unchanged_revisions": 1,
    }  # fmt: skip
    assert _summary(totals) == {
        "prompts": 9, "empty_first_answers": 1, "empty_revisions": 3, "refused_revisions": 2,
        "unchanged_revision_share": 0.25,
    }  # fmt: skip


def test_principles_vary_over_prompts_and_rounds():
    prompts = [Prompt(f"p{n}", (Turn("user", "Hi"),)) for n in range(12)]
    batch = revised(Scripted(write=by_purpose), prompts, revisions=2)
    drawn = {(row["id"].split("/")[0], row["round"]): row["principle"] for row in batch.records}
    assert set(drawn.values()) == {"kind", "short"}
    assert any(drawn[f"p{n}", 1] != drawn[f"p{n}", 2] for n in range(12))


def test_worked_critiques_come_first_and_depend_on_the_prompt():
    prompts = [Prompt(f"p{n}", (Turn("system", "Be brief."), Turn("user", "Hi"))) for n in range(6)]
    answerer = Scripted(write=by_purpose)
    batch = revised(answerer, prompts, [example(n) for n in range(8)], revisions=2, few_shot=2)
    assert all(turn.content[0] not in "abcdef" for ask in answerer.lists[0] for turn in ask.turns)
    for asks in answerer.lists[1:]:
        for ask, row in zip(asks, batch.records[::2], strict=True):
            assert ask.turns[0] == Turn("system", "Be brief.")
            shown = [turn for name in row["examples"] for turn in example(int(name[1:])).turns]
            assert list(ask.turns[1:13]) == shown
    assert len({tuple(row["examples"]) for row in batch.records}) > 2
    assert [row["examples"] for row in batch.records[::2]] == [row["examples"] for row in batch.records[1::2]]


def test_a_record_says_where_it_came_from_and_nothing_of_its_cost():
    (row,) = revised(Scripted(write=by_purpose)).records
    told = {key: row[key] for key in ("policy", "critic", "critic_model", "seed", "tokens", "finished", "examples")}
    assert told == {
        "policy": "of-policy", "critic": "of-critic", "critic_model": "m-1", "seed": 5, "tokens": 4,
        "finished": True, "examples": [],
    }  # fmt: skip
    assert len(row["template"]) == 16
    assert not [key for key in row if "usd" in key or "cost" in key]


@pytest.mark.parametrize(("refusal", "reason"), [("", "empty revision"), ("content_filter", "refused")])
def test_without_a_revision_the_next_round_starts_from_the_last_answer(refusal, reason):
    def write(ask):
        is_first_revision = ask.turns[-1].content.startswith("Make") and ask.turns[1].content.startswith("answer")
        return Text(text="", tokens=0, refusal=refusal) if is_first_revision else by_purpose(ask)

    calls = []

    def once(ask):
        calls.append(ask)
        return write(ask) if len(calls) <= 3 else by_purpose(ask)

    batch = revised(Scripted(write=once), revisions=2)
    assert [(row["id"], row["reason"]) for row in batch.set_aside] == [("p1/round-1", reason)]
    assert batch.records[0]["init_response"] == batch.set_aside[0]["init_response"]
    assert batch.totals["refused_revisions"] == (reason == "refused")


def test_the_shipped_examples_are_worked_critiques():
    with resources.as_file(resources.files("charter.templates") / "data" / "sl_cai_examples.jsonl") as path:
        found = read_critiques(path)
    assert len(found) == 6
    assert {tuple(turn.role for turn in item.turns) for item in found} == {("user", "assistant") * 3}


def test_six_turns_are_read_as_well_and_other_rows_are_refused(tmp_path):
    path = tmp_path / "examples.jsonl"
    six = ", ".join(f'{{"role": "{role}", "content": "x"}}' for role in ("user", "assistant") * 3)
    path.write_text(f'{{"messages": [{six}]}}\n')
    assert len(read_critiques(path)[0].turns) == 6
    path.write_text('{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}\n')
    with pytest.raises(DataError, match="six turns"):
        read_critiques(path)
    path.write_text('{"prompt": "x"}\n')
    with pytest.raises(DataError, match="is no worked critique"):
        read_critiques(path)

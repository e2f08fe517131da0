"""Pairs that a policy is to answer: two draws of their own, drawn again where they cannot be compared."""

import pytest
from scripted_answers import Scripted

from charter.artifacts.job import Job, JobInput
from charter.data.dataset import Turn
from charter.feedback.asking import Sample, Text
from charter.feedback.constitution import Constitution, Principle
from charter.feedback.label import RESAMPLES, Item, Labeller, rules_of
from charter.feedback.records import answered
from charter.spec.stage import LabelStage

ITEMS = [Item(id=f"p{n}/pair-1", turns=(Turn("user", f"q{n}"),)) for n in range(3)]


@pytest.fixture
def labeller():
    spec = LabelStage(judge="j", policy="p", prompts=("d",), pairs=3)
    judge = JobInput(name="j", role="judge", source="model", path=None, fingerprint="f")
    job = Job(
        run="r", stage="label", kind="label", fingerprint="f" * 64, seed=1, spec=spec, inputs={"judge": (judge,)},
        constitution=None, frozen={}, keep_last=2,
    )  # fmt: skip
    principle = Principle(id="kind", critique="", revision="", compare="Which is kinder?")
    constitution = Constitution(name="c", version="1", principles=(principle,))
    return Labeller(job=job, spec=spec, constitution=constitution, rules=rules_of(job, spec))


def sampled(answerer):
    return [ask for ask in answerer.asks if isinstance(ask, Sample)]


def test_each_answer_is_a_draw_of_its_own(labeller):
    answerer = Scripted(write=lambda ask: Text(text=f"answer {ask.seed}", tokens=3))
    batch = answered(labeller.make(ITEMS), answerer)
    assert [ask.turns for ask in sampled(answerer)] == [item.turns for item in ITEMS] * 2
    assert len({ask.seed for ask in sampled(answerer)}) == 6
    assert [record["id"] for record in batch.records] == [item.id for item in ITEMS]
    assert {record["source"] for record in batch.records} == {"policy"}
    assert batch.tokens == 6 * 3


def test_equal_answers_are_drawn_again_with_other_seeds_then_set_aside(labeller):
    answerer = Scripted(write=lambda ask: Text(text="the same", tokens=3))
    batch = answered(labeller.make(ITEMS), answerer)
    assert len({ask.seed for ask in sampled(answerer)}) == len(sampled(answerer)) == len(ITEMS) * (2 + RESAMPLES)
    assert [record["reason"] for record in batch.set_aside] == ["identical answers"] * 3
    assert (batch.records, batch.totals["identical"]) == ([], 3)
    assert batch.tokens == 3 * len(sampled(answerer))

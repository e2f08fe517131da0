"""A label stage whose judge is behind `charter run serve` makes the labels of one whose judge is in its process."""

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from pooled import TOPICS

from charter.artifacts.job import Job, JobInput, write_job
from charter.artifacts.stage_dir import StageDir
from charter.data.dataset import Turn
from charter.feedback import label
from charter.feedback.answering import open_answerer
from charter.feedback.comparing import Rated, rating
from charter.feedback.records import answered
from charter.spec.project import DataSpec, Serving
from charter.spec.stage import LabelStage

pytestmark = pytest.mark.torch
CONSTITUTION = """
schema: charter.constitution/v1
principles:
  - {id: kind, critique: 'Is it kind?', revision: Make it kinder., compare: 'Which answer is kinder?'}
"""


@pytest.fixture
def stage(tmp_path, judge_dir, server):
    """(name, whether the judge is served, spec) -> a stage directory of a label stage over given pairs."""
    (tmp_path / "constitution.yaml").write_text(CONSTITUTION)
    pairs = tmp_path / "pairs.jsonl"
    rows = [
        {
            "id": topic,
            "prompt": [{"role": "user", "content": f"Tell me about {topic}."}],
            "chosen": [{"role": "assistant", "content": f"I know {topic}."}],
            "rejected": [{"role": "assistant", "content": "No. " * (1 + number)}],
        }
        for number, topic in enumerate(TOPICS)
    ]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = JobInput(
        name="d", role="candidates", source="data", path=str(pairs), fingerprint="d", data=DataSpec(path=str(pairs))
    )
    judge = JobInput(name="judge", role="judge", source="model", path=str(judge_dir), fingerprint="j")

    def make(name, *, is_served, **changes):
        path = tmp_path / name
        path.mkdir()
        job = Job(
            run="run",
            stage="label",
            kind="label",
            fingerprint="f" * 64,
            seed=11,
            spec=LabelStage(judge="judge", candidates=("d",), rollout_batch=4, **changes),
            inputs={"judge": (judge,), "candidates": (data,)},
            constitution=str(tmp_path / "constitution.yaml"),
            frozen={"threads": 1, "device": "cpu"},
            keep_last=2,
        )
        if is_served:
            serving = Serving(endpoint=f"{server.address}/v1", api="completions", concurrency=4, model="judge")
            job = replace(job, serving={"judge": serving})
        write_job(path, job)
        return StageDir(path)

    yield make
    torch.use_deterministic_algorithms(False)


def records(found):
    return [json.loads(line) for line in (found.outputs / "records.jsonl").read_text().splitlines()]


def test_labels_through_the_server_are_those_in_process(stage):
    made = []
    for is_served in (False, True):
        found = stage(f"label-{is_served}", is_served=is_served, both_orders=True)
        label.run(found)
        made.append(records(found))
    local, served = made
    assert len(local) == len(TOPICS)
    for here, there in zip(local, served, strict=True):
        assert here["chosen"] == there["chosen"]
        own, other = ([item["log_odds_chosen"] for item in row["judgements"]] for row in (here, there))
        assert len(own) == 2
        assert other == pytest.approx(own, abs=1e-4)
        assert {item["how"] for item in there["judgements"]} == {"log_probabilities"}
        assert there["judge_model"] == "judge"
    assert len({row["judgements"][0]["log_odds_chosen"] for row in local}) == len(TOPICS)


def test_a_stage_done_again_asks_the_server_nothing(stage, server):
    """Ratings go through the same store; the second time the server need not even be right."""
    items = [Rated(id=topic, turns=(Turn("user", "Rate me."),), answer=f"I know {topic}.") for topic in TOPICS]
    found = stage("rated", is_served=True)
    once, again = (rate(found, items), rate(found, items))
    assert once == again
    assert len(once) == len(TOPICS)


def rate(found, items):
    with open_answerer(found, ["judge"]) as answerer:
        return answered(rating(items, seed=1, stage="label"), answerer)

"""Whole stages on a very small model: what reaches the artifact and the loss."""

import json

import pytest

torch = pytest.importorskip("torch")

import tiny
from engine_bench import metrics, stage

from charter.feedback.local_models import question_limit
from charter.models.language_model import load_language_model
from charter.spec.stage import JudgeStage, SftStage
from charter.train import dpo, judge, preference_model, sft

pytestmark = pytest.mark.torch
CONSTITUTION = """
schema: charter.constitution/v1
principles:
  - {id: kind, critique: "Is it kind?", revision: "Make it kind.", compare: "Which is kinder?"}
"""


@pytest.fixture
def made(tmp_path):
    """The outputs of a stage that made a model, of one that made pairs, and a constitution."""
    tiny.language_model().save(tmp_path / "base" / "model")
    rows = [
        {
            "id": pair.id,
            "prompt": [{"role": "user", "content": pair.prompt[0].content}],
            "chosen": [{"role": "assistant", "content": pair.chosen}],
            "rejected": [{"role": "assistant", "content": pair.rejected}],
            "messages": [
                {"role": "user", "content": pair.prompt[0].content},
                {"role": "assistant", "content": pair.chosen},
            ],
        }
        for pair in tiny.pairs()
    ]
    for name, keys in (("pairs", ("id", "prompt", "chosen", "rejected")), ("chats", ("id", "messages"))):
        (tmp_path / name).mkdir()
        lines = [json.dumps({key: row[key] for key in keys}) for row in rows]
        (tmp_path / name / "records.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "constitution.yaml").write_text(CONSTITUTION)
    return tmp_path


def test_a_taught_judge_is_asked_no_longer_questions_than_it_learnt(made):
    spec = JudgeStage(init="b", pairs=("p",), steps=2, global_batch=4, seq_len=96, format="yes_no_mean", dtype="fp32")
    inputs = {"init": made / "base", "pairs": made / "pairs"}
    stage = tiny.stage_dir(made / "judge", spec, inputs, constitution=str(made / "constitution.yaml"))
    judge.run(stage)
    assert question_limit(load_language_model(stage.outputs / "model")) == 96
    assert question_limit(load_language_model(made / "base" / "model")) == 255


def test_dropout_of_the_spec_reaches_the_training_of_a_language_model(made):
    def weights(dropout):
        spec = SftStage(init="b", data=("d",), steps=2, global_batch=4, seq_len=64, dropout=dropout, dtype="fp32")
        stage = tiny.stage_dir(
            made / f"sft-{dropout}", spec, {"init": made / "base", "data": made / "chats"}, kinds={"data": "critique"}
        )
        sft.run(stage)
        return torch.cat(
            [value.flatten() for value in load_language_model(stage.outputs / "model").model.state_dict().values()]
        )

    assert not torch.equal(weights(0.0), weights(0.5))


@pytest.mark.parametrize("kind", ["preference_model", "dpo"])
def test_an_easy_preference_is_learnt(engine_inputs, tmp_path, kind):
    found = stage(engine_inputs, tmp_path / kind, kind, steps=24)
    {"preference_model": preference_model, "dpo": dpo}[kind].run(found)
    lines = metrics(found)
    assert lines[-1]["accuracy"] == 1.0
    assert lines[-1]["loss"] < 0.7 * lines[0]["loss"]

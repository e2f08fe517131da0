"""A preference model as a classifier of one label: the same order of answers, and what it cannot say is refused."""

import json

import pytest
import torch
from charter_head import preference_model

from charter.data.dataset import Turn
from charter.errors import DataError
from charter.hosted.weights import check_prompts, is_preference_model, write_classifier
from charter.inference.score import encode_scored, score_answers

pytestmark = pytest.mark.torch
ASKED = [("How do I bake bread?", "Read a book."), ("Hi", "No."), ("What now?", "Wait, and see what comes of it.")]


def test_rewards_differ_by_a_constant_only(tmp_path):
    from transformers import AutoModelForSequenceClassification

    model = preference_model(tmp_path / "pm", score_mean=0.5, score_deviation=0.25)
    assert is_preference_model(tmp_path / "pm")
    write_classifier(tmp_path / "pm", tmp_path / "out")
    assert not is_preference_model(tmp_path / "out")
    found, report = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert found.config.num_labels == 1
    ours = score_answers(model, [([Turn("user", asked)], answer) for asked, answer in ASKED])
    rows = [encode_scored(model, [Turn("user", asked)], answer, max_tokens=64)[0] for asked, answer in ASKED]
    with torch.no_grad():
        theirs = torch.stack([found.eval()(input_ids=torch.tensor([ids])).logits[0, 0] for ids in rows])
    assert ours.std() > 0.01
    torch.testing.assert_close(ours - ours.mean(), theirs - theirs.mean(), atol=1e-4, rtol=1e-3)


def test_a_mean_over_the_answer_is_refused(tmp_path):
    preference_model(tmp_path / "pm", pooling="mean")
    with pytest.raises(DataError, match=r"as the mean over the answer(?s:.*)`pooling: last`"):
        write_classifier(tmp_path / "pm", tmp_path / "out")


def test_prompts_of_several_turns_need_a_model_that_reads_them(tmp_path):
    one, three = [Turn("user", "a")], [Turn("user", "a"), Turn("assistant", "b"), Turn("user", "c")]
    preference_model(tmp_path / "pm", context="last_turn")
    check_prompts(tmp_path / "pm", [one, one])
    with pytest.raises(DataError, match="1 of 2 prompts have several turns"):
        check_prompts(tmp_path / "pm", [one, three])
    settings = json.loads((tmp_path / "pm" / "charter_head.json").read_text())
    (tmp_path / "pm" / "charter_head.json").write_text(json.dumps({**settings, "context": "full"}))
    check_prompts(tmp_path / "pm", [one, three])

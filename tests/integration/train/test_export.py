"""An exported model is loaded by transformers alone and gives the same numbers."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import tiny

from charter.artifacts.record import read_record
from charter.errors import DataError
from charter.models.preference import PreferenceModel, ScalarModel, pool, pooled_positions
from charter.report.export import check_outputs, copy_model
from charter.spec.stage import PreferenceModelStage, SftStage

SETTINGS = {"pooling": "last", "seq_len": 64, "score_mean": 0.5, "score_deviation": 2.0}


def published(tmp_path, spec, save):
    stage = tiny.stage_dir(tmp_path / "stage", spec)
    stage.publish_outputs(lambda out: save(out / "model"), step=6, target_step=6)
    return stage, read_record(stage.path)


@pytest.fixture(params=["one file", "several files"])
def preference(tmp_path, request, monkeypatch):
    model = tiny.language_model()
    scalar = ScalarModel(model)
    torch.nn.init.normal_(scalar.head.weight, generator=torch.Generator().manual_seed(1))
    torch.nn.init.constant_(scalar.head.bias, 0.375)
    made = PreferenceModel(scalar.eval(), model, SETTINGS)
    spec = PreferenceModelStage(init="base", data=("pairs",), steps=6)
    if request.param == "several files":
        save = model.model.save_pretrained
        monkeypatch.setattr(model.model, "save_pretrained", lambda *args, **more: save(*args, max_shard_size="40KB"))
    stage, record = published(tmp_path, spec, made.save)
    return made, stage, record


def test_a_language_model_is_copied_bit_for_bit_and_loads(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = tiny.language_model()
    stage, record = published(tmp_path, SftStage(init="base", data=("chat",), steps=6), model.save)
    target = tmp_path / "export"
    target.mkdir()
    assert copy_model(stage.path, record, target) is None
    loaded = AutoModelForCausalLM.from_pretrained(str(target))
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), model.model.parameters(), strict=True))
    assert len(AutoTokenizer.from_pretrained(str(target))) == len(model.tokenizer)
    assert sorted(path.name for path in target.iterdir()) == sorted(
        name.removeprefix("model/") for name in record.outputs
    )


def test_a_preference_model_scores_the_same_in_transformers(tmp_path, preference):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    made, stage, record = preference
    target = tmp_path / "export"
    target.mkdir()
    score = copy_model(stage.path, record, target)
    assert (score.pooling, score.bias, score.mean, score.deviation) == ("last", 0.375, 0.5, 2.0)
    loaded, report = AutoModelForSequenceClassification.from_pretrained(
        str(target), output_loading_info=True, dtype=torch.float32
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(str(target))
    texts = ["Read a book about tea.", "No.", "Ask a friend about trains and birds."]
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="right")
    mask = batch["attention_mask"]
    with torch.no_grad():
        read = pooled_positions(mask.bool(), pooling="last")
        at = read.flatten().nonzero().squeeze(1)
        ours = pool(made.scalar(batch["input_ids"], mask)[read], at, read)
        theirs = loaded.eval()(input_ids=batch["input_ids"], attention_mask=mask).logits.squeeze(1)
    assert ours.std() > 0.01
    torch.testing.assert_close(theirs + score.bias, ours, rtol=1e-5, atol=1e-6)


def test_damaged_outputs_and_stages_without_a_model_are_refused(tmp_path, preference):
    _, stage, record = preference
    path = max((stage.outputs / "model").glob("*.safetensors"), key=lambda found: found.stat().st_size)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"outputs damaged: file model/model.*safetensors"):
        check_outputs(stage.path, record)
    path.write_bytes(bytes([*content[:-1], content[-1] ^ 1]))
    check_outputs(stage.path, record)
    with pytest.raises(DataError, match="made no model"):
        check_outputs(stage.path, replace(record, outputs={}))

"""An adapter that an engine has left apart: added in as the native engine does, or refused with what is wrong."""

import json
import sys

import pytest
import tiny
import torch
from huggingface_case import handover
from safetensors.torch import load_file, save_file

from charter.engines.common.request import HandoverPaths
from charter.engines.huggingface.adapter import HuggingFaceAdapter
from charter.errors import StageError
from charter.hosted.weights import (
    check_language_model,
    merged,
    write_merged,
    write_merged_classifier,
    write_merged_model,
)
from charter.models.adapters import add_adapter, published_weights, save_adapter
from charter.models.language_model import load_language_model
from charter.spec.layout import Adapter

pytestmark = pytest.mark.torch
ADAPTER = Adapter(rank=4, alpha=12)
LAYER = "base_model.model.model.layers.1.mlp.up_proj"
HEAD = "base_model.model.score.weight"
IDS = torch.arange(3, 43)[None]


@pytest.fixture(scope="module")
def trained():
    """A model with an adapter that changes what it says."""
    model = tiny.language_model(seed=3)
    add_adapter(model.model, ADAPTER, seed=5)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in model.model.named_parameters():
            if ".lora_B." in name:
                value.normal_(std=0.1, generator=draw)
    return model


@pytest.fixture
def left(trained, tmp_path):
    """The model that training began with, and the adapter as an engine leaves it."""
    tiny.language_model(seed=3).save(tmp_path / "base")
    save_adapter(tmp_path / "output", trained.model.state_dict(), trained.model, ADAPTER)
    return tmp_path


def change(left, edit):
    """Change the adapter's tensors in place."""
    path = left / "output" / "adapter_model.safetensors"
    tensors = load_file(str(path))
    edit(tensors)
    save_file(tensors, str(path))


def settings(left, **changes):
    path = left / "output" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def merge(left, **changes):
    return merged(left / "output", left / "base", ADAPTER, **changes)


def test_the_merged_weights_are_those_that_the_native_engine_publishes(trained, left):
    write_merged_model(left / "output", left / "base", ADAPTER, left / "outputs" / "model")
    trained.save(left / "native", published_weights(trained.model, trained.model.state_dict(), ADAPTER))
    check_language_model(left / "outputs" / "model")
    found, wanted = (load_file(str(path / "model.safetensors")) for path in (left / "outputs/model", left / "native"))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert {path.name for path in (left / "outputs" / "model").iterdir()} == {
        path.name for path in (left / "native").iterdir()
    }


def test_charter_merges_without_peft(left, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    write_merged_model(left / "output", left / "base", ADAPTER, left / "outputs" / "model")
    check_language_model(left / "outputs" / "model")


def test_the_merged_model_says_what_the_base_with_its_adapter_says(trained, left):
    model, _ = merge(left)
    with torch.no_grad():
        found, wanted = (item.model.eval()(IDS).logits for item in (model, trained))
        before = load_language_model(left / "base").model.eval()(IDS).logits
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert (found - before).abs().max() > 0.1


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_the_adapter_lies_beside_the_model_for_peft_to_read(trained, left):
    from peft import PeftModel

    settings(left, target_modules=["v_proj", "q_proj"], base_model_name_or_path=str(left / "base"))
    write_merged_model(left / "output", left / "base", ADAPTER, left / "outputs" / "model")
    path = left / "outputs" / "adapter"
    assert {item.name for item in path.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    told = json.loads((path / "adapter_config.json").read_text())
    assert told["target_modules"] == ["q_proj", "v_proj"]
    assert told["base_model_name_or_path"] is None
    assert told["inference_mode"] is True
    assert str(left) not in (path / "adapter_config.json").read_text()
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    settings(left, target_modules=names)
    write_merged_model(left / "output", left / "base", ADAPTER, left / "outputs" / "model")
    with torch.no_grad():
        read = PeftModel.from_pretrained(load_language_model(left / "base").model, str(path)).eval()(IDS).logits
        torch.testing.assert_close(read, trained.model.eval()(IDS).logits, atol=1e-5, rtol=1e-5)


def test_matrices_in_16_bits_are_added_in_fp32(left):
    change(left, lambda tensors: tensors.update({name: value.bfloat16() for name, value in tensors.items()}))
    model, _ = merge(left)
    weight = model.model.model.layers[1].mlp.up_proj.weight
    tensors = load_file(str(left / "output" / "adapter_model.safetensors"))
    product = tensors[f"{LAYER}.lora_B.weight"].float() @ tensors[f"{LAYER}.lora_A.weight"].float()
    base = load_language_model(left / "base").model.model.layers[1].mlp.up_proj.weight
    assert weight.dtype == torch.float32
    torch.testing.assert_close(weight, base + 3 * product, atol=1e-7, rtol=1e-6)


def test_a_classifier_is_its_merged_body_and_its_score(left):
    change(left, lambda tensors: tensors.update({HEAD: torch.full((1, 32), 0.5)}))
    write_merged_classifier(left / "output", left / "base", ADAPTER, left / "plain")
    write_merged_model_without_head(left)
    body = load_file(str(left / "plain" / "model.safetensors"))
    wanted = load_file(str(left / "outputs" / "model" / "model.safetensors"))
    assert all(torch.equal(body[name], wanted[name]) for name in wanted)
    assert load_file(str(left / "plain" / "score.safetensors")).keys() == {"score.weight"}
    assert not (left / "adapter").exists()


def write_merged_model_without_head(left):
    change(left, lambda tensors: tensors.pop(HEAD))
    write_merged_model(left / "output", left / "base", ADAPTER, left / "outputs" / "model")


def converted(left, kind, adapter=ADAPTER):
    paths = HandoverPaths(work=str(left), models={"init": str(left / "base")}, data={"data": "data.jsonl"})
    target = left / "outputs" / "model"
    stage = handover("trl", kind, adapter=adapter, paths=paths)
    return write_merged(left / HuggingFaceAdapter.adapter_output, stage, adapter, target), target


def test_what_the_engine_leaves_is_merged_as_its_stage_says(left):
    facts, target = converted(left, "sft")
    assert facts == {"merged": {"rank": 4, "alpha": 12}}
    check_language_model(target)
    assert (target.parent / "adapter" / "adapter_config.json").is_file()
    assert not (target / "score.safetensors").exists()


def test_of_a_reward_model_its_score_is_kept(left):
    change(left, lambda tensors: tensors.update({HEAD: torch.full((1, 32), 0.5)}))
    _, target = converted(left, "preference_model")
    assert (target / "score.safetensors").is_file()
    assert not (target.parent / "adapter").exists()


def lose(name):
    return lambda tensors: tensors.pop(name)


def put(name, value):
    return lambda tensors: tensors.update({name: value})


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lose(f"{LAYER}.lora_A.weight"), "layers.1.mlp.up_proj.lora_A.weight is missing$"),
        (lose(f"{LAYER}.lora_B.weight"), "layers.1.mlp.up_proj.lora_B.weight is missing$"),
        (put(f"{LAYER}.lora_A.weight", torch.zeros(4, 31)), r"shape \[64, 32\] has matrices of shape \[4, 31\] and "),
        (put(f"{LAYER}.lora_B.weight", torch.zeros(1, 4)), r"shape \[64, 32\] has matrices .* and \[1, 4\]$"),
        (
            put(f"{LAYER}.lora_A.weight", torch.zeros(4, 32).fill_diagonal_(torch.inf)),
            "lora_A.weight is not finite",
        ),
        (put("base_model.model.lm_head.lora_A.weight", torch.zeros(4, 32)), "lm_head.lora_A.weight belongs to no"),
        (put(HEAD, torch.zeros(1, 32)), "score.weight belongs to no linear layer"),
        (dict.clear, "layers.0.mlp.down_proj.lora_A.weight is missing|and 23 more"),
    ],
)
def test_an_adapter_of_another_form_is_told(left, edit, words):
    change(left, edit)
    with pytest.raises(StageError, match=words):
        merge(left)


def test_a_classifier_without_its_score_is_told(left):
    with pytest.raises(StageError, match=r"score.weight is missing"):
        write_merged_classifier(left / "output", left / "base", ADAPTER, left / "plain")
    assert not (left / "plain").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"r": 8}, "has r 8, not 4"),
        ({"lora_alpha": 16}, "has lora_alpha 16, not 12"),
        ({"peft_type": "IA3"}, "has peft_type 'IA3', not 'LORA'"),
        ({"use_dora": True}, "has use_dora True"),
        ({"use_rslora": True}, "has use_rslora True"),
        ({"bias": "all"}, "has bias 'all'"),
        ({"alpha_pattern": {"q_proj": 3}}, "has alpha_pattern {'q_proj': 3}"),
        ({"rank_pattern": {"q_proj": 3}}, "has rank_pattern {'q_proj': 3}"),
    ],
)
def test_an_adapter_of_other_settings_than_were_asked_for_is_told(left, changes, words):
    settings(left, **changes)
    with pytest.raises(StageError, match=words):
        merge(left)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("adapter_config.json", b"{", "adapter_config.json cannot be read"),
        ("adapter_config.json", b"[]", "adapter_config.json holds no settings"),
        ("adapter_model.safetensors", b"none", "adapter_model.safetensors cannot be read"),
    ],
)
def test_files_that_cannot_be_read_are_told(left, name, content, words):
    (left / "output" / name).write_bytes(content)
    with pytest.raises(StageError, match=words):
        merge(left)
    (left / "output" / name).unlink()
    with pytest.raises(StageError, match=f"{name} cannot be read"):
        merge(left)


def test_a_base_that_cannot_be_read_is_told(left):
    (left / "base" / "config.json").unlink()
    with pytest.raises(StageError, match=r"the model that the adapter belongs to cannot be read: .*no config.json"):
        merge(left)

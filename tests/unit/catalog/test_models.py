import json

import pytest

from charter.catalog import models
from charter.catalog.huggingface import architecture_from_config
from charter.errors import CatalogError, DataError, UsageError

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
}


def written(tmp_path, config):
    (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return tmp_path


@pytest.mark.parametrize(
    "written_name",
    ["meta-llama/Llama-3.1-8B", "Llama-3.1-8B", "llama-3.1-8b", "Llama 3.1 8B", "LLAMA3.1_8B", "Meta-Llama-3.1-8B"],
)
def test_names_people_write_find_the_model(written_name):
    assert models.get(written_name).name == "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    "printed",
    ["LLAMA2-70B", "Llama 2 7 B", "MPT-7B", "OPT-13B", "Qwen3_30B_a3B", "DeepSeekV3", "LLaMA-65B", "GPT3-175B"],
)
def test_names_as_published_tables_print_them_are_found(printed):
    assert models.get(printed).architecture.num_layers > 0


def test_unknown_models_get_a_suggestion():
    with pytest.raises(UsageError, match=r"did you mean .*Llama-3\.1-8B"):
        models.get("Llama-3.1-9B")


def test_names_are_unique():
    names = [model.name for model in models.catalog()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("key", ["source", "as_of", "confidence"])
def test_a_model_without_provenance_is_refused(key):
    keys = {"name": "a/b", "source": "paper", "as_of": "2026", "confidence": "seen"} | {key: ""}
    text = "[[model]]\n" + "\n".join(f'{k} = "{v}"' for k, v in keys.items())
    with pytest.raises(CatalogError, match=f"row 1, column {key}"):
        models.read_models(text + "\n[model.architecture]\nhidden_size = 8\n", "mine.toml")


def test_a_model_with_an_unknown_size_is_refused():
    text = '[[model]]\nname = "a"\nsource = "b"\nas_of = "c"\nconfidence = "d"\n[model.architecture]\nhidden = 8\n'
    with pytest.raises(CatalogError, match="architecture"):
        models.read_models(text, "mine.toml")


def test_a_config_is_read_from_its_file_or_directory(tmp_path):
    directory = written(tmp_path, LLAMA)
    from_directory = architecture_from_config(directory)
    assert from_directory == architecture_from_config(directory / "config.json")
    catalog = models.get("Llama-3.1-8B").architecture
    assert (from_directory.kv_heads, from_directory.rope_theta) == (catalog.kv_heads, catalog.rope_theta)
    assert models.resolve(str(directory)).architecture == from_directory


def test_rope_theta_is_found_where_transformers_5_writes_it(tmp_path):
    config = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    directory = written(tmp_path, config | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})
    assert architecture_from_config(directory).rope_theta == 5e5


def test_a_text_config_inside_a_multimodal_one_is_read(tmp_path):
    directory = written(tmp_path, {"model_type": "llava", "text_config": LLAMA})
    assert architecture_from_config(directory).num_layers == 32


def test_sliding_windows_count_their_layers(tmp_path):
    kinds = ["sliding_attention", "full_attention"] * 16
    qwen = LLAMA | {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "layer_types": kinds}
    assert architecture_from_config(written(tmp_path, qwen)).sliding_window_layers == 16
    off = architecture_from_config(written(tmp_path, qwen | {"use_sliding_window": False}))
    assert off.sliding_window is None
    mistral = LLAMA | {"model_type": "mistral", "sliding_window": 4096}
    assert architecture_from_config(written(tmp_path, mistral)).sliding_window_layers == 32


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{not json", "not valid JSON"),
        ("[1, 2]", "not a JSON object"),
        (LLAMA | {"model_type": "rwkv"}, "model_type 'rwkv' is not known"),
        ({key: value for key, value in LLAMA.items() if key != "hidden_size"}, "the key 'hidden_size' is missing"),
        (LLAMA | {"hidden_size": "wide"}, "hidden_size = 'wide'"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers = 0"),
    ],
)
def test_a_bad_config_is_one_clear_error(tmp_path, config, message):
    with pytest.raises(DataError, match=message):
        architecture_from_config(written(tmp_path, config))


def test_a_directory_without_config_is_one_clear_error(tmp_path):
    with pytest.raises(DataError, match=r"the directory has no config\.json"):
        architecture_from_config(tmp_path)
    with pytest.raises(DataError, match="there is no such file"):
        models.resolve(str(tmp_path / "config.json"))

"""Readers of `config.json`, family by family; counts against the real classes are an integration test."""

import json

import pytest

from charter.catalog import models
from charter.catalog.huggingface import architecture_from_config, architecture_from_mapping, reading_of_mapping
from charter.errors import DataError

SHAPE = {
    "hidden_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 704,
    "vocab_size": 512,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 64}
HYBRID = {"mamba_num_heads": 8, "mamba_head_dim": 64, "ssm_state_size": 64, "n_groups": 2, "conv_kernel": 4}


def read(kind, **more):
    return architecture_from_mapping({"model_type": kind, **SHAPE, **more})


def test_a_pattern_of_blocks_is_counted():
    shape = read("nemotron_h", **HYBRID, hybrid_override_pattern="M-M*-MM-")
    assert (shape.num_layers, shape.state_space_layers, shape.attention_layers, shape.mlp_layers) == (8, 4, 1, 3)
    assert not shape.gated_mlp


@pytest.mark.parametrize("words", [["mamba", "moe", "attention"], ["linear_attention", "moe", "full_attention"]])
def test_blocks_may_be_words_of_either_kind(words):
    more = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    shape = read("nemotron_h", **HYBRID, **more, layers_block_type=words)
    assert (shape.state_space_layers, shape.moe_layers, shape.attention_layers) == (1, 1, 1)


def test_a_pattern_with_an_unknown_block_is_refused():
    with pytest.raises(DataError, match="blocks of kind X are not modelled"):
        read("nemotron_h", **HYBRID, hybrid_override_pattern="MX")


def test_a_hybrid_without_a_pattern_is_refused():
    with pytest.raises(DataError, match="hybrid_override_pattern"):
        read("nemotron_h", **HYBRID)


def test_bamba_names_its_attention_layers():
    shape = read("bamba", **MAMBA, attn_layer_indices=[1, 5])
    assert (shape.attention_layers, shape.state_space_layers, shape.mlp_layers) == (2, 6, 8)


def test_granite_4_without_experts_is_dense():
    shape = read("granitemoehybrid", **MAMBA, num_local_experts=0, shared_intermediate_size=1024)
    assert shape.mixture is None
    assert shape.intermediate_size == 1024
    assert shape.attention_layers == 0


def test_jamba_has_attention_and_experts_by_period():
    shape = read("jamba")
    assert (shape.attention_layers, shape.state_space_layers, shape.moe_layers) == (1, 7, 4)
    assert shape.state_space.kind == "mamba1"


def test_maverick_interleaves_dense_layers():
    shape = read(
        "llama4_text",
        intermediate_size_mlp=1024,
        num_local_experts=4,
        num_experts_per_tok=1,
        interleave_moe_layer_step=2,
        attention_chunk_size=128,
    )
    assert (shape.moe_layers, shape.chunked_layers, shape.attention_chunk) == (4, 6, 128)
    assert shape.intermediate_size == 1024


def test_every_other_layer_of_gpt_oss_has_a_window():
    shape = read("gpt_oss", num_local_experts=4, num_experts_per_tok=2, sliding_window=128)
    assert (shape.sliding_window, shape.sliding_window_layers) == (128, 4)


@pytest.mark.parametrize(("new", "norms", "kv_heads"), [(False, 1, 1), (True, 2, 8)])
def test_falcon_has_one_key_head_or_groups(new, norms, kv_heads):
    shape = read("falcon", new_decoder_architecture=new)
    assert (shape.norms_per_layer, shape.kv_heads) == (norms, kv_heads)


def test_a_partial_decoder_takes_the_defaults_of_its_class():
    vision = {"model_type": "clip_vision_model", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    vision |= {"intermediate_size": 128, "image_size": 56, "patch_size": 14}
    config = {"model_type": "llava", "vision_config": vision, "text_config": {"model_type": "llama", "vocab_size": 9}}
    shape = architecture_from_mapping(config)
    assert (shape.hidden_size, shape.num_layers, shape.vocab_size) == (4096, 32, 9)
    assert (shape.encoder.tokens_per_sample, shape.encoder.output_tokens_per_sample) == (17, 16)


def test_flat_files_of_qwen2_vl_are_read():
    vision = {"depth": 2, "embed_dim": 64, "num_heads": 4, "patch_size": 14, "in_chans": 3}
    shape = read("qwen2_vl", vision_config=vision, tie_word_embeddings=True)
    assert shape.tied_embeddings
    assert shape.encoder.num_layers == 2
    assert (shape.attention_bias, shape.output_bias) == (True, False)


@pytest.mark.parametrize(
    ("kind", "why"),
    [("mllama", "cross-attention"), ("zamba2", "share weights"), ("deepseek_v4", "'deepseek_v4' .* compressed blocks")],
)
def test_what_cannot_be_modelled_says_why(kind, why):
    with pytest.raises(DataError, match=why):
        read(kind, text_config=SHAPE)


@pytest.mark.parametrize(
    ("kind", "more"),
    [("phi", {"qk_layernorm": True}), ("stablelm", {"qk_layernorm": True}), ("qwen3_next", {"mlp_only_layers": [0]})],
)
def test_variants_that_would_be_counted_wrong_are_refused(kind, more):
    with pytest.raises(DataError, match="not modelled"):
        read(kind, max_position_embeddings=64, **more)


def test_parts_of_a_catalog_block_with_a_wrong_key_are_refused():
    keys = {"name": "a/b", "source": "paper", "as_of": "2026", "confidence": "seen"}
    text = "[[model]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    text += "\n[model.architecture]\nhidden_size = 8\n[model.architecture.state_space]\nlayers = 2\n"
    with pytest.raises(Exception, match="layers"):
        models.read_models(text, "mine.toml")


def test_aliases_belong_to_one_model():
    seen = {}
    for model in models.catalog():
        for alias in model.aliases:
            assert seen.setdefault(alias.casefold(), model.name) == model.name, alias


LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512,
    "intermediate_size": 128,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_key_value_heads": 0}, "num_kv_heads"),
        ({"num_key_value_heads": 3}, "3 key/value heads do not divide the 4 query heads"),
        ({"num_key_value_heads": "2"}, "wrong type or size"),
        ({"head_dim": -1}, "head_dim"),
        ({"num_attention_heads": 7}, "7 heads do not divide hidden_size 64"),
    ],
)
def test_impossible_heads_are_refused(changes, told):
    assert architecture_from_mapping(LLAMA | {"num_key_value_heads": 2}).kv_heads == 2
    with pytest.raises(DataError, match=told):
        architecture_from_mapping(LLAMA | changes)


def test_config_nested_without_end_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("[" * 200_000)
    with pytest.raises(DataError, match="nested too deeply"):
        architecture_from_config(tmp_path)


def test_a_config_of_many_megabytes_is_not_parsed(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**24 + 1)
    with pytest.raises(DataError, match="larger than 16 MiB"):
        architecture_from_config(tmp_path)


UNKNOWN = SHAPE | {"model_type": "new_moe", "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
ROUTED = {"n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 64, "n_shared_experts": 1}


def test_an_unknown_type_of_the_llama_family_is_read():
    reading = reading_of_mapping(UNKNOWN | ROUTED | {"first_k_dense_replace": 1, "use_qk_norm": True})
    shape = reading.architecture
    assert (shape.model_type, shape.kv_heads, shape.qk_norm) == ("other", 2, True)
    assert (shape.moe_layers, shape.mixture.num_experts, shape.mixture.shared_width) == (7, 16, 64)
    assert "'new_moe' is not known: read as one of the Llama family" in reading.sentence
    assert "experts in 7 of 8 layers" in reading.sentence


@pytest.mark.parametrize(
    ("kind", "traits"),
    [
        ("olmo2", {"qk_norm": True, "qk_norm_across_heads": True}),
        ("glm4_moe", {"attention_bias": True, "output_bias": False}),
        ("exaone4", {"qk_norm": True, "qk_norm_across_heads": False}),
    ],
)
def test_what_no_key_of_a_type_says_is_known(kind, traits):
    reading = reading_of_mapping(UNKNOWN | {"model_type": kind, "attention_bias": True})
    assert reading.sentence == ""
    assert {name: getattr(reading.architecture, name) for name in traits} == traits


def test_a_known_type_with_a_key_of_another_family_is_refused():
    with pytest.raises(DataError, match="'olmo2' is not modelled with this key: kv_lora_rank = 512"):
        reading_of_mapping(UNKNOWN | {"model_type": "olmo2", "kv_lora_rank": 512})


def test_a_known_type_is_read_without_assumption():
    assert reading_of_mapping(UNKNOWN | {"model_type": "llama"}).sentence == ""


def test_a_training_run_never_counts_by_an_assumption():
    assert architecture_from_mapping(UNKNOWN) is None


def test_an_unknown_vision_part_is_told():
    text = UNKNOWN | {"model_type": "qwen3_vl_text"}
    reading = reading_of_mapping({"model_type": "qwen3_vl", "text_config": text, "vision_config": {"depth": 27}})
    assert reading.left_out == ("vision_config",)
    assert "vision_config is not, neither its parameters nor its tokens" in reading.sentence


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"mamba_d_state": 64}, "mamba_d_state = 64"),
        ({"kv_lora_rank": 512}, "kv_lora_rank = 512"),
        ({"linear_num_key_heads": 4}, "linear_num_key_heads"),
        ({"layer_types": ["full_attention", "linear_attention"] * 4}, "layer_types has linear_attention"),
        ({"hidden_act": "gelu"}, "does not tell whether the MLP has a gate"),
        ({"v_head_dim": 64}, "v_head_dim = 64"),
        ({"decoder_sparse_step": 2}, "a pattern that is not modelled"),
        ({"rms_norm_eps": None}, "the key 'rms_norm_eps' is missing"),
        ({"vocab_size": None}, "the key 'vocab_size' is missing"),
    ],
)
def test_an_unknown_type_of_another_family_is_refused(more, told):
    with pytest.raises(DataError, match=told):
        reading_of_mapping(UNKNOWN | more)


def test_experts_in_some_layers_are_counted():
    more = {"num_experts": 8, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 96}
    by_kind = reading_of_mapping(UNKNOWN | more | {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 5}).architecture
    by_list = reading_of_mapping(UNKNOWN | more | {"mlp_only_layers": [0, 1]}).architecture
    assert (by_kind.moe_layers, by_list.moe_layers, by_kind.mixture.shared_width) == (5, 6, 96)

"""Decoder types of transformers, small by rule: counts from `config.json` equal the class, or the type is refused."""

import pytest

torch = pytest.importorskip("torch")
t = pytest.importorskip("transformers")

from charter.catalog.huggingface import read_config
from charter.errors import DataError
from charter.physics.shapes import count_parameters

pytestmark = pytest.mark.torch

SMALL = {
    "vocab_size": 512,
    "hidden_size": 256,
    "n_embd": 256,
    "num_hidden_layers": 6,
    "n_layer": 6,
    "num_attention_heads": 8,
    "n_head": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 352,
    "moe_intermediate_size": 96,
    "n_routed_experts": 8,
    "num_experts": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 512,
    "n_positions": 512,
}
"""What replaces the default of a type, where it has one of that name."""
NARROW = {"head_dim": 32}
EXPERTS = {"n_shared_experts": 1, "n_routed_experts": 8, "moe_intermediate_size": 96, "num_experts_per_tok": 2}
NEEDED = {
    "dots1": EXPERTS,
    "deepseek_v2": EXPERTS,
    "helium": NARROW,
    "hunyuan_v1_dense": NARROW,
    "hunyuan_v1_moe": NARROW,
    "ministral": NARROW,
    "mpt": {"d_model": 256, "n_heads": 8, "n_layers": 4},
    "nemotron": {"num_key_value_heads": 2},
    "mamba2": {"num_heads": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 3},
    "glm4_moe": {"attention_bias": True, "use_qk_norm": True},
    "phimoe": {"attention_bias": True, "lm_head_bias": True},
}
"""What a type needs beyond that, or has in its published form and not by default."""

EXACT = """
afmoe arcee aria_text bamba bloom cohere cohere2 cwm deepseek_v2 deepseek_v3 deepseek_v32 dots1 ernie4_5 ernie4_5_moe
exaone4 exaone_moe falcon flex_olmo flint gemma gemma2 gemma3_text glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa gpt2
gpt_neox gpt_oss gptj granite granite_swa granitemoe granitemoe_swa granitemoehybrid granitemoeshared helium
hunyuan_v1_dense hy_v3 hyperclovax jamba kolibri1 llama llama4_text mellum minicpm3 minimax_m2 ministral ministral3
mistral mixtral mpt nemotron nemotron_h olmo olmo2 olmo3 olmoe opt phi phi3 phimoe qwen2 qwen2_moe qwen3
qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next seed_oss smollm3 solar_open stablelm starcoder2 youtu
"""
REFUSED = """
apertus beam bitnet codegen deepseek_v4 diffllama doge falcon_h1 falcon_mamba gemma4_text gpt_bigcode gpt_neo
hunyuan_v1_moe jetmoe kimi_linear lfm2 lfm2_moe longcat_flash mamba mamba2 mimo_v2_flash minimax nanochat olmo_hybrid
persimmon recurrent_gemma rwkv vaultgemma xglm
"""
SAMPLE = {
    "deepseek_v3",
    "deepseek_v32",
    "glm_moe_dsa",
    "ernie4_5_moe",
    "glm4_moe",
    "nemotron_h",
    "olmo2",
    "phimoe",
    "qwen3_5_text",
    "qwen3_moe",
}


def small(kind):
    """The configuration of a type, with its own defaults but small."""
    if kind not in t.CONFIG_MAPPING:
        pytest.skip(f"transformers {t.__version__} has no {kind}")
    config = t.AutoConfig.for_model(kind)
    numbers = {key for key, value in config.to_dict().items() if type(value) is int}
    changes = {key: value for key, value in SMALL.items() if key in numbers} | NEEDED.get(kind, {})
    return t.AutoConfig.for_model(kind, **changes, pad_token_id=0)


def in_sample(kinds, sample):
    """Cases of all types; those beyond the sample are thorough."""
    return [kind if kind in sample else pytest.param(kind, marks=pytest.mark.thorough) for kind in kinds]


@pytest.mark.parametrize("kind", in_sample(EXACT.split(), SAMPLE))
def test_a_type_has_the_parameters_of_its_class(kind, tmp_path):
    config = small(kind)
    with torch.device("meta"):
        model = t.AutoModelForCausalLM.from_config(config)
    config.save_pretrained(tmp_path)
    assert count_parameters(read_config(tmp_path).architecture).total == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("kind", in_sample(REFUSED.split(), {"deepseek_v4", "gemma4_text", "kimi_linear"}))
def test_a_type_that_is_not_modelled_is_refused_by_name(kind, tmp_path):
    small(kind).save_pretrained(tmp_path)
    with pytest.raises(DataError, match=f"'{kind}'|a {kind} configuration"):
        read_config(tmp_path)

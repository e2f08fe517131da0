"""Counts and readers of `config.json` against the classes of transformers, one small model of every family."""

import pytest

torch = pytest.importorskip("torch")
t = pytest.importorskip("transformers")

from charter.catalog.huggingface import architecture_from_config
from charter.physics.shapes import count_parameters

pytestmark = pytest.mark.torch

COMMON = {"hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 8, "vocab_size": 512}
GATED = COMMON | {"num_key_value_heads": 2, "intermediate_size": 704}
MAMBA = {"mamba_n_heads": 16, "mamba_n_groups": 2, "mamba_d_state": 32}
CLIP = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128, "patch_size": 14}
HYBRID = {"mamba_num_heads": 16, "mamba_head_dim": 32, "ssm_state_size": 32, "n_groups": 4, "head_dim": 32}
EXPERTS = {"n_routed_experts": 8, "moe_intermediate_size": 96, "moe_shared_expert_intermediate_size": 160}

DECODERS = {
    "falcon-7b-like": lambda: t.FalconConfig(**COMMON, multi_query=True),
    "falcon-40b-like": lambda: t.FalconConfig(**COMMON, new_decoder_architecture=True, num_kv_heads=2),
    "bloom": lambda: t.BloomConfig(hidden_size=256, n_layer=4, n_head=8, vocab_size=512),
    "gptj": lambda: t.GPTJConfig(n_embd=256, n_layer=4, n_head=8, vocab_size=512, rotary_dim=16),
    "opt-350m-like": lambda: t.OPTConfig(
        **COMMON, ffn_dim=1024, word_embed_proj_dim=128, do_layer_norm_before=False, max_position_embeddings=128
    ),
    "phi": lambda: t.PhiConfig(**COMMON, intermediate_size=1024),
    "phi3": lambda: t.Phi3Config(**GATED, pad_token_id=0),
    "gemma": lambda: t.GemmaConfig(**GATED, head_dim=64),
    "granite": lambda: t.GraniteConfig(**GATED, tie_word_embeddings=True),
    "nemotron": lambda: t.NemotronConfig(**GATED),
    "stablelm": lambda: t.StableLmConfig(**GATED, use_qkv_bias=True),
    "qwen2_moe": lambda: t.Qwen2MoeConfig(
        **GATED, num_experts=8, moe_intermediate_size=96, shared_expert_intermediate_size=160
    ),
    "deepseek_v2": lambda: t.DeepseekV2Config(
        **COMMON,
        intermediate_size=704,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=96,
        first_k_dense_replace=1,
        kv_lora_rank=64,
        q_lora_rank=None,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
    ),
    "gpt_oss": lambda: t.GptOssConfig(**GATED, num_local_experts=8, head_dim=32),
    "llama4_scout-like": lambda: t.Llama4TextConfig(**GATED, intermediate_size_mlp=1024, num_local_experts=4),
    "llama4_maverick-like": lambda: t.Llama4TextConfig(
        **GATED, intermediate_size_mlp=1024, num_local_experts=4, interleave_moe_layer_step=2, head_dim=64
    ),
    "dbrx": lambda: t.DbrxConfig(
        d_model=256,
        n_heads=8,
        n_layers=4,
        vocab_size=512,
        attn_config={"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 10_000.0},
        ffn_config={"hidden_size": 256, "ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
    ),
    "nemotron_h": lambda: t.NemotronHConfig(
        **GATED, **HYBRID, layers_block_type=["linear_attention", "mlp", "full_attention", "mlp"]
    ),
    "nemotron_h with experts": lambda: t.NemotronHConfig(
        **GATED, **HYBRID, **EXPERTS, layers_block_type=["linear_attention", "moe", "full_attention", "moe", "mlp"]
    ),
    "nemotron_h with latent experts": lambda: t.NemotronHConfig(
        **GATED, **HYBRID, **EXPERTS, moe_latent_size=64, layers_block_type=["linear_attention", "moe"] * 3
    ),
    "bamba": lambda: t.BambaConfig(**GATED, **MAMBA, attn_layer_indices=[1, 5]),
    "granite 4": lambda: t.GraniteMoeHybridConfig(
        **GATED,
        **MAMBA,
        num_local_experts=4,
        shared_intermediate_size=320,
        tie_word_embeddings=True,
        layer_types=["linear_attention"] * 7 + ["full_attention"],
    ),
    "jamba": lambda: t.JambaConfig(**GATED, num_experts=4, use_mamba_kernels=False),
    "qwen3_next": lambda: t.Qwen3NextConfig(
        **GATED,
        num_experts=8,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=96,
        head_dim=64,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
    ),
}
WITH_PICTURES = {
    "llava": lambda: t.LlavaConfig(
        vision_config=t.CLIPVisionConfig(**CLIP, image_size=56), text_config=t.LlamaConfig(**GATED)
    ),
    "gemma3": lambda: t.Gemma3Config(
        vision_config=t.SiglipVisionConfig(**CLIP, image_size=56, vision_use_head=False),
        text_config=t.Gemma3TextConfig(**GATED, head_dim=64),
        mm_tokens_per_image=4,
    ),
    "qwen2_vl": lambda: t.Qwen2VLConfig(
        vision_config={"depth": 3, "embed_dim": 64, "num_heads": 4, "hidden_size": 256},
        text_config=GATED,
    ),
    "qwen2_5_vl": lambda: t.Qwen2_5_VLConfig(
        vision_config={
            "depth": 8,
            "hidden_size": 64,
            "num_heads": 4,
            "intermediate_size": 96,
            "out_hidden_size": 256,
            "fullatt_block_indexes": [3, 7],
        },
        text_config=GATED,
    ),
}


ASSUMED = {
    "ernie4_5": lambda: t.Ernie4_5Config(**GATED),
    "seed_oss": lambda: t.SeedOssConfig(**GATED, head_dim=64),
}


def counted(config, auto_class, directory):
    """Parameters of the class (on the meta device), and ours from the configuration it saves."""
    with torch.device("meta"):
        model = auto_class.from_config(config)
    config.save_pretrained(directory)
    return sum(parameter.numel() for parameter in model.parameters()), architecture_from_config(directory)


@pytest.mark.parametrize("make", DECODERS.values(), ids=DECODERS.keys())
def test_decoders_have_the_parameters_of_their_class(make, tmp_path):
    real, ours = counted(make(), t.AutoModelForCausalLM, tmp_path)
    assert count_parameters(ours).total == real


@pytest.mark.parametrize("make", WITH_PICTURES.values(), ids=WITH_PICTURES.keys())
def test_models_with_an_encoder_have_the_parameters_of_their_class(make, tmp_path):
    real, ours = counted(make(), t.AutoModelForImageTextToText, tmp_path)
    assert count_parameters(ours).total == real
    assert ours.encoder is not None


@pytest.mark.parametrize("make", ASSUMED.values(), ids=ASSUMED.keys())
def test_unknown_types_of_the_llama_family_are_within_1_percent(make, tmp_path):
    real, ours = counted(make(), t.AutoModelForCausalLM, tmp_path)
    assert ours.model_type == "other"
    assert count_parameters(ours).total == pytest.approx(real, rel=0.01)

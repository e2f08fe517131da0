"""The planner's counts against the real classes of transformers, built on the meta device (no memory, no weights)."""

import json
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from charter.catalog import models
from charter.catalog.huggingface import architecture_from_config
from charter.physics.flops import forward_flops_per_token
from charter.physics.kept_activations import layer_activations
from charter.physics.shapes import count_parameters
from charter.spec.architecture import Architecture
from charter.spec.layout import Layout

pytestmark = pytest.mark.torch
SMALL = Architecture(hidden_size=256, num_layers=4, num_heads=8, intermediate_size=688, vocab_size=512)


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors: more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def llama_like(shape, **more):
    return {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "tie_word_embeddings": shape.tied_embeddings,
        "max_position_embeddings": shape.max_position_embeddings,
        **more,
    }


def config_of(shape):
    """The transformers configuration of a catalog architecture."""
    t = transformers
    match shape.model_type:
        case "llama":
            return t.LlamaConfig(**llama_like(shape))
        case "mistral":
            return t.MistralConfig(**llama_like(shape, sliding_window=shape.sliding_window))
        case "qwen2":
            without = llama_like(shape)
            without.pop("head_dim")
            return t.Qwen2Config(**without)
        case "qwen3":
            return t.Qwen3Config(**llama_like(shape))
        case "gemma2":
            return t.Gemma2Config(**llama_like(shape))
        case "gemma3_text":
            return t.Gemma3TextConfig(**llama_like(shape))
        case "gpt2":
            return t.GPT2Config(
                vocab_size=shape.vocab_size,
                n_positions=shape.learned_positions,
                n_embd=shape.hidden_size,
                n_layer=shape.num_layers,
                n_head=shape.num_heads,
            )
        case "opt":
            return t.OPTConfig(
                vocab_size=shape.vocab_size,
                hidden_size=shape.hidden_size,
                num_hidden_layers=shape.num_layers,
                ffn_dim=shape.intermediate_size,
                num_attention_heads=shape.num_heads,
                word_embed_proj_dim=shape.hidden_size,
                max_position_embeddings=shape.max_position_embeddings,
            )
        case "mpt":
            return t.MptConfig(
                d_model=shape.hidden_size,
                n_heads=shape.num_heads,
                n_layers=shape.num_layers,
                vocab_size=shape.vocab_size,
                max_seq_len=shape.max_position_embeddings,
            )
        case "gpt_neox":
            return t.GPTNeoXConfig(
                vocab_size=shape.vocab_size,
                hidden_size=shape.hidden_size,
                num_hidden_layers=shape.num_layers,
                num_attention_heads=shape.num_heads,
                intermediate_size=shape.intermediate_size,
                tie_word_embeddings=False,
            )
        case "mixtral":
            return t.MixtralConfig(
                **llama_like(
                    shape,
                    num_local_experts=shape.mixture.num_experts,
                    num_experts_per_tok=shape.mixture.experts_per_token,
                )
            )
        case "qwen3_moe":
            return t.Qwen3MoeConfig(
                **llama_like(
                    shape,
                    num_experts=shape.mixture.num_experts,
                    num_experts_per_tok=shape.mixture.experts_per_token,
                    moe_intermediate_size=shape.mixture.expert_intermediate_size,
                )
            )
        case "deepseek_v3":
            latent = shape.latent_attention
            without = llama_like(shape)
            without.pop("head_dim")
            return t.DeepseekV3Config(
                **without,
                n_routed_experts=shape.mixture.num_experts,
                num_experts_per_tok=shape.mixture.experts_per_token,
                moe_intermediate_size=shape.mixture.expert_intermediate_size,
                n_shared_experts=shape.mixture.num_shared_experts,
                first_k_dense_replace=shape.mixture.num_dense_layers,
                kv_lora_rank=latent.kv_lora_rank,
                q_lora_rank=latent.q_lora_rank,
                qk_nope_head_dim=latent.qk_nope_head_dim,
                qk_rope_head_dim=latent.qk_rope_head_dim,
                v_head_dim=latent.v_head_dim,
            )
    raise AssertionError(shape.model_type)


ONE_OF_EACH = (
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.2-1B",
    "mistralai/Mistral-7B-v0.1",
    "Qwen/Qwen2.5-1.5B",
    "Qwen/Qwen3-0.6B",
    "google/gemma-2-2b",
    "google/gemma-3-1b-pt",
    "openai-community/gpt2",
    "facebook/opt-125m",
    "facebook/opt-66b",
    "mosaicml/mpt-7b",
    "EleutherAI/gpt-neox-20b",
    "mistralai/Mixtral-8x7B-v0.1",
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V3",
)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_parameters_are_those_of_the_class_to_the_last_one(name, tmp_path):
    shape = models.get(name).architecture
    config = config_of(shape)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    real = sum(parameter.numel() for parameter in model.parameters())
    assert count_parameters(shape).total == real
    config.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == shape.model_type
    assert count_parameters(architecture_from_config(tmp_path)).total == real


def test_forward_flops_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    model = transformers.AutoModelForCausalLM.from_config(config_of(SMALL), attn_implementation="eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, 128, dtype=torch.long), use_cache=False)
    ours = forward_flops_per_token(SMALL, 2 * 128).total * 128  # eager attention computes what the mask hides too
    assert counter.get_total_flops() == pytest.approx(ours, rel=2e-3)


def kept_bytes_of_layers(shape, attention, dtype):
    """Bytes that autograd saves in the layers of a real model, each storage once, weights and final norm left out."""
    model = transformers.AutoModelForCausalLM.from_config(config_of(shape), attn_implementation=attention, dtype=dtype)
    model.train()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept, alive = {}, []

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
        assert decoder(torch.zeros(2, 128, dtype=torch.long), use_cache=False).last_hidden_state.requires_grad
    return sum(kept.values())


SMALL_GROUPED = replace(SMALL, num_kv_heads=2)
SMALL_QWEN3 = replace(SMALL_GROUPED, qk_norm=True, model_type="qwen3")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("shape", [SMALL, SMALL_GROUPED, SMALL_QWEN3], ids=["mha", "gqa", "qk-norm"])
def test_kept_activations_are_what_autograd_saves(shape, attention, dtype):
    """Per layer, as the difference of a 3-layer and a 1-layer model. Never below what is really kept by over 2 %."""
    deep, shallow = (kept_bytes_of_layers(replace(shape, num_layers=n), attention, dtype) for n in (3, 1))
    real = (deep - shallow) / 2
    value = 2 if dtype == torch.bfloat16 else 4
    layer = layer_activations(shape, seq_len=128, bytes_per_value=value, implementation="huggingface")
    ours = layer.bytes_per_token(Layout(), fused_attention=attention == "sdpa") * 2 * 128
    assert real / ours == pytest.approx(1, abs=0.02), f"{real / 256 / 256:.2f} h against {ours / 256 / 256:.2f} h"

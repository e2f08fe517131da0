"""Operations of a forward pass against the classes of transformers, as torch counts them on the meta device.

Eager attention computes the full square of scores, twice what the causal mask lets through; experts run as batched
products, which count the rows that are routed and no others. Torch counts matrix products and convolutions only.
"""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
t = pytest.importorskip("transformers")

from charter.catalog.huggingface import architecture_from_config
from charter.physics.flops import forward_flops_per_token, training_flops_per_token

pytestmark = pytest.mark.torch
SEQ = 512
COMMON = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 512}
GATED = COMMON | {"num_key_value_heads": 2, "intermediate_size": 704, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
MAMBA = {"mamba_n_heads": 16, "mamba_n_groups": 2, "mamba_d_state": 32}
HYBRID = {"mamba_num_heads": 16, "mamba_head_dim": 32, "ssm_state_size": 32, "n_groups": 4, "head_dim": 32}

FAMILIES = {
    "llama": lambda: t.LlamaConfig(**GATED),
    "gpt2": lambda: t.GPT2Config(
        n_embd=256, n_layer=4, n_head=8, vocab_size=512, n_positions=SEQ, bos_token_id=1, eos_token_id=2
    ),
    "qwen3": lambda: t.Qwen3Config(**GATED, head_dim=64, tie_word_embeddings=True),
    "gemma2": lambda: t.Gemma2Config(**GATED, head_dim=64),
    "mixtral": lambda: t.MixtralConfig(**GATED, num_local_experts=4, num_experts_per_tok=2),
    "qwen2_moe": lambda: t.Qwen2MoeConfig(**GATED, **EXPERTS, shared_expert_intermediate_size=160),
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
    "deepseek_v32": lambda: t.DeepseekV32Config(
        **COMMON,
        num_key_value_heads=8,
        n_group=1,
        topk_group=1,
        intermediate_size=704,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=96,
        first_k_dense_replace=1,
        kv_lora_rank=64,
        q_lora_rank=48,
        qk_nope_head_dim=32,
        qk_rope_head_dim=16,
        v_head_dim=32,
        index_n_heads=4,
        index_head_dim=32,
        index_topk=SEQ,
    ),
}
HYBRIDS = {
    "bamba": (lambda: t.BambaConfig(**GATED, **MAMBA, attn_layer_indices=[1, 3]), 0.06),
    "nemotron_h": (
        lambda: t.NemotronHConfig(
            **GATED, **HYBRID, layers_block_type=["linear_attention", "mlp", "full_attention", "mlp"]
        ),
        0.04,
    ),
    "qwen3_next": (
        lambda: t.Qwen3NextConfig(
            **GATED,
            **EXPERTS,
            shared_expert_intermediate_size=96,
            head_dim=64,
            linear_key_head_dim=32,
            linear_value_head_dim=32,
            linear_num_key_heads=4,
            linear_num_value_heads=8,
        ),
        0.05,
    ),
}


def counted(config, directory, *, backward=False):
    """Operations per token by kind, as torch counts them, and the architecture that the configuration describes."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = t.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", experts_implementation="batched_mm"
        )
    ids = torch.zeros((1, SEQ), dtype=torch.long, device="meta")
    mask = torch.zeros((1, 1, SEQ, SEQ), device="meta")  # given whole: making one would read values
    with FlopCounterMode(display=False) as counter:
        logits = model.train(backward)(ids, attention_mask=mask, use_cache=False).logits
        if backward:
            logits.sum().backward()
    config.save_pretrained(directory)
    kinds = {str(kind).rsplit(".", 1)[-1]: count / SEQ for kind, count in counter.get_flop_counts()["Global"].items()}
    return kinds, architecture_from_config(directory)


def over_the_full_square(architecture):
    """Operations of a forward pass per token; none of these has a window or a choice shorter than the sequence."""
    flops, index = forward_flops_per_token(architecture, SEQ), forward_flops_per_token(architecture, 2 * SEQ).indexing
    return replace(flops, scores=2 * flops.scores, indexing=index)


@pytest.mark.parametrize("make", FAMILIES.values(), ids=FAMILIES.keys())
def test_decoders_do_the_operations_of_their_class(make, tmp_path):
    """Exact but for biases: ours takes two operations per parameter of a layer's matrices, biases included."""
    kinds, ours = counted(make(), tmp_path)
    assert over_the_full_square(ours).total == pytest.approx(sum(kinds.values()), rel=3e-3)


@pytest.mark.parametrize(("make", "tolerance"), HYBRIDS.values(), ids=HYBRIDS.keys())
def test_hybrids_do_the_operations_of_their_class(make, tolerance, tmp_path):
    """The reference scans of transformers are not those of the kernels that are counted.

    They work on whole squares of a chunk, pad the sequence to chunks of their own, and multiply some operands element
    by element, which torch does not count; so only the order of the recurrence can be checked.
    """
    kinds, ours = counted(make(), tmp_path)
    assert over_the_full_square(ours).total == pytest.approx(sum(kinds.values()), rel=tolerance)


def test_the_matrices_of_a_hybrid_are_exact(tmp_path):
    """Everything but attention scores and scans is a plain product."""
    kinds, ours = counted(HYBRIDS["nemotron_h"][0](), tmp_path)
    forward = over_the_full_square(ours)
    assert forward.total - forward.mixing == pytest.approx(kinds["mm"], rel=3e-3)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
def test_a_training_step_is_three_forward_passes(name, tmp_path):
    kinds, ours = counted(FAMILIES[name](), tmp_path, backward=True)
    assert training_flops_per_token(ours, 2 * SEQ) == pytest.approx(sum(kinds.values()), rel=3e-3)

"""FLOP counts that published throughput tables imply, by the convention each uses.

Seen failing under mutations of production lines (tests that fail):
- train/meter.py, `Recompute.SELECTIVE: scores` -> `2 * scores`: 1 of 8;
- physics/flops.py, `full = seq_len / 2` -> the full square: 6; `3 * forward.total` -> 3.05: 5.
"""

import pytest

from charter.catalog import models
from charter.physics.flops import forward_flops_per_token, training_flops_per_token
from charter.spec.architecture import Architecture
from charter.spec.layout import Recompute
from charter.train.meter import Reader

LLAMA3_70B = models.get("Llama-3-70B").architecture
GPT_175B = Architecture(
    hidden_size=12288,
    num_layers=96,
    num_heads=96,
    intermediate_size=49152,
    vocab_size=51200,
    gated_mlp=False,
    tied_embeddings=True,
)
S, L, H, V = 2048, 96, 12288, 51200
"""Length, layers, hidden size and vocabulary of GPT_175B in the letters of the papers."""


def test_llama3_70b_without_causal_saving():
    """NeMo 24.07 implies 481.6 GFLOP per token at 8k: attention over the full square, the causal half of 16k."""
    found = training_flops_per_token(LLAMA3_70B, 2 * 8192)
    assert found / 1e9 == pytest.approx(481.6, rel=1e-3)


def test_llama3_70b_with_causal_saving():
    """Megatron-Bridge implies 449.2 GFLOP per token at 8k: half the square."""
    assert training_flops_per_token(LLAMA3_70B, 8192) / 1e9 == pytest.approx(449.2, rel=1e-3)


def test_lora_counts_about_four_per_parameter():
    """Megatron-Bridge implies 275.5-278.8 GFLOP per token for LoRA on 70B (attention at short packed lengths)."""
    found = training_flops_per_token(LLAMA3_70B, 0, frozen_base=True)
    assert found / 1e9 == pytest.approx(277, rel=0.01)


def test_agrees_with_korthikanti_equation_7():
    """72 B s L h^2 (1 + s/(6h) + V/(12 L h)): attention over the full square."""
    printed = 72 * S * L * H**2 * (1 + S / (6 * H) + V / (12 * L * H))
    assert training_flops_per_token(GPT_175B, 2 * S) * S == pytest.approx(printed, rel=1e-4)


def over_the_full_square(recompute):
    """Operations of S tokens as a stage counts them; at twice the length a causal half is the full square."""
    done = Reader(architecture=GPT_175B, recompute=recompute).training(tokens=2 * S, sequences=1)
    return (done.model + done.repeated) / 2


def test_agrees_with_korthikanti_equation_8_for_selective_recomputation():
    """Equation 8 as printed (s/3h) counts a second score pass of the whole step; one recomputation adds a third."""
    ours, base = over_the_full_square(Recompute.SELECTIVE), 72 * S * L * H**2
    printed = base * (1 + S / (3 * H) + V / (12 * L * H))
    assert ours == pytest.approx(base * (1 + S / (6 * H) * 4 / 3 + V / (12 * L * H)), rel=1e-4)
    assert ours < printed < ours * 1.02


def test_agrees_with_narayanan_equation_3_for_full_recomputation():
    """96 B s l h^2 (1 + s/(6h) + V/(16 l h)): the layers are done again, the logits are not."""
    printed = 96 * S * L * H**2 * (1 + S / (6 * H) + V / (16 * L * H))
    assert over_the_full_square(Recompute.FULL) == pytest.approx(printed, rel=1e-4)


def test_llm_foundry_convention():
    """MosaicML prints 6 N + 12 L d s with all embeddings in N; for MPT-7B the difference is the position-free table."""
    mpt = models.get("mosaicml/mpt-7b").architecture
    printed = 6 * 6_649_286_656 + 12 * 32 * 4096 * 2048
    assert training_flops_per_token(mpt, 2 * 2048) == pytest.approx(printed, rel=1e-3)


def test_forward_is_a_third_of_training():
    assert 3 * forward_flops_per_token(LLAMA3_70B, 4096).total == training_flops_per_token(LLAMA3_70B, 4096)

"""Hybrids, encoders, chunks and the rest of what an architecture may have, in counts, operations and caches."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.catalog import models
from charter.physics.flops import (
    attended_positions,
    forward_flops_per_token,
    kv_cache_bytes,
    kv_cache_bytes_per_token,
    training_flops_per_token,
)
from charter.physics.shapes import (
    adapter_parameters,
    count_parameters,
    encoder_flops_per_sample,
    encoder_parameters,
    recurrent_state_bytes,
    scan_flops_per_token,
    state_space_parameters,
)
from charter.spec.architecture import Architecture, StateSpace
from charter.spec.layout import Adapter

NEMOTRON = models.get("Nemotron-H-8B").architecture
SCOUT = models.get("Llama-4-Scout").architecture
DEEPSEEK = models.get("DeepSeek-V3").architecture
SPARSE = models.get("DeepSeek-V3.2").architecture
LLAVA = models.get("llava-hf/llava-1.5-7b-hf").architecture
GEMMA = models.get("google/gemma-3-27b-pt").architecture


def test_a_hybrid_counts_every_block_once():
    assert (NEMOTRON.num_layers, NEMOTRON.attention_layers, NEMOTRON.state_space_layers, NEMOTRON.mlp_layers) == (
        52,
        4,
        24,
        24,
    )
    assert NEMOTRON.moe_layers == 0


def test_a_mixer_of_mamba_2_by_hand():
    """Input 4096 x (2 * 8192 + 2 * 8 * 128 + 128), convolution 10240 x 4 + 10240, 3 x 128, norm 8192, output."""
    by_hand = 4096 * (16384 + 2048 + 128) + 5 * 10240 + 3 * 128 + 8192 + 8192 * 4096
    assert NEMOTRON.state_space is not None
    assert state_space_parameters(NEMOTRON, NEMOTRON.state_space) == by_hand


def test_forward_operations_of_a_hybrid_are_two_per_matrix_parameter_and_the_scan():
    count = count_parameters(NEMOTRON)
    flops = forward_flops_per_token(NEMOTRON, 8192)
    dense = 2 * (count.total - count.embedding)
    assert flops.total - flops.mixing == pytest.approx(dense, rel=2e-3)
    assert flops.recurrence == 24 * scan_flops_per_token(NEMOTRON.state_space, 8192)
    assert 0.01 < flops.recurrence / flops.total < 0.05


def test_a_frozen_base_keeps_the_backward_of_what_has_no_weights():
    flops = forward_flops_per_token(NEMOTRON, 8192)
    frozen = training_flops_per_token(NEMOTRON, 8192, frozen_base=True)
    assert frozen == pytest.approx(2 * flops.total + flops.scores + flops.recurrence)


def test_the_state_does_not_grow_with_the_sequence_and_is_split_over_ranks():
    state = recurrent_state_bytes(NEMOTRON)
    assert state == 24 * (8192 * 128 * 4 + 10240 * 3 * 2)
    per_token = kv_cache_bytes_per_token(NEMOTRON)
    assert per_token == 2 * 4 * 8 * 128 * 2
    assert kv_cache_bytes(NEMOTRON, 1000) == state + 1000 * per_token
    assert recurrent_state_bytes(NEMOTRON, tensor=8) == state / 8
    assert recurrent_state_bytes(DEEPSEEK) == 0


def test_a_model_without_attention_keeps_its_state_alone():
    space = StateSpace(num_layers=4, inner_size=512, state_size=64, num_heads=8)
    shape = Architecture(
        hidden_size=256, num_layers=4, num_heads=8, intermediate_size=1, vocab_size=512, state_space=space
    )
    assert shape.attention_layers == 0
    assert kv_cache_bytes(shape, 10_000) == recurrent_state_bytes(shape)


def test_chunks_cap_what_a_position_sees():
    """36 of 48 layers see chunks of 8,192: half a chunk on average, whole chunks counted."""
    assert attended_positions(SCOUT, 8192) == 48 * 4096
    assert attended_positions(SCOUT, 32768) == 12 * 16384 + 36 * 4096
    assert attended_positions(SCOUT, 12288) == 12 * 6144 + 36 * (8192**2 + 4096**2) / (2 * 12288)
    assert kv_cache_bytes(SCOUT, 100_000) == 2 * 8 * 128 * 2 * (12 * 100_000 + 36 * 8192)


@given(length=st.integers(1, 100_000), cap=st.integers(1, 100_000))
def test_a_chunk_never_sees_more_than_a_window_and_a_window_never_more_than_all(length, cap):
    plain = Architecture(hidden_size=64, num_layers=2, num_heads=2, intermediate_size=64, vocab_size=8)
    window = replace(plain, sliding_window=cap, sliding_window_layers=2)
    chunk = replace(plain, attention_chunk=cap, chunked_layers=2)
    seen = [attended_positions(shape, length) for shape in (chunk, window, plain)]
    assert seen == sorted(seen) or seen == pytest.approx(sorted(seen), rel=1e-12)
    assert kv_cache_bytes(chunk, length) == kv_cache_bytes(window, length) <= kv_cache_bytes(plain, length)


def test_an_indexer_scores_all_and_attention_meets_the_best():
    assert attended_positions(SPARSE, 2048) == attended_positions(DEEPSEEK, 2048) == 61 * 1024
    assert attended_positions(SPARSE, 8192) == 61 * (2048 - 2048**2 / (2 * 8192))
    matrices = 1536 * 64 * 128 + 7168 * (128 + 64)
    for length in (1024, 65_536):
        assert forward_flops_per_token(SPARSE, length).indexing == 2 * 61 * (matrices + 64 * 129 * length / 2)
    assert count_parameters(SPARSE).total - count_parameters(DEEPSEEK).total == 61 * (matrices + 2 * 128)


def test_no_gradient_passes_through_an_indexer():
    flops = forward_flops_per_token(SPARSE, 65_536)
    trained = flops.total - flops.indexing
    assert training_flops_per_token(SPARSE, 65_536) == pytest.approx(3 * trained + flops.indexing)
    frozen = training_flops_per_token(SPARSE, 65_536, frozen_base=True)
    assert frozen == pytest.approx(2 * trained + flops.scores + flops.indexing)


def test_the_cache_keeps_the_indexers_keys_of_all_positions():
    assert kv_cache_bytes_per_token(SPARSE) == 61 * (512 + 64 + 128) * 2
    assert kv_cache_bytes(SPARSE, 100_000) == 100_000 * kv_cache_bytes_per_token(SPARSE)


def test_layers_that_share_a_choice_have_no_indexer():
    half = replace(SPARSE, sparse_indexer=replace(SPARSE.sparse_indexer, num_layers=30))
    assert count_parameters(half).attention < count_parameters(SPARSE).attention
    assert attended_positions(half, 8192) == attended_positions(SPARSE, 8192)
    whole, part = (forward_flops_per_token(shape, 8192).indexing for shape in (SPARSE, half))
    assert part == pytest.approx(whole * 30 / 61)


def test_gemma_3_windows_five_of_six_layers():
    assert (GEMMA.sliding_window, GEMMA.sliding_window_layers, GEMMA.num_layers) == (1024, 52, 62)


def test_the_encoder_of_llava_is_clip_with_its_projector():
    """CLIP ViT-L/14-336 has 303.5 M parameters (model card), the projector 4096 x (1024 + 4096) and two biases."""
    encoder = LLAVA.encoder
    assert encoder is not None
    tower = encoder_parameters(encoder) - encoder.projector_parameters
    assert tower / 1e6 == pytest.approx(303.5, abs=0.1)
    assert encoder.projector_parameters == 4096 * 5120 + 2 * 4096
    assert count_parameters(LLAVA).layers == count_parameters(replace(LLAVA, encoder=None)).layers


def test_encoder_operations_are_about_two_per_parameter_and_token():
    encoder = LLAVA.encoder
    per_token = encoder_flops_per_sample(encoder) / encoder.tokens_per_sample
    assert per_token == pytest.approx(2 * encoder_parameters(encoder), rel=0.12)


def test_windows_of_an_encoder_save_scores():
    encoder = models.get("Qwen/Qwen2.5-VL-7B-Instruct").architecture.encoder
    assert (encoder.window_tokens, encoder.windowed_layers, encoder.output_tokens_per_sample) == (64, 28, 256)
    assert encoder_flops_per_sample(encoder) < encoder_flops_per_sample(replace(encoder, windowed_layers=0))


def test_adapters_reach_the_projections_of_mixers():
    """Rank times inputs plus outputs: attention, MLPs, and in and out of every mixer."""
    attention = 2 * (4096 + 4096) + 2 * (4096 + 1024)
    mixer = (4096 + 18560) + (8192 + 4096)
    expected = 16 * (4 * attention + 24 * 2 * (4096 + 21504) + 24 * mixer)
    assert adapter_parameters(NEMOTRON, Adapter(rank=16)) == expected


@pytest.mark.parametrize("name", ["Qwen3-Next-80B-A3B", "Jamba-v0.1", "granite-4.0-h-small", "Bamba-9B"])
def test_other_hybrids_have_operations_near_two_per_active_parameter(name):
    shape = models.get(name).architecture
    count = count_parameters(shape)
    flops = forward_flops_per_token(shape, 4096)
    matrices = count.active - (0 if shape.tied_embeddings else count.embedding)
    assert flops.total - flops.mixing == pytest.approx(2 * matrices, rel=0.01)


def test_what_gpt_oss_adds_to_attention():
    shape = models.get("gpt-oss-20b").architecture
    bare = replace(shape, attention_sinks=False)
    assert count_parameters(shape).attention - count_parameters(bare).attention == 24 * 64

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.catalog import accelerators, models
from charter.estimate.collectives import (
    Link,
    all_gather_seconds,
    all_reduce_seconds,
    link_between,
    reduce_scatter_seconds,
)
from charter.estimate.kernels import experts_used, matmul_flops_per_second
from charter.estimate.rollout import NATIVE, SERVER, decode_step, forward_pass_seconds, generation, weights_read
from charter.estimate.source_formulas import pipeline_bubble_fraction
from charter.estimate.step_time import training_step
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage

LLAMA = models.get("Llama-3.1-8B").architecture
LLAMA70 = models.get("Llama-3.1-70B").architecture
MIXTRAL = models.get("Mixtral-8x7B-v0.1").architecture
A100, H100 = accelerators.get("A100-80GB"), accelerators.get("H100")
CPU = accelerators.processor(flops_per_second=1e11, memory_bytes_per_second=2e10, memory_bytes=8e9, cores=2)
SMALL = Architecture(hidden_size=256, num_layers=4, num_heads=4, intermediate_size=688, vocab_size=2048)
FSDP8 = Layout(data=8, zero=ZeroStage.PARAMETERS, recompute=Recompute.FULL)


def test_parts_add_up_and_each_has_a_source():
    step = training_step(LLAMA, FSDP8, H100, seq_len=4096)
    assert sum(step.by_part().values()) == pytest.approx(step.total)
    assert step.seconds.p50 == step.total
    assert step.seconds.p10 < step.seconds.p50 < step.seconds.p90
    assert all(term.source and term.formula and term.unit == "seconds" for term in step.terms)


@pytest.mark.parametrize(("device", "low", "high"), [(A100, 0.38, 0.55), (H100, 0.33, 0.50)], ids=["A100", "H100"])
def test_large_dense_runs_land_near_the_usual_utilisation(device, low, high):
    """Constants of published large runs (causal operations): A100 bf16 0.449, H100 bf16 0.379."""
    layout = replace(FSDP8, data=64, recompute=Recompute.NONE, micro_batch=1)
    assert low < training_step(LLAMA, layout, device, seq_len=4096).model_flops_utilisation < high


@given(st.integers(1, 8), st.integers(1, 8))
def test_time_grows_with_micro_batch_and_accumulation(micro_batch, accumulation):
    base = training_step(SMALL, Layout(micro_batch=micro_batch, accumulation=accumulation), A100, seq_len=512).total
    more = training_step(SMALL, Layout(micro_batch=micro_batch + 1, accumulation=accumulation), A100, seq_len=512)
    again = training_step(SMALL, Layout(micro_batch=micro_batch, accumulation=accumulation + 1), A100, seq_len=512)
    assert more.total >= base * (1 - 1e-9)  # equal while launching bounds it
    assert again.total > base


def test_full_recomputation_costs_about_a_third():
    none = training_step(LLAMA, replace(FSDP8, recompute=Recompute.NONE), H100, seq_len=4096).total
    full = training_step(LLAMA, FSDP8, H100, seq_len=4096).total
    assert 1.2 < full / none < 1.4


def test_the_bubble_is_the_published_share():
    layout = Layout(pipeline=8, accumulation=64)
    step = training_step(LLAMA70, layout, A100, seq_len=2048)
    work = step.part("compute", "communication", "recompute", "launch")
    assert step.part("bubble") / work == pytest.approx(pipeline_bubble_fraction(pipeline=8, micro_batches=64), rel=0.01)
    interleaved = training_step(LLAMA70, replace(layout, interleave=2), A100, seq_len=2048)
    assert interleaved.part("bubble") == pytest.approx(step.part("bubble") / 2, rel=0.02)


def test_a_frozen_base_saves_a_third_of_the_matrix_work():
    full = training_step(LLAMA, Layout(), H100, seq_len=2048)
    lora = training_step(LLAMA, Layout(), H100, seq_len=2048, adapter=Adapter(rank=16))

    def matrix(step):
        return next(term.value for term in step.terms if term.name == "matrix products")

    assert matrix(lora) / matrix(full) == pytest.approx(2 / 3)
    assert lora.part("update") < 0.02 * full.part("update")


def test_tiny_models_are_bound_by_launching():
    step = training_step(SMALL, Layout(), H100, seq_len=128)
    assert step.part("launch") > step.part("compute")
    assert step.sigma > training_step(LLAMA, FSDP8, H100, seq_len=4096).sigma


def test_a_processor_is_planned_from_its_measured_rate():
    step = training_step(SMALL, Layout(micro_batch=8), CPU, seq_len=256)
    assert step.model_flops / step.total < CPU.peak_flops_per_second("fp32")
    assert matmul_flops_per_second(CPU, "bf16") == 1e11


def test_all_reduce_is_a_reduce_scatter_and_a_gather():
    link = Link(name="x", latency_seconds=1e-6, bytes_per_second=1e9)
    both = reduce_scatter_seconds(1e9, 8, link) + all_gather_seconds(1e9, 8, link)
    assert all_reduce_seconds(1e9, 8, link) == both
    assert all_reduce_seconds(1e9, 8, link) == pytest.approx(14e-6 + 2 * 7 / 8)
    assert all_reduce_seconds(1e9, 1, link) == 0


def test_a_group_with_one_rank_per_node_has_only_its_share_of_the_network():
    whole, share = (link_between(H100, span=64, stride=stride).bytes_per_second for stride in (1, 8))
    assert whole == 8 * share
    assert link_between(H100, span=64, stride=16).bytes_per_second == share


def test_groups_cross_the_slowest_link_they_span():
    assert link_between(H100, span=8).name == "NVLink4"
    assert link_between(H100, span=9).name == "network"
    assert link_between(accelerators.get("GB200"), span=72).name == "NVLink5"
    assert link_between(accelerators.get("A100-PCIe-80GB"), span=8).name == "host bridge"


def test_one_sequence_decodes_no_faster_than_its_weights_can_be_read():
    one = generation(LLAMA, A100, sequences=1, prompt_tokens=16, new_tokens=128, concurrency=1)
    bound = A100.memory_bytes_per_second / (2 * weights_read(LLAMA, 1))
    assert 0.6 * bound < one.generated_tokens_per_second < bound


def test_batching_raises_the_rate_until_the_cache_counts():
    rates = [
        generation(
            LLAMA, H100, sequences=256, prompt_tokens=256, new_tokens=256, concurrency=n
        ).generated_tokens_per_second
        for n in (1, 4, 16, 64)
    ]
    assert rates == sorted(rates)
    assert rates[1] > 3 * rates[0]
    assert rates[3] < 64 * rates[0]


def test_a_fixed_batch_waits_for_its_longest_answer():
    args = {"sequences": 64, "prompt_tokens": 64, "new_tokens": 100, "longest_new_tokens": 300, "concurrency": 64}
    held = generation(LLAMA, H100, engine=NATIVE, **args)
    free = generation(LLAMA, H100, engine=SERVER, **args)
    assert held.part("decode") == pytest.approx(3 * free.part("decode"), rel=0.15)
    assert held.generated_tokens == free.generated_tokens == 6400


def test_generation_splits_over_replicas():
    args = {"prompt_tokens": 64, "new_tokens": 100, "concurrency": 32}
    one = generation(LLAMA, H100, sequences=128, **args).total
    four = generation(LLAMA, H100, sequences=512, replicas=4, **args).total
    assert four == pytest.approx(one)


def test_tensor_parallel_decoding_pays_two_reductions_per_layer():
    step = decode_step(LLAMA70, H100, batch=1, context=512, tensor=4)
    alone = all_reduce_seconds(2.0 * LLAMA70.hidden_size, 4, link_between(H100, span=4))
    assert step.part("communication") == pytest.approx(2 * 80 * alone)


def test_experts_are_read_only_when_reached():
    assert experts_used(MIXTRAL, 1) == 2
    assert weights_read(MIXTRAL, 1) < 0.3 * weights_read(MIXTRAL, 1000)
    assert experts_used(LLAMA, 10) == 0


def test_scoring_costs_a_third_of_training():
    score = forward_pass_seconds(LLAMA, H100, tokens=8192, seq_len=4096, head_positions=8192)
    train = training_step(LLAMA, Layout(micro_batch=2), H100, seq_len=4096).part("compute")
    assert 0.28 < score / train < 0.36


def test_context_parallelism_halves_the_work_and_passes_keys_round():
    long = 131_072
    one = training_step(LLAMA, Layout(recompute=Recompute.FULL), H100, seq_len=long)
    two = training_step(LLAMA, Layout(context=2, recompute=Recompute.FULL), H100, seq_len=long)
    assert two.part("compute") == pytest.approx(one.part("compute") / 2, rel=0.01)
    short = training_step(LLAMA, Layout(context=2), accelerators.get("L4"), seq_len=64)
    assert any(term.name == "context parallel" for term in short.terms)


def test_latent_attention_counts_its_own_head_widths():
    deepseek = models.get("DeepSeek-V3").architecture
    from charter.estimate.flops import score_width

    assert score_width(deepseek) == 128 * (128 + 64 + 128)
    assert score_width(LLAMA) == 2 * 4096


def test_attention_backward_costs_two_and_a_half_forwards():
    """Five matrix products against two (FlashAttention-2): 3.5 forwards in all."""
    from charter.estimate.kernels import forward_seconds

    step = training_step(LLAMA, Layout(), H100, seq_len=4096)
    forward = forward_seconds(LLAMA, H100, tokens=4096, seq_len=4096, layers=32, head_positions=4096)
    attention = next(term.value for term in step.terms if term.name == "attention")
    assert attention == pytest.approx(3.5 * forward.attention)

"""Prefill, decode and rollouts: bounds, limiting cases and properties."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.catalog import accelerators, models
from charter.physics.columns import array, stacked
from charter.physics.constants import ServingConstants, describe, moved
from charter.physics.devices import DeviceColumns
from charter.physics.generation import (
    Drain,
    ResponseLengths,
    decode_step,
    decode_terms,
    forward_pass_seconds,
    generation,
    issue_of,
    rollout_terms,
    served_terms,
)
from charter.physics.serving_devices import (
    LITGPT,
    NATIVE,
    SERVER,
    SGLANG,
    TENSORRT,
    TRANSFORMERS,
    ServingDevice,
    engine_named,
    weight_format,
)
from charter.physics.serving_passes import ServingModel
from charter.physics.shapes import count_parameters

LLAMA = models.get("Llama-3.1-8B").architecture
LLAMA70 = models.get("Llama-3.1-70B").architecture
MIXTRAL = models.get("Mixtral-8x7B-v0.1").architecture
DEEPSEEK = models.get("DeepSeek-V3").architecture
A100, H100, H200 = (accelerators.get(name) for name in ("A100-80GB", "H100", "H200"))
tokens = st.floats(1, 4000)


def weights_read(architecture, batch):
    """Parameters that one decode step reads: all but the embedding table and the experts that no token reaches."""
    model = ServingModel.of(architecture)
    return float(model.passed_weights + model.head_weights + model.one_expert * model.experts_reached(array(batch)))


def test_one_sequence_decodes_no_faster_than_its_weights_can_be_read():
    one = generation(LLAMA, A100, sequences=1, prompt_tokens=16, new_tokens=128, concurrency=1)
    bound = A100.memory_bytes_per_second / (2 * weights_read(LLAMA, 1))
    assert 0.6 * bound < one.generated_tokens / one.total < bound


def test_parts_add_up_and_each_has_a_source():
    found = generation(LLAMA, H100, sequences=64, prompt_tokens=64, new_tokens=100, tensor=2)
    assert sum(found.by_part().values()) == pytest.approx(found.total)
    assert all(term.source and term.formula and term.unit == "seconds" for term in found.terms)
    assert found.seconds.p10 < found.total < found.seconds.p90


def test_batching_raises_the_rate_until_the_cache_counts():
    runs = [
        generation(LLAMA, H100, sequences=256, prompt_tokens=256, new_tokens=256, concurrency=n) for n in (1, 4, 16, 64)
    ]
    rates = [run.generated_tokens / run.total for run in runs]
    assert rates == sorted(rates)
    assert rates[1] > 3 * rates[0]
    assert rates[3] < 64 * rates[0]


def test_a_fixed_batch_waits_for_its_longest_answer():
    args = {"sequences": 64, "prompt_tokens": 64, "new_tokens": 100, "concurrency": 64}
    held = generation(LLAMA, H100, engine=NATIVE, longest_new_tokens=300, **args)
    even = generation(LLAMA, H100, engine=NATIVE, **args)
    free = generation(LLAMA, H100, engine=SERVER, longest_new_tokens=300, **args)
    assert held.part("decode", "launch") == pytest.approx(3 * even.part("decode", "launch"), rel=0.1)
    assert free.total == generation(LLAMA, H100, engine=SERVER, **args).total
    assert held.generated_tokens == free.generated_tokens == 6400


def test_generation_splits_over_replicas():
    args = {"prompt_tokens": 64, "new_tokens": 100, "concurrency": 32}
    one = generation(LLAMA, H100, sequences=128, **args).total
    four = generation(LLAMA, H100, sequences=512, replicas=4, **args).total
    assert four == pytest.approx(one)


def test_tensor_parallel_decoding_pays_two_reductions_per_layer():
    step = decode_step(LLAMA70, H100, batch=1, context=512, tensor=4)
    latency = 2 * 80 * float(ServingConstants().reduce_seconds)
    assert latency < step.part("communication") < 1.5 * latency
    assert decode_step(LLAMA70, H100, batch=1, context=512).part("communication") == 0


def test_tensor_parallelism_divides_weights_cache_and_operations():
    one, eight = (decode_step(LLAMA70, H100, batch=64, context=4096, tensor=n).by_part()["decode"] for n in (1, 8))
    assert eight == pytest.approx(one / 8, rel=0.05)


def test_a_bridge_reduces_slower_than_a_switch():
    pcie = accelerators.get("L40S")
    switch, bridge = (decode_step(LLAMA, device, batch=1, context=64, tensor=4) for device in (H100, pcie))
    assert bridge.part("communication") > 2 * switch.part("communication")


def test_experts_are_read_only_when_reached():
    model = ServingModel.of(MIXTRAL)
    assert float(model.experts_reached(array(1.0))) == pytest.approx(2)
    assert float(model.experts_reached(array(1000.0))) == pytest.approx(8)
    assert weights_read(MIXTRAL, 1) < 0.3 * weights_read(MIXTRAL, 1000)
    assert float(ServingModel.of(LLAMA).experts_reached(array(10.0))) == 0


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Mixtral-8x7B-v0.1", "DeepSeek-V3", "Qwen3-0.6B"])
def test_weights_are_all_but_the_embedding(name):
    architecture = models.get(name).architecture
    count = count_parameters(architecture)
    read = weights_read(architecture, 1e9)
    tied = count.embedding if architecture.tied_embeddings else 0
    assert read == pytest.approx(count.total - count.embedding + tied, rel=1e-3)


def test_latent_attention_keeps_few_values_that_ranks_do_not_share():
    model = ServingModel.of(DEEPSEEK)
    one, eight = (float(model.cached_values(array(1000.0), array(n))) for n in (1.0, 8.0))
    assert one == eight == 61 * 1000 * 576


def test_sparse_attention_reads_what_its_indexer_chose():
    model = ServingModel.of(models.get("DeepSeek-V3.2").architecture)
    assert float(model.cached_values(array(1000.0), array(8.0))) == 61 * 1000 * (576 + 128)
    assert float(model.cached_values(array(100_000.0), array(8.0))) == 61 * (2048 * 576 + 100_000 * 128)


def test_long_contexts_decode_faster_under_sparse_attention():
    sparse, full = (models.get(name).architecture for name in ("DeepSeek-V3.2", "DeepSeek-V3"))
    steps = {
        context: [
            decode_step(model, H200, batch=32, context=context, tensor=8).part("decode") for model in (sparse, full)
        ]
        for context in (1024, 131_072)
    }
    assert steps[1024][0] > steps[1024][1]
    assert steps[131_072][0] < 0.7 * steps[131_072][1]


def test_quantised_weights_are_read_faster():
    times = {
        name: decode_step(LLAMA, A100, batch=1, context=16, weights=name).part("decode")
        for name in ("bf16", "int8", "int4")
    }
    assert times["bf16"] > times["int8"] > times["int4"]


def test_eager_mode_is_bound_by_issuing_and_loops_over_experts():
    small = models.get("Qwen3-0.6B").architecture
    eager, captured = (decode_step(small, H100, batch=1, context=64, engine=e).total for e in (TRANSFORMERS, SGLANG))
    assert eager > 4 * captured
    moe = models.get("Qwen3-30B-A3B").architecture
    assert decode_step(moe, H100, batch=1, context=64, engine=TRANSFORMERS).total > 0.2


def test_wrapped_kernels_cost_host_time_in_eager_mode_only():
    plain, wrapped = (
        decode_step(LLAMA, H100, batch=1, context=16, weights=w, engine=LITGPT).total for w in ("bf16", "nf4")
    )
    assert wrapped > plain
    assert decode_step(LLAMA, H100, batch=1, context=16, weights="fp8", engine=TENSORRT).total < plain


def test_a_cached_prefix_is_not_read_again():
    """A critique round whose question starts with the conversation that was just answered."""
    args = {"sequences": 64, "prompt_tokens": 2000, "new_tokens": 50}
    cold = generation(LLAMA, H100, **args)
    warm = generation(LLAMA, H100, cached_prompt_tokens=1800, **args)
    assert warm.part("prefill") < 0.2 * cold.part("prefill")
    assert warm.part("decode") == cold.part("decode")


def test_scoring_with_logits_costs_more_than_a_reward():
    reward = forward_pass_seconds(LLAMA, H100, tokens=8192, seq_len=4096)
    logits = forward_pass_seconds(LLAMA, H100, tokens=8192, seq_len=4096, head_positions=8192)
    assert 1.05 * reward < logits < 1.3 * reward


@given(tokens, tokens, st.floats(1, 256))
def test_more_tokens_never_take_less_time(prompt, new, batch):
    def seconds(prompt_tokens, new_tokens, sequences):
        return generation(
            LLAMA, H100, sequences=sequences, prompt_tokens=prompt_tokens, new_tokens=new_tokens, concurrency=256
        ).total

    base = seconds(prompt, new, batch)
    assert seconds(prompt + 10, new, batch) >= base
    assert seconds(prompt, new + 10, batch) >= base
    assert seconds(prompt, new, batch + 1) >= base


@given(st.floats(1.0, 4.0), st.sampled_from([NATIVE, SERVER, TENSORRT]), st.sampled_from([LLAMA, MIXTRAL, DEEPSEEK]))
def test_more_bandwidth_is_never_slower(factor, engine, architecture):
    wide = replace(H200, memory_bytes_per_second=factor * H200.memory_bytes_per_second)
    args = {"batch": 32, "context": 2000, "engine": engine, "tensor": 8}
    assert decode_step(architecture, wide, **args).total <= decode_step(architecture, H200, **args).total * (1 + 1e-12)


@given(st.floats(10, 1000), st.floats(0, 1.5), st.floats(0.01, 0.5), st.integers(1, 512))
def test_a_longer_tail_is_never_quicker(mean, spread, more, count):
    limit = 4 * mean
    short, long = (ResponseLengths(mean=mean, limit=limit, spread=width) for width in (spread, spread + more))
    assert long.longest_of(count) >= short.longest_of(count) * 0.999 or short.longest_of(count) == limit
    args = {"sequences": count, "prompt_tokens": 100, "concurrency": 512}
    seconds = [
        generation(LLAMA, H100, new_tokens=mean, longest_new_tokens=tail.longest_of(count), engine=NATIVE, **args).total
        for tail in (short, long)
    ]
    assert seconds[1] >= seconds[0] * 0.999 or short.longest_of(count) == limit


@given(st.floats(1, 2000), st.floats(0, 1.5), st.floats(1.01, 20), st.integers(1, 2000))
def test_lengths_keep_their_mean_and_limit(mean, spread, over, count):
    lengths = ResponseLengths(mean=mean, limit=over * mean, spread=spread)
    assert float(np.mean(lengths.quantiles)) == pytest.approx(mean, rel=1e-6)
    assert float(np.max(lengths.quantiles)) <= lengths.limit * (1 + 1e-9)
    assert lengths.longest_of(count) <= lengths.limit * (1 + 1e-9)
    assert lengths.longest_of(count + 1) >= lengths.longest_of(count)


def test_a_drain_ends_with_the_longest_and_does_the_work_of_the_mean():
    lengths, count = ResponseLengths(mean=500.0, limit=4000.0, spread=0.6), 256.0
    drain = Drain.of([lengths], [count])
    assert float(drain.steps.sum()) == pytest.approx(lengths.longest_of(count))
    assert float((drain.steps * drain.alive).sum()) == pytest.approx(500, rel=0.05)


def test_waiting_prompts_keep_the_engine_full():
    drain = Drain.of([ResponseLengths(mean=500.0, limit=2000.0, spread=0.6)], [64])
    device = ServingDevice.of(H100, weights=weight_format("bf16"), tensor=1)
    one, ten = rollout_terms(
        ServingModel.of(LLAMA),
        device,
        issue_of(SERVER),
        ServingConstants(),
        sequences=array([64, 640]),
        limit=array(64),
        prompt=array(100),
        mean_tokens=array(500),
        drain=drain,
    ).total
    assert 4 * one < ten < 10 * one


def test_columns_give_what_single_configurations_give():
    devices = [ServingDevice.of(H100, tensor=n, weights=weight_format("fp8")) for n in (1, 2)]
    together = decode_terms(
        stacked([ServingModel.of(LLAMA), ServingModel.of(LLAMA70)]),
        stacked(devices),
        issue_of([SERVER, TENSORRT]),
        ServingConstants(),
        sequences=array([8, 16]),
        context=array([100, 200]),
    ).total
    for index, (model, engine) in enumerate(((LLAMA, SERVER), (LLAMA70, TENSORRT))):
        alone = decode_terms(
            ServingModel.of(model),
            devices[index],
            issue_of(engine),
            ServingConstants(),
            sequences=array([8, 16][index]),
            context=array([100, 200][index]),
        ).total
        assert float(together[index]) == pytest.approx(float(alone))


def test_constants_are_described_and_move():
    assert all(item.source and item.unit and item.value > 0 for item in describe(ServingConstants))
    slower = moved(ServingConstants(), {"stream_share": -0.5})
    assert (
        decode_step(LLAMA, H100, batch=1, context=1, constants=slower).total
        > decode_step(LLAMA, H100, batch=1, context=1).total
    )


def test_unknown_engines_are_not_guessed():
    assert engine_named("") is None
    assert engine_named("brand new engine") is None


def answered(engine, *, waiting, prompt=2000.0, constants=None):
    return served_terms(
        ServingModel.of(LLAMA),
        ServingDevice.of(H100, attention=engine.attention),
        issue_of(engine),
        constants or ServingConstants(),
        sequences=array(64.0),
        prompt=array(prompt),
        new_tokens=array(500.0),
        waiting=array(waiting),
    ).total


def test_prompts_read_beside_decoding_share_the_weights():
    idle, loaded = (float(answered(SERVER, waiting=waiting)) for waiting in (0.0, 1.0))
    reading = 500 * 15e9 / 3.35e12  # decode passes read the weights once each, whatever else is in them
    assert reading < loaded < idle
    apart = replace(SERVER, mixed=False)
    assert float(answered(apart, waiting=1.0)) == pytest.approx(idle)
    assert float(answered(SERVER, waiting=1.0, prompt=1.0)) == pytest.approx(
        float(answered(apart, waiting=1.0, prompt=1.0)), rel=0.01
    )


def test_an_engine_that_mixes_phases_gains_only_from_what_waits():
    apart = replace(SERVER, mixed=False)
    work = {"prompt_tokens": 2000, "new_tokens": 500, "concurrency": 64}
    alone = [generation(LLAMA, H100, sequences=64, engine=engine, **work).total for engine in (SERVER, apart)]
    queued = [generation(LLAMA, H100, sequences=640, engine=engine, **work).total for engine in (SERVER, apart)]
    assert alone[0] == pytest.approx(alone[1])
    assert 0.5 * queued[1] < queued[0] < 0.98 * queued[1]


def test_expanding_kernels_keep_ampere_rates_on_hopper():
    int4, bf16 = weight_format("AWQ-INT4"), weight_format("bf16")
    prefill = {
        (name, stored.name): forward_pass_seconds(
            LLAMA, accelerators.get(name), tokens=16384, seq_len=2048, dtype=stored.name, engine=SERVER
        )
        for name in ("H100", "A100-80GB")
        for stored in (int4, bf16)
    }
    assert prefill["H100", "int4"] > 1.3 * prefill["H100", "bf16"]
    assert prefill["A100-80GB", "int4"] == pytest.approx(prefill["A100-80GB", "bf16"], rel=0.05)


def test_quantised_scales_take_python_of_their_own():
    def seconds(printed):
        return forward_pass_seconds(LLAMA, A100, tokens=1, seq_len=64, dtype=printed, engine=TRANSFORMERS)

    once, twice = (weight_format(printed).python_share for printed in ("bnb.nf4", "bnb.nf4-dq"))
    linears = 7 * 32 * float(ServingConstants().quantised_linear_seconds) * 1.3  # of the layers, on A100's processors
    assert twice > once
    assert seconds("bnb.nf4-dq") - seconds("bnb.nf4") == pytest.approx((twice - once) * linears, rel=0.01)


def test_one_token_pads_sixteen_rows_of_a_16_bit_expert():
    h20, mixture = accelerators.get("H20"), models.get("Qwen3-30B-A3B").architecture
    served, rate = ServingModel.of(mixture), float(ServingDevice.of(h20).half_flops) * 0.75
    experts = float(served.one_expert) * 8
    products = 2 * 16 * experts / (rate * 0.5)  # 8 experts, 16 rows each, at the rate of ragged products
    others = 2 * 64 * float(served.passed_weights + served.head_weights) / rate
    term = next(item for item in decode_step(mixture, h20, batch=1, context=1).terms if "weights" in item.name)
    assert products + others < term.value < 1.2 * (products + others)


def test_served_and_trained_attention_have_one_rate():
    device = DeviceColumns.of(H100)
    for kernel, rate in (("flash2", device.flash2), ("recent", device.recent), ("flash3", device.flash3)):
        assert float(ServingDevice.of(H100, attention=kernel).attention_flops) == pytest.approx(float(rate))


def step_seconds(device, *, batch=1.0, context=1.0, weights="bf16", engine=SERVER, model=LLAMA):
    """One decode step without constants of a fit, and its terms by name."""
    step = decode_step(model, accelerators.get(device), batch=batch, context=context, weights=weights, engine=engine)
    return step.total, {term.name: term.value for term in step.terms}


def test_empty_rows_of_a_tile_cost_h20_its_long_contexts():
    cache = 32 * 2 * 8 * 128 * 2.0 * 100_000
    reading = {name: cache / accelerators.get(name).memory_bytes_per_second for name in ("H20", "H100")}
    keys = {name: step_seconds(name, context=100_000.0)[1]["decode, keys and values"] for name in reading}
    assert keys["H20"] > 2 * reading["H20"]
    assert keys["H100"] < 1.3 * reading["H100"]
    queries_in_columns = step_seconds("H20", context=100_000.0, engine=TENSORRT)[1]["decode, keys and values"]
    assert queries_in_columns < 1.3 * reading["H20"]


def test_expanded_weights_add_gaps_to_a_captured_graph():
    plain, expanded = (step_seconds("H100", weights=name)[1]["decode, issue"] for name in ("bf16", "int4"))
    assert expanded - plain == pytest.approx(32 * 4 / 12 * 45e-6)


def test_litgpt_wraps_fewer_quantised_matrices():
    def added(engine):
        quantised, plain = (step_seconds("H100", weights=name, engine=engine)[0] for name in ("nf4", "bf16"))
        return quantised - plain

    assert added(LITGPT) / added(replace(LITGPT, joins_projections=False)) == pytest.approx(5 / 7, rel=0.05)


def test_eager_steps_take_longer_beside_older_processors():
    newer, older = (step_seconds(name, engine=NATIVE)[0] for name in ("H100", "A100-80GB"))
    assert older / newer == pytest.approx(1.3, rel=0.05)


def test_nothing_hides_where_the_host_waits_for_each_product():
    def waited(weights):
        return step_seconds("H20", context=30_000.0, weights=weights, engine=TRANSFORMERS)[1]["decode, issue"]

    host = 32 * 0.75e-3
    assert waited("fp8") == pytest.approx(host + 32 * 7 * 1.4 * 90e-6)
    assert waited("bf16") < 0.8 * host

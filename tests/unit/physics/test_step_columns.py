"""The vectorised time model: many layouts give what one gives, terms add up, and more work never takes less time."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.catalog import accelerators, models
from charter.physics.columns import Layouts, array
from charter.physics.constants import TrainingConstants, describe, moved
from charter.physics.devices import DeviceColumns, fused_attention_rate, generation_of, group, multiprocessors
from charter.physics.matrix_products import EXPERT_PRODUCTS, PRODUCTS, ProductColumns
from charter.physics.micro_batch import StepInputs, product_rate, step_work
from charter.physics.shapes import count_parameters
from charter.physics.stacks import PROFILES, StackColumns, StepJob
from charter.physics.step_seconds import layer_seconds, step_seconds, step_table
from charter.physics.step_time import training_step
from charter.spec.layout import Layout, Recompute, ZeroStage

LLAMA = models.get("Llama-3.1-8B").architecture
MIXTRAL = models.get("Mixtral-8x7B-v0.1").architecture
DEEPSEEK = models.get("DeepSeek-V3").architecture
SPARSE = models.get("DeepSeek-V3.2").architecture
HYBRID = models.get("Nemotron-H-8B").architecture
H100, A100 = accelerators.get("H100"), accelerators.get("A100-80GB")


def inputs(layouts, architecture=LLAMA, accelerator=H100, stack="megatron-core", seq=4096.0, **job):
    model, device = ProductColumns.of(architecture), DeviceColumns.of(accelerator)
    made = StepJob(layouts=Layouts.of(layouts), seq=array(seq), **{name: array(value) for name, value in job.items()})
    profile = StackColumns.of(PROFILES[stack])
    work = step_work(model, device, made, profile)
    return StepInputs(model=model, device=device, job=made, stack=profile, work=work, constants=TrainingConstants())


LAYOUTS = [
    Layout(),
    Layout(data=8, zero=ZeroStage.PARAMETERS),
    Layout(data=2, tensor=8, pipeline=4, interleave=2, accumulation=16, sequence_parallel=True),
    Layout(data=4, tensor=2, context=2, zero=ZeroStage.OPTIMIZER, recompute=Recompute.FULL, micro_batch=4),
    Layout(data=8, expert=8, zero=ZeroStage.GRADIENTS, accumulation=2, offload_optimizer=True),
]


def repeated(given, stops_early):
    """Seconds that recomputation takes, and tensor-parallel traffic."""
    one = layer_seconds(replace(given, stack=replace(given.stack, stops_early=array(stops_early))))
    return one.recompute, one.tensor


def test_recomputation_may_end_before_the_last_product():
    """Of a layer's products the one behind the MLP's activation is left out, and its reduction."""
    again = inputs([Layout(tensor=2, recompute=Recompute.FULL, micro_batch=4)], stack="torchtitan")
    (whole, six), (early, five) = (repeated(again, stops) for stops in (0.0, 1.0))
    down = again.work.dense_flops[3 * 3] / product_rate(again)  # fourth of four products, its first pass of three
    assert whole - early == pytest.approx(down)
    assert six / five == pytest.approx(6 / 5)


@pytest.mark.parametrize("job", [{"frozen": 1.0, "adapter_rank": 8.0}, {"architecture": MIXTRAL}], ids=["lora", "moe"])
def test_adapters_and_experts_are_recomputed_to_the_end(job):
    again = inputs([Layout(recompute=Recompute.FULL)], stack="torchtitan", **job)
    assert repeated(again, 1.0)[0] == pytest.approx(repeated(again, 0.0)[0])


def test_an_adapter_repeats_the_last_reduction_too():
    again = inputs([Layout(tensor=2, recompute=Recompute.FULL)], stack="torchtitan", frozen=1.0, adapter_rank=8.0)
    assert repeated(again, 1.0)[1] == pytest.approx(repeated(again, 0.0)[1])


def test_a_step_of_one_graph_is_not_issued_and_hides_its_experts():
    """Of models with experts in block-scaled formats; a hidden all-to-all costs what its kernels take of the device."""
    formats = {"mxfp8": {"bits": 8.0, "block_scaled": 1.0}, "bf16": {}}
    spread = [Layout(data=8, expert=8)]
    old, new = (
        {name: layer_seconds(inputs(spread, MIXTRAL, H100, stack, **job)) for name, job in formats.items()}
        for stack in ("megatron-bridge", "megatron-bridge-2026")
    )
    assert new["mxfp8"].issued == 0 < old["mxfp8"].issued
    assert new["mxfp8"].expert < 0.25 * old["mxfp8"].expert
    assert (new["bf16"].issued, new["bf16"].expert) == (old["bf16"].issued, old["bf16"].expert)
    dense = layer_seconds(inputs(spread, LLAMA, H100, "megatron-bridge-2026", **formats["mxfp8"]))
    assert dense.issued > 0


ADAPTED = {"frozen": 1.0, "adapter_rank": 8.0}


@pytest.mark.parametrize("stack", ["torchtitan", "native"])
@pytest.mark.parametrize("mode", [Recompute.NONE, Recompute.FULL])
def test_adapters_cost_less_than_gradients_of_weights(stack, mode):
    """They leave out one product of three, or of four with recomputation; what their branches move is less."""
    layout, small = [Layout(recompute=mode, micro_batch=2, accumulation=64)], models.get("Llama-3.2-3B").architecture
    full, lora = (step_seconds(inputs(layout, small, A100, stack, **job)) for job in ({}, ADAPTED))
    assert lora < 0.98 * full


@pytest.mark.parametrize(
    ("stack", "forward", "backward"),
    [("native", 1 + 6, 4 + 5), ("huggingface", 3.5 + 6, 4 + 7.5), ("torchtitan", 1 + 4, 4 + 3)],
)
def test_adapter_bytes_are_counted_by_kernel(stack, forward, backward):
    """Passes over a square matrix's input and output together, forward and backward."""
    work = inputs([Layout()], stack=stack, **ADAPTED).work
    values = 2 * 4096 * float(ProductColumns.of(LLAMA).adapted_values) / 2
    assert float(work.adapter_bytes[0]) / values == pytest.approx(forward)
    assert float(work.adapter_backward_bytes[0]) / values == pytest.approx(backward)


def test_positions_are_exchanged_for_heads_and_back():
    """Of each layer queries, keys and values, then what attention gives: forward, backward, and where repeated."""
    width, heads, keys, positions = 2, 32 * 128, 2 * 8 * 128, 4096 / 2
    for mode, times in ((Recompute.NONE, 2), (Recompute.SELECTIVE, 3), (Recompute.FULL, 3)):
        given = inputs([Layout(context=2, recompute=mode)], stack="native")
        c, one = given.constants, array(1.0)
        links = group(
            given.device,
            array(2.0),
            one,
            scaleup_share=c.scaleup_share,
            scaleout_share=c.scaleout_share,
            congestion=c.congestion,
            latency=array(c.latency_seconds),
        )
        both = [links.exchange_seconds(array(width * positions * size), one) for size in (heads + keys, heads)]
        assert layer_seconds(given).context == pytest.approx(times * 32 * sum(map(float, both)))
    assert float(layer_seconds(inputs([Layout()], stack="native")).context[0]) == 0
    repeated = inputs([Layout(context=16)], stack="native").work.heads_message
    assert repeated == pytest.approx(width * 4096 / 16 * (heads + 2 * keys)), "8 heads of keys for 16 ranks"


def test_sparse_attention_pays_off_with_long_sequences():
    layout = Layout(data=8, expert=8, context=8)
    seconds = {
        length: [float(step_seconds(inputs(layout, model, seq=length))) for model in (SPARSE, DEEPSEEK)]
        for length in (2048.0, 131_072.0)
    }
    assert seconds[2048.0][0] > seconds[2048.0][1]
    assert seconds[131_072.0][0] < 0.8 * seconds[131_072.0][1]


@pytest.mark.parametrize(
    "architecture", [LLAMA, MIXTRAL, DEEPSEEK, SPARSE, HYBRID], ids=["dense", "moe", "mla", "sparse", "hybrid"]
)
def test_many_layouts_give_what_each_gives_alone(architecture):
    together = step_seconds(inputs(LAYOUTS, architecture))
    alone = [float(step_seconds(inputs(layout, architecture))) for layout in LAYOUTS]
    assert together == pytest.approx(alone)
    assert np.all(np.isfinite(together))
    assert np.all(together > 0)


@pytest.mark.parametrize("architecture", [LLAMA, MIXTRAL, DEEPSEEK, HYBRID], ids=["dense", "moe", "mla", "hybrid"])
def test_terms_add_up_and_none_is_negative(architecture):
    given = inputs(LAYOUTS, architecture)
    table = step_table(given)
    assert table.total == pytest.approx(step_seconds(given))
    for index in range(len(LAYOUTS)):
        terms = table.at(index)
        assert all(term.value >= 0 and term.formula and term.source for term in terms), terms


@settings(max_examples=60, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    stack=st.sampled_from(sorted(PROFILES)),
    more=st.sampled_from(["accumulation", "micro_batch", "seq", "recompute"]),
)
def test_more_work_never_takes_less_time(layout, stack, more):
    base = replace(layout, recompute=Recompute.NONE)
    before = step_seconds(inputs(base, stack=stack))
    if more == "seq":
        after = step_seconds(inputs(base, stack=stack, seq=8192.0))
    elif more == "recompute":
        after = step_seconds(inputs(replace(base, recompute=Recompute.FULL), stack=stack))
    else:
        after = step_seconds(inputs(replace(base, **{more: 2 * getattr(base, more)}), stack=stack))
    assert after >= before * (1 - 1e-9)


RATES = ("_share", "_sustained", "unfused_attention", "data_hidden")
"""Constants whose larger value makes a step faster; of all others it makes it slower."""


def test_every_constant_moves_the_time_the_way_its_name_says():
    given = inputs(LAYOUTS[2], MIXTRAL, bits=8.0)
    base = float(step_seconds(given))
    for item in describe(TrainingConstants):
        found = float(step_seconds(replace(given, constants=moved(TrainingConstants(), {item.name: -0.2}))))
        assert found >= base if item.name.endswith(RATES) else found <= base, item.name


@pytest.mark.parametrize("architecture", [LLAMA, MIXTRAL, DEEPSEEK, HYBRID], ids=["dense", "moe", "mla", "hybrid"])
def test_the_products_hold_the_parameters_one_token_passes(architecture):
    """All but norms, biases, routers, convolutions and the embedding table: within a hundredth."""
    m, count = ProductColumns.of(architecture), count_parameters(architecture)
    used = np.where(np.isin(np.arange(len(PRODUCTS)), EXPERT_PRODUCTS), float(m.experts_per_token), 1.0)
    matrices = float(np.sum(m.inner * m.columns * m.count * used))
    assert float(m.parameters) == count.total
    assert matrices == pytest.approx(count.active - count.embedding, rel=0.01)


def test_eight_bits_speed_up_products_and_nothing_else():
    wide = {term.name: term.value for term in step_table(inputs(Layout(micro_batch=4))).at()}
    low = {term.name: term.value for term in step_table(inputs(Layout(micro_batch=4), bits=8.0)).at()}
    assert low["matrix products"] < 0.75 * wide["matrix products"]
    assert low["attention"] == wide["attention"]
    assert low["memory-bound operations"] == wide["memory-bound operations"]
    assert "quantisation" in low
    assert "quantisation" not in wide


def test_sharded_weights_are_gathered_for_every_micro_batch():
    one, four = (
        step_table(inputs(Layout(data=64, zero=ZeroStage.PARAMETERS, accumulation=n), seq=64.0)).part("communication")
        for n in (1, 4)
    )
    assert four == pytest.approx(4 * one)


def test_unfused_attention_without_tensor_cores_is_slow():
    """Head sizes that are no multiple of 8: 1.4 to 1.9 times as long in BigScience's tables (BSC rows)."""
    even = replace(LLAMA, hidden_size=13824, num_heads=96, num_kv_heads=96, intermediate_size=55296, num_layers=8)
    odd = replace(even, num_heads=128, num_kv_heads=128)
    slow, fast = (float(step_seconds(inputs(Layout(), a, A100, "megatron-2022", 2048.0))) for a in (odd, even))
    assert 1.2 < slow / fast < 2.2


def test_groups_cross_the_slowest_link_they_span():
    """Eight cards behind PCIe: slower than a node with NVSwitch, quicker than the network."""
    bridge = step_table(inputs(Layout(tensor=8), accelerator=accelerators.get("L40S"))).part("communication")
    switch = step_table(inputs(Layout(tensor=8), accelerator=H100)).part("communication")
    network = step_table(inputs(Layout(tensor=16), accelerator=H100)).part("communication")
    assert bridge > 2 * switch
    assert bridge > network > switch  # eight rings side by side through eight cards


def test_a_domain_of_72_needs_no_network():
    nvl72, dgx = accelerators.get("GB200"), accelerators.get("B200")
    sharded = Layout(data=64, zero=ZeroStage.PARAMETERS)
    inside, across = (
        step_table(inputs(sharded, accelerator=device, seq=128.0)).part("communication") for device in (nvl72, dgx)
    )
    assert inside < across


def test_adapters_on_a_small_batch_are_bound_by_issuing_operations():
    stack = {"accelerator": A100, "stack": "huggingface"}
    step, full = (
        step_table(inputs(Layout(), seq=128.0, frozen=1.0, adapter_rank=16.0, **stack)),
        step_table(inputs(Layout(micro_batch=16), seq=2048.0, **stack)),
    )
    assert step.part("launch") > 0.3 * step.total
    assert full.part("launch") < 0.01 * full.total


def test_a_compiled_step_issues_nothing():
    tpu = accelerators.get("tpu-v5p")
    step = training_step(LLAMA, Layout(data=64, zero=ZeroStage.PARAMETERS), tpu, seq_len=2048)
    assert step.part("launch") == 0
    assert 0.3 < step.model_flops_utilisation < 0.85


def test_every_profile_is_kept_under_its_name():
    assert all(name == profile.name for name, profile in PROFILES.items())


def test_every_gpu_of_the_catalog_has_its_generation():
    gpus = [item.name for item in accelerators.catalog() if item.vendor in ("NVIDIA", "AMD")]
    assert {name for name in gpus if generation_of(name) == "other"} == {"P100-SXM2-16GB"}
    assert not [name for name in gpus if multiprocessors(name) == 1]


@pytest.mark.parametrize(
    ("name", "family", "units"),
    [
        ("RTX-A6000", "ampere", 10752 / 128),
        ("A40", "ampere", 10752 / 128),
        ("A30", "ampere", 3584 / 64),
        ("L40", "ada", 18176 / 128),
        ("RTX-6000-Ada", "ada", 18176 / 128),
        ("RTX5090", "blackwell-rtx", 21760 / 128),
        ("RTX3090Ti", "ampere", 10752 / 128),
        ("Titan-RTX", "volta", 4608 / 64),
    ],
)
def test_boards_have_the_multiprocessors_of_their_sheets(name, family, units):
    """CUDA cores over cores of a multiprocessor."""
    assert (generation_of(name), multiprocessors(name)) == (family, units)


def test_boards_of_blackwell_gain_nothing_from_new_kernels():
    board, server = accelerators.get("RTX5090"), accelerators.get("B200")
    assert fused_attention_rate(board, "flash3") == fused_attention_rate(board, "flash2")
    assert fused_attention_rate(server, "flash3") > 2 * fused_attention_rate(server, "flash2")


def test_nanotron_puts_fewer_layers_beside_a_heavy_head():
    small = replace(LLAMA, hidden_size=2048, num_layers=16, num_heads=32, num_kv_heads=32, intermediate_size=8192)
    split = Layout(pipeline=2, accumulation=64)

    def step(name, architecture):
        profile = replace(PROFILES["nanotron"], stages_by_cost=float(name == "by cost"))
        given = inputs(split, architecture)
        return float(step_seconds(replace(given, stack=StackColumns.of(profile))))

    # 8 layers and a head of 4 beside 8 layers, or 11 layers beside 5 and the head: 12 against 11, and an equal bubble.
    assert 11 / 12 < step("by cost", small) / step("even", small) < 0.95
    assert step("by cost", replace(small, vocab_size=1024)) > step("even", replace(small, vocab_size=1024))

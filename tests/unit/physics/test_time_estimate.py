from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.catalog import accelerators, models
from charter.physics.columns import array
from charter.physics.constants import TrainingConstants
from charter.physics.devices import DeviceColumns, group
from charter.physics.generation import forward_pass_seconds
from charter.physics.shapes import count_parameters
from charter.physics.step_seconds import HIDDEN_COST
from charter.physics.step_time import training_step
from charter.spec.architecture import Architecture
from charter.spec.layout import Adapter, Layout, Recompute, ZeroStage

LLAMA = models.get("Llama-3.1-8B").architecture
LLAMA70 = models.get("Llama-3.1-70B").architecture
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


@pytest.mark.parametrize(("device", "low", "high"), [(A100, 0.38, 0.60), (H100, 0.33, 0.50)], ids=["A100", "H100"])
def test_large_dense_runs_land_near_the_usual_utilisation(device, low, high):
    """Constants of published large runs (causal operations): A100 bf16 0.449, H100 bf16 0.379; FSDP runs of
    Composer without recomputation reach more on A100 (FND rows of the calibration file)."""
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


def test_moments_that_visit_cost_their_way_there_and_back():
    """16 bytes of each owned parameter over the host's link, beside what the step takes without."""
    layout = Layout(data=16, zero=ZeroStage.PARAMETERS)
    steps = [
        training_step(LLAMA70, replace(layout, offload_optimizer=away), H100, seq_len=4096).part("update")
        for away in (False, True)
    ]
    link = float(DeviceColumns.of(H100).host_link)
    assert steps[1] - steps[0] == pytest.approx(16 * count_parameters(LLAMA70).total / 16 / link)


@pytest.mark.parametrize(("layout", "each"), [(FSDP8, 2), (Layout(recompute=Recompute.FULL), 4)])
def test_inputs_on_the_host_cost_both_ways_of_the_link(layout, each):
    """One of 4,096 x 4,096 values a layer, in 32 bits under autocast, twice over the link in each micro-batch."""
    layout = replace(layout, micro_batch=2, accumulation=3)
    steps = [
        training_step(LLAMA, replace(layout, offload_activations=away), H100, seq_len=4096).part("communication")
        for away in (False, True)
    ]
    moved = 3 * 2 * 32 * (2 * 4096) * 4096 * each
    assert steps[1] - steps[0] == pytest.approx(moved / float(DeviceColumns.of(H100).host_link))


def test_the_bubble_is_the_published_share():
    layout = Layout(pipeline=8, accumulation=64)
    step = training_step(LLAMA70, layout, A100, seq_len=2048)
    work = step.part("compute", "communication", "recompute", "launch")
    ideal = (8 - 1) / 64  # (p - 1) / m, Narayanan et al. 2021, section 2.2
    assert step.part("bubble") / work == pytest.approx(
        ideal, rel=0.12
    )  # the bubble idles for mean, not slowest, stages
    interleaved = training_step(LLAMA70, replace(layout, interleave=2), A100, seq_len=2048)
    assert interleaved.part("bubble") == pytest.approx(step.part("bubble") / 2, rel=0.02)


def test_a_frozen_base_saves_a_third_of_the_matrix_work():
    full = training_step(LLAMA, Layout(), H100, seq_len=2048)
    lora = training_step(LLAMA, Layout(), H100, seq_len=2048, adapter=Adapter(rank=16))

    def seconds(step, name):
        return next(term.value for term in step.terms if term.name == name)

    products = "matrix products"
    assert seconds(lora, products) / seconds(full, products) == pytest.approx(
        2 / 3, rel=0.05
    )  # the weight gradient has a shape of its own
    assert seconds(lora, "optimizer") < 0.02 * seconds(full, "optimizer")


def test_tiny_models_are_bound_by_launching():
    step = training_step(SMALL, Layout(), H100, seq_len=128)
    assert step.part("launch") > step.part("compute")
    assert step.sigma > training_step(LLAMA, FSDP8, H100, seq_len=4096).sigma


def test_a_processor_is_planned_from_its_measured_rate():
    step = training_step(SMALL, Layout(micro_batch=8), CPU, seq_len=256)
    assert step.model_flops / step.total < CPU.peak_flops_per_second("fp32")
    assert float(DeviceColumns.of(CPU).rate_16) == 1e11


def links(accelerator, size, stride=1):
    device, one = DeviceColumns.of(accelerator), array(1)
    shares = {"scaleup_share": one, "scaleout_share": one, "congestion": array(0.1)}
    return group(device, array(size), array(stride), **shares, latency=array(0))


def test_all_reduce_is_a_reduce_scatter_and_a_gather():
    ranks, size = links(H100, 8), array(1e9)
    assert float(ranks.reduce_seconds(size)) == pytest.approx(2 * float(ranks.gather_seconds(size)))
    assert float(ranks.reduce_seconds(size)) == pytest.approx(2 * 7 / 8 * 1e9 / 450e9)
    assert float(links(H100, 1).reduce_seconds(size)) == 0


def test_a_group_with_one_rank_per_node_has_only_its_share_of_the_network():
    whole, share, apart = (float(links(H100, size, stride).ring) for size, stride in ((64, 1), (8, 8), (4, 16)))
    assert whole == 8 * share
    assert apart == share


def test_a_wire_is_crowded_beyond_the_machines_of_a_switch():
    pair, switch, more = (float(links(H100, 8 * machines).scaleout) for machines in (2, 16, 64))
    assert pair == switch == H100.scaleout_bytes_per_second_per_node / 8
    assert more == pytest.approx(pair / 1.2)


def test_groups_cross_the_slowest_link_they_span():
    inside, across = links(H100, 8), links(H100, 9)
    assert float(inside.ring) == H100.scaleup_bytes_per_second
    assert float(across.message) == float(across.scaleout) < float(inside.message)
    wide = accelerators.get("GB200")
    assert float(links(wide, 72).ring) == wide.scaleup_bytes_per_second
    bridged = links(accelerators.get("A100-PCIe-80GB"), 8)
    assert float(bridged.ring) == float(bridged.bridge)


def seconds(step, name):
    return sum(term.value for term in step.terms if term.name == name)


def test_a_step_takes_its_computation_or_its_wire():
    """Weights twice in 16 bits, gradients in 32: beside the layers, as long as either of them takes."""
    constants = TrainingConstants()
    slow = replace(H100, devices_per_node=1, scaleup_domain=1, scaleout_bytes_per_second_per_node=1e9)
    layout = replace(FSDP8, recompute=Recompute.FULL, micro_batch=8)
    ours, alone = (training_step(LLAMA, layout, device, seq_len=2048) for device in (slow, H100))
    wire = 7 / 8 * 8 * count_parameters(LLAMA).total / 1e9 / float(constants.scaleout_share)
    assert wire < ours.total < wire + 0.2 * alone.total
    fast = training_step(LLAMA, layout, replace(slow, scaleout_bytes_per_second_per_node=50e9), seq_len=2048)
    slower = 50e9 * float(constants.scaleout_share) / (H100.scaleup_bytes_per_second * float(constants.scaleup_share))
    assert seconds(fast, "sharded weights") == pytest.approx(HIDDEN_COST * wire / 50 * slower, rel=0.05)


def test_gradients_of_copies_travel_beside_the_backward_pass():
    pair = replace(H100, scaleout_bytes_per_second_per_node=40e9)
    layout = Layout(data=16, replicas=2, zero=ZeroStage.PARAMETERS, micro_batch=8)
    step = training_step(LLAMA, layout, pair, seq_len=2048)
    wire = 8 * 2 * 0.5 * 4 * count_parameters(LLAMA).total / 8 / 40e9 / float(TrainingConstants().scaleout_share)
    assert seconds(step, "gradient reduction") > wire - 0.67 * 1.05 * step.part("compute")


SLOW_WIRE = replace(H100, devices_per_node=1, scaleup_domain=1, scaleout_bytes_per_second_per_node=1e9)


def test_what_lengthens_the_layers_hides_more_traffic():
    by_length = [
        seconds(training_step(LLAMA, FSDP8, SLOW_WIRE, seq_len=4096, constants=constants), "sharded weights")
        for constants in (replace(TrainingConstants(), unmodelled=array(length)) for length in (1.0, 1.1, 1.2))
    ]
    assert by_length[0] - by_length[1] == pytest.approx(by_length[1] - by_length[2])
    assert by_length[0] > by_length[1]


def test_chunks_of_a_pipeline_reduce_beside_more_micro_batches():
    layout = Layout(data=8, pipeline=2, accumulation=8, zero=ZeroStage.OPTIMIZER)
    each, chunks = (
        seconds(
            training_step(LLAMA, replace(layout, interleave=interleave), SLOW_WIRE, seq_len=4096), "gradient reduction"
        )
        for interleave in (1, 2)
    )
    assert 0 < chunks < each


@pytest.mark.parametrize("recompute", [Recompute.SELECTIVE, Recompute.FULL])
def test_recomputation_repeats_one_reduction_of_four(recompute):
    layout = Layout(tensor=4, micro_batch=2)
    steps = [
        training_step(LLAMA, replace(layout, recompute=of), H100, seq_len=4096) for of in (Recompute.NONE, recompute)
    ]
    none, again = (seconds(step, "tensor parallel") for step in steps)
    assert again == pytest.approx(1.25 * none)


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
    from charter.physics.flops import score_width

    assert score_width(deepseek) == 128 * (128 + 64 + 128)
    assert score_width(LLAMA) == 2 * 4096


def test_full_recomputation_repeats_a_forward_pass_but_one_product():
    """A third of the products, a quarter of attention (4.1 forwards in all), a third of what memory bounds.

    Not the last product of a layer: 4,096 x 14,336 of 218 million weights.
    """
    step = training_step(LLAMA, Layout(micro_batch=4), H100, seq_len=4096)
    again = training_step(LLAMA, Layout(micro_batch=4, recompute=Recompute.FULL), H100, seq_len=4096)
    parts = {term.name: term.value for term in step.terms}
    products = parts["matrix products"] / 3 * (1 - 4096 * 14336 / 218e6)
    forward = products + parts["attention"] / 4.125 + parts["memory-bound operations"] / 3
    assert again.part("recompute") == pytest.approx(forward, rel=0.05)

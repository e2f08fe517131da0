"""The ten worked examples of the source texts: the printed figure by the named source formula, and ours beside it.

Seen failing under mutations of production lines (tests that fail):
- physics/memory_shape.py, zero_sharded, `zero >= since` -> `>`: 1 of 17 (example 3);
- train/meter.py, `Recompute.FULL: total - head` -> `total`: 1 (example 5);
- plan/training_run.py, `num_parameters * num_tokens` -> 1.01 of it: 5 (examples 6 to 8);
- physics/source_formulas.py, `14 * num_parameters / data` -> divided by `tensor` too: 3 (examples 3, 4).
"""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from charter.catalog import models
from charter.catalog.accelerators import get
from charter.physics.flops import training_flops_per_token
from charter.physics.kept_activations import layer_activations
from charter.physics.memory import training_memory
from charter.physics.memory_profiles import MEGATRON_STACK
from charter.physics.precision import ZERO_PAPER
from charter.physics.shapes import count_parameters
from charter.physics.source_formulas import (
    article_activation_bytes,
    article_adam_state_bytes,
    article_model_state_bytes,
    printed_formulas,
    zero2_state_bytes,
)
from charter.plan.training_run import RunCluster, TrainingRun, at_utilisation, utilisation_of
from charter.spec.layout import Layout, Recompute, ZeroStage
from charter.train.meter import Reader
from charter.units import SECONDS_PER_HOUR

GB, GIB = 1e9, 2**30
LLAMA_65B = models.get("huggyllama/llama-65b").architecture
A100_PEAK = get("A100-80GB").peak_flops_per_second("bf16")
LLAMA2_70B_GPU_HOURS = 1_720_320


def achieved_flops_per_second():
    """Llama-2 70B: 2e12 tokens in 1,720,320 A100-hours."""
    run = TrainingRun(num_parameters=70e9, num_tokens=2e12, batch_tokens=4e6)
    return run.compute_flops / (LLAMA2_70B_GPU_HOURS * SECONDS_PER_HOUR)


def state_bytes(memory, part=None):
    """Model states of a plan, all of them or one kind, while all of them are there."""
    parts = {"parameters", "gradients", "optimizer"} if part is None else {part}
    return sum(term.value for term in memory.phases["end of backward"] if term.part in parts)


def test_1_model_states_of_70b_as_printed_and_with_the_master_copy():
    printed = article_adam_state_bytes(70e9)
    assert {name: size / GB for name, size in printed.items()} == {"parameters": 140, "gradients": 140, "adam": 560}
    memory = training_memory(LLAMA_65B, Layout(), seq_len=2048, precision=ZERO_PAPER)
    per_parameter = 70 / count_parameters(LLAMA_65B).total
    ours = [state_bytes(memory, part) * per_parameter for part in ("parameters", "gradients", "optimizer")]
    assert ours == pytest.approx([140, 140, 840])


def test_2_activations_of_llama_65b_are_87_gb_not_gib():
    printed = article_activation_bytes(layers=80, hidden_size=8192, tokens_in_flight=4e6, accelerators=1024)
    assert printed / GB == pytest.approx(87.04)
    assert printed / GIB == pytest.approx(81.06, abs=0.005)


def test_2_a_llama_layer_keeps_more_than_a_gpt_layer():
    """Gated MLP without dropout: 16 h + 4 x 2 x 22016 bytes per token, 37.5 h instead of 34 h."""
    layer = layer_activations(LLAMA_65B, seq_len=2048)
    constant = (layer.replicated + layer.sharded) / 8192
    assert constant == pytest.approx(16 + 8 * 22016 / 8192)
    ours = article_activation_bytes(
        layers=80, hidden_size=8192, tokens_in_flight=4e6, accelerators=1024, constant=constant
    )
    assert ours / GB == pytest.approx(96.0, abs=0.1)


def test_3_model_states_of_llama_65b_as_printed_and_corrected():
    assert 2 * 65e9 / 8 / GB == 16.25
    assert pytest.approx(7.109, abs=0.001) == 14 * 65e9 / 128 / GB
    assert article_model_state_bytes(65e9, tensor=8, data=128) / GB == pytest.approx(23.36, abs=0.005)
    assert zero2_state_bytes(65e9, tensor=8, data=128) / GB == pytest.approx(17.14, abs=0.005)
    memory, count = llama_65b_memory(), count_parameters(LLAMA_65B).total
    assert state_bytes(memory) == pytest.approx(zero2_state_bytes(count, tensor=8, data=128), rel=1e-3)


def test_4_the_run_does_not_fit_80_gb_as_printed_or_corrected():
    activations = article_activation_bytes(layers=80, hidden_size=8192, tokens_in_flight=4e6, accelerators=1024)
    printed = activations + article_model_state_bytes(65e9, tensor=8, data=128)
    corrected = activations + zero2_state_bytes(65e9, tensor=8, data=128)
    assert printed / GB == pytest.approx(110.4, abs=0.05)
    assert corrected / GB == pytest.approx(104.2, abs=0.05)


def llama_65b_memory(**changes):
    """4M tokens on 1,024 A100: 2,048-token sequences, 15 or 16 per rank of DP 128, TP 8 with sequence parallelism."""
    knobs = {"data": 128, "tensor": 8, "sequence_parallel": True, "zero": ZeroStage.GRADIENTS, "micro_batch": 16}
    return training_memory(
        LLAMA_65B,
        Layout(**(knobs | changes)),
        seq_len=2048,
        precision=ZERO_PAPER,
        accelerator=get("A100-80GB"),
        profile=replace(MEGATRON_STACK, implementation="lean"),
    )


def test_4_the_planners_own_estimate_does_not_fit_and_says_what_does():
    capacity = get("A100-80GB").memory_bytes
    assert not llama_65b_memory().fits(capacity)
    assert llama_65b_memory().part("activations") / GB == pytest.approx(96.0 * 2048 * 16 * 128 / 4e6, rel=0.01)
    assert llama_65b_memory(recompute=Recompute.FULL).fits(capacity)
    assert llama_65b_memory(micro_batch=1, accumulation=16).fits(capacity)
    assert llama_65b_memory(pipeline=8, data=16, micro_batch=1, accumulation=128).fits(capacity)


def test_5_full_recomputation_costs_a_third_more():
    done = Reader(architecture=LLAMA_65B, recompute=Recompute.FULL).training(tokens=2048, sequences=1)
    assert done.model == pytest.approx(2048 * training_flops_per_token(LLAMA_65B, 2048))
    assert 0.32 < done.repeated / done.model < 1 / 3  # the output projection is not recomputed


def test_6_compute_of_llama2_70b():
    run = TrainingRun(num_parameters=70e9, num_tokens=2e12, batch_tokens=4e6)
    assert run.compute_flops == pytest.approx(8.4e23)


def test_7_efficiency_of_llama2_70b():
    achieved = achieved_flops_per_second()
    assert achieved / 1e12 == pytest.approx(135.6, abs=0.05)
    assert achieved / A100_PEAK == pytest.approx(0.435, abs=0.0005)


@pytest.mark.parametrize(
    ("parameters", "tokens", "days"), [(70e9, 2e12, 35.0), (140e9, 3.5e12, 122.5), (280e9, 5e12, 350)]
)
def test_8_by_charter_scale_plan(parameters, tokens, days):
    """The same from `charter plan scale plan --mfu llama2-70b`: days at work as printed, and what failures add."""
    cluster = RunCluster(accelerator=get("A100-80GB"), count=2048, price_usd_per_hour=2.0)
    run = TrainingRun(num_parameters=parameters, num_tokens=tokens, batch_tokens=4e6)
    made = at_utilisation(run, cluster, *utilisation_of("llama2-70b"))
    assert made.utilisation == pytest.approx(achieved_flops_per_second() / A100_PEAK)
    assert made.useful_days == pytest.approx(days, abs=0.05)
    assert 1.0 < made.days.p50 / days < 1.1
    assert made.days.p10 < made.days.p50 < made.days.p90
    assert made.usd.p50 == pytest.approx(made.days.p50 * 24 * 2048 * 2.0, rel=0.001)


@pytest.mark.parametrize("count", [4096, 10240])
def test_8_on_more_accelerators_at_the_same_efficiency(count):
    """Days at work fall with the number of accelerators; what failures take of the time grows with it."""
    run = TrainingRun(num_parameters=70e9, num_tokens=2e12, batch_tokens=4e6)

    def schedule(accelerators):
        cluster = RunCluster(accelerator=get("A100-80GB"), count=accelerators, price_usd_per_hour=None)
        return at_utilisation(run, cluster, *utilisation_of("llama2-70b"))

    few, many = schedule(2048), schedule(count)
    assert many.useful_days * count == pytest.approx(few.useful_days * 2048)
    assert many.effective_share < few.effective_share
    assert many.usd is None


def test_9_a_year_of_5000_a800_at_100_million_is_2_28_per_hour():
    gpu_hours = 5000 * 365 * 24
    assert gpu_hours / 1e6 == pytest.approx(43.8)
    assert 100e6 / gpu_hours == pytest.approx(2.28, abs=0.005)


def test_10_reinforcement_learning_dominates_an_alignment_cycle():
    """DeepSpeed-Chat 13B end to end: SFT 2.5 h, reward model 0.25 h, PPO 10.8 h on 8 A100."""
    with Path(__file__).with_name("published_costs.csv").open(newline="") as file:
        row = next(cost for cost in csv.DictReader(file) if cost["run"] == "DeepSpeed-Chat 13B end to end")
    assert "PPO 10.8h" in row["stage"]
    hours = {"sft": 2.5, "reward": 0.25, "ppo": 10.8}
    assert sum(hours.values()) == pytest.approx(float(row["hours"]), abs=0.06)
    assert hours["ppo"] / sum(hours.values()) == pytest.approx(0.79, abs=0.01)


def test_mem_explains_with_the_printed_formulas():
    """Examples 2 and 3 with the text's own numbers: `charter plan mem ... --explain` prints these rows."""
    layout = Layout(data=128, tensor=8, sequence_parallel=True, zero=ZeroStage.GRADIENTS, micro_batch=16)
    rows = printed_formulas(LLAMA_65B, layout, llama_65b_memory(), seq_len=2048, precision=ZERO_PAPER)
    by_name = {row.name: row for row in rows}
    count = count_parameters(LLAMA_65B).total
    assert by_name["model states, the whole model"].our_bytes / count == 16
    assert by_name["model states, ZeRO-2"].printed_bytes * 65e9 / count / GB == pytest.approx(23.36, abs=0.005)
    assert by_name["activations"].printed_bytes * 4e6 / (16 * 2048 * 128) / GB == pytest.approx(87.04, abs=0.005)
    assert all(row.our_bytes != row.printed_bytes and row.note for row in rows)

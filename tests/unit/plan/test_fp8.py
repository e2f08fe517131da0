"""fp8 in a plan: its memory and time as measured rows of Megatron-LM are predicted, and where there is none."""

from dataclasses import replace

import planner_case
import ppo_case
import pytest

from charter.catalog import accelerators
from charter.physics.precision import MEGATRON
from charter.physics.step_time import step_job
from charter.plan.knowledge import format_refusal
from charter.plan.plan import InfeasiblePlanError
from charter.plan.rl_search import rl_options
from charter.plan.search import search
from charter.plan.stage_memory import training_job
from charter.plan.what_if import other_engines
from charter.report.plan_cells import layout as layout_cell
from charter.spec.layout import Layout
from charter.spec.project import Resources
from charter.spec.stage import DpoStage, PretrainStage, SftStage
from charter.spec.stage_base import StageResources
from charter.validation.quantities import training_time
from charter.validation.quantities.memory_cases import training_case
from charter.validation.rows.measurement import Measurement

BF16 = PretrainStage(init="base", data=("chat",), engine="megatron", seq_len=4096, global_batch=64, steps=100)
FP8 = replace(BF16, dtype="fp8")
FIXED = StageResources(tensor=4, pipeline=1, context=1, micro_batch=1, sequence_parallel=True, recompute="none", zero=1)


def on(*names, nodes=2):
    return Resources(infra="on_prem", accelerators=names, num_nodes=nodes, max_nodes=nodes)


def planned(stage, resources):
    return planner_case.one(stage, resources).stages[0]


@pytest.fixture(scope="module")
def both():
    return [planned(replace(stage, resources=FIXED), on("H100:8")) for stage in (BF16, FP8)]


@pytest.fixture(scope="module")
def open_choice():
    """A stage that every engine trains, with a layout of the planner's choice."""
    stage = SftStage(init="base", data=("chat",), engine="megatron", seq_len=2048, global_batch=64, steps=100)
    return [planned(replace(stage, dtype=dtype), on("H100:8")) for dtype in ("bf16", "fp8")]


def measured(dtype):
    row = Measurement(
        id="X-1", metric="peak_mem_gb", value=60.0, unit="GB", model="Llama-3.1-8B", seq=4096, gpu="H100-SXM-80GB",
        gpus=16, framework="Megatron-LM", dtype=dtype, tp=4, shard="distopt", mbs=1, gbs=64,
    )  # fmt: skip
    return training_case(row).job


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_memory_is_asked_for_as_for_measured_rows_of_megatron(both, dtype):
    work = both[0].searched.question.work
    mine = training_job(work, work.trained[0], accelerators.get("H100"), dtype, "megatron")
    row = measured(dtype.upper())
    assert mine == replace(row, architecture=mine.architecture, reserved=mine.reserved, context=mine.context)
    assert (mine.fp8, mine.fp8_copies) == ((True, 2.0) if dtype == "fp8" else (False, 0.0))


def test_products_are_timed_as_for_measured_rows_of_megatron():
    bits, block_scaled = training_time._bits("FP8")
    mine = step_job(Layout(), seq_len=4096, dtype="fp8", precision=MEGATRON, adapter=None, head_share=1.0)
    assert (float(mine.bits), bool(mine.block_scaled)) == (bits, block_scaled) == (8.0, False)


def test_the_same_layout_is_quicker_and_keeps_smaller_inputs_beside_copies_of_the_weights(both):
    plain, eight = both
    assert plain.option.layout == eight.option.layout
    assert 1.2 < plain.option.overhead.useful_seconds / eight.option.overhead.useful_seconds < 2.0
    terms = [{term.name: term.value for term in made.option.peak.terms} for made in both]
    copies = next(value for name, value in terms[1].items() if name.endswith("8-bit copies"))
    shape = planner_case.LLAMA_8B
    heads, inner = (2 * shape.num_heads + 2 * shape.kv_heads) * shape.head_size, 3 * shape.intermediate_size
    assert copies == pytest.approx(2.0 * shape.num_layers * shape.hidden_size * (heads + inner) / 4)
    assert not any(name.endswith("8-bit copies") for name in terms[0])
    kept = [sum(value for name, value in each.items() if "activations" in name) for each in terms]
    assert kept[1] < kept[0]


def test_the_plan_says_in_which_format_it_trains(both):
    plain, eight = both
    assert [made.option.dtype for made in both] == ["bf16", "fp8"]
    assert [made.to_json()["dtype"] for made in both] == ["bf16", "fp8"]
    assert layout_cell(eight.option) == f"megatron fp8 {eight.option.layout_label}"
    assert layout_cell(plain.option) == f"megatron {plain.option.layout_label}"


def test_every_stage_that_trains_says_its_format_and_no_other_does():
    stages = {stage.name: stage.to_json()["dtype"] for stage in planner_case.planned(planner_case.project()).stages}
    assert {name for name, dtype in stages.items() if dtype == "bf16"} == {
        "pretrain", "sft", "judge", "sl_cai", "pm", "dpo", "ppo",
    }  # fmt: skip
    assert {dtype for dtype in stages.values() if dtype != "bf16"} == {None}


def test_placements_of_roles_say_it_too():
    question = ppo_case.question(ppo_case.workload(), "verl")
    found = rl_options(question, ppo_case.place("H100", 8, nodes=(2,)), 2)[0]
    assert {option.dtype for option in found} == {question.dtype}


@pytest.mark.parametrize("name", ["A100-80GB", "MI300X", "V100"])
def test_accelerators_without_fp8_are_refused_with_those_that_have_it(name):
    with pytest.raises(InfeasiblePlanError) as found:
        planned(FP8, on(f"{name}:8"))
    told = str(found.value)
    assert f"dtype fp8: {accelerators.get(name).name} has none" in told
    for other in ("L40S", "H100-SXM-80GB", "H200-SXM-141GB", "B200-SXM-180GB", "GB300"):
        assert other in told
    assert "A100-SXM-40GB" not in told
    assert "TPU" not in told
    assert "dtype: bf16" in told


def test_beside_one_that_has_it_the_other_is_only_dropped():
    made = planned(FP8, on("A100-80GB:8", "H100:8"))
    assert made.option.place.accelerator.name == "H100-SXM-80GB"
    assert [item.reason for item in made.rejected if "A100" in item.option and "has none" in item.reason]
    assert {option.place.accelerator.name for option in made.searched.options} == {"H100-SXM-80GB"}


def test_processors_are_refused_too():
    with pytest.raises(InfeasiblePlanError, match="dtype fp8: cpu has none"):
        planned(FP8, Resources(infra="local", accelerators=("cpu",)))


def test_other_engines_are_not_counted_in_a_format_that_they_lack(open_choice):
    plain, eight = open_choice
    assert other_engines(plain.searched.question, plain.option)
    assert other_engines(eight.searched.question, eight.option) == ()


@pytest.mark.parametrize("engine", ["native", "nemo_rl", "accelerate"])
def test_a_search_of_an_engine_without_fp8_finds_nothing_and_says_why(open_choice, engine):
    question, place = open_choice[1].searched.question, open_choice[1].option.place
    found = search(replace(question, engine=engine, peaks={}), (place,))
    assert found.options == ()
    assert [item.reason for item in found.rejected] == [format_refusal("fp8", engine, "sft", accelerators.get("H100"))]
    assert found.rejected[0].reason.startswith(f"dtype fp8: {engine} does not train in fp8: ")
    assert search(replace(question, engine=engine, dtype="bf16", peaks={}), (place,)).options


def test_kinds_that_megatron_does_not_train_are_no_exception():
    h100 = accelerators.get("H100")
    assert "this is dpo" in str(format_refusal("fp8", "megatron", DpoStage(init="a", data=("b",)).kind, h100))
    assert format_refusal("fp8", "megatron", SftStage(init="a", data=("b",)).kind, h100) is None
    assert format_refusal("bf16", "native", "dpo", accelerators.get("A100")) is None

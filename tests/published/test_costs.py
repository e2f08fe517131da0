"""Whole-run costs against published ones.

No constant of these plans is fitted to the hours and dollars below: they come from step times and generation rates, two
steps of DeepSpeed-Chat's training logs among them. The accuracy of whole runs is measured on some of the same rows.

Model operations over what the billed GPU-hours could have done at dense peak must lie between 0.30 and 0.45 for
pre-training (6 N per token): the published rows below do, rounded. A plan is an engine's best layout; the published
run had one layout of its own stack. The PPO rows read Microsoft's table as 262,144 episodes (test_plan_published);
their Azure price was 32.77 usd per hour of 8.

Seen failing under mutations of production lines (tests that fail):
- physics/devices.py, `rate_16` a third: 9 of 17.
- physics/serving_devices.py, `HYBRID` with a layer five times as slow: 4 of 17.
"""

from dataclasses import replace
from functools import cache
from statistics import median

import pytest
from deepspeed_chat_case import chat_project

from charter.catalog import accelerators, models
from charter.plan.make import make_plan
from charter.plan.money import ProjectCost, project_cost
from charter.plan.plan import Plan
from charter.spec.architecture import Architecture
from charter.spec.project import DataSpec, ModelSpec, Project, Resources
from charter.spec.stage import PreferenceModelStage, PretrainStage, SftStage
from charter.spec.stage_base import StageResources
from charter.validation.alarms import bundled_measurements
from charter.validation.validate import validate

PRETRAINING = (0.30, 0.45)
A100_80, A100_40, H800 = "A100-80GB:8", "A100-40GB:8", "H800:8"
OPT_350M = Architecture(
    hidden_size=1024,
    num_layers=24,
    num_heads=16,
    intermediate_size=4096,
    vocab_size=50272,
    gated_mlp=False,
    tied_embeddings=True,
    learned_positions=2050,
    model_type="opt",
)


def priced(project: Project, **architectures: Architecture) -> tuple[Plan, ProjectCost]:
    plan = make_plan(project, architectures=architectures, data_facts={})
    return plan, project_cost(plan.stages, project)


@cache
def pretraining(
    model: str,
    *,
    tokens: float,
    seq_len: int,
    sequences: int,
    accelerator: str = A100_80,
    nodes: int,
    engine: str = "native",
    layout: StageResources | None = None,
    usd_per_hour: float = 2.0,
    infra: str = "on_prem",
) -> tuple[Plan, ProjectCost]:
    project = Project(
        name="published",
        models={"base": ModelSpec(model="base")},
        data={"text": DataSpec(path="absent.jsonl", rows=1_000_000, mean_tokens=seq_len)},
        pipeline={
            "pretrain": PretrainStage(
                init="base",
                data=("text",),
                steps=round(tokens / sequences / seq_len),
                global_batch=sequences,
                seq_len=seq_len,
                engine=engine,
                resources=layout,
            )
        },
        resources=Resources(
            infra=infra, accelerators=(accelerator,), num_nodes=nodes, max_nodes=nodes, price=usd_per_hour
        ),
    )
    return priced(project, base=models.get(model).architecture)


def efficiency(plan: Plan, flops: float, accelerator: str) -> float:
    """Share of the dense peak of all billed hours."""
    peak = accelerators.get(accelerator.partition(":")[0]).dense_flops_per_second["bf16"]
    return flops / (plan.gpu_hours.p50 * 3600 * peak)


# meta-llama/llama MODEL_CARD.md: A100-80GB hours. 2 T tokens, batches of 4 M tokens of 4,096 (paper); 2,048 A100 as in
# worked example 8, since the number of GPUs is not printed. 6 N D of these: 39.1, 37.7 and 42.9 %.
LLAMA_2 = [("llama-2-7b", 6.74e9, 184_320), ("llama-2-13b", 13.0e9, 368_640), ("llama-2-70b", 69.0e9, 1_720_320)]


@pytest.mark.parametrize(("model", "parameters", "hours"), LLAMA_2)
def test_llama_2_takes_the_published_hours(model, parameters, hours):
    plan, _ = pretraining(model, tokens=2e12, seq_len=4096, sequences=1024, nodes=256)
    assert PRETRAINING[0] <= efficiency(plan, 6 * parameters * 2e12, A100_80) <= PRETRAINING[1]
    assert plan.gpu_hours.p10 <= hours <= plan.gpu_hours.p90


# databricks.com/blog/mpt-7b: 1 T tokens on 440 A100-40GB in 9.5 days for about 200,000 usd: 1.99 per GPU-hour, 35.7 %.
# Neither the cloud nor its network is printed, and it decides: 400 Gbit/s per node (AWS p4d) or 1,600 (a DGX).
MPT_7B = {"tokens": 1e12, "seq_len": 2048, "sequences": 1760, "accelerator": A100_40, "nodes": 55, "usd_per_hour": 1.99}


def test_mpt_7b_costs_about_200_000_usd_on_400_gigabit_nodes():
    plan, cost = pretraining("mpt-7b", infra="aws", **MPT_7B)
    assert PRETRAINING[0] <= efficiency(plan, 6 * 6.7e9 * 1e12, A100_40) <= PRETRAINING[1]
    assert cost.total is not None
    assert cost.total.p10 <= 200_000e6 <= cost.total.p90


def test_mpt_7b_on_1600_gigabit_nodes_is_planned_above_the_band_but_near():
    # 47 %: FSDP without recomputation, and no time lost beside failures of nodes. Above the gate, missed.
    _, cost = pretraining("mpt-7b", **MPT_7B)
    assert cost.total is not None
    assert 200_000e6 / 1.5 < cost.total.p50 < 200_000e6


def test_bloom_takes_a_million_hours_in_its_own_layout():
    # 1,082,990 hours of 384 A100-80GB, tensor 4, pipeline 12, full recomputation, batch 2,048 x 2,048 (BigScience).
    # The plan is quicker than the run, 31.8 %: it counts failures of nodes, not the weeks in which the run stood or was
    # repeated. So the hours are above our p90; only the gate holds.
    layout = StageResources(tensor=4, pipeline=12, micro_batch=2, zero=1, recompute="full")
    plan, _ = pretraining(
        "bloom", tokens=366e9, seq_len=2048, sequences=2048, nodes=48, engine="megatron", layout=layout
    )
    assert PRETRAINING[0] <= efficiency(plan, 6 * 176.2e9 * 366e9, A100_80) <= PRETRAINING[1]
    assert 1_082_990 / 1.4 < plan.gpu_hours.p50 < 1_082_990


def test_deepseek_v3_in_bf16_costs_about_twice_its_fp8_price():
    # DeepSeek-V3 technical report, table 1: 2.664 M H800-hours of pre-training at 2 usd, in FP8. Stages are planned in
    # bf16, whose peak is half, so a plan may not be below the published cost nor far above twice of it.
    _, cost = pretraining(
        "deepseek-ai/DeepSeek-V3",
        tokens=14.8e12,
        seq_len=4096,
        sequences=15_360,
        accelerator=H800,
        nodes=256,
        engine="megatron",
    )
    assert cost.total is not None
    assert 5.328e12 < cost.total.p50 < 2.1 * 5.328e12
    assert cost.by_bucket["useful"].p50 > 0.9 * cost.total.p50


# microsoft/DeepSpeed blogs/deepspeed-chat/README.md, tables 1 and 2: nodes of 8 x A100-80GB, hours, and usd of a row of
# the bundled measurements. Those hours are of DeepSpeed's trainer and hybrid engine of 2023, so they are predicted by
# the model of that stack (`RlStack`, `HYBRID`), whose constants are fitted without any row of this source. The plan of
# the native engine is another matter (test_plan_published): it reads keys once, and has kernels of today.
PPO_ROWS = {
    "DSC-0015": 32.8, "DSC-0017": 72.0, "DSC-0019": 144.0, "DSC-0021": 403.2,
    "DSC-0025": 80.0, "DSC-0027": 256.0, "DSC-0029": 480.0, "DSC-0031": 1280.0,
}  # fmt: skip
"""Row of the hours -> GPU-hours; the next row has the usd."""
NEAR = 1.8
"""Between the quickest row of the table and the slowest of the same model lies a factor of 1.8."""
TYPICAL = 1.4


@cache
def deepspeed_chat():
    rows = [row for row in bundled_measurements() if row.prefix == "DSC" and row.metric in ("wall_hours", "cost_usd")]
    return {item.row.id: item for item in validate(rows)}


@pytest.mark.parametrize("name", PPO_ROWS)
def test_ppo_costs_what_deepspeed_chat_cost(name):
    hours, cost = deepspeed_chat()[name], deepspeed_chat()[f"DSC-{int(name[4:]) + 1:04}"]
    assert {item.stack for item in (hours, cost)} == {"deepspeed-chat"}
    assert hours.row.value * hours.row.gpus == pytest.approx(PPO_ROWS[name], rel=0.01)
    for item in (hours, cost):
        assert item.row.value / NEAR < item.predicted < item.row.value * NEAR


def test_the_typical_row_of_deepspeed_chat_is_nearer():
    ratios = [deepspeed_chat()[name].predicted / deepspeed_chat()[name].row.value for name in PPO_ROWS]
    assert 1 / TYPICAL < median(ratios) < TYPICAL
    assert sum(1 / TYPICAL < ratio < TYPICAL for ratio in ratios) >= len(ratios) - 2


def test_the_published_13b_run_is_dominated_by_ppo():
    # Table 4, 8 x A100-40GB: 2.5 h, 0.25 h and 10.8 h: 108.8 GPU-hours, 79 % of them in PPO (worked example 10). The
    # rows of the first two steps are not printed: 20 and 40 % of the data to 40 % for PPO (its scripts, from memory),
    # answers of 256 tokens, one epoch.
    azure = Resources(infra="on_prem", accelerators=(A100_40,), num_nodes=1, price=32.77 / 8)
    project = chat_project(azure)
    rows = 131_900
    project = replace(
        project,
        data={
            **project.data,
            "demonstrations": DataSpec(path="absent.jsonl", rows=rows // 2, mean_tokens=512),
            "pairs": DataSpec(path="absent.jsonl", rows=rows, mean_tokens=512),
        },
        pipeline={
            "sft": SftStage(init="actor", data=("demonstrations",), seq_len=512, epochs=1),
            "reward": PreferenceModelStage(init="critic", data=("pairs",), seq_len=512, epochs=1),
            "ppo": replace(project.pipeline["ppo"], policy="sft", reward="reward"),
        },
    )
    plan, cost = priced(project, actor=models.get("opt-13b").architecture, critic=OPT_350M)
    assert 108.8 / 2.5 < plan.gpu_hours.p50 < 108.8
    assert cost.total is not None
    share = cost.by_stage["ppo"].p50 / cost.total.p50
    # The demonstrations are planned quicker than the 2.5 h that were printed, so PPO has more than 79 %.
    assert 0.70 < share < 0.97
    assert cost.unit("usd_per_ppo_episode") == pytest.approx(cost.by_stage["ppo"].p50 / 1e6 / 262_144)

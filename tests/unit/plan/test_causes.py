"""Refusals of the plan name their cause: divisibility, memory, or how far the search looked."""

import re
from dataclasses import replace

import planner_case
import pytest

from charter.catalog import accelerators, models
from charter.errors import InfeasibleError
from charter.physics.scaling.laws import published
from charter.plan.plan import InfeasiblePlanError
from charter.plan.scaling_plan import ScaleQuestion, scale_plan
from charter.plan.search import divisibility
from charter.plan.training_run import RunCluster, snapshot_price
from charter.spec.project import Resources
from charter.spec.stage import EvalStage, SftStage
from charter.spec.stage_base import StageResources

A800 = accelerators.get("A800")


def asked(*counts):
    clusters = tuple(RunCluster(accelerator=A800, count=count, price_usd_per_hour=2.28) for count in counts)
    return ScaleQuestion(law=published("besiroglu2024"), clusters=clusters, num_parameters=280e9, num_tokens=5e12)


def test_a_count_that_divides_badly_is_refused_with_others():
    with pytest.raises(InfeasibleError) as refused:
        scale_plan(asked(5000))
    said = str(refused.value)
    assert "5,000 = 2^3 x 5^4 accelerators, divide into no layout of megatron" in said
    assert "624 nodes (4,992 accelerators) or 640 nodes (5,120 accelerators) would do" in said


def test_one_infeasible_count_hides_no_other():
    made = scale_plan(asked(2048, 5000))
    assert [item.cluster.count for item in made.schedules] == [2048]
    ((unfit,)) = made.unfit
    assert (unfit.cluster.count, unfit.name) == (5000, A800.name)
    assert made.schedules == scale_plan(asked(2048)).schedules


def test_where_fewer_do_not_fit_either_it_is_not_divisibility():
    assert divisibility(625, 8, "megatron", lambda nodes: nodes > 625) == ""
    assert "624 nodes (4,992" in divisibility(625, 8, "megatron", lambda nodes: nodes < 625)


def test_a_refusal_says_how_far_the_search_looked():
    stage = SftStage(init="base", data=("chat",), engine="trl", seq_len=131_072)
    resources = Resources(infra="on_prem", accelerators=("H100:8",), num_nodes=1, price=2.0)
    with pytest.raises(InfeasiblePlanError) as refused:
        planner_case.one(stage, replace(resources, max_nodes=1), architecture=planner_case.LLAMA_70B)
    looked = "it does not fit on up to 64 nodes of 8 A100-80GB, 8 H100, 8 H200, 8 B200 either"
    assert f"with engine trl {looked}" in str(refused.value)


def test_an_evaluation_with_a_judge_needs_two_accelerators():
    stage = EvalStage(policy="base", judge="base", pairs=("pairs",), suites=("judge_agreement", "perplexity"))
    resources = Resources(infra="on_prem", accelerators=("H100:1",), num_nodes=1, price=2.0)
    with pytest.raises(InfeasiblePlanError, match="need an accelerator each; give it 2 or more"):
        planner_case.one(stage, resources)


def test_what_no_cloud_offers_has_a_list_price():
    price, source = snapshot_price(A800)
    assert price == 2.28
    assert "second-hand" in source


def needed_gib(tensor=None):
    stage = SftStage(
        init="base", data=("chat",), engine="megatron", seq_len=2048, resources=StageResources(tensor=tensor)
    )
    resources = Resources(infra="on_prem", accelerators=("A100-80GB:8",), num_nodes=1, max_nodes=1, price=2.0)
    falcon = models.get("tiiuae/falcon-40b").architecture
    with pytest.raises(InfeasiblePlanError) as refused:
        planner_case.one(stage, resources, architecture=falcon)
    return float(re.search(r"needs ([0-9.]+) GiB", str(refused.value))[1])


def test_a_refusal_is_of_the_layout_that_needs_least():
    """The state alone is as large over 4 as over 8 accelerators where ZeRO-1 shares the rest; its gradients are not."""
    assert needed_gib() == needed_gib(tensor=8) < needed_gib(tensor=4)

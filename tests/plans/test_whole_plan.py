"""Whole plans of projects: objectives, limits, shared capacity, waits, transfers, alternatives, dates."""

import json
from dataclasses import replace
from datetime import datetime
from itertools import pairwise

import pytest

from charter.catalog.price_book import PriceBook
from charter.errors import BudgetError, InfeasibleError
from charter.plan.make import make_plan
from charter.plan.storage import Location, Shipment, move_seconds, move_usd, shipments_usd
from charter.spec.project import Budget, Place, Resources, Storage
from charter.spec.stage import DpoStage, EvalStage, PreferenceModelStage, SftStage
from charter.spec.stage_base import StageResources

SFT = SftStage(init="base", data=("chat",), global_batch=128, seq_len=2048)
CHAIN = {
    "sft": SFT,
    "pm": PreferenceModelStage(init="base", data=("pairs",), global_batch=128),
    "dpo": DpoStage(init="sft", data=("pairs",), global_batch=128),
    "eval": EvalStage(policy="dpo", against="sft", prompts=("prompts",), num_prompts=500),
}
FORK = {name: replace(SFT, learning_rate=rate) for name, rate in (("one", 1e-5), ("two", 2e-5), ("three", 3e-5))}
CLOUDS = Resources(infra=None, accelerators=("H100:8",), max_nodes=4)


def priced(lab, resources, pipeline=CHAIN, **changes):
    return lab.planned(lab.project(resources, pipeline=pipeline, **changes))


_BASE = {}


def base(lab, objective="cheapest"):
    """The plan of the chain on four H100 nodes, made once."""
    if objective not in _BASE:
        _BASE[objective] = priced(lab, lab.H100, objective=objective)
    return _BASE[objective]


def nodes_at_once(plan):
    line = plan.timeline("p50")
    moments = line.start_seconds.values()
    return max(
        sum(
            stage.option.num_nodes
            for stage in plan.stages
            if line.start_seconds[stage.name] <= moment < line.end_seconds[stage.name]
        )
        for moment in moments
    )


def test_each_objective_is_best_at_what_it_names(lab):
    plans = {name: base(lab, name) for name in ("cheapest", "fastest", "balanced")}
    seconds = {name: plan.seconds.p50 for name, plan in plans.items()}
    usd = {name: plan.usd.p50 for name, plan in plans.items()}
    assert min(seconds.values()) == seconds["fastest"] < seconds["cheapest"]
    assert usd["cheapest"] <= 1.05 * min(usd.values()) < usd["fastest"]
    product = {name: seconds[name] * usd[name] for name in plans}
    assert min(product.values()) == pytest.approx(product["balanced"])


def test_a_budget_binds_fastest_and_is_a_verdict_for_cheapest(lab):
    free = base(lab, "fastest")
    least = base(lab)
    limit = Budget(limit=0.5 * (free.usd.p90 + least.usd.p90) / 1e6)
    bound = priced(lab, lab.H100, objective="fastest", budget=limit)
    assert bound.budget_verdict == "ok"
    assert free.seconds.p50 < bound.seconds.p50 <= least.seconds.p50
    assert priced(lab, lab.H100, budget=Budget(limit=1.0)).budget_verdict == "over"
    with pytest.raises(BudgetError, match=r"(?s)cheapest possible is \$.*sft.* on 8 x H100"):
        priced(lab, lab.H100, objective="balanced", budget=Budget(limit=1.0))


def test_a_budget_that_the_deadline_breaks_says_so(lab):
    least = base(lab)
    fast = base(lab, "fastest")
    limits = {"budget": Budget(limit=1.02 * least.usd.p90 / 1e6), "deadline": 1.01 * fast.seconds.p90}
    with pytest.raises(BudgetError, match="within the deadline of"):
        priced(lab, lab.H100, objective="fastest", **limits)


def test_a_deadline_costs_no_more_than_it_must(lab):
    slow = base(lab)
    fast = base(lab, "fastest")
    made = [
        priced(lab, lab.H100, deadline=slow.seconds.p90 + share * (fast.seconds.p90 - slow.seconds.p90))
        for share in (0.0, 0.5, 0.999)
    ]
    assert [plan.deadline_verdict for plan in made] == ["ok"] * 3
    usd = [plan.usd.p50 for plan in made]
    assert usd[0] <= 1.05 * usd[1]
    assert usd[1] <= 1.05 * usd[2]


def test_a_deadline_that_nothing_meets_gives_the_earliest_plan_and_what_would_help(lab):
    slow = replace(lab.H100, max_nodes=1)
    plan = priced(lab, slow, deadline=600.0)
    assert plan.deadline_verdict == "over"
    assert "feasible from deadline:" in plan.advice[0]
    hours = float(plan.advice[0].split("deadline: ")[1].split("h on")[0])
    assert priced(lab, slow, deadline=3600 * hours).deadline_verdict == "ok"
    assert priced(lab, slow, deadline=3600 * (hours - 0.2)).deadline_verdict != "ok"
    assert "with resources.max_nodes: 2 it is" in plan.advice[1]


def test_stages_that_do_not_wait_for_each_other_run_together(lab):
    plan = priced(lab, replace(lab.H100, max_nodes=12, num_nodes=4), FORK)
    assert plan.seconds.p50 == pytest.approx(max(stage.option.seconds.p50 for stage in plan.stages), rel=0.01)


@pytest.mark.parametrize("limit", [{"max_nodes": 5}, {"max_nodes": 12, "quota": {"H100": 40}}])
def test_nodes_and_quota_are_never_exceeded(lab, limit):
    plan = priced(lab, replace(lab.H100, **limit), FORK, objective="fastest")
    assert nodes_at_once(plan) <= 5
    apart = priced(lab, replace(lab.H100, max_nodes=12), FORK, objective="fastest")
    assert apart.seconds.p50 < plan.seconds.p50


def test_a_quota_below_one_node_is_refused_with_the_reason(lab):
    with pytest.raises(InfeasibleError, match=r"resources\.quota allows 0 nodes"):
        priced(lab, replace(lab.H100, quota={"H100": 4}), FORK)


def test_own_nodes_are_shared_and_waited_for(lab):
    own = Resources(any_of=(Place(infra="on_prem", accelerators=("H100:8",), nodes=2, queue_wait=3600.0),))
    plan = priced(lab, own, FORK, objective="fastest")
    assert nodes_at_once(plan) <= 2
    assert min(plan.timeline("p50").start_seconds.values()) == pytest.approx(3600, rel=1e-3)
    assert min(plan.timeline("p90").start_seconds.values()) == pytest.approx(3.32 * 3600, rel=1e-3)
    assert all(max(option.num_nodes for option in stage.options) == 2 for stage in plan.stages)


def test_a_lead_time_moves_the_work_to_what_is_there_first(lab):
    both = (Place(infra="lambda"), Place(infra="nebius", lead_time=30 * 86400.0))
    plan = priced(lab, replace(CLOUDS, any_of=both), {"sft": SFT}, objective="fastest")
    assert plan.stages[0].option.place.infra == "lambda"
    late = replace(CLOUDS, any_of=(Place(infra="lambda"),), lead_time=86400.0)
    line = priced(lab, late, {"sft": SFT}).timeline()
    assert line.start_seconds["sft"] == 86400


def test_only_allowed_clouds_and_regions(lab):
    everywhere = priced(lab, CLOUDS, {"sft": SFT}).stages[0]
    assert len({option.place.infra for option in everywhere.options}) > 3
    some = priced(lab, replace(CLOUDS, clouds=("aws", "lambda")), {"sft": SFT}).stages[0]
    assert {option.place.infra for option in some.options} == {"aws", "lambda"}
    here = priced(lab, replace(CLOUDS, infra="aws", regions=("us-west-2",)), {"sft": SFT}).stages[0]
    assert {option.price.region for option in here.options} <= {"us-west-2", "all"}
    with pytest.raises(InfeasibleError, match=r"in atlantis"):
        priced(lab, replace(CLOUDS, infra="aws", regions=("atlantis",)), {"sft": SFT})


def test_any_accelerator_is_every_whole_machine_of_the_price_book(lab):
    stage = priced(lab, replace(CLOUDS, accelerators=("any",), max_nodes=1), {"sft": SFT}).stages[0]
    assert len({option.place.accelerator.name for option in stage.options}) > 4


# ---- transfer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target", "usd_per_gb"),
    [
        (Location(infra="aws", region="us-east-1"), Location(infra="aws", region="us-east-1"), 0.0),
        (Location(infra="aws", region="us-east-1"), Location(infra="aws", region="eu-west-1"), 0.02),
        (Location(infra="aws", region="us-east-1"), Location(infra="gcp"), 0.09),
        (Location(infra="gcp"), Location(infra="aws"), 0.12),
        (Location(infra="lambda"), Location(infra="aws"), 0.0),
        (Location(infra="on_prem"), Location(infra="aws"), 0.0),
    ],
)
def test_prices_of_moving_a_gigabyte(source, target, usd_per_gb):
    """AWS .09 to the internet and .02 between regions, Google .12; smaller clouds and own machines nothing."""
    assert move_usd(100e9, source, target) == pytest.approx(100 * usd_per_gb)
    assert move_seconds(125e9, source, target) == (0.0 if source == target else 100.0)


def test_it_stays_with_a_provider_unless_leaving_saves_more_than_the_transfer(lab):
    """The first stage needs two nodes, which only aws has; the second may follow it or pay for moving 16 GB."""
    pipeline = {
        "sft": replace(SFT, resources=StageResources(num_nodes=2)),
        "dpo": DpoStage(init="sft", data=("pairs",), global_batch=128, resources=StageResources(num_nodes=1)),
    }

    def plan(usd_per_hour):
        other = Place(infra="gcp", price=usd_per_hour, nodes=1)
        places = (Place(infra="aws", price=2.0), other)
        return priced(lab, Resources(any_of=places, accelerators=("H100:8",), max_nodes=4), pipeline)

    stays, moves = plan(1.99), plan(0.1)
    assert [stage.option.place.infra for stage in stays.stages] == ["aws", "aws"]
    assert [stage.option.place.infra for stage in moves.stages] == ["aws", "gcp"]
    assert sum(stage.transfer_usd.p90 for stage in stays.stages) == 0
    dpo = moves.stage("dpo")
    assert dpo.transfer_bytes == pytest.approx(2 * 8.03e9, rel=0.01)
    assert dpo.transfer_usd.p50 / 1e6 == pytest.approx(16.06 * 0.09, rel=0.01)
    assert dpo.to_json()["breakdown"]["usd"]["transfer"] == dpo.transfer_usd.p50 / 1e6
    line = moves.timeline()
    assert line.start_seconds["dpo"] - line.end_seconds["sft"] == pytest.approx(16.06 / 1.25, rel=0.01)


def test_what_leaves_a_provider_in_a_month_runs_through_its_tiers_once():
    aws, gcp, west = Location(infra="aws"), Location(infra="gcp"), Location(infra="aws", region="us-west-2")
    east = Location(infra="aws", region="us-east-1")
    sent = [Shipment(num_bytes=6e12, source=aws, target=gcp, month=month) for month in (0, 0, 1)]
    usd = shipments_usd([*sent, Shipment(num_bytes=6e12, source=east, target=west, month=1)], PriceBook.bundled())
    # 10.24 TB at .09, then .085; the second month begins anew; between regions there are no tiers.
    assert usd == pytest.approx([540, 4240 * 0.09 + 1760 * 0.085, 540, 120])
    assert sum(usd[:2]) < 2 * move_usd(6e12, aws, gcp)


def test_everything_goes_through_a_named_bucket(lab):
    on_lambda = Resources(infra="lambda", accelerators=("H100:8",), max_nodes=4)
    pipeline = {"sft": SFT, "dpo": DpoStage(init="sft", data=("pairs",), global_batch=128)}
    plan = priced(lab, on_lambda, pipeline, storage=Storage(artifacts="s3://bucket/charter"))
    dpo = plan.stage("dpo")
    assert dpo.transfer_bytes > 2 * 8.03e9 * 1.9
    out_of_aws = dpo.transfer_bytes - 2 * 8.03e9
    assert dpo.transfer_usd.p50 / 1e6 == pytest.approx(out_of_aws * 0.09 / 1e9, rel=0.01)
    assert dpo.wait_seconds.p50 == pytest.approx(out_of_aws / 1.25e9, rel=0.01)
    assert plan.usd.p50 == sum(
        stage.compute_usd.p50 + stage.storage_usd.p50 + stage.transfer_usd.p50 for stage in plan.stages
    )


# ---- paying ----------------------------------------------------------------------------------------------------------


def test_billing_by_the_hour_bills_whole_hours(lab):
    plan = priced(lab, replace(lab.H100, billing_granule=3600.0, num_nodes=1), {"sft": SFT})
    hours = plan.stages[0].option.billed_hours.p50
    assert hours == pytest.approx(round(hours))
    assert hours > priced(lab, replace(lab.H100, num_nodes=1), {"sft": SFT}).stages[0].option.billed_hours.p50


def test_a_capacity_block_bills_whole_days_of_its_sizes(lab):
    block = Place(infra="aws", accelerators=("H100:8",), market="capacity_block", price=3.0)
    plan = priced(lab, Resources(any_of=(block,), max_nodes=3), {"sft": SFT})
    stage = plan.stages[0]
    assert (stage.option.price.market, stage.option.num_nodes in (1, 2)) == ("capacity_block", True)
    assert stage.compute_usd.p50 / 1e6 == pytest.approx(stage.option.num_accelerators * 24 * 3.0)
    assert stage.compute_usd.p10 == stage.compute_usd.p90
    assert {option.num_nodes for option in stage.options} == {1, 2}


def test_a_commitment_is_used_when_it_is_there_and_compared_when_it_is_not(lab):
    gcp = Resources(infra="gcp", accelerators=("A100-40GB:4",), num_nodes=4, max_nodes=4)
    used = priced(lab, replace(gcp, reserved="1y"), {"sft": SFT})
    plain = priced(lab, gcp, {"sft": SFT})
    assert used.stages[0].option.price.market == "reserved_1y"
    assert used.usd.p50 < plain.usd.p50
    asked = priced(lab, replace(gcp, reserved="auto"), {"sft": SFT})
    assert asked.stages[0].option.price.market == "on_demand"
    note = next(item for item in asked.assumptions if item.name.startswith("commitment of 1 y"))
    price = next(price for price in asked.stages[0].option.place.reserved if price.market == "reserved_1y")
    assert note.value == round(16 * 8760 * price.usd_per_hour)
    assert "it pays from 63% of the hours" in note.source


# ---- alternatives, dates, JSON ---------------------------------------------------------------------------------------


def with_alternatives(lab, number, **changes):
    spot = replace(lab.H100, infra=None, clouds=("aws", "lambda", "gcp"), use_spot="auto")
    made = lab.project(spot, pipeline=CHAIN, **changes)
    architectures = {"base": lab.LLAMA_8B}
    return make_plan(
        made, architectures=architectures, data_facts={}, alternatives=number, start=datetime(2026, 12, 1, 9)
    )


def test_alternatives_differ_in_kind_and_are_in_order(lab):
    plan = with_alternatives(lab, 4)
    kinds = [tuple(sorted(other.differences(plan).items())) for other in plan.alternatives]
    assert len(set(kinds)) == 4
    assert all(kinds)
    usd = [other.usd.p50 for other in plan.alternatives]
    assert all(later >= 0.95 * earlier for earlier, later in pairwise(usd))
    assert min(usd) >= plan.usd.p50 / 1.05
    told = plan.to_json()["alternatives"]
    assert [item["usd"]["p50"] for item in told] == [money / 1e6 for money in usd]
    assert set(told[0]["differs"]) == set(plan.alternatives[0].differences(plan))


def test_dates_follow_the_start(lab):
    told = with_alternatives(lab, 0).to_json()["timeline"]
    assert told["start"] == "2026-12-01T09:00"
    assert told["start"] < told["finish"]["p10"] < told["finish"]["p50"] < told["finish"]["p90"]
    # Several stages may be the last: the p90 of the last end is no earlier than the latest p90.
    assert max(stage["finish"]["p90"] for stage in told["stages"]) <= told["finish"]["p90"]
    without = base(lab).to_json()["timeline"]
    assert (without["start"], without["finish"]) == (None, None)


def test_timeline_of_the_json_is_that_of_the_stages(lab):
    plan = priced(lab, lab.H100, FORK)
    made = json.loads(json.dumps(plan.to_json()))
    for stage, band in zip(made["stages"], made["timeline"]["stages"], strict=True):
        assert band["start_seconds"]["p50"] == stage["start_seconds"]
        assert band["end_seconds"]["p50"] == stage["end_seconds"]

from dataclasses import replace

import pytest

from charter.plan.assemble import market_reason, spot_verdict
from charter.plan.option import Option
from charter.spec.project import Resources
from charter.spec.stage import SftStage

HOUR = 3600.0
SFT = SftStage(init="base", data=("chat",), steps=20_000, global_batch=64)


@pytest.fixture
def pair(lab):
    """The same job on demand and on spot, 8 H100 of a cloud that rents both."""
    stage = lab.one(SFT, Resources(infra="aws", accelerators=("H100:8",), num_nodes=1, use_spot="auto")).stages[0]
    made = {option.price.market: option for option in stage.options if option.engine == stage.option.engine}
    assert isinstance(made["spot"], Option)
    return made["on_demand"], made["spot"]


def test_cheaper_spot_is_taken_and_says_what_it_costs_in_time(pair):
    on_demand, spot = pair
    found = spot_verdict(on_demand, spot)
    assert found.market == "spot"
    assert found.usd_saved == pytest.approx(on_demand.usd.p50 - spot.usd.p50)
    assert found.reason.startswith("spot: $")
    assert "lost each" in found.reason
    assert found.interruptions == pytest.approx(spot.overhead.spent.interruptions)


def test_deadline_counts_the_p90_of_spot_and_not_its_mean(pair):
    on_demand, spot = pair
    between = (spot.seconds.p50 + spot.seconds.p90) / 2
    assert on_demand.seconds.p90 < between
    found = spot_verdict(on_demand, spot, allowed_seconds=between)
    assert found.market == "on_demand"
    assert "p90 of spot misses the deadline" in found.reason
    roomy = spot_verdict(on_demand, spot, allowed_seconds=1.01 * spot.seconds.p90)
    assert (roomy.market, roomy.reason.endswith("p90 inside the deadline")) == ("spot", True)


def test_deadline_that_nothing_makes_leaves_the_choice_to_money(pair):
    on_demand, spot = pair
    found = spot_verdict(on_demand, spot, allowed_seconds=0.5 * on_demand.seconds.p10)
    assert found.market == "spot"
    assert "deadline" not in found.reason


def test_spot_at_the_same_price_costs_more_than_on_demand(pair):
    on_demand, spot = pair
    dear = replace(spot, price=replace(spot.price, usd_per_hour=on_demand.price.usd_per_hour))
    found = spot_verdict(on_demand, dear)
    assert found.market == "on_demand"
    assert "more after" in found.reason


def test_break_even_is_the_ratio_of_billed_hours(pair):
    # Spot pays iff price_spot x billed_spot < price_on_demand x billed_on_demand.
    on_demand, spot = pair
    even = on_demand.price.usd_per_hour * on_demand.overhead.billed_seconds / spot.overhead.billed_seconds
    for factor, market in ((0.99, "spot"), (1.01, "on_demand")):
        priced = replace(spot, price=replace(spot.price, usd_per_hour=factor * even))
        assert spot_verdict(on_demand, priced).market == market


def test_reason_compares_the_chosen_with_its_twin(pair):
    on_demand, spot = pair
    assert market_reason(spot, pair).startswith("spot: $")
    assert market_reason(on_demand, pair).startswith("on demand: -")
    assert "for the whole plan" in market_reason(on_demand, pair)
    assert market_reason(on_demand, (on_demand,)) == ""
    assert market_reason(spot, (spot,)) == "spot: no other market is allowed or offered here"


def test_unpriced_options_have_no_verdict(pair):
    on_demand, spot = pair
    unpriced = replace(on_demand, price=replace(on_demand.price, usd_per_hour=None))
    assert spot_verdict(unpriced, spot) is None


def test_plan_gives_the_reason_of_every_stage(lab):
    resources = Resources(infra="aws", accelerators=("H100:8",), max_nodes=2, use_spot="auto")
    free = lab.one(SFT, resources)
    assert free.stages[0].market_reason.startswith("spot: $")
    hurried = lab.one(SFT, resources, deadline=0.9 * free.stages[0].option.seconds.p90)
    assert hurried.stages[0].option.seconds.p90 < free.stages[0].option.seconds.p90
    assert lab.one(SFT, replace(resources, use_spot=False)).stages[0].market_reason == ""

"""Small decisions that no other test would miss: each of these was broken on purpose once, and nothing failed."""

from dataclasses import replace
from types import SimpleNamespace

import ppo_case as case
import pytest

from charter.physics.terms import Interval
from charter.plan.assemble import market_reason
from charter.plan.gather import NODES, _within_quota, held
from charter.plan.offers import Price
from charter.plan.option import loses_to, near_tied
from charter.plan.purchase import Gap, markets, warmth
from charter.plan.rl_search import across
from charter.spec.project import Project, Resources
from charter.spec.stage import SftStage
from charter.units import format_seconds

SPOT = Price(market="spot", usd_per_hour=0.5, source="test", as_of="")


@pytest.fixture(scope="module")
def asked():
    return case.question(replace(case.workload(), ahead=True), "openrlhf", use_spot="auto")


@pytest.fixture(scope="module")
def mixed(asked):
    """PPO on two kinds of accelerators."""
    places = (case.place("H100", nodes=(1, 2), usd=4.0), case.place("A100-80GB", nodes=(1, 2), usd=1.5))
    return across(asked, places)[0]


@pytest.fixture
def pair(lab):
    resources = Resources(infra="aws", accelerators=("H100:8",), num_nodes=1, use_spot="auto")
    stage = lab.one(SftStage(init="base", data=("chat",), steps=20_000, global_batch=64), resources).stages[0]
    found = {option.price.market: option for option in stage.options}
    return found["on_demand"], found["spot"]


def test_what_lies_beside_is_held_and_counts_against_a_quota(mixed):
    (group,) = mixed.beside
    assert held(None, mixed)[NODES] == mixed.num_nodes + group.num_nodes

    def project(most):
        return Project(
            name="p", models={}, data={}, pipeline={}, resources=Resources(quota={group.place.accelerator.name: most})
        )

    assert _within_quota(mixed, project(group.num_accelerators))
    assert not _within_quota(mixed, project(group.num_accelerators - 1))


def test_a_failure_beside_stops_the_stage(asked, mixed):
    on_demand = replace(asked, use_spot=False)
    (again,) = markets(on_demand, mixed)
    assert again.overhead == mixed.overhead
    (alone,) = markets(on_demand, replace(mixed, beside=()))
    assert again.overhead.mean_between_failures_seconds < alone.overhead.mean_between_failures_seconds


def test_only_spot_means_only_spot(asked, mixed):
    spot = replace(mixed, place=replace(mixed.place, spot=SPOT))
    assert [option.price.market for option in markets(replace(asked, use_spot=True), spot)] == ["spot"]


def test_the_reason_shows_the_medians_of_the_table(pair):
    on_demand, spot = pair
    assert spot.overhead.wall_seconds > spot.seconds.p50
    reason = loses_to(spot, on_demand)
    assert format_seconds(spot.seconds.p50) in reason
    assert format_seconds(spot.overhead.wall_seconds) not in reason


def test_the_other_market_is_that_of_the_same_job_and_not_the_cheapest(pair):
    on_demand, spot = pair
    cheaper = replace(on_demand, num_nodes=2, price=replace(on_demand.price, usd_per_hour=0.01))
    assert market_reason(spot, [cheaper, on_demand, spot]) == market_reason(spot, [on_demand, spot])


def test_a_restart_is_billed_in_whole_granules_so_servers_are_kept_up_to_one():
    gap = Gap(seconds=3000.0, usd_per_hour=36.0, start_seconds=300.0, load_seconds=60.0, granule_seconds=3600.0)
    assert warmth(gap).keep
    assert not warmth(replace(gap, granule_seconds=1.0)).keep


def test_the_bill_of_an_endpoint_is_in_every_quantile(pair):
    option = replace(pair[0], endpoint_usd=Interval(p10=1.0, p50=2.0, p90=4.0))
    mine, machines = option.usd, option.machines_usd
    assert (mine.p10 - machines.p10, mine.p50 - machines.p50, mine.p90 - machines.p90) == pytest.approx((1, 2, 4))


def test_near_tied_asks_both_intervals():
    narrow = SimpleNamespace(usd=Interval(p10=9.0, p50=10.0, p90=11.0))
    wide = SimpleNamespace(usd=Interval(p10=5.0, p50=12.0, p90=30.0))
    assert near_tied([narrow], wide) == near_tied([wide], narrow) == ()

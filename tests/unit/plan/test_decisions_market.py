"""Decisions between markets: where spot may be offered, which time of it counts, how long a block is bought for."""

import math
from dataclasses import replace

import pytest

from charter.plan.offers import CAPACITY_BLOCK, Price
from charter.plan.purchase import purchases
from charter.spec.project import Resources
from charter.spec.stage import SftStage
from charter.spec.stage_base import StageResources

STAGE = SftStage(init="base", data=("chat",), steps=20_000, global_batch=64)
AUTO = Resources(infra="aws", accelerators=("H100:8",), num_nodes=1, use_spot="auto")
_BASE = {}


@pytest.fixture
def pair(lab):
    """The same job on demand and on spot, planned once."""
    if not _BASE:
        _BASE.update({option.price.market: option for option in lab.one(STAGE, AUTO).stages[0].options})
    return _BASE["on_demand"], _BASE["spot"]


@pytest.mark.parametrize(
    ("project", "stage", "wanted"),
    [
        ("auto", None, {"on_demand", "spot"}),
        (False, None, {"on_demand"}),
        ("auto", False, {"on_demand"}),
        (False, True, {"spot"}),
        (True, "auto", {"on_demand", "spot"}),
    ],
)
def test_a_stage_says_for_itself_whether_it_may_be_interrupted(lab, project, stage, wanted):
    own = None if stage is None else StageResources(use_spot=stage)
    plan = lab.one(replace(STAGE, resources=own), replace(AUTO, use_spot=project))
    assert {option.price.market for option in plan.stages[0].options} == wanted


def test_the_late_end_on_spot_has_the_late_wait(pair):
    _, spot = pair
    around = spot.overhead
    exact = replace(spot, time_sigmas=(1e-9,))
    assert around.waits.p90 > 2 * around.waits.p50
    assert exact.seconds.p90 == pytest.approx(around.billed_seconds + around.waits.p90)
    late = math.hypot(
        around.billed_seconds * (math.exp(1.2816 * spot.time_sigmas[0]) - 1), around.waits.p90 - around.waits.p50
    )
    assert len(spot.time_sigmas) == 1
    assert spot.seconds.p90 - spot.seconds.p50 == pytest.approx(late, rel=1e-3)


def test_a_block_is_bought_for_the_late_end(pair):
    on_demand, _ = pair
    day = 86400.0
    billed = replace(on_demand.overhead, billed_seconds=0.95 * day, wall_seconds=0.95 * day)
    price = Price(market=CAPACITY_BLOCK, usd_per_hour=2.0, source="test", as_of="")
    option = replace(on_demand, price=price, overhead=billed, time_sigmas=(0.1,))
    assert option.seconds.p50 < day < option.seconds.p90
    (bought,) = purchases(option, Resources())
    assert bought.fixed_usd == pytest.approx(2 * 24 * 8 * 2.0)

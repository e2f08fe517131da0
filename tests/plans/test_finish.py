"""The finish of a plan: one source for totals, dates, verdicts, the timeline and the cost's spread."""

from dataclasses import replace

import numpy as np
import pytest

from charter.cost.monte_carlo import Noise
from charter.plan.choose import PlanChoice
from charter.plan.make import in_time
from charter.plan.money import project_cost
from charter.resilience.spot import CURVE
from charter.spec.sections import Costs
from charter.spec.stage import DpoStage, SftStage

SFT = SftStage(init="base", data=("chat",), global_batch=128, seq_len=2048)
LONG = replace(SFT, epochs=30)
CHAIN = {"a": LONG, **{name: replace(LONG, init=before) for before, name in zip("abcde", "bcdef", strict=True)}}


@pytest.fixture(scope="module")
def made():
    return {}


def spot_chain(lab, made):
    if "plan" not in made:
        made["project"] = lab.project(replace(lab.H100, use_spot=True), pipeline=CHAIN)
        made["plan"] = lab.planned(made["project"])
    return made["plan"]


def test_the_whole_plan_of_one_stage_takes_what_the_stage_takes(lab):
    plan = lab.one(SFT)
    for name in ("p10", "p50", "p90"):
        assert getattr(plan.seconds, name) == pytest.approx(getattr(plan.stages[0].option.seconds, name), rel=0.03)
    spot = lab.one(SFT, replace(lab.H100, use_spot=True))
    # The interval of a spot stage takes distances from the medians as squares; its draws add the two themselves.
    assert spot.seconds.p90 == pytest.approx(spot.stages[0].option.seconds.p90, rel=0.05)


def test_a_chain_on_spot_ends_between_the_sum_of_medians_and_that_of_p90s(lab, made):
    plan = spot_chain(lab, made)
    options = [stage.option for stage in plan.stages]
    assert len(options) == 6
    assert all(option.overhead.waits for option in options)
    medians, highs = (sum(getattr(option.seconds, name) for option in options) for name in ("p50", "p90"))
    assert 1.5 * medians < plan.seconds.p50 < sum(option.overhead.wall_seconds for option in options)
    assert plan.seconds.p90 < 0.95 * highs
    # Waits as in histories of the pool, one for each stage.
    luck = Noise(seed=9, size=20_000)
    waits = [
        np.interp(luck.uniform(str(row)), CURVE, option.overhead.waits.curve) for row, option in enumerate(options)
    ]
    total = sum(waits) + sum(option.overhead.billed_seconds for option in options)
    assert (plan.seconds.p50, plan.seconds.p90) == pytest.approx(np.quantile(total, (0.5, 0.9)), rel=0.1)


def test_timeline_totals_verdict_and_spread_say_the_same(lab, made):
    plan = spot_chain(lab, made)
    assert plan.cost.spread.seconds == plan.seconds
    told = plan.to_json()
    for name in ("p10", "p50", "p90"):
        assert told["total"]["seconds"][name] == told["timeline"]["stages"][-1]["end_seconds"][name]
        assert plan.timeline(name).total_seconds == getattr(plan.seconds, name)
    at = plan.seconds.p90
    assert [replace(plan, deadline_seconds=at * share).deadline_verdict for share in (1.01, 0.99)] == ["ok", "p90 over"]
    again = project_cost(plan.stages, replace(made["project"], costs=Costs(rework=0.3)), sharing=plan.shared)
    assert again.spread.seconds.p50 > plan.seconds.p50


def test_a_deadline_between_the_drawn_finish_and_the_sum_of_p90s_is_kept_on_spot(lab, made):
    """The sum of p90s of the spot chain misses it; the chain itself does not."""
    plan = spot_chain(lab, made)
    project = replace(made["project"], resources=replace(lab.H100, use_spot="auto"))
    free = lab.planned(project)
    assert {stage.option.price.market for stage in free.stages} == {"spot"}
    deadline = 1.05 * free.seconds.p90
    assert deadline < sum(stage.option.seconds.p90 for stage in free.stages)
    kept = lab.planned(replace(project, deadline=deadline))
    assert (kept.deadline_verdict, kept.usd) == ("ok", free.usd)
    tight = lab.planned(replace(project, deadline=0.7 * free.seconds.p90))
    assert tight.deadline_verdict == "ok"
    assert free.usd.p50 < tight.usd.p50 < 4 * free.usd.p50
    assert plan.seconds.p90 > tight.seconds.p90


def test_fastest_does_not_take_a_market_for_fast_whose_wait_is_mostly_nothing(lab):
    pipeline = {"a": SFT, "b": DpoStage(init="a", data=("pairs",), global_batch=128)}
    project = lab.project(replace(lab.H100, use_spot="auto"), pipeline=pipeline, objective="fastest")
    assert {stage.option.price.market for stage in lab.planned(project).stages} == {"on_demand"}


# ---- the limit of the search ----------------------------------------------------------------------------------------

PLANS = [(1.0, 100.0), (2.0, 80.0), (3.0, 60.0), (4.0, 40.0), (5.0, 20.0)]
"""usd and sum of p90s: the dearer, the earlier."""


def by_limit(limit):
    allowed = [row for row, (_, late) in enumerate(PLANS) if limit is None or late <= limit]
    if not allowed:
        return None
    row = min(allowed, key=lambda index: PLANS[index][0])
    return PlanChoice(ways=(row,), seconds=(PLANS[row][1] / 2, PLANS[row][1]), usd=(PLANS[row][0],) * 2)


@pytest.mark.parametrize("share", [0.5, 0.8, 1.0, 1.2])
@pytest.mark.parametrize("deadline", [15.0, 25.0, 33.0, 47.0, 60.0, 75.0, 99.0, 200.0])
def test_the_cheapest_plan_whose_draws_are_in_time_is_found(share, deadline):
    """Whatever the sum of p90s is of the drawn p90."""
    found = in_time(by_limit, lambda choice: share * choice.seconds[1], deadline, lambda: by_limit(20.0))
    best = next((row for row, (_, late) in enumerate(PLANS) if share * late <= deadline), None)
    assert (found and found.choice.ways) == (None if best is None else (best,))


def test_without_a_deadline_nothing_is_drawn():
    def never(_):
        raise AssertionError

    assert in_time(by_limit, never, None, lambda: by_limit(20.0)).choice.ways == (0,)
    assert in_time(lambda _: None, never, 10.0, lambda: by_limit(20.0)) is None

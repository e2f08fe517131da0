import json
from dataclasses import replace

import ppo_case
import pytest

from charter.plan.knowledge import shipped
from charter.plan.offers import places
from charter.plan.risk import detection_delay, overhead, risk_assumptions
from charter.plan.stage_risk import stage_risk, stage_scenario
from charter.resilience.failures import AGENTS, CRASH, KUBERNETES, NCCL, RAY, SILENT_SECONDS, SLURM
from charter.resilience.simulate import simulate
from charter.spec.project import Resources
from charter.spec.sections import RiskSettings
from charter.spec.stage import SftStage

SFT = SftStage(init="base", data=("chat",), steps=4000)
DAY = 86400.0


@pytest.fixture
def aws(lab):
    return _place(lab, Resources(infra="aws", accelerators=("H100:8",)))


@pytest.fixture
def own(lab):
    return _place(lab, Resources(infra="on_prem", accelerators=("H100:8",)))


def _place(lab, resources):
    made = lab.project(resources, pipeline={"stage": SFT})
    return places(made, SFT, lab.MACHINE, None)[0][0]


def around(place, *, nodes=64, spot=False, days=10, checkpoint_bytes=1e12, agents=False, **settings):
    return overhead(
        days * DAY,
        place=place,
        num_nodes=nodes,
        spot=spot,
        checkpoint_bytes=checkpoint_bytes,
        settings=RiskSettings(**settings),
        units=100_000,
        agents=agents,
    )


def test_where_the_time_goes_adds_up_to_the_wall_time(aws):
    found = around(aws)
    assert found.spent.wall_seconds + found.start_seconds == pytest.approx(found.wall_seconds)
    assert found.billed_seconds == found.wall_seconds
    # 64 nodes, 3.79 per 1,000 node-days, 10 days: 2.4 failures of machines, 10 of software, and some for what they add.
    assert found.spent.interruptions == pytest.approx((64 * 3.79e-3 + 1) * 10, rel=0.05)
    machines = around(aws, software_failures_per_day=0.0)
    assert machines.spent.interruptions == pytest.approx(64 * 3.79e-3 * 10, rel=0.05)


def test_crashes_of_software_do_not_hang_on_nodes(aws):
    few, many = (around(aws, nodes=nodes, failures_per_node_day=0.0) for nodes in (1, 64))
    assert few.mean_between_failures_seconds == many.mean_between_failures_seconds == DAY
    never = around(aws, failures_per_node_day=0.0, software_failures_per_day=0.0)
    assert never.spent.interruptions == 0


def test_no_plan_saves_only_at_its_end(aws):
    """A run of half a day on one node was told to save every 11 hours, by failures of machines alone."""
    found = around(aws, nodes=1, days=0.5, checkpoint_bytes=1e11)
    assert found.interval_seconds < 2 * 3600


def test_interval_is_whole_steps(aws):
    found = around(aws)
    assert found.interval_seconds == pytest.approx(found.interval_units * 10 * DAY / 100_000)


def test_detection_follows_the_place_and_the_settings(aws, own):
    assert detection_delay(own).seconds == 300
    assert detection_delay(aws).seconds == detection_delay(aws, agents=True).seconds == 600
    assert detection_delay(aws, RiskSettings(detection="kubernetes")).seconds == 380
    walls = [around(aws, detection=delay).wall_seconds for delay in (0.0, "watchdog", "slurm", 1800.0)]
    assert walls == sorted(walls)
    slow = around(aws, detection=1800.0)
    machines = 64 * 3.79e-3
    mean = (machines * 1800 + CRASH.seconds) / (machines + 1)
    assert slow.spent.detection_seconds == pytest.approx(mean * slow.spent.interruptions)


def test_agents_on_several_own_nodes_see_a_silent_one(own):
    """One node has no agent beside it: the scheduler's time-out counts, as for a trainer on a Ray cluster."""
    assert around(own, nodes=1, agents=True).detection == SLURM
    assert around(own, nodes=4, agents=False).detection == SLURM
    watched = around(own, nodes=4, agents=True)
    assert watched.detection == AGENTS
    assert SILENT_SECONDS < AGENTS.seconds < SLURM.seconds
    assert watched.wall_seconds < around(own, nodes=4).wall_seconds
    assert around(own, nodes=4, agents=True, detection="slurm").detection == SLURM


@pytest.mark.parametrize(
    "worse",
    [
        {"failures_per_node_day": 0.02},
        {"restart": 3600.0},
        {"save_bandwidth": 10_000_000},
        {"detection": 3600.0},
    ],
)
def test_own_settings_are_used_and_named(aws, worse):
    assert around(aws, **worse).wall_seconds > around(aws).wall_seconds


def test_assumptions_name_the_project_where_it_gave_a_value(aws):
    settings = RiskSettings(failures_per_node_day=0.02, restart=900.0, save_bandwidth=10**9, spot_mean_up=9000.0)
    found = {
        item.name: item
        for item in risk_assumptions(aws, spot=True, unseen=NCCL, knowledge=shipped(), settings=settings)
    }
    own = {name for name, item in found.items() if item.source.startswith("risk:")}
    assert own == {
        "failures per node and day",
        "restart after a failure, seconds",
        "checkpoint bytes per second and node",
        "spot: mean hours up",
    }
    assert found["spot: mean hours up"].value == 2.5


def test_asynchronous_saves_stall_less_and_pay_where_saves_are_long(aws):
    blocking, beside = (around(aws, nodes=256, checkpoint_bytes=1e13, async_saves=flag) for flag in (False, True))
    assert beside.save_seconds < blocking.save_seconds == beside.persist_seconds
    assert beside.interval_seconds >= beside.persist_seconds
    assert beside.wall_seconds < blocking.wall_seconds


def test_notice_that_covers_a_save_shortens_spot(aws):
    blind, warned = (around(aws, spot=True, notice=seconds) for seconds in (0.0, 120.0))
    assert warned.interval_seconds > blind.interval_seconds
    wasted = [found.spent.lost_seconds + found.spent.save_seconds for found in (blind, warned)]
    assert wasted[1] < 0.5 * wasted[0]
    slow = around(aws, spot=True, notice=120.0, checkpoint_bytes=1e13)
    assert slow.spent.lost_seconds == around(aws, spot=True, checkpoint_bytes=1e13).spent.lost_seconds


def test_own_machines_without_spares_wait_for_repairs_and_are_paid_for_meanwhile(own):
    few, enough, auto = (around(own, nodes=128, spares=count) for count in (0, 9, "auto"))
    assert few.spent.wait_seconds > 100 * enough.spent.wait_seconds > 0
    assert auto.spent.wait_seconds == 0
    assert few.billed_seconds == few.wall_seconds


def test_stage_says_what_it_expects_of_failures(lab):
    stage = lab.one(SFT, Resources(infra="on_prem", accelerators=("H100:8",), num_nodes=4)).stages[0]
    found = stage.to_json()["risk"]
    assert json.loads(json.dumps(found)) == found
    assert found["checkpoint_interval_steps"] >= 1
    assert found["detection"]["seconds"] == AGENTS.seconds
    assert 0.5 < found["useful_share"] <= 1
    assert found["spares"]["nodes"] == found["spares"]["best"] == 0
    assert found["spares"]["pay"] is False
    assert stage.risk.interruptions == pytest.approx(found["expected_interruptions"], abs=1e-6)


@pytest.mark.parametrize(("engine", "noticed"), [("trl", AGENTS), ("megatron", SLURM)])
def test_agents_notice_where_charter_starts_the_engine(lab, engine, noticed):
    four = Resources(infra="on_prem", accelerators=("H100:8",), num_nodes=4)
    assert lab.one(replace(SFT, engine=engine), four).stages[0].option.overhead.detection == noticed


@pytest.mark.parametrize(
    ("infra", "engine", "noticed"),
    [
        ("on_prem", "verl", AGENTS),
        ("on_prem", "prime_rl", SLURM),
        ("slurm", "nemo_rl", AGENTS),
        ("slurm", "prime_rl", SLURM),
        ("kubernetes", "verl", AGENTS),
        ("kubernetes", "prime_rl", KUBERNETES),
        ("ray", "trl", AGENTS),
        ("ray", "verl", RAY),
        ("aws", "verl", NCCL),
    ],
)
def test_agents_notice_where_each_node_has_one(infra, engine, noticed):
    question = ppo_case.question(ppo_case.workload(), engine)
    own = ppo_case.place("H100", nodes=(4,), infra=infra)
    assert detection_delay(own, agents=question.has_agents(infra)) == noticed


@pytest.mark.parametrize("spares", ["auto", 0])
def test_a_cluster_under_slurm_is_planned_as_ones_own(lab, spares):
    """Nobody replaces its machines within minutes: they are repaired, and cost while they wait."""
    ours, under_slurm = (
        lab.one(
            SFT,
            Resources(infra=infra, accelerators=("H100:8",), num_nodes=4, price=2.0),
            risk=RiskSettings(spares=spares, repair_days=30.0),
        )
        for infra in ("on_prem", "slurm")
    )
    (mine,), (theirs,) = ours.stages, under_slurm.stages
    assert theirs.option.overhead == mine.option.overhead
    assert theirs.risk.spares == mine.risk.spares
    assert theirs.storage_usd == mine.storage_usd
    assert under_slurm.usd == ours.usd


def test_spares_of_a_large_cluster_pay_and_of_a_cloud_do_not(lab, aws, own):
    stage = lab.one(SFT, Resources(infra="on_prem", accelerators=("H100:8",), num_nodes=4)).stages[0]
    for place, nodes, pays in ((own, 1024, True), (aws, 128, False)):
        option = replace(stage.option, place=place, num_nodes=nodes, overhead=around(place, nodes=nodes))
        advice = stage_risk(option, RiskSettings()).spares
        assert (advice.best > 0) is pays


def test_local_stage_has_no_failures(lab):
    stage = lab.one(SFT, Resources(infra="local"), architecture=lab.TINY).stages[0]
    assert stage.risk.interruptions == 0
    assert stage.to_json()["risk"]["mean_between_failures_seconds"] is None
    assert stage.to_json()["risk"]["spares"] is None


@pytest.mark.parametrize("spot", [False, True])
def test_plan_and_simulation_agree_on_the_bill(lab, aws, spot):
    option = lab.one(SFT).stages[0].option
    price = replace(option.price, market="spot" if spot else "on_demand")
    option = replace(option, place=aws, num_nodes=256, price=price, overhead=around(aws, nodes=256, spot=spot))
    scenario, notes = stage_scenario(option, RiskSettings())
    found = simulate(scenario.job(option.overhead.interval_seconds), runs=400, seed=1)
    expected = option.overhead.billed_seconds - option.overhead.start_seconds
    # Heavy tails of the pool leave the bill within 2 % of the exponential form on a 10-day job.
    assert found.mean_billed_seconds == pytest.approx(expected, rel=0.02)
    assert any("node-days" in note for note in notes)
    if spot:
        levels = found.quantiles(found.wall_seconds)
        assert option.overhead.median_wall_seconds == pytest.approx(levels["p50"], rel=0.05)
        assert option.overhead.billed_seconds + option.overhead.waits.p90 == pytest.approx(levels["p90"], rel=0.1)


def test_settings_reach_the_plan(lab):
    usual = lab.one(SFT).stages[0].risk
    machines = RiskSettings(software_failures_per_day=0.0)
    assert usual.software_share > 0.9
    usual = lab.one(SFT, risk=machines).stages[0].risk
    assert usual.software_share == 0
    often = replace(machines, failures_per_node_day=3.79e-2, detection=1800.0)
    slow = lab.one(SFT, risk=often).stages[0].risk
    assert slow.detection.source == "your own"
    assert slow.failures_source == "risk: in charter.yaml"
    assert slow.interruptions == pytest.approx(10 * usual.interruptions, rel=0.02)
    assert slow.useful_share < usual.useful_share

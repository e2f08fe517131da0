import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.catalog import accelerators, models
from charter.cost.job import micro_usd
from charter.errors import InfeasibleError
from charter.plan.knowledge import shipped
from charter.plan.phase import Counters, Role, RolePhase, Workload
from charter.plan.stage_memory import training_peak
from charter.spec.layout import Layout, ZeroStage
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import Budget, Place, Resources, Serving
from charter.spec.stage import CritiqueStage, DpoStage, LabelStage, PretrainStage, SftStage
from charter.spec.stage_base import StageResources

SFT = SftStage(init="base", data=("chat",), global_batch=128, seq_len=2048)
PPO = PpoStage(policy="base", reward="base", prompts=("prompts",), episodes=65_536, rollout_batch=512, minibatch=128)


def test_every_kind_of_stage_has_a_plan_with_the_agreed_fields(lab):
    made = lab.planned(lab.project()).to_json()
    agreed = {
        "name", "kind", "accelerator", "count", "market", "layout", "peak_bytes", "capacity_bytes", "fits", "seconds",
        "gpu_hours", "usd", "breakdown", "rejected",
    }  # fmt: skip
    assert [stage["kind"] for stage in made["stages"]] == [
        lab.ALL_KINDS[stage["name"]].kind for stage in made["stages"]
    ]
    assert len(made["stages"]) == len(lab.ALL_KINDS)
    for stage in made["stages"]:
        assert agreed <= stage.keys()
        for key in ("seconds", "gpu_hours", "usd"):
            assert 0 <= stage[key]["p10"] <= stage[key]["p50"] <= stage[key]["p90"]
    assert {"name", "value", "source", "as_of"} == made["assumptions"][0].keys()
    json.dumps(made, allow_nan=False)


def test_the_same_input_gives_the_same_bytes(lab):
    one, two = (json.dumps(lab.planned(lab.project()).to_json()) for _ in range(2))
    assert one == two


def test_totals_are_the_exact_sum_of_the_stages(lab):
    plan = lab.planned(lab.project())
    for quantile in ("p10", "p50", "p90"):
        parts = [getattr(stage.usd, quantile) for stage in plan.stages]
        assert getattr(plan.usd, quantile) == sum(parts)
        printed = [stage.to_json()["usd"][quantile] for stage in plan.stages]
        assert sum(micro_usd(price) for price in printed) == getattr(plan.usd, quantile)
    assert plan.gpu_hours.p50 == pytest.approx(sum(stage.gpu_hours.p50 for stage in plan.stages))


def test_compute_and_storage_make_up_a_stage(lab):
    for stage in lab.planned(lab.project()).stages:
        for quantile in ("p10", "p50", "p90"):
            parts = getattr(stage.compute_usd, quantile) + getattr(stage.storage_usd, quantile)
            assert getattr(stage.usd, quantile) == parts


def test_cost_is_linear_in_the_price(lab):
    def compute(price):
        resources = replace(lab.H100, price=price, num_nodes=1)
        return lab.one(SFT, resources).stages[0].option.usd.p50

    assert compute(6.0) == pytest.approx(3 * compute(2.0), rel=1e-9)


def test_own_price_has_no_price_spread_and_no_spot(lab):
    stage = lab.one(SFT, replace(lab.H100, price=2.0, use_spot="auto")).stages[0]
    assert stage.option.price.market == "contract"


def test_a_machine_without_price_is_unpriced_and_totals_say_so(lab):
    plan = lab.planned(lab.project(Resources(infra="local"), architecture=lab.TINY, budget=Budget(limit=10.0)))
    made = plan.to_json()
    assert made["total"]["usd"] == {"p10": None, "p50": None, "p90": None}
    assert all(stage["count"] == 0 for stage in made["stages"])
    priced = [stage["name"] for stage in made["stages"] if stage["usd"]["p50"] is not None]
    assert priced == ["prepare"], "text work costs nothing, here as beside rented machines"
    assert made["total"]["budget"]["verdict"] == "unpriced"


def test_a_local_price_is_per_machine_hour(lab):
    stage = lab.one(SFT, Resources(infra="local", price=1.0), architecture=lab.TINY).stages[0]
    assert stage.option.usd.p50 == pytest.approx(stage.option.overhead.billed_seconds / 3600)


def test_local_stages_share_the_machine(lab):
    def total(slots):
        resources = Resources(infra="local", cpus=1, max_parallel_stages=slots)
        return lab.planned(lab.project(resources, architecture=lab.TINY))

    one = total(1)
    # Medians of stages whose errors differ in cause do not add: the sum is skewed to the late side.
    assert one.seconds.p50 == pytest.approx(sum(stage.option.seconds.p50 for stage in one.stages), rel=0.05)
    assert total(2).seconds.p50 < one.seconds.p50


def test_plan_of_one_stage_takes_what_the_stage_takes(lab):
    made = lab.one(SFT, Resources(infra="local", price=1.0), architecture=lab.TINY)
    assert made.seconds == made.stages[0].option.seconds
    assert made.to_json()["total"]["seconds"] == made.to_json()["stages"][0]["seconds"]


def test_plan_of_two_slots_costs_the_wall_clock(lab):
    resources = Resources(infra="local", cpus=1, price=36.0, max_parallel_stages=2)
    made = lab.planned(lab.project(resources, architecture=lab.TINY))
    line = made.timeline()
    spans = [(line.start_seconds[stage.name], line.end_seconds[stage.name]) for stage in made.stages]
    assert any(a[0] < b[1] and b[0] < a[1] for a in spans for b in spans if a != b), "some run side by side"
    alone = sum(stage.option.machines_usd.p50 for stage in made.stages)
    machines = sum(stage.compute_usd.p50 for stage in made.stages) / 1e6
    assert machines < 0.95 * alone
    # Medians of a stage's start and end are no one draw, so that they leave small gaps.
    assert machines == pytest.approx(made.seconds.p50 * 36 / 3600, rel=0.1)


def test_spot_is_taken_only_where_its_expected_cost_wins(lab):
    auto = lab.one(PPO, replace(lab.H100, use_spot="auto")).stages[0].option
    never = lab.one(PPO, replace(lab.H100, use_spot=False)).stages[0].option
    always = lab.one(PPO, replace(lab.H100, use_spot=True)).stages[0].option
    assert never.price.market == "on_demand"
    assert always.price.market == "spot"
    assert auto.usd.p50 <= 1.05 * min(never.usd.p50, always.usd.p50)
    assert always.overhead.wall_seconds > always.overhead.billed_seconds > always.overhead.useful_seconds


def test_spot_that_costs_as_much_as_on_demand_is_not_taken(lab, monkeypatch):
    from charter.plan import gather
    from charter.plan import offers as places

    real = places.places

    def dear(*arguments):
        found, refused = real(*arguments)
        return tuple(replace(p, spot=replace(p.price, market="spot")) for p in found), refused

    monkeypatch.setattr(gather, "places", dear)
    assert lab.one(PPO, replace(lab.H100, use_spot="auto")).stages[0].option.price.market == "on_demand"


def test_deadline_buys_more_nodes(lab):
    slow = lab.one(PPO)
    fast = lab.one(PPO, deadline=0.6 * slow.seconds.p90)
    assert fast.seconds.p90 <= 0.6 * slow.seconds.p90
    assert fast.stages[0].option.num_accelerators > slow.stages[0].option.num_accelerators
    assert fast.deadline_verdict == "ok"


def test_deadline_that_nothing_meets_is_said(lab):
    assert lab.one(PPO, deadline=60.0).deadline_verdict == "over"


def test_budget_verdict_follows_the_range(lab):
    plan = lab.one(SFT)
    middle = (plan.usd.p50 + plan.usd.p90) / 2e6
    assert lab.one(SFT, budget=Budget(limit=plan.usd.p90 / 1e6 + 1)).budget_verdict == "ok"
    assert lab.one(SFT, budget=Budget(limit=middle)).budget_verdict == "p90 over"
    assert lab.one(SFT, budget=Budget(limit=plan.usd.p10 / 1e6)).budget_verdict == "over"


def test_a_budget_that_is_not_kept_says_how_much_less_work_would_keep_it(lab):
    critique = CritiqueStage(policy="base", critic="base", prompts=("prompts",), rollout_batch=128, revisions=8)
    usd = lab.one(critique).usd.p90 / 1e6
    advice = lab.one(critique, budget=Budget(limit=0.4 * usd)).budget_advice
    found = re.match(r"stage with num_prompts: ([0-9_]+) \(planned: 20_000\)", advice[0])
    assert advice[1].startswith("use_spot: auto")
    smaller = lab.one(replace(critique, num_prompts=int(found[1])))
    assert smaller.usd.p90 / 1e6 == pytest.approx(0.4 * usd, rel=0.15)
    assert lab.one(critique, budget=Budget(limit=1.1 * usd)).budget_advice == ()


def test_less_work_of_ppo_is_whole_rollouts_and_of_training_less_of_the_data(lab):
    ppo, sft = lab.one(PPO), lab.one(SFT)
    told = lab.one(PPO, budget=Budget(limit=0.5 * ppo.usd.p90 / 1e6)).budget_advice[0]
    episodes = int(re.search(r"episodes: ([0-9_]+)", told)[1])
    assert episodes % PPO.rollout_batch == 0
    assert episodes / PPO.episodes == pytest.approx(0.5, abs=0.01)
    told = lab.one(SFT, budget=Budget(limit=0.5 * sft.usd.p90 / 1e6)).budget_advice[0]
    assert re.search(r"(epochs|steps): ", told)


def test_rejected_families_say_what_overflows(lab):
    both = (Place(infra="aws", accelerators=("A100:8",)), Place(infra="aws", accelerators=("H200:8",)))
    stage = lab.one(SFT, Resources(any_of=both, max_nodes=2), architecture=lab.LLAMA_70B).stages[0]
    reasons = {item.option: item.reason for item in stage.rejected}
    small = next(reason for option, reason in reasons.items() if option.startswith("8 x A100-SXM-40GB zero3"))
    assert small.startswith("needs ")
    assert "GiB of" in small
    assert "largest: model" in small


def test_nothing_fits_names_the_part_and_what_would_fit(lab):
    with pytest.raises(InfeasibleError, match=r"(?s)stage 'stage' does not fit.*largest part is.*would fit on:.*H200"):
        lab.one(PPO, replace(lab.H100, max_nodes=1), architecture=lab.LLAMA_70B)


def test_nothing_fits_names_processes_that_could_share_rows(lab):
    long = replace(SFT, seq_len=786_432, global_batch=8)
    one_node = replace(lab.H100, max_nodes=1)
    with pytest.raises(InfeasibleError, match=r"would fit there with `resources: \{context: 4\}`"):
        lab.one(long, one_node, architecture=lab.LLAMA_8B)
    shared = replace(long, resources=StageResources(context=4))
    assert lab.one(shared, one_node, architecture=lab.LLAMA_8B).stages[0].option.layout.context == 4
    with pytest.raises(InfeasibleError) as refused:
        lab.one(replace(long, resources=StageResources(context=2)), one_node, architecture=lab.LLAMA_8B)
    assert "would fit there with" not in str(refused.value)


def test_rows_of_a_policy_and_its_reference_are_shared(lab):
    pairs = DpoStage(init="base", data=("chat",), global_batch=64, seq_len=16_384)
    plans = [
        lab.one(replace(pairs, resources=StageResources(context=context, zero=3)), lab.H100, architecture=lab.LLAMA_8B)
        for context in (1, 4)
    ]
    options = [plan.stages[0].option for plan in plans]
    assert [option.layout.context for option in options] == [1, 4]
    assert "cp4" in options[1].layout_label


def test_accelerator_that_no_provider_offers_is_an_error_with_the_reason(lab):
    with pytest.raises(InfeasibleError, match=r"no such offer in the price snapshot; set resources\.price"):
        lab.one(SFT, Resources(infra="lambda", accelerators=("Gaudi3:8",)))


def test_prescribed_knobs_are_kept(lab):
    fixed = StageResources(num_nodes=2, zero=3, tensor=2, micro_batch=1, recompute="full")
    option = lab.one(replace(SFT, resources=fixed)).stages[0].option
    layout = option.layout
    assert (option.num_nodes, int(layout.zero), layout.tensor, layout.micro_batch) == (2, 3, 2, 1)
    assert layout.recompute == "full"


def test_hourly_limit_drops_dear_nodes(lab):
    with pytest.raises(InfeasibleError, match="max_hourly_cost"):
        lab.one(SFT, replace(lab.H100, max_hourly_cost=1.0))
    # A machine of 8 costs 55.04 USD an hour on demand at the least, and 10.57 as spot.
    for use_spot, limit, markets in ((False, 60.0, {"on_demand"}), (True, 15.0, {"spot"}), ("auto", 15.0, {"spot"})):
        (stage,) = lab.one(SFT, replace(lab.H100, use_spot=use_spot, max_hourly_cost=limit)).stages
        ways = {(way.price.market, way.price.usd_per_hour * way.place.per_node <= limit) for way in stage.options}
        assert ways == {(market, True) for market in markets}
    for use_spot in (True, "auto"):
        with pytest.raises(InfeasibleError, match="max_hourly_cost"):
            lab.one(SFT, replace(lab.H100, use_spot=use_spot, max_hourly_cost=1.0))


def test_more_work_never_takes_less_time(lab):
    hours = [lab.one(replace(PPO, episodes=count)).seconds.p50 for count in (4096, 16_384, 65_536)]
    assert hours == sorted(hours)


def _training(architecture):
    role = Role(name="model", architecture=architecture, model="base", trained=True)
    phase = RolePhase(
        name="train", work="train", role="model", steps=10, batch=1024, prompt_tokens=512, longest_tokens=1024
    )
    return Workload(roles=(role,), phases=(phase,), counters=Counters())


@settings(max_examples=40, deadline=None)
@given(
    zero=st.sampled_from(list(ZeroStage)),
    tensor=st.sampled_from([1, 2, 4, 8]),
    micro=st.integers(1, 8),
    data=st.sampled_from([2, 4, 8, 16, 32]),
)
def test_more_data_parallelism_never_raises_memory(zero, tensor, micro, data):
    work = _training(models.get("Llama-3.1-8B").architecture)
    h100 = accelerators.get("H100")

    def total(degree):
        layout = Layout(data=degree, tensor=tensor, zero=zero, micro_batch=micro)
        return training_peak(work, layout, accelerator=h100, dtype="bf16", knowledge=shipped()).total_bytes

    assert total(2 * data) <= total(data) * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(tensor=st.sampled_from([1, 2, 4]), micro=st.integers(1, 8))
def test_each_zero_stage_and_each_smaller_micro_batch_never_needs_more(tensor, micro):
    work = _training(models.get("Llama-3.1-8B").architecture)
    h100 = accelerators.get("H100")

    def state(zero):
        peak = training_peak(
            work,
            Layout(data=8, tensor=tensor, zero=zero, micro_batch=micro),
            accelerator=h100,
            dtype="bf16",
            knowledge=shipped(),
        )
        return sum(peak.by_part().get(part, 0.0) for part in ("parameters", "gradients", "optimizer"))

    states = [state(zero) for zero in ZeroStage]
    assert states == sorted(states, reverse=True)

    def total(size):
        layout = Layout(data=8, tensor=tensor, zero=ZeroStage.PARAMETERS, micro_batch=size)
        return training_peak(work, layout, accelerator=h100, dtype="bf16", knowledge=shipped()).total_bytes

    assert total(micro) <= total(micro + 1)


def test_stage_without_a_model_rents_nothing(lab):
    stage = lab.planned(lab.project()).stage("prepare")
    made = stage.to_json()
    assert (made["count"], made["market"], made["usd"]["p90"]) == (0, "own", 0.0)
    assert made["seconds"]["p50"] > 0


def test_stage_whose_models_are_all_remote_rents_nothing(lab):
    label = LabelStage(judge="base", candidates=("pairs",))
    plan = lab.one(label, serving={"base": Serving(endpoint="http://judge:8000/v1")})
    assert plan.stages[0].option.num_accelerators == 0
    assumed = {item.name: item.source for item in plan.assumptions}
    assert "http://judge:8000/v1" in assumed["stage.judge"]


def test_stages_side_by_side_slow_each_other_on_a_busy_machine(lab):
    resources = Resources(infra="local", max_parallel_stages=2)
    second = replace(SFT, init="first")
    parts = {"first": SFT, "left": second, "right": second}
    made = lab.project(resources, architecture=lab.TINY, pipeline=parts)
    machine = replace(lab.MACHINE, busy_cores=2.0)
    slowdowns = {stage.name: stage.option.place.slowdown for stage in lab.planned(made, machine=machine).stages}
    assert slowdowns == {"first": 1.5, "left": 2.0, "right": 2.0}, "two cores: two others, and one or two of ours"
    assert all(stage.option.place.slowdown == 1.0 for stage in lab.planned(made).stages), "cores are free"


def test_other_programs_do_not_slow_a_server_elsewhere(lab):
    label, serving = LabelStage(judge="base", candidates=("pairs",)), {"base": Serving(endpoint="http://judge:8000/v1")}
    parts = {"label": label}
    asked = replace(lab.project(Resources(infra="local"), architecture=lab.TINY, pipeline=parts), serving=serving)
    quiet, busy = (
        lab.planned(asked, machine=replace(lab.MACHINE, busy_cores=cores)).stages[0].option for cores in (0.0, 20.0)
    )
    (others,) = (term for term in busy.time_terms if term.name == "other programs on this machine")
    text, *answers = quiet.time_terms
    assert others.value == pytest.approx((busy.place.slowdown - 1) * text.value)
    assert sum(term.value for term in answers) > 100 * text.value, "the servers take most of it"


def test_other_programs_make_a_local_plan_longer_and_wider(lab):
    local = lab.project(Resources(infra="local"), architecture=lab.TINY)
    quiet, busy = (lab.planned(local, machine=replace(lab.MACHINE, busy_cores=cores)).stages for cores in (0.0, 2.0))
    for alone, beside in zip(quiet, busy, strict=True):
        assert beside.option.overhead.wall_seconds == pytest.approx(2 * alone.option.overhead.wall_seconds)
        (others,) = (term for term in beside.option.time_terms if term.name == "other programs on this machine")
        assert others.value == pytest.approx(alone.option.overhead.useful_seconds)
        assert max(beside.option.time_sigmas) > max(alone.option.time_sigmas), "the others may go"
    starts = [stage.option.overhead.start_seconds for stage in quiet]
    assert starts[0] > 10 * starts[1] == 10 * starts[-1], "what is imported once is paid by the first stage"


def test_rows_beyond_the_positions_of_a_model_are_told(lab):
    """What is learned for each position there is none for; what is rotated goes on, and nobody knows how well."""
    rows = replace(SFT, seq_len=4096)
    short = replace(lab.LLAMA_8B, max_position_embeddings=2048)
    noted = {item.name: item for item in lab.one(rows, architecture=short).assumptions}
    assert "built for 2,048 positions" in noted["stage.model: tokens of the longest row"].source
    assert not any("longest row" in item.name for item in lab.one(rows).assumptions)
    learned = replace(short, learned_positions=2048)
    noted = {item.name: item for item in lab.one(rows, architecture=learned).assumptions}
    assert "a longer row would end the stage" in noted["stage.model: tokens of the longest row"].source
    with pytest.raises(InfeasibleError, match=r"rows of up to 4,096 tokens, and its model has 2,048 positions"):
        lab.one(PretrainStage(init="base", data=("chat",), seq_len=4096), architecture=learned)

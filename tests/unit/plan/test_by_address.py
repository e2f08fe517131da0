"""Models that are only reached by address: planned from tokens, their price and limits; nothing of them is here."""

from dataclasses import replace
from decimal import Decimal
from math import ceil, exp

import pytest

from charter.errors import SpecError, UsageError
from charter.plan.api_judge import api_judgement
from charter.plan.knowledge import ENDPOINT_SIGMA
from charter.plan.phase import EndpointUse
from charter.plan.pipeline_names import Library, Models
from charter.plan.project_plan import plan_project, read_inputs
from charter.plan.workload import workload
from charter.run.accounts import price_by_address
from charter.run.served import ASKED
from charter.spec.graph import check_graph
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import BATCHES, MOST_BATCHED, ModelSpec, Resources, Serving
from charter.spec.sections import Budget
from charter.spec.stage import VOTE_TOKENS, CritiqueStage, EvalStage, GenerateStage, LabelStage, SftStage

SERVED = Serving(
    endpoint="https://api.example/v1", usd_per_million_input_tokens=2.5, usd_per_million_output_tokens=10.0
)
HERE = Resources(infra="local", cpus=1)
JUDGED = LabelStage(judge="judge", candidates=("pairs",))
RATED = PpoStage(
    policy="base", reward="judge", reward_from="judge", prompts=("prompts",), episodes=8192, rollout_batch=512
)


@pytest.fixture
def made(lab):
    """A project whose model `judge` is a name that no catalog has."""

    def make(stage, serving=SERVED, *, resources=HERE, **changes):
        models = {"judge": ModelSpec(model="gpt-4o"), "base": ModelSpec(architecture=lab.LLAMA_8B)}
        served = {} if serving is None else {"judge": serving}
        return lab.project(resources, models=models, pipeline={"stage": stage}, serving=served, **changes)

    return make


@pytest.fixture
def planned(made, lab, tmp_path):
    def plan(*parts, **named):
        return plan_project(made(*parts, **named), tmp_path, machine=lab.MACHINE)

    return plan


def price_of(use):
    return use.input_tokens * 2.5 + use.output_tokens * 10


def test_tokens_times_price_are_the_plan(planned):
    plan = planned(JUDGED)
    (stage,) = plan.stages
    use, identity = stage.done.api
    assert (use.model, use.requests) == ("judge", 80_000)
    assert use.input_tokens > 80_000 * 300
    assert (identity.what, identity.requests) == ("identity of judge", 8 * (5 + ceil(80_000 / 256)))
    expected = price_of(use) + price_of(identity)
    assert stage.usd.p50 == plan.usd.p50 == plan.cost.total.p50 == pytest.approx(expected, rel=1e-6)
    assert stage.option.peak.total_bytes == 0
    assert stage.option.num_accelerators == 0
    assert stage.to_json()["asked"][0]["requests"] == 80_000
    assert any("only reached by address" in item.source for item in plan.assumptions)


def test_time_follows_concurrency_and_says_that_nobody_measured(planned):
    (stage,) = planned(JUDGED).stages
    assert "no measurement" in stage.time_source
    seconds = stage.option.seconds
    assert seconds.p90 / seconds.p50 == pytest.approx(exp(ENDPOINT_SIGMA * 1.2816), rel=0.01)
    (few,) = planned(JUDGED, replace(SERVED, concurrency=16)).stages
    assert few.option.seconds.p50 == pytest.approx(4 * seconds.p50, rel=0.02)


def test_without_a_price_time_is_planned_and_money_is_unpriced(planned):
    plan = planned(JUDGED, Serving(endpoint=SERVED.endpoint))
    (stage,) = plan.stages
    assert stage.option.seconds.p50 == planned(JUDGED).stages[0].option.seconds.p50
    assert stage.usd is None
    assert plan.usd is None
    assert plan.cost.unpriced == ("endpoint of judge",)
    assert any("unpriced" in item.source for item in plan.assumptions)


def test_requests_that_cost_nothing_are_priced(planned):
    plan = planned(JUDGED, Serving(endpoint=SERVED.endpoint, billed=False))
    assert plan.usd.p90 == 0
    assert plan.cost.unpriced == ()


@pytest.mark.parametrize("serving", [None, replace(SERVED, mode="own"), replace(SERVED, mode="auto")])
def test_unknown_names_are_refused_where_weights_may_be_needed(planned, serving):
    with pytest.raises(UsageError, match="no model is called 'gpt-4o'"):
        planned(JUDGED, serving)


@pytest.mark.parametrize(
    ("stage", "kind"),
    [
        (CritiqueStage(policy="judge", critic="judge", prompts=("prompts",)), "critique"),
        (LabelStage(policy="judge", judge="judge", prompts=("prompts",), pairs=10), "label"),
        (GenerateStage(policy="judge", prompts=("prompts",)), "generate"),
        (EvalStage(policy="base", judge="judge", also_judges=("judge",), pairs=("pairs",)), "eval"),
    ],
)
def test_what_is_asked_in_a_plan_is_what_a_run_may_ask(made, lab, stage, kind):
    project = made(stage)
    models = Models(project=project, architectures={"base": lab.LLAMA_8B})
    work = workload(stage, models, Library(project=project, facts={}, assumptions=[]))
    fields = {role.name.replace("judge 2", "also_judges") for role in work.asked}
    assert fields == ASKED[kind]


def test_spot_machines_are_no_advice_where_nothing_is_rented(planned):
    plan = planned(JUDGED, budget=Budget(limit=0.01))
    assert plan.budget_verdict == "over"
    assert plan.budget_advice
    assert not any("spot" in line for line in plan.budget_advice)


def test_weights_of_an_address_are_refused(planned):
    with pytest.raises(SpecError, match=r"models\.judge: 'gpt-4o' is only reached by address \(https://api\.example"):
        planned(SftStage(init="judge", data=("chat",)))


def test_prompts_are_not_padded_for_a_server(made, tmp_path):
    project = made(CritiqueStage(policy="judge", critic="judge", prompts=("prompts",), rollout_batch=64))
    architectures = read_inputs(project, tmp_path).architectures
    models = Models(project=project, architectures=architectures)
    work = workload(project.pipeline["stage"], models, Library(project=project, facts={}, assumptions=[]))
    assert set(architectures) == {"base"}
    assert [type(role) for role in work.asked] == [EndpointUse, EndpointUse]
    assert work.roles == ()
    answer = work.phases[0]
    assert answer.request_tokens == (60, 512)
    assert answer.prompt_tokens > 60


def test_a_policy_waits_for_its_judge_but_does_not_hold_it(planned, made, lab):
    own = lab.planned(made(replace(RATED, reward="base"), resources=lab.H100)).stages[0]
    asked = planned(RATED, resources=lab.H100).stages[0]
    assert asked.option.peak.total_bytes < own.option.peak.total_bytes
    assert asked.option.remote == ("reward",)
    use, identity = asked.done.api
    assert asked.endpoint_usd.p50 == pytest.approx(price_of(use) + price_of(identity), rel=1e-6)
    waits = [term for term in asked.option.time_terms if term.name == "rate answers: endpoint"]
    price = Models(project=made(RATED), architectures={}).whereabouts(
        EndpointUse(name="j", model="judge", vocab_size=None)
    )
    read, requests = use.input_tokens / use.requests, use.requests
    once = api_judgement(price["endpoints"]["j"], requests=requests, input_tokens=read, output_tokens=1)
    assert [term.value for term in waits] == [pytest.approx(once.seconds)]
    assert identity.requests == 8 * (5 + 8192 // 512 * 2), "two rounds vouch for the 512 answers of a step"
    total = sum(term.value for term in asked.option.time_terms)
    assert asked.option.overhead.useful_seconds == pytest.approx(total)


def test_engines_with_placements_wait_for_the_same_judge(planned, lab):
    grouped = replace(RATED, estimator="grpo", samples_per_prompt=8, engine="openrlhf")
    slow, quick = (
        planned(grouped, replace(SERVED, requests_per_minute=rate), resources=lab.H100).stages[0].option
        for rate in (60, 6_000)
    )
    assert slow.overhead.useful_seconds - quick.overhead.useful_seconds > 0.8 * 8192
    assert slow.endpoint_usd == quick.endpoint_usd


def test_questions_by_file_cost_half_and_take_a_day_at_most(planned):
    direct, by_file = planned(JUDGED), planned(JUDGED, replace(SERVED, batch=True))
    use, identity = by_file.stages[0].done.api
    assert identity.requests == 8 * (5 + ceil(80_000 / MOST_BATCHED))
    expected = price_of(use) / 2 + price_of(identity)
    assert by_file.stages[0].usd.p50 == pytest.approx(expected, rel=1e-6)
    assert by_file.stages[0].usd.p50 < 0.51 * direct.stages[0].usd.p50
    assert 8 * 3600 < by_file.stages[0].option.seconds.p50 < 9 * 3600
    assert 23 * 3600 < by_file.stages[0].option.seconds.p90 < 27 * 3600


def test_a_stage_that_trains_does_not_wait_a_day_for_every_step(made):
    problems = check_graph(made(RATED, replace(SERVED, batch=True)))
    assert [(item.path, "would wait for it a day" in item.message) for item in problems] == [
        ("pipeline.stage.reward", True)
    ]


@pytest.mark.parametrize(
    "serving",
    [
        {"api": "messages"},
        {"api": "messages", "batch": True},
        {"log_probabilities": "none"},
        {"thinking_tokens": 500},
    ],
)
def test_a_judge_without_log_probabilities_is_refused(made, serving):
    served = replace(SERVED, **serving)
    stages = {
        "judge": JUDGED,
        "also_judges": EvalStage(policy="base", against="base", judge="base", also_judges=("judge",)),
        "reward": RATED,
    }
    for role, stage in stages.items():
        problems = [item for item in check_graph(made(stage, served)) if "a day" not in item.message]
        assert [(item.path, "its server gives none" in item.message) for item in problems] == [
            (f"pipeline.stage.{role}", True)
        ]
    assert check_graph(made(replace(JUDGED, votes=5), served)) == []
    assert check_graph(made(CritiqueStage(policy="judge", critic="judge", prompts=("prompts",)), served)) == []
    assert check_graph(made(JUDGED, replace(served, mode="own"))) == []


def test_every_vote_is_a_request_that_is_planned(planned):
    by_letter, by_votes = (
        planned(replace(JUDGED, votes=5), serving).stages[0].done.api[0]
        for serving in (SERVED, replace(SERVED, api="messages"))
    )
    assert (by_letter.requests, by_letter.output_tokens) == (80_000, 80_000)
    assert (by_votes.requests, by_votes.output_tokens) == (400_000, VOTE_TOKENS * 400_000)
    assert by_votes.input_tokens == 5 * by_letter.input_tokens


def test_thoughts_are_planned_as_written(planned):
    stage = replace(JUDGED, votes=5)
    plain, thinking = (
        planned(stage, replace(SERVED, api="messages", thinking_tokens=tokens)).stages[0].done.api
        for tokens in (0, 1000)
    )
    assert thinking[0].output_tokens == plain[0].output_tokens + 1000 * 400_000
    assert thinking[1] == plain[1], "the fixed questions have limits of their own"


def test_a_log_of_the_provider_is_priced_by_where_a_call_went(made):
    price = price_by_address(made(JUDGED, replace(SERVED, batch=True)))
    direct, by_file = (price(f"{SERVED.endpoint}{below}", 1000, 0, 100) for below in ("", BATCHES))
    assert (direct, by_file) == (1000 * Decimal("2.5") + 100 * 10, (1000 * Decimal("2.5") + 100 * 10) / 2)
    assert price("https://elsewhere.example/v1", 1, 0, 1) is None

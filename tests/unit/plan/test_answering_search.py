"""Own accelerators or an endpoint for models that only answer; lengths of answers; servers between stages."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.catalog import accelerators, models
from charter.errors import InfeasibleError, UsageError
from charter.plan import servers as answering_search
from charter.plan.api_judge import ApiPrice, api_judgement
from charter.plan.knowledge import shipped
from charter.plan.offers import UNPRICED, NodeOffer
from charter.plan.option import StageQuestion, make_option
from charter.plan.phase import Counters, Role, RolePhase, Workload
from charter.plan.purchase import Gap, shared_servers, warmth
from charter.plan.servers import own_or_endpoint
from charter.plan.stage_memory import answering_peak
from charter.plan.stage_time import answering_terms
from charter.plan.workload import longest_answer
from charter.report.plan_notes import placement_lines
from charter.spec.checks import check_project
from charter.spec.project import ModelSpec, Serving
from charter.spec.quantity import EXECUTION
from charter.spec.stage import EvalStage, GenerateStage, LabelStage, SftStage
from charter.spec.stage_base import ServerPool, StageResources

ENDPOINT = "https://judge.example/v1"
CHEAP = Serving(
    endpoint=ENDPOINT, mode="auto", usd_per_million_input_tokens=0.001, usd_per_million_output_tokens=0.001,
    concurrency=4096,
)  # fmt: skip
DEAR = replace(CHEAP, usd_per_million_input_tokens=500.0, usd_per_million_output_tokens=500.0)
JUDGED = {"label": LabelStage(judge="judge", candidates=("pairs",))}
SAMPLED = {"label": LabelStage(judge="judge", policy="base", prompts=("prompts",), pairs=20_000)}


@pytest.fixture
def planned(lab):
    def plan(pipeline, serving=None):
        models = {"base": ModelSpec(architecture=lab.LLAMA_8B), "judge": ModelSpec(architecture=lab.LLAMA_70B)}
        made = lab.planned(lab.project(models=models, pipeline=pipeline, serving={"judge": serving} if serving else {}))
        return made.stages[0]

    return plan


def test_servers_pad_nothing_and_answers_make_room():
    """A role behind servers takes vLLM's time; one in the stage's own process waits for the longest of its batch."""
    role = Role(name="policy", architecture=models.get("Llama-3.1-8B").architecture, model="m")
    phase = RolePhase(
        name="answer", work="generate", role="policy", steps=4, batch=64, prompt_tokens=900.0, unpadded_tokens=300.0,
        new_tokens=512.0, mean_new_tokens=128.0, longest_tokens=1536.0,
    )  # fmt: skip

    def terms(one, alone=()):
        values = answering_terms(
            Workload(roles=(role,), phases=(one,), counters=Counters()),
            tensor=2,
            replicas=4,
            batches={"answer": 64.0},
            accelerator=accelerators.get("H100"),
            knowledge=shipped(),
            alone=alone,
        )
        return {term.name: term for term in values}

    served, own = terms(phase), terms(phase, alone=("policy",))
    bare = replace(phase, prompt_tokens=300.0, unpadded_tokens=0.0, new_tokens=128.0, mean_new_tokens=0.0)
    assert {name: term.value for name, term in served.items()} == {n: term.value for n, term in terms(bare).items()}
    assert "512 steps" in own["answer: decode, weights"].formula
    assert "128 steps" in served["answer: decode, weights"].formula
    assert "answer: decode, tensor parallel" in served
    assert "answer: decode, tensor parallel" not in own


@pytest.mark.parametrize(("positions", "most"), [(4096, 4096), (131_072, 8192)])
def test_servers_take_no_more_tokens_than_positions(lab, positions, most):
    """With `--max-model-len 8192` for a model of 4,096 positions vLLM does not start."""
    models = {"judge": ModelSpec(architecture=replace(lab.LLAMA_8B, max_position_embeddings=positions))}
    (stage,) = lab.planned(lab.project(models=models, pipeline=JUDGED)).stages
    assert stage.execution.roles["judge"].max_tokens == most


# ---- how a model is served -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["H100", "H200", "A100-80GB"])
def test_of_all_widths_that_fit_the_fastest_is_taken_with_the_largest_batch_that_fits(name, monkeypatch):
    accelerator = accelerators.get(name)
    place = NodeOffer(
        infra="any", region=None, accelerator=accelerator, per_node=8, instance="", price=UNPRICED, nodes=(1,)
    )
    question = answering_question()
    fitting = {}

    def remembered(*parts, **more):
        made = make_option(*parts, **more)
        fitting[made.layout.tensor] = made
        return made

    monkeypatch.setattr(answering_search, "make_option", remembered)
    (chosen,), _ = answering_search.answering_options(question, place, 1)
    assert len(fitting) > 1
    assert chosen.overhead.useful_seconds == min(made.overhead.useful_seconds for made in fitting.values())
    (phase,) = question.work.phases
    for tensor, made in fitting.items():
        assert made.layout.data * tensor == 8
        batch = made.layout.micro_batch
        known = question.knowledge
        sizes = {
            count: answering_peak(
                question.work,
                tensor=tensor,
                batches={phase.name: float(count)},
                accelerator=accelerator,
                knowledge=known,
            ).total_bytes
            for count in (batch, 2 * batch)
        }
        assert sizes[batch] <= known.usable_bytes(accelerator)
        assert batch == phase.batch or sizes[2 * batch] > known.usable_bytes(accelerator)


def answering_question():
    role = Role(name="policy", architecture=models.get("Llama-3.1-70B").architecture, model="base")
    phase = RolePhase(
        name="answers", work="generate", role="policy", steps=20, batch=4096, prompt_tokens=512, new_tokens=512,
        longest_tokens=1024,
    )  # fmt: skip
    return StageQuestion(
        stage=GenerateStage(policy="base", prompts=("prompts",)),
        work=Workload(roles=(role,), phases=(phase,), counters=Counters()),
        dtype="bf16",
        checkpoint_bytes=0.0,
        use_spot=False,
        knowledge=shipped(),
    )


@pytest.mark.parametrize(("model", "widest"), [("Qwen/Qwen2.5-7B", 4), ("microsoft/phi-4", 2), ("Qwen/Qwen2.5-3B", 8)])
def test_a_model_is_served_over_as_many_as_divide_its_heads(model, widest):
    """28 heads over 8, or 10 key/value heads over 4, no server takes; 2 key/value heads have copies on 8."""
    question = answering_question()
    role = replace(question.work.roles[0], architecture=models.get(model).architecture)
    few = replace(question.work.phases[0], steps=1, batch=1)
    work = replace(question.work, roles=(role,), phases=(few,))
    place = NodeOffer(
        infra="any", region=None, accelerator=accelerators.get("H100"), per_node=8, instance="", price=UNPRICED
    )
    (chosen,), _ = answering_search.answering_options(replace(question, work=work), place, 1)
    assert chosen.layout.tensor == widest


# ---- the price and the limits of an endpoint -------------------------------------------------------------------------


@given(st.floats(1, 1e6), st.floats(1, 1e4), st.floats(0, 1e3), st.floats(0, 1), st.floats(1, 1e4), st.floats(1e3, 1e8))
def test_a_cache_and_higher_limits_never_cost_more(requests, read, written, share, rpm, tpm):
    price = ApiPrice(
        input_usd_per_million=3.0,
        output_usd_per_million=15.0,
        cached_input_usd_per_million=0.3,
        requests_per_minute=rpm,
        tokens_per_minute=tpm,
    )
    work = {"requests": requests, "input_tokens": read, "output_tokens": written}
    plain = api_judgement(price, **work)
    cached = api_judgement(replace(price, cached_share=share), **work)
    wider = api_judgement(replace(price, requests_per_minute=2 * rpm, tokens_per_minute=2 * tpm), **work)
    assert cached.usd <= plain.usd * (1 + 1e-12)
    assert wider.seconds <= plain.seconds
    assert wider.usd == plain.usd
    assert plain.seconds >= max(60 * requests / rpm, 60 * requests * (read + written) / tpm) * (1 - 1e-12)


def test_a_share_above_one_is_refused():
    with pytest.raises(UsageError, match="cached share"):
        ApiPrice(input_usd_per_million=1.0, output_usd_per_million=1.0, cached_share=1.5)


# ---- own accelerators or an endpoint ---------------------------------------------------------------------------------


def test_a_cheap_endpoint_is_taken_and_needs_no_accelerator(planned):
    stage = planned(JUDGED, CHEAP)
    assert stage.option.remote == ("judge",)
    assert stage.option.num_accelerators == 0
    assert stage.option.usd.p50 == pytest.approx(stage.option.endpoint_usd.p50)
    tokens = sum(use.input_tokens + use.output_tokens for use in stage.done.api)
    assert stage.endpoint_usd.p50 / 1e6 == pytest.approx(tokens * 0.001 / 1e6, rel=1e-3)
    assert stage.serving_reason.startswith("endpoint for judge")
    assert "own" in stage.serving_reason


def test_a_dear_endpoint_is_not_taken_and_both_figures_are_told(planned):
    stage = planned(JUDGED, DEAR)
    assert stage.option.remote == ()
    assert stage.option.num_accelerators > 0
    assert stage.endpoint_usd.p90 == 0
    assert stage.done.api == ()
    assert stage.serving_reason.startswith("own ")
    assert "endpoint for judge" in stage.serving_reason


def test_a_policy_is_served_here_beside_a_judge_behind_an_endpoint(planned):
    stage = planned(SAMPLED, CHEAP)
    ways = {option.remote for option in stage.options}
    assert ways == {(), ("judge",)}
    assert stage.option.remote == ("judge",)
    assert stage.option.num_accelerators > 0
    asked = [term for term in stage.option.time_terms if term.name.endswith(": endpoint")]
    assert [term.part for term in asked] == ["judge sampled pairs", "identity of judge"]
    assert asked[0].value > 0
    small = min(option.peak.total_bytes for option in stage.options if option.remote)
    assert small < min(option.peak.total_bytes for option in stage.options if not option.remote)


def test_parts_of_a_stage_with_an_endpoint_add_up(planned):
    for serving in (CHEAP, replace(CHEAP, mode="endpoint"), None):
        shown = planned(SAMPLED, serving).to_json()
        assert shown["usd"]["p50"] == pytest.approx(sum(shown["breakdown"]["usd"].values()), abs=1e-5)
        assert shown["seconds"]["p50"] == pytest.approx(sum(shown["breakdown"]["seconds"].values()), rel=1e-6)


def test_the_time_of_an_endpoint_follows_its_limits(planned):
    slow, quick = (
        planned(JUDGED, replace(CHEAP, mode="endpoint", requests_per_minute=rate)).option.seconds.p50
        for rate in (600, 6_000)
    )
    questions = 40_000 * 2 * (1 + 8 / 256)  # those by which the judge is known again too
    assert slow == pytest.approx(questions / 10, rel=0.02)
    assert quick < slow / 5


def test_without_a_price_the_time_of_an_endpoint_is_planned(planned):
    stage = planned(JUDGED, Serving(endpoint=ENDPOINT))
    assert stage.option.endpoint_usd is None
    assert any("endpoint" in term.name for term in stage.option.time_terms)
    assert stage.usd is None


def test_mode_own_ignores_the_endpoint(planned):
    assert planned(JUDGED, replace(DEAR, mode="own")).option.remote == ()
    assert own_or_endpoint(planned(JUDGED).option, planned(JUDGED).options) == ""


@pytest.mark.parametrize(
    ("serving", "path"),
    [
        (Serving(mode="auto"), "serving.base.mode"),
        (Serving(endpoint=ENDPOINT, mode="auto"), "serving.base.mode"),
        (Serving(endpoint=ENDPOINT, usd_per_million_input_tokens=1.0), "serving.base"),
        (replace(CHEAP, cached_prompt_share=1.2), "serving.base.cached_prompt_share"),
        (replace(CHEAP, requests_per_minute=0.0), "serving.base.requests_per_minute"),
        (replace(CHEAP, usd_per_million_input_tokens=-1.0), "serving.base.usd_per_million_input_tokens"),
    ],
)
def test_impossible_endpoints_are_named(lab, serving, path):
    pipeline = {"sft": SftStage(init="base", data=("chat",))}
    problems = check_project(lab.project(pipeline=pipeline, serving={"base": serving}))
    assert path in [problem.path for problem in problems]


FOUR = StageResources(num_nodes=4)


def test_the_text_of_a_plan_names_who_serves_and_who_waits(lab):
    models = {"base": ModelSpec(architecture=lab.LLAMA_8B), "judge": ModelSpec(architecture=lab.LLAMA_70B)}
    again = {
        "label": SAMPLED["label"],
        "again": SAMPLED["label"],
        "ppo": replace(lab.ALL_KINDS["ppo"], engine="openrlhf", asynchrony="one_step_off"),
    }
    pipeline = {**again, "ppo": replace(again["ppo"], policy="base", reward="base", resources=FOUR)}
    made = lab.project(models=models, pipeline=pipeline, serving={"judge": DEAR})
    lines = list(placement_lines(lab.planned(made)))
    assert [line for line in lines if line.startswith("Serving for label: own ")]
    roles = [line for line in lines if line.startswith("Roles of ppo, async: trainers ")]
    assert len(roles) == 1
    assert "waits for other groups" in roles[0]


# ---- lengths of answers ----------------------------------------------------------------------------------------------

GENERATE = GenerateStage(policy="base", prompts=("prompts",), max_new_tokens=1024, rollout_batch=64)


def test_without_a_mean_every_answer_is_as_long_as_allowed():
    assert longest_answer(GENERATE) == GENERATE.expected_new_tokens == 1024


@given(st.integers(1, 2048), st.integers(1, 2048))
def test_a_larger_mean_is_never_shorter_and_never_above_the_limit(one, other):
    lengths = [longest_answer(replace(GENERATE, mean_new_tokens=mean)) for mean in sorted((one, other))]
    assert lengths == sorted(lengths)
    assert min(one, other, 1024) * (1 - 1e-9) <= lengths[0]
    assert lengths[1] <= 1024


def test_a_mean_length_shortens_the_plan_and_is_no_part_of_what_is_computed(planned):
    whole, told = (planned({"generate": replace(GENERATE, mean_new_tokens=mean)}) for mean in (None, 100))
    assert told.counters.generated_tokens == pytest.approx(whole.counters.generated_tokens * 100 / 1024)
    assert told.option.seconds.p50 < whole.option.seconds.p50
    assert next(item for item in fields(GenerateStage) if item.name == "mean_new_tokens").metadata[EXECUTION]


# ---- servers between stages ------------------------------------------------------------------------------------------


SECONDS = st.integers(0, 10**6)


@given(SECONDS, st.floats(0, 1e3), SECONDS, SECONDS, st.sampled_from([1, 60, 3600]))
def test_servers_are_kept_where_that_costs_no_more(pause, price, start, load, granule):
    found = warmth(
        Gap(seconds=pause, usd_per_hour=price, start_seconds=start, load_seconds=load, granule_seconds=granule)
    )
    assert found.keep == (pause <= found.break_even_seconds)
    cheaper, dearer = (found.kept_usd, found.released_usd) if found.keep else (found.released_usd, found.kept_usd)
    assert cheaper <= dearer * (1 + 1e-9)
    assert start + load <= found.break_even_seconds < start + load + granule


def test_stages_that_ask_the_same_judge_share_servers(lab):
    models = {"base": ModelSpec(architecture=lab.LLAMA_8B), "judge": ModelSpec(architecture=lab.LLAMA_70B)}
    label = LabelStage(judge="judge", candidates=("pairs",))
    plan = lab.planned(lab.project(models=models, pipeline={"first": label, "second": label}))
    timeline = plan.timeline()
    later = replace(
        timeline,
        start_seconds={"first": 0.0, "second": 1e5},
        end_seconds={"first": 1e4, "second": 1.1e5},
    )
    (found,) = shared_servers(plan.stages, later)
    assert (found.earlier, found.later, found.gap.seconds) == ("first", "second", 9e4)
    assert "are released: idle they would cost" in found.line
    at_once = replace(later, start_seconds={"first": 0.0, "second": 1e4})
    assert "are kept: " in shared_servers(plan.stages, at_once)[0].line
    together = replace(later, start_seconds={"first": 0.0, "second": 0.0})
    assert shared_servers(plan.stages, together) == ()


def test_servers_are_kept_through_a_billing_granule(lab):
    models = {"base": ModelSpec(architecture=lab.LLAMA_8B), "judge": ModelSpec(architecture=lab.LLAMA_70B)}
    label = LabelStage(judge="judge", candidates=("pairs",))
    project = lab.project(models=models, pipeline={"first": label, "second": label})
    hourly = replace(project, resources=replace(project.resources, billing_granule=3600.0))
    plan = lab.planned(hourly)
    pause = replace(plan.timeline(), start_seconds={"first": 0.0, "second": 3000.0}, end_seconds={"first": 0.0})
    (found,) = shared_servers(plan.stages, pause)
    assert found.gap.granule_seconds == 3600.0
    assert "are kept: " in found.line


def test_servers_of_the_file_that_divide_no_heads_are_refused():
    question = answering_question()
    role = replace(question.work.roles[0], architecture=models.get("Qwen/Qwen2.5-7B").architecture)
    work = replace(question.work, roles=(role,), phases=question.work.phases[:1])
    place = NodeOffer(
        infra="any", region=None, accelerator=accelerators.get("H100"), per_node=8, instance="", price=UNPRICED
    )
    pools = {role.model: ServerPool(replicas=1, tensor=8)}
    options, missed = answering_search.answering_options(replace(question, work=work, pools=pools), place, 1)
    assert options == ()
    assert "8 accelerators of a server, as the file says, do not divide the heads" in missed.rejected[0].reason


def test_an_evaluation_counts_its_own_models_beside_servers(lab):
    models = {"base": ModelSpec(architecture=lab.LLAMA_8B), "judge": ModelSpec(architecture=lab.LLAMA_70B)}
    judging = {"judge": "judge", "pairs": ("pairs",), "suites": ("judge_agreement", "win_rate")}
    judged = EvalStage(policy="base", against="base", prompts=("prompts",), num_prompts=500, **judging)
    project = lab.project(models=models, pipeline={"eval": judged})
    serving = {"judge": Serving(pool=ServerPool(replicas=2, tensor=4))}
    with pytest.raises(InfeasibleError, match=r"own models need 12 accelerators .* its resources\.pools can describe"):
        lab.planned(replace(project, serving=serving))
    fewer = replace(judged, resources=StageResources(pools={"judge": ServerPool(replicas=1, tensor=4)}))
    plan = lab.planned(replace(project, serving=serving, pipeline={"eval": fewer}))
    assert plan.stages[0].option.num_accelerators == 8

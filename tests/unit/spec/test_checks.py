"""Values of the right type that cannot work: each is refused with the range, or with the nearest that works."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.spec.architecture import Architecture, MixtureOfExperts, StateSpace
from charter.spec.checks import check_accelerators, check_data, check_model, check_project, parse_part
from charter.spec.launching import Launch, NodeChecks, SlurmSettings
from charter.spec.layout import Adapter
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import Budget, DataSpec, ModelSpec, Place, Project, Resources, Serving, Storage, TokenizerSpec
from charter.spec.quantity import divisors_near
from charter.spec.sections import Alerts, EngineEnvironment, IdlePolicy
from charter.spec.stage import (
    CritiqueStage,
    DpoStage,
    EvalStage,
    JudgeStage,
    LabelStage,
    PreferenceModelStage,
    SftStage,
)
from charter.spec.stage_base import Guard, ServerPool, StageResources
from charter.spec.stage_checks import check_runnable, check_stage
from charter.spec.sweep import Sweep

SFT = SftStage(init="base", data=("chats",), epochs=1)
JUDGE = JudgeStage(init="base", pairs=("pairs",))
CRITIQUE = CritiqueStage(policy="base", critic="base", prompts=("prompts",))
LABEL = LabelStage(judge="base", policy="base", prompts=("prompts",), pairs=8)
PM = PreferenceModelStage(init="base", data=("pairs",))
PPO = PpoStage(policy="base", reward="pm", prompts=("prompts",), episodes=640)
DPO = DpoStage(init="base", data=("pairs",))
EVAL = EvalStage(policy="ppo", against="base")
SHAPE = Architecture(hidden_size=64, num_layers=2, num_heads=4, intermediate_size=176, vocab_size=512)
MODEL = ModelSpec(architecture=SHAPE, tokenizer=TokenizerSpec(train_on=("chats",), vocab_size=512))
PROJECT = Project(name="x", models={"base": MODEL}, pipeline={"sft": SFT})


def told(problems):
    return {problem.path: f"{problem.message} | {problem.hint}" for problem in problems}


@pytest.mark.parametrize("stage", [SFT, JUDGE, CRITIQUE, LABEL, PM, PPO, DPO, EVAL], ids=lambda stage: stage.kind)
def test_defaults_have_no_problems(stage):
    assert told(check_stage("s", stage)) == {}


def test_stage_names_that_collide_on_other_systems_are_refused():
    found = told(check_project(replace(PROJECT, pipeline={"sft": SFT, "Sft": SFT, "console": SFT})))
    assert set(found) == {"pipeline.Sft"}
    assert "'Sft' and 'sft' differ in case alone" in found["pipeline.Sft"]


@pytest.mark.parametrize("name", ["CON", "com1", "lpt9", "nul", "Aux"])
def test_no_name_is_that_of_a_device_of_windows(name):
    """Of a project, a stage, a model or data: each becomes a directory or part of a file's name."""
    assert set(told(check_project(replace(PROJECT, name=name)))) == {"name"}
    assert set(told(check_stage(name, SFT))) == {f"pipeline.{name}"}
    assert set(told(check_model(name, MODEL))) == {f"models.{name}"}
    assert "device" in told(check_data(name, DataSpec(path="a.jsonl")))[f"data.{name}"]


OUT_OF_RANGE = [
    (SFT, "learning_rate", 0.0),
    (SFT, "learning_rate", -1e-5),
    (SFT, "learning_rate", float("inf")),
    (SFT, "learning_rate", float("nan")),
    (SFT, "epochs", 0.0),
    (SFT, "global_batch", 0),
    (SFT, "seq_len", 0),
    (SFT, "dropout", 1.0),
    (SFT, "dropout", -0.1),
    (SFT, "beta1", 1.0),
    (SFT, "beta2", 1.0),
    (SFT, "weight_decay", -0.1),
    (SFT, "gradient_clip", 0.0),
    (SFT, "min_learning_rate_ratio", 1.1),
    (SFT, "checkpoint_every", 0),
    (SFT, "timeout", 0.0),
    (JUDGE, "cross_entropy_weight", -1.0),
    (CRITIQUE, "revisions", 0),
    (CRITIQUE, "num_prompts", 0),
    (CRITIQUE, "top_p", 0.0),
    (CRITIQUE, "top_p", 1.1),
    (CRITIQUE, "temperature", -0.1),
    (CRITIQUE, "max_new_tokens", 0),
    (CRITIQUE, "max_prompt_tokens", 0),
    (CRITIQUE, "rollout_batch", 0),
    (PM, "head_learning_rate_ratio", 0.0),
    (DPO, "beta", 0.0),
    (PPO, "temperature", 0.0),
    (PPO, "learning_rate", 0.0),
    (PPO, "value_learning_rate", 0.0),
    (PPO, "episodes", 0),
    (PPO, "minibatch", 0),
    (PPO, "ppo_epochs", 0),
    (PPO, "clip_ratio", 0.0),
    (PPO, "value_clip", 0.0),
    (PPO, "gae_lambda", 1.1),
    (PPO, "discount", 0.0),
    (PPO, "kl_coefficient", -0.1),
    (PPO, "kl_target", 0.0),
    (PPO, "kl_horizon", 0),
    (PPO, "reward_clip", 0.0),
    (SFT, "checkpoint_interval", 0.0),
    (SFT, "hang_timeout", 0.0),
    (PPO, "hang_timeout", -1.0),
    (PM, "label_smoothing", 0.5),
    (PM, "label_smoothing", -0.1),
    (PM, "center_weight", -0.1),
    (DPO, "label_smoothing", 0.5),
    (DPO, "target_margin", -0.1),
    (PPO, "samples_per_prompt", 0),
    (PPO, "missing_end_penalty", -1.0),
    (PPO, "stop_update_kl", 0.0),
    (PPO, "mismatch_clip", 0.9),
    (PPO, "ptx_weight", -1.0),
    (PPO, "ptx_batch", 0),
    (PPO, "seq_len", 0),
]


@pytest.mark.parametrize("stage", [SFT, JUDGE, CRITIQUE, PM, PPO, DPO], ids=lambda stage: stage.kind)
def test_a_value_out_of_range_is_refused_with_the_range(stage):
    cases = [(field, value) for owner, field, value in OUT_OF_RANGE if owner is stage]
    assert cases
    wrong = []
    for field, value in cases:
        problems = told(check_stage("s", replace(stage, **{field: value})))
        text = problems.get(f"pipeline.s.{field}", "")
        if len(problems) != 1 or not text.startswith("must be ") or f"found {value}" not in text:
            wrong.append((field, value, problems))
    assert wrong == []


def test_a_margin_is_of_simpo_alone():
    assert told(check_stage("s", replace(DPO, loss="simpo", target_margin=0.5))) == {}
    assert "has no margin" in told(check_stage("s", replace(DPO, target_margin=0.5)))["pipeline.s.target_margin"]


ON_THE_EDGE = [
    (SFT, "dropout", 0.0),
    (PM, "label_smoothing", 0.49),
    (PM, "center_weight", 0.0),
    (DPO, "label_smoothing", 0.0),
    (PPO, "mismatch_clip", 1.0),
    (PPO, "missing_end_penalty", 0.0),
    (SFT, "beta1", 0.0),
    (CRITIQUE, "top_p", 1.0),
    (CRITIQUE, "temperature", 0.0),
]


@pytest.mark.parametrize(("stage", "field", "value"), [*ON_THE_EDGE, (PPO, "gae_lambda", 0.0), (PPO, "discount", 1.0)])
def test_the_closed_end_of_a_range_is_accepted(stage, field, value):
    assert told(check_stage("s", replace(stage, **{field: value}))) == {}


GUARDS = [("spike_ratio", 1.0), ("spike_ratio", 0.5), ("roll_back_steps", 0), ("skip_steps", -1), ("most", 0)]


@pytest.mark.parametrize(("field", "value"), GUARDS)
@pytest.mark.parametrize("stage", [SFT, PPO], ids=lambda stage: stage.kind)
def test_guards_are_checked(stage, field, value):
    found = told(check_stage("s", replace(stage, guard=Guard(**{field: value}))))
    assert list(found) == [f"pipeline.s.guard.{field}"]
    assert told(check_stage("s", replace(stage, guard=Guard(spike_ratio=1.5, most=1)))) == {}


def test_going_back_leaves_out_the_data_of_the_divergence():
    guard = Guard(on_divergence="roll_back", roll_back_steps=50, skip_steps=50)
    found = told(check_stage("s", replace(SFT, guard=guard)))
    assert list(found) == ["pipeline.s.guard.skip_steps"]
    assert "met again | give more than 50" in found["pipeline.s.guard.skip_steps"]
    for works in (replace(guard, skip_steps=51), replace(guard, on_divergence="skip")):
        assert told(check_stage("s", replace(SFT, guard=works))) == {}


@pytest.mark.parametrize("estimator", ["rloo", "grpo"])
def test_estimators_that_compare_answers_need_several_to_a_prompt(estimator):
    stage = replace(PPO, estimator=estimator)
    found = told(check_stage("s", stage))
    assert list(found) == ["pipeline.s.samples_per_prompt"]
    assert (
        f"{estimator} compares the answers to one prompt and needs 2 or more" in found["pipeline.s.samples_per_prompt"]
    )
    assert told(check_stage("s", replace(stage, samples_per_prompt=2))) == {}


@pytest.mark.parametrize(
    ("field", "value"), [("value_warmup_rollouts", 1), ("bootstrap_truncated", True), ("discount", 0.9)]
)
def test_estimators_without_a_value_model_refuse_what_only_it_could_do(field, value):
    given = replace(PPO, **{field: value})
    assert told(check_stage("s", given)) == {}
    for estimator in ("rloo", "grpo"):
        found = told(check_stage("s", replace(given, estimator=estimator, samples_per_prompt=4)))
        assert list(found) == [f"pipeline.s.{field}"]
        assert f"remove {field}, or take the estimator gae" in found[f"pipeline.s.{field}"]


def test_answers_to_a_prompt_divide_the_rollout_and_the_nearest_are_named():
    found = told(check_stage("s", replace(PPO, samples_per_prompt=12, rollout_batch=64)))
    assert found == {
        "pipeline.s.samples_per_prompt": "12 does not divide rollout_batch, 64 | the nearest that work: 8 or 16"
    }
    assert told(check_stage("s", replace(PPO, samples_per_prompt=16, rollout_batch=64))) == {}


def test_a_pretraining_mix_has_a_weight_and_data_or_neither():
    assert "name conversations" in told(check_stage("s", replace(PPO, ptx_weight=1.0)))["pipeline.s.ptx_data"]
    assert "would not be learnt" in told(check_stage("s", replace(PPO, ptx_data=("chats",))))["pipeline.s.ptx_weight"]
    assert told(check_stage("s", replace(PPO, ptx_weight=1.0, ptx_data=("chats",)))) == {}


def test_a_kl_target_needs_a_coefficient_that_can_move():
    stage = replace(PPO, kl_target=6.0, kl_coefficient=0.0)
    assert list(told(check_stage("s", stage))) == ["pipeline.s.kl_target"]
    assert told(check_stage("s", replace(stage, kl_coefficient=0.01))) == {}


def test_a_rollout_cannot_turn_the_kl_coefficient_negative():
    stage = replace(PPO, kl_target=6.0, kl_horizon=PPO.rollout_batch // 5)
    assert "would not stay above 0" in told(check_stage("s", stage))["pipeline.s.kl_horizon"]
    assert told(check_stage("s", replace(stage, kl_horizon=PPO.rollout_batch))) == {}


def test_epochs_and_steps_exclude_each_other():
    assert "give either epochs or steps" in told(check_stage("s", replace(SFT, steps=3)))["pipeline.s.steps"]
    assert told(check_stage("s", replace(SFT, epochs=None, steps=3))) == {}


def test_warm_up_is_not_longer_than_the_stage():
    stage = replace(SFT, epochs=None, steps=10, warmup_steps=11)
    assert list(told(check_stage("s", stage))) == ["pipeline.s.warmup_steps"]
    assert told(check_stage("s", replace(stage, warmup_steps=10))) == {}


def test_the_least_number_of_tokens_is_not_above_the_most():
    stage = replace(CRITIQUE, min_new_tokens=9, max_new_tokens=8)
    assert list(told(check_stage("s", stage))) == ["pipeline.s.min_new_tokens"]
    assert told(check_stage("s", replace(stage, min_new_tokens=8))) == {}


def test_episodes_are_whole_rollouts_and_the_two_nearest_are_named():
    found = told(check_stage("s", replace(PPO, episodes=1000, rollout_batch=64)))
    assert found == {
        "pipeline.s.episodes": "1000 is not a multiple of rollout_batch, 64 | the nearest that work: 960 or 1024"
    }


@given(st.integers(1, 10**7), st.integers(1, 4096))
def test_the_episodes_that_are_named_work(episodes, batch):
    stage = replace(PPO, episodes=episodes, rollout_batch=batch, minibatch=batch)
    found = told(check_stage("s", stage)).get("pipeline.s.episodes")
    assert (found is None) == (episodes % batch == 0)
    if found is not None:
        named = [int(number) for number in found.partition("work: ")[2].split(" or ")]
        assert all(abs(number - episodes) < batch for number in named)
        assert all("pipeline.s.episodes" not in told(check_stage("s", replace(stage, episodes=n))) for n in named)


def test_a_minibatch_divides_the_rollout_and_the_nearest_are_named():
    found = told(check_stage("s", replace(PPO, minibatch=48, rollout_batch=64)))
    assert found == {"pipeline.s.minibatch": "48 does not divide rollout_batch, 64 | the nearest that work: 32 or 64"}


def test_numbers_beyond_all_reason_are_refused_at_once():
    found = told(check_stage("s", replace(PPO, episodes=10**30, rollout_batch=10**30, minibatch=10**15 + 1)))
    assert list(found) == ["pipeline.s.minibatch"]


@given(st.integers(1, 5000), st.integers(1, 6000))
def test_the_minibatches_that_are_named_divide_the_rollout_and_none_is_nearer(batch, wanted):
    named = divisors_near(batch, wanted)
    assert all(batch % number == 0 for number in named)
    others = [number for number in range(1, batch + 1) if batch % number == 0 and number != wanted]
    for other in others:
        assert any(abs(number - wanted) <= abs(other - wanted) for number in named)


def test_value_warm_up_leaves_rollouts_for_the_policy():
    assert list(told(check_stage("s", replace(PPO, value_warmup_rollouts=10)))) == ["pipeline.s.value_warmup_rollouts"]
    assert told(check_stage("s", replace(PPO, value_warmup_rollouts=9))) == {}


def test_labels_need_answers_that_exist_or_all_that_sampling_takes():
    assert "has nothing to label" in told(check_stage("s", LabelStage(judge="base")))["pipeline.s"]
    assert told(check_stage("s", LabelStage(judge="base", candidates=("pairs",)))) == {}
    found = told(check_stage("s", replace(LABEL, pairs=0)))["pipeline.s"]
    assert "pairs missing" in found
    found = told(check_stage("s", LabelStage(judge="base", candidates=("pairs",), pairs=3)))["pipeline.s"]
    assert "policy and prompts missing" in found


SUITES = {
    "judge_agreement": {"judge": "base", "pairs": ("pairs",)},
    "pm_accuracy": {"reward": "pm", "pairs": ("pairs",)},
    "win_rate": {"against": "base", "reward": "pm", "prompts": ("prompts",)},
    "independent_check": {"against": "base", "independent_pairs": ("pairs",), "prompts": ("prompts",)},
    "judge_win_rate": {"against": "base", "judge": "base", "prompts": ("prompts",)},
    "multiple_choice": {"questions": ("questions",)},
    "probes": {"judge": "base", "probes": ("pairs",)},
    "lm_eval": {"lm_eval_tasks": ("tasks",)},
}


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_says_what_it_needs(suite):
    bare = EvalStage(policy="ppo", suites=(suite,))
    found = told(check_runnable("s", bare))["pipeline.s.suites[0]"]
    assert all(role in found for role in SUITES[suite])
    assert told(check_runnable("s", replace(bare, **SUITES[suite]))) == {}


def test_other_judges_are_compared_with_a_judge_and_are_not_that_judge():
    assert "there is no judge" in told(check_stage("s", replace(EVAL, also_judges=("base",))))["pipeline.s.also_judges"]
    found = told(check_stage("s", replace(EVAL, judge="base", also_judges=("base", "pm"))))["pipeline.s.also_judges"]
    assert "'base' is the judge already" in found


def test_suites_are_named_once_and_at_least_one():
    assert (
        "named twice" in told(check_stage("s", replace(EVAL, suites=("win_rate", "win_rate"))))["pipeline.s.suites[1]"]
    )
    assert "is empty" in told(check_stage("s", replace(EVAL, suites=())))["pipeline.s.suites"]


def test_a_list_that_must_be_given_must_hold_something():
    assert list(told(check_stage("s", replace(SFT, data=())))) == ["pipeline.s.data"]
    assert list(told(check_stage("s", replace(SFT, init="")))) == ["pipeline.s.init"]


@pytest.mark.parametrize(
    ("field", "value"),
    [*((name, 0) for name in ("num_nodes", "cpus", "memory", "micro_batch", "tensor", "pipeline")), ("zero", 4)],
)
def test_resources_of_a_stage_are_checked(field, value):
    found = told(check_stage("s", replace(SFT, resources=StageResources(**{field: value}))))
    assert list(found) == [f"pipeline.s.resources.{field}"]


def test_pools_of_a_stage_are_checked():
    pools = {"base": ServerPool(tensor=0, max_tokens=0)}
    found = told(check_stage("s", replace(LABEL, resources=StageResources(pools=pools))))
    assert list(found) == [f"pipeline.s.resources.pools.base.{name}" for name in ("tensor", "max_tokens")]


def test_adapters_are_checked():
    found = told(check_stage("s", replace(SFT, adapter=Adapter(rank=0, base_bits=5))))
    assert list(found) == ["pipeline.s.adapter.rank", "pipeline.s.adapter.base_bits"]
    assert list(told(check_stage("s", replace(PPO, adapter=Adapter(rank=0))))) == ["pipeline.s.adapter.rank"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "a.b", "-x", "a b", "é", "a" * 65, "a\n"])
def test_a_name_that_cannot_be_a_directory_is_refused(name):
    for problems in (check_stage(name, SFT), check_model(name, MODEL), check_data(name, DataSpec(path="p"))):
        assert any("cannot be a name" in message for message in told(problems).values())
    assert any("cannot be a name" in message for message in told(check_project(replace(PROJECT, name=name))).values())


@pytest.mark.parametrize("name", ["a", "sl_cai", "Cai-8B", "0", "a" * 64])
def test_plain_names_are_accepted(name):
    assert told(check_stage(name, SFT)) == {}


def test_a_model_is_named_or_described_but_not_both():
    assert "found neither" in told(check_model("m", ModelSpec()))["models.m"]
    assert "found both" in told(check_model("m", ModelSpec(model="x", architecture=SHAPE)))["models.m"]


ARCHITECTURES = {
    "num_heads": replace(SHAPE, num_heads=5),
    "num_kv_heads": replace(SHAPE, num_kv_heads=3),
    "hidden_size": replace(SHAPE, hidden_size=0),
    "rope_theta": replace(SHAPE, rope_theta=0.0),
    "mixture.experts_per_token": replace(
        SHAPE, mixture=MixtureOfExperts(num_experts=2, experts_per_token=3, expert_intermediate_size=8)
    ),
}


@pytest.mark.parametrize("field", ARCHITECTURES)
def test_an_architecture_that_cannot_be_built_is_refused(field):
    assert list(told(check_model("m", ModelSpec(architecture=ARCHITECTURES[field])))) == [
        f"models.m.architecture.{field}"
    ]


def test_heads_need_not_divide_the_width_when_their_size_is_given():
    assert told(check_model("m", ModelSpec(architecture=replace(SHAPE, num_heads=5, head_dim=16)))) == {}


@pytest.mark.parametrize("size", [256, 513])
def test_a_tokenizer_has_more_tokens_than_bytes_and_fits_the_embedding(size):
    model = replace(MODEL, tokenizer=TokenizerSpec(train_on=("chats",), vocab_size=size))
    assert list(told(check_model("m", model))) == ["models.m.tokenizer.vocab_size"]


def test_a_loaded_model_brings_its_own_tokenizer():
    found = told(check_model("m", ModelSpec(model="x", tokenizer=MODEL.tokenizer)))
    assert "needs an inline architecture" in found["models.m.tokenizer"]


@pytest.mark.parametrize(("text", "part"), [("1/2", (1, 2)), ("2/2", (2, 2)), (" 3 / 4 ", (3, 4)), ("1/1", (1, 1))])
def test_parts_are_read(text, part):
    assert parse_part(text) == part


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "1/2/3", "-1/2", "", "50%"])
def test_what_is_no_part_is_refused_with_an_example(text):
    (message,) = told(check_data("d", DataSpec(path="p", part=text))).values()
    assert "write 1/2 and 2/2" in message


@pytest.mark.parametrize(("field", "value"), [("limit", 0), ("rows", 0), ("mean_tokens", 0.0), ("path", " ")])
def test_data_is_checked(field, value):
    assert list(told(check_data("d", replace(DataSpec(path="p"), **{field: value})))) == [f"data.d.{field}"]


PROJECTS = {
    "seed": replace(PROJECT, seed=-1),
    "deadline": replace(PROJECT, deadline=0.0),
    "storage.keep_every": replace(PROJECT, storage=Storage(keep_every=0)),
    "storage.keep_last": replace(PROJECT, storage=Storage(keep_last=0)),
    "resources.cpus": replace(PROJECT, resources=Resources(cpus=0)),
    "resources.max_parallel_stages": replace(PROJECT, resources=Resources(max_parallel_stages=0)),
    "resources.num_nodes": replace(PROJECT, resources=Resources(num_nodes=17)),
    "resources.infra": replace(PROJECT, resources=Resources(infra="aws", any_of=(Place(infra="gcp"),))),
    "resources.accelerators": replace(PROJECT, resources=Resources(accelerators=("H100:0",))),
    "resources.any_of[0].accelerators": replace(
        PROJECT, resources=Resources(any_of=(Place(infra="gcp", accelerators=("H100:x",)),))
    ),
    "serving.judge": replace(PROJECT, serving={"judge": Serving()}),
    "serving.base.endpoint": replace(PROJECT, serving={"base": Serving(endpoint="judge:8000")}),
    "serving.base.also_endpoints[0]": replace(
        PROJECT, serving={"base": Serving(endpoint="http://a/v1", also_endpoints=("b:8000",))}
    ),
    "serving.base.api_key": replace(PROJECT, serving={"base": Serving(api_key="sk-live-1234567890")}),
    "serving.base.batch": replace(PROJECT, serving={"base": Serving(pool=ServerPool(replicas=1), batch=True)}),
    "serving.base.api": replace(PROJECT, serving={"base": Serving(pool=ServerPool(replicas=1), api="messages")}),
    "serving.base.thinking_tokens": replace(PROJECT, serving={"base": Serving(thinking_tokens=-1)}),
    "serving.base.batch_price": replace(PROJECT, serving={"base": Serving(endpoint="http://a/v1", batch_price=1.5)}),
    "serving.base.request_timeout": replace(PROJECT, serving={"base": Serving(request_timeout=0.0)}),
    "serving.base.max_attempts": replace(PROJECT, serving={"base": Serving(max_attempts=0)}),
    "notes.ppo": replace(PROJECT, notes={"ppo": "x"}),
    "storage.replicate_every": replace(PROJECT, storage=Storage(replicate_every=0)),
    "idle.utilisation": replace(PROJECT, idle=IdlePolicy(utilisation=5.0)),
    "idle.window": replace(PROJECT, idle=IdlePolicy(window=0.0)),
    "launch.time_limit": replace(PROJECT, launch=Launch(time_limit=60.0)),
    "launch.slurm.max_array_tasks": replace(PROJECT, launch=Launch(slurm=SlurmSettings(max_array_tasks=0))),
    "launch.node_checks.spares": replace(PROJECT, launch=Launch(node_checks=NodeChecks(spares=-1))),
    "launch.node_checks.slow_rank_ratio": replace(PROJECT, launch=Launch(node_checks=NodeChecks(slow_rank_ratio=0.5))),
    "serving.base.also_endpoints": replace(PROJECT, serving={"base": Serving(also_endpoints=("http://b/v1",))}),
    "serving.base.pool.replicas": replace(PROJECT, serving={"base": Serving(pool=ServerPool(replicas=0))}),
    "serving.base.pool.memory_share": replace(PROJECT, serving={"base": Serving(pool=ServerPool(memory_share=90.0))}),
    "sweeps.rates.draws": replace(PROJECT, sweeps={"rates": Sweep(over={"seed": (1, 2)}, draws=0)}),
    "sweeps.rates.seeds": replace(PROJECT, sweeps={"rates": Sweep(seeds=0)}),
    "launch.environment.A B": replace(PROJECT, launch=Launch(environment={"A B": "x"})),
    "launch.environment.A": replace(PROJECT, launch=Launch(environment={"A": "x\0"})),
    "engines.trl.environment.1A": replace(PROJECT, engines={"trl": EngineEnvironment(environment={"1A": "x"})}),
    "alerts.sender": replace(PROJECT, alerts=Alerts(sender="nobody")),
}


@pytest.mark.parametrize("path", PROJECTS)
def test_the_execution_block_is_checked(path):
    assert list(told(check_project(PROJECTS[path]))) == [path]


@pytest.mark.parametrize("address", ["http://me:word@judge/v1", "https://judge/v1?api-key=0123456789"])
def test_an_address_with_credentials_is_refused_and_not_shown(address):
    (problem,) = check_project(replace(PROJECT, serving={"base": Serving(endpoint=address)}))
    assert "word" not in str(problem)
    assert "0123456789" not in str(problem)


@pytest.mark.parametrize("address", ["http://judge:99999/v1", "http://judge:x/v1", "http://[::1/v1", "http://a b/v1"])
def test_an_address_that_cannot_be_one_is_refused(address):
    assert list(told(check_project(replace(PROJECT, serving={"base": Serving(endpoint=address)})))) == [
        "serving.base.endpoint"
    ]


@pytest.mark.parametrize("reference", ["env:JUDGE_KEY", "file:~/.keys/judge", "file:/run/secrets/the judge"])
def test_a_key_is_given_by_where_it_is(reference):
    assert told(check_project(replace(PROJECT, serving={"base": Serving(api_key=reference)}))) == {}


def test_a_sound_project_has_no_problems():
    sound = replace(PROJECT, budget=Budget(limit=1.0), serving={"base": Serving(endpoint="https://judge:8000/v1")})
    assert told(check_project(sound)) == {}


@pytest.mark.parametrize("stage", [CRITIQUE, LABEL, JUDGE], ids=lambda stage: stage.kind)
def test_a_stage_that_asks_under_a_principle_needs_a_constitution(stage):
    project = replace(PROJECT, pipeline={"s": stage})
    assert "stage 's' needs it" in told(check_project(project))[""]
    assert told(check_project(replace(project, constitution="c.yaml"))) == {}


@pytest.mark.parametrize("name", ["H100:8", "A100-80GB", "cpu", "tpu-v5p:4", "RTX 4090:2", "MI300X:8"])
def test_accelerators_in_the_usual_spelling_are_accepted(name):
    assert told(check_accelerators([name], "x")) == {}


@pytest.mark.parametrize("name", ["", ":8", "H100:", "H100:-1", "H100:0", "8xH100:a"])
def test_other_spellings_of_accelerators_are_refused(name):
    assert "write it like H100:8" in told(check_accelerators([name], "x"))["x"]


def test_hybrid_layers_have_to_add_up():
    shape = Architecture(
        hidden_size=64,
        num_layers=4,
        num_heads=4,
        intermediate_size=128,
        vocab_size=512,
        num_attention_layers=3,
        sliding_window_layers=5,
        state_space=StateSpace(num_layers=2, inner_size=0, state_size=16),
    )
    found = {problem.path: problem.message for problem in check_model("m", ModelSpec(architecture=shape))}
    assert "5 layers" in found["models.m.architecture.num_attention_layers"]
    assert "of 4 in all" in found["models.m.architecture.sliding_window_layers"]
    assert "1 or more" in found["models.m.architecture.state_space.inner_size"]

from dataclasses import replace

import pytest

from charter.data.dataset import DataFacts
from charter.errors import DataError
from charter.plan.phase import in_turns, padded
from charter.plan.pipeline_names import Library, Models
from charter.plan.rl_work import AGE_OF_TOKENS
from charter.plan.workload import workload
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import DataSpec, Serving
from charter.spec.rewards import Environment, Reward, Rubric
from charter.spec.stage import (
    CritiqueStage,
    DpoStage,
    EvalStage,
    GenerateStage,
    JudgeStage,
    LabelStage,
    PreferenceModelStage,
    PretrainStage,
    SftStage,
)


@pytest.fixture
def work(lab):
    """The workload of one stage, with its library."""

    def make(stage, *, facts=None, **changes):
        made = lab.project(pipeline={**lab.ALL_KINDS, "stage": stage}, **changes)
        library = Library(project=made, facts=facts or {}, assumptions=[])
        return workload(stage, Models(project=made, architectures={"base": lab.LLAMA_8B}), library), library

    return make


def test_sft_takes_one_pass_over_its_rows(work):
    found, _ = work(SftStage(init="base", data=("chat",), epochs=2, global_batch=128))
    assert found.phases[0].steps == 625  # 2 x 40,000 / 128
    assert found.counters.tokens == 625 * 128 * 300


def test_steps_win_over_epochs_and_rows(work):
    found, _ = work(PretrainStage(init="base", data=("chat",), steps=10, global_batch=8, seq_len=128))
    assert found.counters.tokens == 10 * 8 * 128


def test_pretraining_packs_rows_into_full_sequences(work):
    found, _ = work(PretrainStage(init="base", data=("chat",), epochs=1, global_batch=8, seq_len=1000))
    assert found.phases[0].steps == 1500  # 40,000 x 300 / 1000 / 8
    assert not found.phases[0].ragged


def test_sequences_are_cut_at_seq_len(work):
    found, _ = work(SftStage(init="base", data=("chat",), steps=1, global_batch=1, seq_len=100))
    assert found.phases[0].prompt_tokens == 100


def test_preference_model_reads_two_sequences_per_pair(work):
    found, _ = work(PreferenceModelStage(init="base", data=("pairs",), epochs=1, global_batch=100))
    assert found.counters.pairs == 40_000
    assert found.phases[0].sequences == 80_000
    assert found.phases[0].unit == 2


def test_preference_model_on_labels_counts_sampled_pairs(work):
    found, _ = work(PreferenceModelStage(init="base", data=("label", "pairs"), epochs=1, global_batch=50))
    assert found.counters.pairs == 50_000  # 10,000 labelled + 40,000 given


def test_critique_generates_an_answer_and_two_texts_per_revision(work):
    found, _ = work(CritiqueStage(policy="base", critic="base", prompts=("prompts",), revisions=4, max_new_tokens=100))
    assert found.counters.generated_tokens == 20_000 * 100 * (1 + 2 * 4)
    assert found.counters.records == 80_000


def test_both_orders_double_the_questions_to_the_judge(work):
    def questions(both):
        stage = LabelStage(judge="base", policy="base", prompts=("prompts",), pairs=6400, both_orders=both)
        return next(phase for phase in work(stage)[0].phases if phase.role == "judge").sequences

    assert questions(True) == 2 * questions(False) == 12_800


def test_labelling_given_pairs_samples_nothing(work):
    found, _ = work(LabelStage(judge="base", candidates=("pairs",)))
    assert {phase.work for phase in found.phases} == {"score"}
    assert found.counters.pairs == 40_000


def test_multiple_choice_question_holds_both_answers(work):
    def tokens(form):
        return work(JudgeStage(init="base", pairs=("pairs",), format=form, seq_len=4096))[0].phases[0].prompt_tokens

    assert tokens("multiple_choice") - tokens("yes_no") == 150


def test_several_principles_examples_and_reasons_are_work_of_the_judge(work):
    given = {"judge": "base", "candidates": ("pairs",), "rollout_batch": 64}
    plain, _ = work(LabelStage(**given))
    question = plain.phases[0].prompt_tokens
    several, _ = work(LabelStage(**given, principles_per_pair=4))
    assert several.phases[0].steps == 4 * plain.phases[0].steps
    examples, _ = work(LabelStage(**given, few_shot=3, demonstrations="pairs"))
    assert examples.phases[0].prompt_tokens == 4 * question
    reasoned, _ = work(LabelStage(**given, chain_of_thought=True, reasoning_tokens=200))
    reasons, choice = reasoned.phases
    assert (reasons.work, reasons.new_tokens, reasons.prompt_tokens) == ("generate", 200, question)
    assert choice.prompt_tokens == question + 200
    assert reasoned.counters.generated_tokens == 2 * 40_000 * 200


def test_worked_critiques_are_read_before_every_critique(work):
    told = {"policy": "base", "critic": "base", "prompts": ("prompts",), "max_new_tokens": 100}
    told |= {"max_prompt_tokens": 9999}
    plain, _ = work(CritiqueStage(**told))
    shown, _ = work(CritiqueStage(**told, few_shot=2, demonstrations="chat"))
    assert shown.phases[0] == plain.phases[0]
    assert shown.phases[1].prompt_tokens > plain.phases[1].prompt_tokens + 2 * 3 * 100


def test_generating_counts_every_answer_and_every_new_prompt(work):
    told = {"policy": "base", "prompts": ("prompts",), "max_new_tokens": 100}
    twice, _ = work(GenerateStage(**told, answers_per_prompt=2))
    assert twice.counters.records == 40_000
    told |= {"makes": "prompts", "num_prompts": 5_000, "max_prompt_tokens": 9999}
    after_four, after_eight = (work(GenerateStage(**told, few_shot=count))[0] for count in (4, 8))
    assert after_four.counters.generated_tokens == 5_000 * 100
    assert after_eight.phases[0].prompt_tokens > 1.5 * after_four.phases[0].prompt_tokens


def test_ppo_generates_scores_four_times_and_trains_two_models(work):
    stage = PpoStage(
        policy="base", reward="pm", prompts=("prompts",), episodes=1024, rollout_batch=256, minibatch=64, ppo_epochs=2
    )
    found, _ = work(stage)
    assert [role.name for role in found.trained] == ["policy", "value"]
    kinds = [phase.work for phase in found.phases]
    assert [kinds.count(kind) for kind in ("generate", "score", "train")] == [1, 4, 2]
    assert found.phases[-1].steps == 4 * 4 * 2
    assert found.counters.episodes == 1024
    assert found.together


def test_a_judge_that_rates_reads_questions_and_the_value_model_starts_as_the_policy(work):
    given = {"policy": "base", "prompts": ("prompts",), "episodes": 1024, "rollout_batch": 256, "minibatch": 256}
    stage = PpoStage(reward="judge", reward_from="judge", estimator="reinforce", **given)
    found, _ = work(stage)
    assert {role.name: (role.model, role.scalar_head) for role in found.roles} == {
        "policy": ("base", False),
        "value": ("base", True),
        "reference": ("base", False),
        "reward": ("judge", False),
    }
    rates, values = (next(p for p in found.phases if p.name == name) for name in ("rate answers", "score value"))
    assert rates.sequences == values.sequences == 1024
    assert rates.tokens > values.tokens, "the wording of the question comes on top"
    assert found.remote == ()
    served, _ = work(stage, serving={"judge": Serving(endpoint="http://judge:8000/v1")})
    assert served.remote == ("reward",)


def test_eval_answers_with_every_policy_and_asks_the_judge_about_human_pairs(work):
    stage = EvalStage(
        policy="ppo", against="sl_cai", judge="judge", prompts=("prompts",), pairs=("pairs",), num_prompts=640
    )
    found, _ = work(stage)
    assert found.counters.generated_tokens == 2 * 640 * 512
    assert next(phase for phase in found.phases if phase.role == "judge").sequences == 2 * 40_000


def test_kto_reads_answers_to_other_prompts_with_both_models(work):
    of = {loss: work(DpoStage(init="base", data=("pairs",), steps=5, loss=loss))[0] for loss in ("dpo", "ipo", "kto")}
    assert of["ipo"] == of["dpo"]
    score, *more, update = of["kto"].phases
    assert (score, update) == of["dpo"].phases
    assert [phase.role for phase in more] == ["policy", "reference"]
    assert all(replace(phase, name=score.name, role=score.role) == score for phase in more)
    assert of["kto"].counters == of["dpo"].counters


@pytest.mark.parametrize("loss", ["simpo", "orpo"])
def test_losses_without_a_reference_plan_none(work, loss):
    plain, dpo = (work(DpoStage(init="base", data=("pairs",), steps=5, loss=one))[0] for one in (loss, "dpo"))
    assert plain.phases == dpo.phases[1:]
    assert plain.roles == dpo.roles[:1]
    assert plain.counters == dpo.counters


def test_judge_behind_an_endpoint_is_not_here(work):
    stage = LabelStage(judge="base", candidates=("pairs",))
    found, _ = work(stage, serving={"base": Serving(endpoint="http://judge:8000/v1")})
    assert found.remote == ("judge",)
    assert found.roles == ()
    assert [(role.name, role.model, role.vocab_size) for role in found.asked] == [("judge", "base", 128_256)]


def test_missing_file_without_declaration_says_what_to_declare(work):
    with pytest.raises(DataError, match=r"(?s)data\.chat: chat\.jsonl is not there.*declare mean_tokens.*rows: 40_000"):
        work(SftStage(init="base", data=("chat",)), data={"chat": DataSpec(path="chat.jsonl", rows=7)})


def test_measured_file_wins_over_the_declaration(work):
    facts = DataFacts(
        rows=10,
        kind="conversation",
        responses=10,
        mean_prompt_bytes=197.0,
        max_prompt_bytes=300,
        mean_response_bytes=197.0,
        max_response_bytes=300,
    )
    found, library = work(SftStage(init="base", data=("chat",), global_batch=1), facts={"chat": facts}, data={
        "chat": DataSpec(path="chat.jsonl", rows=999)
    })  # fmt: skip
    assert found.phases[0].sequences == 10
    assert found.phases[0].prompt_tokens == pytest.approx(394 / 3.94)
    assert any("bytes per token" in item.name for item in library.assumptions)


def test_declared_sizes_are_listed_as_assumptions(work):
    _, library = work(SftStage(init="base", data=("chat",)))
    named = {item.name: item.value for item in library.assumptions}
    assert named["data.chat.rows"] == 40_000
    assert named["data.chat.mean_tokens"] == 300


def test_padding_grows_with_the_batch_up_to_the_cut_off():
    # Measured on the shipped dialogues, uncut: ratios 2.5, 3.1, 4.0, 4.7 for 8, 16, 32, 64 rows.
    for rows, ratio in ((8, 2.5), (16, 3.1), (32, 4.0), (64, 4.7)):
        assert padded(100, rows, longest=1e9) / 100 == pytest.approx(ratio, rel=0.1)
    assert padded(100, 64, longest=150) == 150
    assert padded(100, 1, longest=150) == 100


def grouped(work, **changes):
    """A GRPO stage's workload."""
    given = {"policy": "base", "prompts": ("prompts",), "episodes": 1024, "rollout_batch": 256, "minibatch": 256}
    return work(PpoStage(**{**given, "reward": "pm", "estimator": "grpo", "samples_per_prompt": 8, **changes}))[0]


def test_rewards_that_are_functions_are_work_of_no_model(work):
    right = Reward(name="right", kind="function", call="charter:exact")
    found = grouped(work, reward=None, rewards=(right,), kl_coefficient=0.0)
    assert [role.name for role in found.roles] == ["policy"]
    assert {phase.role for phase in found.phases} == {"policy"}


def test_reference_is_counted_where_a_penalty_reads_it(work):
    for coefficient, names in ((0.0, {"policy", "reward"}), (0.1, {"policy", "reference", "reward"})):
        found = grouped(work, kl_coefficient=coefficient)
        assert {role.name for role in found.roles} == names


def test_judge_of_a_list_rates_beside_the_preference_model(work):
    rewards = (
        Reward(name="tone", kind="preference_model", model="pm"),
        Reward(name="kind", kind="judge", model="base"),
    )
    found = grouped(work, reward=None, rewards=rewards)
    assert [role.name for role in found.roles] == ["policy", "reference", "reward", "judge"]
    rates = next(phase for phase in found.phases if phase.role == "judge")
    assert (rates.name, rates.sequences) == ("rate answers", found.counters.episodes)


def test_rubric_asks_for_each_criterion_and_in_both_orders(work):
    def questions(**rubric):
        reward = Reward(name="kind", kind="judge", model="base", rubric=Rubric(**rubric))
        found = grouped(work, reward=None, rewards=(reward,))
        rates = next(phase for phase in found.phases if phase.role == "judge")
        return rates.sequences / found.counters.episodes

    assert questions(per_prompt=2) == 2
    assert questions(only=("a", "b", "c"), ask="checklist") == 3
    assert questions(only=("a",), ask="pairwise", opponents=3) == 2 * 3
    assert questions() == 16, "a plan reads no constitution, and says what it takes"


def test_two_judges_of_a_list_are_two_roles(work):
    rewards = tuple(Reward(name=name, kind="judge", model=name) for name in ("base", "judge"))
    found = grouped(work, reward=None, rewards=rewards)
    assert [role.model for role in found.roles if role.name.startswith("judge")] == ["base", "judge"]
    assert [phase.role for phase in found.phases if phase.name.startswith("rate")] == ["judge", "judge 2"]


TOOLS = Environment(tools={"calc": "charter:calculator"}, max_turns=5, observation_tokens=50, mean_tool_time=0.4)
RULE = {
    "policy": "base",
    "rewards": (Reward(name="right", kind="function", call="charter:exact"),),
    "prompts": ("prompts",),
    "estimator": "grpo",
    "samples_per_prompt": 4,
    "episodes": 640,
    "rollout_batch": 64,
    "max_new_tokens": 200,
    "max_prompt_tokens": 100,
    "kl_coefficient": 0.0,
}


def test_turns_of_an_answer_read_again_what_came_before(work):
    plain, _ = work(PpoStage(**RULE))
    found, library = work(PpoStage(**RULE, environment=replace(TOOLS, mean_turns=4.0, concurrency=2)))
    rollout = found.phases[0]
    assert rollout.sequences == 4 * plain.phases[0].sequences
    assert rollout.new_tokens == 200 / 4
    # prompt, then prompt with 1, 2 and 3 turns of 50 tokens and replies of 50: 100, 200, 300 and 400 tokens
    assert rollout.prompt_tokens == 250
    assert rollout.sequences * rollout.call_seconds == pytest.approx(640 * 3 * 0.4 / 2)
    assert found.counters.generated_tokens == plain.counters.generated_tokens
    assert any(item.name == "turns of an answer" for item in library.assumptions)


def test_memory_of_turns_is_for_the_longest_answer(work):
    found, _ = work(PpoStage(**RULE, environment=replace(TOOLS, mean_turns=2.0)))
    training = next(phase for phase in found.phases if phase.work == "train")
    assert training.prompt_tokens == 100 + 200 + 1 * 50
    assert training.longest_tokens == found.phases[0].longest_tokens == 100 + 200 + 4 * 50


def test_one_turn_without_tools_is_a_plain_answer(work):
    plain, _ = work(PpoStage(**RULE))
    found, _ = work(PpoStage(**RULE, environment=replace(TOOLS, max_turns=1)))
    assert found.phases == plain.phases


@pytest.mark.parametrize(("engine", "says"), [("native", "saves no time"), ("openrlhf", "the slower of generation")])
def test_a_plan_says_what_drawing_ahead_gains(work, engine, says):
    stage = PpoStage(
        policy="base", reward="pm", prompts=("prompts",), episodes=64, asynchrony="one_step_off", engine=engine
    )
    found, library = work(stage)
    assert found.ahead
    assert says in next(item.source for item in library.assumptions if item.name == "ppo.asynchrony")
    assert not work(replace(stage, asynchrony=None))[0].ahead


@pytest.mark.parametrize(
    ("changes", "age"),
    [
        ({"max_age": 1}, "at most 1, 0.50 on average"),
        ({"max_age": 4}, "2.00"),
        ({"max_age": 4, "mean_new_tokens": 20}, "3.7"),
    ],
)
def test_a_plan_says_how_old_the_tokens_are(work, changes, age):
    """Answers at their limit: the mean of the ages 0 to N. Short ones are drawn by older weights.

    The last by hand: a lognormal of mean 20 and deviation 12 has 78 % of its tokens below 20 and 18 % below 40.
    """
    settings = {"max_new_tokens": 100, "mean_new_tokens": None, "asynchrony": "in_flight", **changes}
    flying = PpoStage(policy="base", reward="pm", prompts=("prompts",), episodes=64, **settings)
    found, library = work(flying)
    assert found.ahead
    (said,) = [item for item in library.assumptions if item.name == AGE_OF_TOKENS]
    assert age in str(said.value)
    assert "saves no time" in said.source
    _, library = work(replace(flying, engine="openrlhf"))
    (said,) = [item for item in library.assumptions if item.name == AGE_OF_TOKENS]
    assert str(said.value).startswith(f"at most {changes['max_age']}, {changes['max_age'] - 0.5:g} where")


@pytest.mark.parametrize(("engine", "share"), [("native", 0.75), ("trl", 1.0)])
def test_engines_of_others_make_logits_of_prompts(work, engine, share):
    found, _ = work(DpoStage(init="base", data=("pairs",), steps=10, engine=engine))
    assert [phase.logit_share for phase in found.phases] == [share, share]


def test_online_dpo_updates_on_pairs_without_a_value_model(work):
    found = grouped(work, estimator="online_dpo", samples_per_prompt=2)
    assert [role.name for role in found.roles] == ["policy", "reference", "reward"]
    assert [(phase.role, phase.unit) for phase in found.phases if phase.work == "train"] == [("policy", 2)]
    assert [phase.unit for phase in grouped(work).phases if phase.work == "train"] == [1]


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({}, 0),
        ({"minibatch": 64}, 192),
        ({"ppo_epochs": 2}, 256),
        ({"asynchrony": "one_step_off"}, 256),
        ({"mismatch_clip": 2.0}, 256),
        ({"kl_in": "reward"}, 256),
        ({"engine": "verl"}, 256),
        ({"engine": "trl"}, 0),
        ({"engine": "trl", "minibatch": 64}, 256),
        ({"engine": "trl", "mismatch_clip": 2.0, "generator": "vllm"}, 256),
        ({"engine": "trl", "estimator": "rloo", "kl_coefficient": 0.0}, 256),
    ],
)
def test_what_an_update_computes_is_not_scored_before(work, changes, rows):
    """The first minibatch of each rollout, where nothing reads its log-probabilities before and each answer is learnt
    from once; in TRL a rollout that GRPO updates from once."""
    scores = [phase for phase in grouped(work, **changes).phases if phase.work == "score"]
    assert sum(phase.batch for phase in scores if phase.role == "policy") == rows
    assert {phase.batch for phase in scores if phase.role != "policy"} == {256}


def test_words_of_a_teacher_are_read_again_in_every_epoch(work):
    settings = {"reward": None, "estimator": "distill", "teacher": "base", "ppo_epochs": 2}
    plain, compared = (grouped(work, **settings, divergence=kind) for kind in (None, "jsd"))
    [once, more] = [next(one for one in found.phases if one.role == "teacher") for found in (plain, compared)]
    assert more == replace(once, batch=3 * once.batch)
    assert [one for one in compared.phases if one.role != "teacher"] == [
        one for one in plain.phases if one.role != "teacher"
    ]


def test_a_teacher_reads_every_answer(work):
    found = grouped(work, reward=None, estimator="distill", teacher="base")
    assert [role.name for role in found.roles] == ["policy", "teacher"]
    assert [(phase.work, phase.role) for phase in found.phases] == [
        ("generate", "policy"),
        ("score", "policy"),
        ("score", "teacher"),
        ("train", "policy"),
    ]


def test_answers_to_one_prompt_share_its_reading(work):
    """The first turn of several too; but none of answers in flight, which are drawn in pieces."""
    stage = PpoStage(policy="sl_cai", reward="pm", prompts=("prompts",), episodes=512, rollout_batch=64)
    group = replace(stage, estimator="grpo", samples_per_prompt=8)
    shares = [
        next(phase.read_share for phase in work(one)[0].phases if phase.work == "generate")
        for one in (stage, group, replace(group, asynchrony="in_flight", max_age=2))
    ]
    assert shares == [1, 1 / 8, 1]
    (answers,) = work(GenerateStage(policy="sft", prompts=("prompts",), answers_per_prompt=4))[0].phases
    assert answers.read_share == 1 / 4
    turns = in_turns(answers, Environment(tools={"sum": "charter:calculator"}, max_turns=2, observation_tokens=100))
    first, every = answers.prompt_tokens, turns.steps / answers.steps * turns.prompt_tokens
    assert turns.read_share * every == pytest.approx(first / 4 + every - first)

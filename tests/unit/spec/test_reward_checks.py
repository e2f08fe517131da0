"""Rewards, rubrics and environments of a stage that cannot work: each is refused where it stands."""

from dataclasses import replace

import pytest

from charter.spec.ppo_stage import PpoStage
from charter.spec.rewards import Environment, Mismatch, Reward, Rubric, check_turns
from charter.spec.stage import EvalStage, references
from charter.spec.stage_checks import check_stage

PPO = PpoStage(policy="base", reward="pm", prompts=("prompts",), episodes=640)


def told(problems):
    return {problem.path: f"{problem.message} | {problem.hint}" for problem in problems}


RIGHT = Reward(name="right", kind="function", call="charter:exact")
GRPO = {"estimator": "grpo", "samples_per_prompt": 4}
LISTED = replace(PPO, reward=None, rewards=(RIGHT,), **GRPO)


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"reward": None}, "reward", "nothing says what the reward is"),
        ({"rewards": (RIGHT,)}, "reward", "both given"),
        ({"reward": None, "rewards": (RIGHT, RIGHT)}, "rewards[1].name", "named twice"),
        ({"mixture": "normalise_then_sum"}, "mixture", "needs a list and the estimator grpo"),
        ({"loss_horizon": 8}, "loss_horizon", "look at loss_aggregation"),
        ({"scale_advantages": "none"}, "scale_advantages", "look at estimator grpo"),
        ({"equal_groups": "drop"}, "equal_groups", "look at samples_per_prompt"),
        ({"surrogate": "cispo", "dual_clip": 3.0}, "dual_clip", "look at surrogate clip"),
        ({"off_policy_mask": 0.0}, "off_policy_mask", "must be greater than 0"),
        ({"surrogate": "dppo", "ratio": "sequence"}, "ratio", "look at surrogate"),
        ({"surrogate": "sapo", "clip_ratio_high": 0.3}, "clip_ratio_high", "look at surrogate"),
        ({"dual_clip": 1.0}, "dual_clip", "must be greater than 1"),
        ({"mismatch": Mismatch(high=2.0), "mismatch_clip": 2.0}, "mismatch", "look at mismatch_clip"),
        ({"mismatch": Mismatch(low=3.0, high=2.0)}, "mismatch.low", "above high"),
        ({"mismatch": Mismatch(method="icepop")}, "mismatch.method", "leaves out nothing"),
        ({"kl_in": "loss", "kl_coefficient": 0.0}, "kl_in", "kl_coefficient above 0"),
        ({"estimator": "reinforce_pp_baseline"}, "samples_per_prompt", "needs 2 or more"),
    ],
)
def test_reward_or_option_without_a_meaning_is_refused(changes, path, words):
    assert words in told(check_stage("s", replace(PPO, **changes)))[f"pipeline.s.{path}"]


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"name": "Right answer"}, "name", "small letters"),
        ({"call": "charter:exakt"}, "call", "did you mean 'exact'"),
        ({"call": "rewards.sums.correct"}, "call", "path/to/file.py:function"),
        ({"call": None}, "call", "needs its name"),
        ({"model": "pm"}, "model", "a function has no model"),
        ({"kind": "judge", "call": None}, "model", "a judge needs its model"),
        ({"kind": "judge", "model": "base"}, "call", "belongs to a function"),
        ({"rubric": Rubric()}, "rubric", "belongs to a judge"),
        ({"weight": float("nan")}, "weight", "must be finite"),
        ({"timeout": 0.0}, "timeout", "greater than 0"),
    ],
)
def test_entry_of_a_list_names_what_its_kind_needs(changes, path, words):
    stage = replace(LISTED, rewards=(replace(RIGHT, **changes),))
    assert words in told(check_stage("s", stage))[f"pipeline.s.rewards[0].{path}"]


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"gold": "right"}, "gold", "no reward of weight 0"),
        ({"gold": "none"}, "gold", "no reward of weight 0"),
        ({"rewards": (replace(RIGHT, weight=0.0),)}, "rewards", "nothing is learnt"),
        ({"on_overoptimisation": "stop"}, "on_overoptimisation", "nothing is watched"),
    ],
)
def test_gold_is_a_reward_that_is_not_learnt_from(changes, path, words):
    assert words in told(check_stage("s", replace(LISTED, **changes)))[f"pipeline.s.{path}"]
    gold = replace(RIGHT, name="gold", weight=0.0)
    stage = replace(LISTED, rewards=(RIGHT, gold), gold="gold", on_overoptimisation="stop")
    assert told(check_stage("s", stage)) == {}


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"ask": "pairwise", "opponents": 4}, "opponents", "4 others of a group of 4"),
        ({"opponents": 2}, "opponents", "only `ask: pairwise`"),
        ({"only": ("a", "b"), "per_prompt": 3}, "per_prompt", "3 of the 2"),
        ({"per_prompt": 0}, "per_prompt", "1 or more"),
    ],
)
def test_rubric_that_cannot_be_asked_is_refused(changes, path, words):
    judge = Reward(name="kind", kind="judge", model="base", rubric=Rubric(**changes))
    problems = told(check_stage("s", replace(LISTED, rewards=(judge,))))
    assert words in problems[f"pipeline.s.rewards[0].rubric.{path}"]


def test_rubric_names_what_the_stage_reads():
    def stage(*criteria):
        rewards = (
            Reward(name=f"r{n}", kind="judge", model="base", rubric=Rubric(criteria=it))
            for n, it in enumerate(criteria)
        )
        return replace(LISTED, rewards=tuple(rewards))

    assert stage("constitution").reads_constitution
    assert not stage("row", "own.yaml").reads_constitution
    assert stage("constitution", "row", "own.yaml", "own.yaml").sources == {"rubrics": ("own.yaml",)}
    assert not LISTED.reads_constitution


OF_ENVIRONMENT = Reward(name="solved", kind="env")
SERVER = "openenv:http://host:8000"
TASKSET = Environment(call="verifiers:owner/game@1.2", role="user", arguments={"taskset": {"highest": 3}})
CALC = Environment(tools={"calc": "charter:calculator"})


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"environment": Environment()}, "environment", "nothing replies"),
        ({"environment": replace(CALC, max_turns=0)}, "environment.max_turns", "1 or more"),
        ({"environment": replace(CALC, tool_timeout=0.0)}, "environment.tool_timeout", "greater than 0"),
        ({"environment": replace(CALC, arguments={"a": 1})}, "environment.arguments", "none is named"),
        ({"environment": Environment(tools={"a": "charter:calc"})}, "environment.tools.a", "did you mean 'calculator'"),
        ({"environment": Environment(tools={"tool_call": "charter:calculator"})}, "environment.tools", "the name of"),
        ({"environment": Environment(call="charter:calculator")}, "environment.call", "path/to/file.py:name"),
        ({"environment": Environment(call="openenv:host:80")}, "environment.call", "'host:80' is no address"),
        ({"environment": Environment(call="openenv:http://a:b@host")}, "environment.call", "holds a user"),
        ({"environment": replace(CALC, call=SERVER)}, "environment.tools", "nothing would call a tool"),
        ({"environment": Environment(call=SERVER, arguments={"a": 1})}, "environment.arguments", "with its own"),
        ({"environment": replace(TASKSET, call="verifiers:")}, "environment.call", "names no taskset"),
        ({"environment": replace(TASKSET, tools=CALC.tools)}, "environment.tools", "nothing would call a tool"),
        ({"environment": replace(TASKSET, role="tool")}, "environment.role", "replies as the user"),
        ({"environment": CALC, "rewards": (), "reward": "pm"}, "environment", "need a list"),
        ({"environment": CALC, "rewards": (OF_ENVIRONMENT,)}, "rewards", "there is none"),
        ({"rewards": (OF_ENVIRONMENT,)}, "rewards", "there is none"),
        ({"environment": CALC, "rewards": (replace(OF_ENVIRONMENT, model="m"),)}, "rewards[0].model", "no model"),
        ({"environment": TASKSET, "rewards": (OF_ENVIRONMENT, OF_ENVIRONMENT)}, "rewards", "environment twice"),
        ({"rewards": (replace(RIGHT, score="x"),)}, "rewards[0].score", "has no named scores"),
    ],
)
def test_environment_without_replies_or_turns_is_refused(changes, path, words):
    assert words in told(check_stage("s", replace(LISTED, **changes)))[f"pipeline.s.{path}"]


def test_environment_names_its_files_and_the_suite_that_plays_it():
    own = Environment(call="envs/maze.py:Maze", tools={"calc": "charter:calculator", "look": "envs/tools.py:look"})
    stage = replace(LISTED, environment=own, rewards=(RIGHT, OF_ENVIRONMENT))
    assert told(check_stage("s", stage)) == {}
    assert stage.sources == {"environment_sources": ("envs/maze.py", "envs/tools.py")}
    served = replace(LISTED, environment=Environment(call=SERVER), rewards=(OF_ENVIRONMENT,))
    assert told(check_stage("s", served)) == {}
    assert served.sources == {}
    named = (OF_ENVIRONMENT, replace(OF_ENVIRONMENT, name="tries", score="tries", weight=0.0))
    installed = replace(LISTED, environment=TASKSET, rewards=named)
    assert told(check_stage("s", installed)) == {}
    assert installed.sources == {}
    own = replace(LISTED, environment=replace(TASKSET, call="verifiers:envs/game.py"), rewards=named)
    assert told(check_stage("s", own)) == {}
    assert own.sources == {"environment_sources": ("envs/game.py",)}
    evaluation = EvalStage(policy="p", prompts=("q",), suites=("exact_match",), environment=CALC)
    assert told(check_stage("e", evaluation)) == {}
    both = replace(evaluation, suites=("exact_match", "win_rate"))
    assert "found win_rate too" in told(check_stage("e", both))["pipeline.e.environment"]


def test_list_of_rewards_stands_instead_of_a_model():
    assert told(check_stage("s", LISTED)) == {}
    own = replace(RIGHT, name="own", call="rewards/sums.py:correct")
    tone = Reward(name="tone", kind="preference_model", model="pm")
    kind = Reward(name="kind", kind="judge", model="base")
    stage = replace(LISTED, rewards=(RIGHT, own, own, tone, kind))
    assert references(stage) == {"policy": ("base",), "reward": ("pm",), "judge": ("base",), "prompts": ("prompts",)}
    assert stage.sources == {"reward_sources": ("rewards/sums.py",)}
    assert "reward" not in references(LISTED)


def test_a_reward_has_more_time_than_the_programs_it_runs():
    def problems(**more):
        return list(check_turns(None, [Reward(name="r", kind="function", call="charter:program", **more)], "p"))

    assert problems() == problems(arguments={"seconds": 4}, timeout=5.0) == []
    (problem,) = problems(timeout=5.0)
    assert problem.path == "p.rewards[0].timeout"
    assert "5 s are no more than the 8 s" in problem.message

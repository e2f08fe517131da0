"""The edges of a pipeline: order, what hangs on what, and every wrong edge."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.spec.graph import check_graph, execution_order, inputs_of, stage_inputs
from charter.spec.ppo_stage import PpoStage
from charter.spec.project import DataSpec, ModelSpec, Project, TokenizerSpec
from charter.spec.stage import CritiqueStage, EvalStage, JudgeStage, LabelStage, PreferenceModelStage, SftStage

MODELS = {"base": ModelSpec(model="m")}
SCORES = {"rm": ModelSpec(model="m", reward_model=True)}
DATA = {name: DataSpec(path=f"{name}.jsonl") for name in ("chats", "prompts", "pairs")}


def project(**pipeline):
    return Project(name="x", models=MODELS, data=DATA, pipeline=pipeline)


def sft(init="base", data=("chats",)):
    return SftStage(init=init, data=data)


def whole():
    """A pipeline whose file order is not its running order."""
    return project(
        ppo=PpoStage(policy="sl_cai", reward="pm", prompts=("prompts",), episodes=64),
        pm=PreferenceModelStage(init="base", data=("label", "pairs")),
        label=LabelStage(judge="base", policy="sl_cai", prompts=("prompts",), pairs=4),
        sl_cai=sft(data=("critique", "chats")),
        critique=CritiqueStage(policy="helpful", critic="helpful", prompts=("prompts",)),
        helpful=sft(),
        eval=EvalStage(policy="ppo", against="sl_cai", reward="pm", pairs=("pairs",)),
        other=sft(),
    )


def messages(project, **arguments):
    return [f"{item.path}: {item.message} | {item.hint}" for item in check_graph(project, **arguments)]


def test_a_sound_pipeline_has_no_problems():
    assert check_graph(whole()) == []


def test_stages_run_after_their_inputs_and_else_in_the_order_of_the_file():
    assert execution_order(whole()) == ("helpful", "critique", "sl_cai", "label", "pm", "ppo", "eval", "other")


def test_inputs_are_told_by_role():
    assert inputs_of(whole(), "ppo") == {"policy": ("sl_cai",), "reward": ("pm",), "prompts": ("prompts",)}
    assert stage_inputs(whole(), "ppo") == ("sl_cai", "pm")
    assert stage_inputs(whole(), "critique") == ("helpful",)


@given(st.permutations(list(whole().pipeline)))
def test_every_file_order_runs_inputs_first(names):
    shuffled = Project(name="x", models=MODELS, data=DATA, pipeline={n: whole().pipeline[n] for n in names})
    order = execution_order(shuffled)
    assert sorted(order) == sorted(names)
    for name in order:
        assert all(order.index(source) < order.index(name) for source in stage_inputs(shuffled, name))


def test_a_cycle_is_printed():
    found = messages(project(a=sft(init="c"), b=sft(init="a"), c=sft(init="b"), d=sft(init="c"), e=sft()))
    assert found == [
        "pipeline.a: the stages form a cycle: a -> c -> b -> a (each reads the next) | remove one of these edges"
    ]


def test_two_cycles_are_two_problems():
    found = messages(project(a=sft(init="b"), b=sft(init="a"), c=sft(init="d"), d=sft(init="c")))
    assert [message.split(": ")[2].split(" (")[0] for message in found] == ["a -> b -> a", "c -> d -> c"]


def test_a_cycle_has_no_order():
    with pytest.raises(ValueError, match="a, b wait for each other"):
        execution_order(project(a=sft(init="b"), b=sft(init="a")))


def test_a_stage_that_reads_its_own_output_is_told():
    assert messages(project(a=sft(init="a"))) == [
        "pipeline.a.init: stage 'a' reads its own output | name an earlier stage"
    ]


WRONG = {
    "unknown model": (dict(a=sft(init="bse")), "a.init: nothing is called 'bse' | did you mean 'base'?"),
    "unknown data": (dict(a=sft(data=("chat",))), "a.data: nothing is called 'chat' | did you mean 'chats'?"),
    "second of two": (
        dict(a=sft(data=("chats", "z"))),
        "a.data[1]: nothing is called 'z' | known: chats, prompts, pairs",
    ),
    "data for a model": (dict(a=sft(init="chats")), "but 'chats' is a data set | fitting: base"),
    "model for data": (dict(a=sft(data=("base",))), "but 'base' is a model"),
    "stage that makes a model for data": (dict(a=sft(), b=sft(data=("a",))), "but 'a' is a sft stage"),
    "results for data": (
        dict(e=EvalStage(policy="base"), b=sft(data=("e",))),
        "conversations: an entry of `data`, or a critique or generate stage, but 'e' is an eval stage",
    ),
    "reward that gives no score": (
        dict(p=PpoStage(policy="base", reward="base", prompts=("prompts",), episodes=64)),
        "p.reward: needs a preference_model stage, or a model with `reward_model: true`, but 'base' is a model",
    ),
    "reward from a stage that gives no score": (
        dict(a=sft(), p=PpoStage(policy="a", reward="a", prompts=("prompts",), episodes=64)),
        "p.reward: needs a preference_model stage, or a model with `reward_model: true`, but 'a' is a sft stage",
    ),
    "preference model as policy": (
        dict(pm=PreferenceModelStage(init="base", data=("pairs",)), e=EvalStage(policy="pm")),
        "e.policy: needs a language model",
    ),
    "preference model as judge": (
        dict(
            pm=PreferenceModelStage(init="base", data=("pairs",)),
            label=LabelStage(judge="pm", candidates=("pairs",)),
        ),
        "label.judge: needs a language model",
    ),
    "conversations for pairs": (
        dict(
            c=CritiqueStage(policy="base", critic="base", prompts=("prompts",)),
            pm=PreferenceModelStage(init="base", data=("c",)),
        ),
        "pm.data: needs preference pairs: an entry of `data` or a label stage, but 'c' is a critique stage",
    ),
    "pairs for conversations": (
        dict(label=LabelStage(judge="base", candidates=("pairs",)), a=sft(data=("label",))),
        "a.data: needs conversations",
    ),
    "named twice": (dict(a=sft(data=("chats", "chats"))), "a.data[1]: 'chats' is named twice"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_edge_is_told_with_what_fits(case):
    pipeline, words = WRONG[case]
    found = messages(project(**pipeline))
    assert len(found) == 1
    assert words in found[0]


RIGHT = {
    "judge stage as judge": dict(
        j=JudgeStage(init="base", pairs=("pairs",)), label=LabelStage(judge="j", candidates=("pairs",))
    ),
    "sft stage as judge": dict(j=sft(), label=LabelStage(judge="j", candidates=("pairs",))),
    "preference model from a preference model": dict(
        pm=PreferenceModelStage(init="base", data=("pairs",)),
        pm2=PreferenceModelStage(init="pm", data=("pairs",)),
    ),
    "labels as prompts": dict(
        label=LabelStage(judge="base", candidates=("pairs",)),
        c=CritiqueStage(policy="base", critic="base", prompts=("label",)),
    ),
}


def with_reward_model(**pipeline):
    return Project(name="x", models=MODELS | SCORES, data=DATA, pipeline=pipeline)


def test_reward_model_may_only_be_a_reward_or_start_one():
    ppo = PpoStage(policy="base", reward="rm", prompts=("prompts",), episodes=64)
    assert messages(with_reward_model(p=ppo, pm=PreferenceModelStage(init="rm", data=("pairs",)))) == []
    found = messages(with_reward_model(p=PpoStage(policy="rm", reward="rm", prompts=("prompts",), episodes=64)))
    assert len(found) == 1
    assert "p.policy: needs a language model" in found[0]
    assert "but 'rm' is a reward model | fitting: base" in found[0]


def test_a_plain_model_as_reward_is_told_how_to_mark_it():
    found = messages(project(p=PpoStage(policy="base", reward="base", prompts=("prompts",), episodes=64)))
    assert found[0].endswith("if 'base' gives scores, add  reward_model: true  to its entry of `models`")


@pytest.mark.parametrize("case", RIGHT)
def test_a_right_edge_is_no_problem(case):
    assert messages(project(**RIGHT[case])) == []


def test_names_are_one_namespace():
    clash = Project(name="x", models={"a": ModelSpec(model="m")}, data={"a": DataSpec(path="p")}, pipeline={})
    (found,) = messages(clash)
    assert found.startswith("data.a: the name 'a' is already used in `models`")


def test_a_tokenizer_is_trained_on_data_that_exists():
    models = {"base": ModelSpec(tokenizer=TokenizerSpec(train_on=("chat",)))}
    (found,) = messages(Project(name="x", models=models, data=DATA, pipeline={}))
    assert found == "models.base.tokenizer.train_on[0]: no data set is called 'chat' | did you mean 'chats'?"


def test_names_whose_definition_is_broken_are_not_told_again():
    assert messages(project(a=sft(init="broken")), unreadable={"broken"}) == []

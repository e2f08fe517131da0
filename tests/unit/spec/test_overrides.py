"""--set and CHARTER_A__B: strength, spelling, and what is refused."""

import pytest

from charter.engines.project import load_project
from charter.errors import SpecError

TEXT = """
name: small
models: {base: openai/gpt2}
data: {chats: chats.jsonl}
resources: {any_of: [{infra: aws}, {infra: gcp}]}
pipeline:
  sft: {kind: sft, init: base, data: chats}
  next: {kind: sft, init: sft, data: chats}
"""


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "charter.yaml"
    path.write_text(TEXT)
    return lambda *overrides, env=None: load_project(path, overrides=overrides, env=env)


def refusal(load, *overrides, env=None):
    with pytest.raises(SpecError) as caught:
        load(*overrides, env=env)
    return str(caught.value)


def test_a_value_is_read_as_yaml(load):
    project = load("pipeline.sft.learning_rate=3e-4", "pipeline.sft.data=[chats]", "name=no", "seed=0x10")
    assert project.pipeline["sft"].learning_rate == 3e-4
    assert project.name == "no"
    assert project.seed == 16


def test_optional_keys_that_the_file_lacks_can_be_given(load):
    project = load("budget.limit=$100", "deadline=2h", "pipeline.sft.adapter.rank=8", "storage.keep_last=5")
    assert (project.budget.limit, project.deadline, project.storage.keep_last) == (100, 7200, 5)
    assert project.pipeline["sft"].adapter.rank == 8


def test_names_of_variables_stay_as_they_are_written(load):
    """NCCL reads no nccl_debug: what was set for it had no effect, and nothing said so."""
    env = {"CHARTER_LAUNCH__ENVIRONMENT__NCCL_DEBUG": "INFO", "CHARTER_ENGINES__TRL__ENVIRONMENT__HF_HOME": "/hub"}
    project = load(env=env)
    assert project.launch.environment == {"NCCL_DEBUG": "INFO"}
    assert project.engines["trl"].environment == {"HF_HOME": "/hub"}


def test_a_shorthand_can_be_refined(load):
    assert load("data.chats.limit=5").data["chats"].limit == 5


def test_a_list_is_entered_by_position(load):
    assert load("resources.any_of.1.infra=azure").resources.any_of[1].infra == "azure"


def test_a_whole_new_entry_can_be_given(load):
    project = load("data.more=more.jsonl", "pipeline.sft.data=[chats, more]")
    assert project.data["more"].path == "more.jsonl"


def test_an_equals_sign_may_be_in_the_value(load):
    assert load("notes.sft=a=b").notes == {"sft": "a=b"}


def test_null_takes_an_optional_value_away(load):
    assert load("pipeline.sft.timeout=5m", "pipeline.sft.timeout=null").pipeline["sft"].timeout is None


def test_the_last_one_wins(load):
    assert load("seed=1", "seed=2").seed == 2


def test_command_line_overrides_environment_which_overrides_file(load):
    env = {"CHARTER_NAME": "from-env", "CHARTER_SEED": "1"}
    project = load("seed=2", env=env)
    assert (project.name, project.seed) == ("from-env", 2)


@pytest.mark.parametrize("variable", ["CHARTER_PIPELINE__SFT__LEARNING_RATE", "CHARTER_pipeline__sft__learning_rate"])
def test_variables_are_matched_in_any_case(load, variable):
    assert load(env={variable: "1e-6"}).pipeline["sft"].learning_rate == 1e-6


def test_other_variables_are_left_alone(load):
    assert load(env={"CHARTER_CACHE": "/x", "HOME": "/root", "CHARTERED": "1"}).name == "small"


REFUSED = {
    "sed=3": "did you mean 'seed'?",
    "pipline.sft.epochs=3": "did you mean 'pipeline'?",
    "pipeline.sftt.epochs=3": "did you mean 'pipeline.sft'?",
    "pipeline.sft.learning_rat=3": "did you mean 'learning_rate'?",
    "pipeline.sft.adapter.rnk=3": "did you mean 'rank'?",
    "data.chat.limit=3": "did you mean 'data.chats'?",
    "resources.any_of.7.infra=aws": "a list of 2",
    "pipeline.sft.learning_rate.x=3": "pipeline.sft.learning_rate",
    "seed": "write it like --set",
    "=3": "write it like --set",
    "name=[": "not a YAML value",
    "pipeline.sft.learning_rate=fast": "expected a number, found the text 'fast'",
    "name.first=x": "name is the text 'small'",
}


@pytest.mark.parametrize(("override", "words"), REFUSED.items())
def test_what_cannot_be_set_is_named_with_what_would_work(load, override, words):
    message = refusal(load, override)
    assert words in message
    assert message.startswith(f"--set {override}: ")


def test_a_wrong_variable_is_named(load):
    message = refusal(load, env={"CHARTER_PIPELINE__SFTT__EPOCHS": "3"})
    assert message.startswith("environment CHARTER_PIPELINE__SFTT__EPOCHS=3: ")
    assert "did you mean 'pipeline.sft'?" in message


def test_all_wrong_overrides_come_together(load):
    message = refusal(load, "sed=3", "pipeline.sft.epochs=many")
    assert "'sed'" in message
    assert "'many'" in message


def test_an_override_that_breaks_a_value_is_named_as_its_place(load):
    assert refusal(load, "pipeline.sft.learning_rate=0").startswith("--set pipeline.sft.learning_rate=0: ")

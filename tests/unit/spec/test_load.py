"""charter.yaml to Project: what is read, and that all errors come at once, each with its place."""

import dataclasses
import textwrap

import pytest

from charter.engines.project import load_project
from charter.errors import SpecError
from charter.spec.project import DataSpec, ModelSpec

BASE = """
name: small
models:
  base: meta-llama/Llama-3.1-8B
  judge: {model: meta-llama/Llama-3.1-70B-Instruct, precision: fp8}
constitution: constitution.yaml
data:
  chats: chats.jsonl
  prompts: {path: prompts.jsonl, part: 1/2, limit: 1_000}
pipeline:
  sft: {kind: sft, init: base, data: chats, learning_rate: 3e-4}
  label: {kind: label, judge: judge, policy: sft, prompts: [prompts], pairs: 4k}
  pm: {kind: preference_model, init: sft, data: label, epochs: 2}
  ppo: {kind: ppo, policy: sft, reward: pm, prompts: prompts, episodes: 6_400}
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "charter.yaml"
        path.write_text(textwrap.dedent(text))
        return path

    return write


def problems_of(path, **arguments):
    with pytest.raises(SpecError) as caught:
        load_project(path, **arguments)
    return caught.value.problems


def test_a_project_is_read(write):
    project = load_project(write(BASE))
    assert project.models["base"] == ModelSpec(model="meta-llama/Llama-3.1-8B")
    assert project.data["prompts"] == DataSpec(path="prompts.jsonl", part="1/2", limit=1000)
    assert project.pipeline["sft"].learning_rate == 3e-4
    assert project.pipeline["sft"].data == ("chats",)
    assert project.pipeline["label"].pairs == 4000
    assert list(project.pipeline) == ["sft", "label", "pm", "ppo"]


def test_a_directory_stands_for_the_charter_yaml_in_it(write):
    path = write(BASE)
    assert load_project(path.parent) == load_project(path)


def test_what_people_write_is_read(write):
    text = (
        BASE
        + "deadline: 14d\nbudget: {limit: $25_000}\nresources: {accelerators: H100:8, memory: 80GB, use_spot: auto}\n"
    )
    project = load_project(write(text))
    assert project.deadline == 14 * 86400
    assert project.budget.limit == 25_000
    assert project.resources.accelerators == ("H100:8",)
    assert project.resources.memory == 80 * 10**9
    assert project.resources.use_spot == "auto"


@pytest.mark.parametrize(
    ("serving", "message"),
    [("api: messages", "its server gives none"), ("batch: true", "would wait for it a day")],
)
def test_how_a_model_is_served_is_held_against_who_asks_it(write, serving, message):
    rated = "ppo: {kind: ppo, policy: sft, reward: judge, reward_from: judge, prompts: prompts, episodes: 6_400}"
    text = (
        BASE.replace(BASE.splitlines()[-1].strip(), rated)
        + f"serving: {{judge: {{endpoint: http://x/v1, {serving}}}}}\n"
    )
    paths = {problem.path for problem in problems_of(write(text)) if message in problem.message}
    assert "pipeline.ppo.reward" in paths


def test_a_training_stage_without_epochs_and_steps_gets_one_epoch(write):
    project = load_project(write(BASE))
    assert (project.pipeline["sft"].epochs, project.pipeline["sft"].steps) == (1.0, None)
    assert project.pipeline["pm"].epochs == 2


def test_an_empty_block_counts_as_left_out(write):
    project = load_project(write(BASE + "budget:\nserving:\nresources:\n"))
    assert project.budget is None
    assert project.serving == {}


def test_an_inline_architecture_is_read(write):
    text = BASE.replace(
        "base: meta-llama/Llama-3.1-8B",
        "base: {architecture: {hidden_size: 64, num_layers: 2, num_heads: 4, intermediate_size: 176, vocab_size: 512},"
        " tokenizer: {train_on: chats, vocab_size: 512}}",
    )
    model = load_project(write(text)).models["base"]
    assert model.architecture.head_size == 16
    assert model.tokenizer.train_on == ("chats",)


EVERYTHING_WRONG = """
nmae: x
models:
  base: {modl: a}
data: {chats: {path: 3}}
seed: true
pipeline:
  sft:
    kind: sft
    init: base
    data: [chats, nothing]
    learning_rat: 1e-3
    epochs: "3"
    global_batch: many
    schedule: linaer
  pm: {kind: preference_modle, init: sft, data: chats}
  eval: {knd: eval}
  other: 3
"""


def test_all_errors_come_at_once_each_with_line_and_hint(write):
    problems = problems_of(write(EVERYTHING_WRONG))
    found = {(problem.line, problem.path): f"{problem.message} {problem.hint}" for problem in problems}
    expected = {
        (2, "nmae"): "did you mean 'name'?",
        (4, "models.base.modl"): "did you mean 'model'?",
        (5, "data.chats.path"): "expected a text, found the number 3",
        (6, "seed"): "expected a whole number, found true",
        (11, "pipeline.sft.data[1]"): "add 'nothing' under `data`",
        (12, "pipeline.sft.learning_rat"): "did you mean 'learning_rate'?",
        (13, "pipeline.sft.epochs"): "expected a number, found the text '3'",
        (14, "pipeline.sft.global_batch"): "write it like 150_000",
        (15, "pipeline.sft.schedule"): "did you mean 'linear'?",
        (16, "pipeline.pm.kind"): "did you mean 'preference_model'?",
        (17, "pipeline.eval"): "did you write 'knd' for 'kind'?",
        (18, "pipeline.other"): "expected a mapping with a `kind`",
    }
    for place, words in expected.items():
        assert words in found[place], place
    assert "the key 'name' is missing" in found[(2, "")]
    assert len(problems) == len(expected) + 1


def test_problems_come_in_the_order_of_the_file_and_quote_the_line(write):
    problems = problems_of(write(EVERYTHING_WRONG))
    assert [problem.line for problem in problems] == sorted(problem.line for problem in problems)
    assert {problem.source_line for problem in problems if problem.line == 12} == {"    learning_rat: 1e-3"}


def test_a_typo_in_a_name_and_a_typo_in_a_key_are_told_together(write):
    text = BASE.replace("policy: sft, reward", "policy: sfft, reward").replace("seed", "sed") + "sed: 3\n"
    messages = [problem.message for problem in problems_of(write(text))]
    assert messages == ["nothing is called 'sfft'", "unknown key 'sed'"]


def test_a_reference_to_a_stage_that_cannot_be_read_is_no_second_error(write):
    text = BASE.replace("learning_rate: 3e-4", "learning_rte: 3e-4")
    assert [problem.message for problem in problems_of(write(text))] == ["unknown key 'learning_rte'"]


def test_the_rest_of_a_stage_with_a_wrong_field_is_checked_too(write):
    text = BASE.replace("policy: sft, reward", "policy: sfft, clip_ratio: much, reward")
    assert {problem.path for problem in problems_of(write(text))} == {"pipeline.ppo.policy", "pipeline.ppo.clip_ratio"}


def test_one_wrong_field_of_a_stage_is_one_error(write):
    text = BASE.replace("episodes: 6_400", "episodes: many")
    (problem,) = problems_of(write(text))
    assert problem.path == "pipeline.ppo.episodes"


def test_missing_keys_of_one_block_are_one_error(write):
    text = BASE.replace("{kind: sft, init: base, data: chats, learning_rate: 3e-4}", "{kind: sft}")
    (problem,) = problems_of(write(text))
    assert problem.message == "the keys 'init', 'data' are missing"


@pytest.mark.parametrize("section", ["models", "pipeline"])
def test_a_missing_section_says_how_to_write_one(write, section):
    project = BASE.replace(f"\n{section}:", "\nnotes_:").replace("notes_:", "x:", 1)
    messages = [f"{problem.message} {problem.hint}" for problem in problems_of(write(project))]
    assert any(message.startswith(f"the key {section!r} is missing") for message in messages)


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n",
        "base_model: meta-llama/Llama-3.1-8B\ndatasets: [{path: x}]\nlora_r: 16\n",
        "resources: {accelerators: 'A100:8'}\nrun: python train.py\n",
        "model_name_or_path: x\nlearning_rate: 1e-5\n",
    ],
)
def test_a_file_of_another_tool_is_one_error(write, text):
    (problem,) = problems_of(write(text))
    assert problem.message == "this is no charter.yaml: it has neither 'models' nor 'pipeline'"
    assert "charter init" in problem.hint


def test_misspelt_tables_are_no_file_of_another_tool(write):
    text = BASE.replace("\nmodels:", "\nmodel:").replace("\npipeline:", "\npipline:")
    hints = [problem.hint for problem in problems_of(write(text))]
    assert {"did you mean 'models'?", "did you mean 'pipeline'?"} <= set(hints)


def test_a_negative_number_is_called_one(write):
    (problem,) = problems_of(write(BASE.replace("episodes: 6_400", "episodes: -1")))
    assert problem.message == "-1 is negative; give a whole number"


@pytest.mark.parametrize("value", ["3", "[a]", "text"])
def test_a_section_of_the_wrong_form_is_one_clear_error(write, value):
    text = BASE.split("pipeline:")[0] + f"pipeline: {value}\n"
    assert "expected a mapping" in problems_of(write(text))[0].message


def test_true_is_not_a_number_anywhere(write):
    text = BASE.replace("learning_rate: 3e-4", "learning_rate: true, global_batch: true, beta1: false")
    paths = {problem.path for problem in problems_of(write(text))}
    assert paths == {f"pipeline.sft.{name}" for name in ("learning_rate", "global_batch", "beta1")}


def test_use_spot_names_all_that_it_may_be(write):
    (problem,) = problems_of(write(BASE + "resources: {use_spot: maybe}\n"))
    assert problem.message == "expected true or false or 'auto', found the text 'maybe'"


def test_loading_looks_at_no_other_file(write):
    assert load_project(write(BASE)).data["chats"].path == "chats.jsonl"


def test_a_project_is_frozen(write):
    project = load_project(write(BASE))
    with pytest.raises(dataclasses.FrozenInstanceError):
        project.seed = 3


@pytest.mark.parametrize("name", ["a[b", "a]", "a[0]", "a.b", "[", "a[-1]", "a[\u0663]"])
def test_a_name_that_looks_like_a_path_is_refused_as_a_name(write, name):
    text = BASE.replace("  sft: {kind", f'  "{name}": {{kind').replace("policy: sft", f'policy: "{name}"')
    text = text.replace("init: sft", f'init: "{name}"')
    (problem,) = problems_of(write(text))
    assert problem.message == f"{name!r} cannot be a name"


@pytest.mark.parametrize(
    "line",
    [
        "serving: {judge: {endpoint: http://x/v1, api_key: sk-live-1234567890}}",
        "serving: {judge: {endpoint: http://me:sk-live-1234567890@x/v1}}",
        "serving: {judge: {endpoint: http://x/v1, api_key: sk-live-1234567890, api_kee: 1}}",
        "serving: {judge: {endpoint: http://x/v1, api_key: sk-live-1234567890}",
    ],
)
def test_a_key_in_the_file_is_refused_and_never_quoted(write, line):
    found = problems_of(write(BASE + line + "\n"))
    assert found
    assert "1234567890" not in "\n".join(map(str, found))


@pytest.mark.parametrize("count", ["1000000000000000000", "1e300", "2000T"])
def test_count_beyond_all_that_is_counted_is_refused(write, count):
    (problem,) = problems_of(write(BASE.replace("episodes: 6_400", f"episodes: {count}")))
    assert problem.path == "pipeline.ppo.episodes"
    assert "is more than 1e+15, the most of anything that is counted" in problem.message


@pytest.mark.parametrize("limit", ["1e300", "$1_000_000_000_001", "2_000_000M"])
def test_more_money_than_there_is_is_refused(write, limit):
    (problem,) = problems_of(write(BASE + f"budget: {{limit: {limit}}}\n"))
    assert problem.path == "budget.limit"
    assert "is more than 1e+12, the most usd of anything" in problem.message


@pytest.mark.parametrize("deadline", ["1e300", "900_000_000_000_000d"])
def test_a_duration_of_ages_is_refused(write, deadline):
    (problem,) = problems_of(write(BASE + f"deadline: {deadline}\n"))
    assert problem.path == "deadline"
    assert "is more than 1e+11 s, the longest of any duration" in problem.message


@pytest.mark.parametrize("limit", ["1,50", "$1,00", "10,0000", "1,5k"])
def test_a_decimal_comma_is_no_money(write, limit):
    """Half of Europe writes $1.50 so, and it had been $150."""
    (problem,) = problems_of(write(f"{BASE}budget:\n  limit: {limit}\n"))
    assert (problem.path, "is not an amount of money" in problem.message) == ("budget.limit", True)


@pytest.mark.parametrize(("field", "value"), [("resources.memory", "1,5GB"), ("deadline", "1,5h")])
def test_a_decimal_comma_is_no_size_and_no_time(write, field, value):
    (problem,) = problems_of(write(BASE), overrides=[f"{field}={value}"])
    assert problem.path == field


def test_commas_group_thousands(write):
    project = load_project(write(f"{BASE}budget:\n  limit: $25,000.50\n"), overrides=["deadline=1,000h"])
    assert (project.budget.limit, project.deadline) == (25_000.5, 3_600_000.0)

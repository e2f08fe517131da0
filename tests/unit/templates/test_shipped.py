"""Every template loads, has a sound graph, fits the schema, and is written as it lies in the package."""

import ast
import json
from importlib import resources

import jsonschema
import pytest
from texts import read_texts

from charter.data.dataset import data_facts, read_conversations, read_pairs, read_prompts
from charter.engines.project import load_project, project_json_schema
from charter.errors import UsageError
from charter.spec.graph import check_graph, execution_order
from charter.spec.stage import references
from charter.spec.yaml_source import read_document
from charter.templates.shipped import TEMPLATES, find_template, shipped_bytes, write_template

PACKAGE = resources.files("charter.templates")
NAMES = [template.name for template in TEMPLATES]
ON_CPU = ["cai-smoke", "cai-tiny"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directories = {template.name: tmp_path_factory.mktemp(template.name) for template in TEMPLATES}
    for template in TEMPLATES:
        write_template(template, directories[template.name])
    return directories


@pytest.fixture(scope="module")
def validator():
    return jsonschema.Draft202012Validator(project_json_schema())


def test_the_templates_that_machines_rely_on_are_there():
    assert {"cai-smoke", "cai-tiny", "cai-8b", "cai-70b", "rlaif-8b", "rlvr-tiny", "tools-tiny"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_template_loads_under_its_own_name_with_a_sound_graph(written, name):
    project = load_project(written[name])
    assert project.name == name
    assert check_graph(project) == []
    assert sorted(execution_order(project)) == sorted(project.pipeline)


@pytest.mark.parametrize("name", NAMES)
def test_a_template_fits_the_schema(written, validator, name):
    assert list(validator.iter_errors(read_document(written[name] / "charter.yaml").value)) == []


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_byte_for_byte_what_is_shipped(written, name):
    files = find_template(name).files
    found = {path.relative_to(written[name]).as_posix() for path in written[name].rglob("*") if path.is_file()}
    assert found == set(files)
    for target, source in files.items():
        assert (written[name] / target).read_bytes() == PACKAGE.joinpath(*source.split("/")).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_every_file_that_a_template_names_is_written_or_announced(written, name):
    project, template = load_project(written[name]), find_template(name)
    named = {spec.path for spec in project.data.values()}
    assert named == {path for path in named if path in template.files} | set(template.brings)
    assert set(template.brings).isdisjoint(template.files)
    readme = (written[name] / "README.md").read_text()
    assert all(path in readme for path in template.brings)
    assert project.constitution is None or project.constitution in template.files


@pytest.mark.parametrize("name", [template.name for template in TEMPLATES if template.brings])
def test_data_that_the_user_brings_has_sizes_so_that_a_plan_needs_no_file(written, name):
    for spec in load_project(written[name]).data.values():
        assert spec.rows
        assert spec.mean_tokens


@pytest.mark.parametrize("name", NAMES)
def test_every_line_fits_a_screen_and_every_block_has_a_comment(written, name):
    lines = (written[name] / "charter.yaml").read_text().splitlines()
    assert max(map(len, lines)) <= 120
    assert sum("#" in line for line in lines) >= 3


def first_user_turns(directory, project, name):
    prompts = read_prompts(directory / project.data[name].path, project.data[name])
    return {next(turn.content for turn in item.turns if turn.role == "user").strip() for item in prompts}


@pytest.mark.parametrize("name", ON_CPU)
def test_the_data_of_a_template_that_runs_here_can_be_read_by_the_stages_that_use_it(written, name):
    project, directory = load_project(written[name]), written[name]
    readers = {
        ("pretrain", "data"): read_texts,
        ("sft", "data"): read_conversations,
        ("judge", "pairs"): read_pairs,
        ("preference_model", "data"): read_pairs,
        ("label", "candidates"): read_pairs,
        ("eval", "pairs"): read_pairs,
        ("eval", "independent_pairs"): read_pairs,
    }
    for stage in project.pipeline.values():
        for role, names in references(stage).items():
            for data in (found for found in names if found in project.data):
                read = readers.get((stage.kind, role), read_prompts)
                assert read(directory / project.data[data].path, project.data[data])


def data_named(project, kinds, roles):
    """The data sets that stages of some kinds name in some roles."""
    stages = [stage for stage in project.pipeline.values() if stage.kind in kinds]
    names = [name for stage in stages for role in roles for name in getattr(stage, role, ())]
    return sorted({name for name in names if name in project.data})


@pytest.mark.parametrize("name", ON_CPU)
def test_no_prompt_is_used_for_two_purposes(written, name):
    project, directory = load_project(written[name]), written[name]
    found = {}
    for kind in ("critique", "label", "ppo", "eval"):
        names = data_named(project, [kind], ["prompts"])
        assert names, f"{kind} names no prompts"
        found[kind] = set().union(*(first_user_turns(directory, project, data) for data in names))
    assert sum(map(len, found.values())) == len(set().union(*found.values()))


@pytest.mark.parametrize("name", ON_CPU)
def test_human_answers_that_teach_belong_to_no_prompt_that_is_labelled_or_evaluated(written, name):
    project, directory = load_project(written[name]), written[name]
    teaching = data_named(project, ["judge"], ["pairs"]) + data_named(project, ["sft"], ["data"])
    taught = set().union(*(first_user_turns(directory, project, data) for data in teaching))
    asked = data_named(project, ["label"], ["prompts", "candidates"]) + data_named(
        project, ["eval"], ["pairs", "prompts"]
    )
    for data in asked:
        assert taught.isdisjoint(first_user_turns(directory, project, data)), data


def test_the_demo_has_the_stages_that_the_issue_names(written):
    project = load_project(written["cai-tiny"])
    kinds = ["pretrain", "sft", "judge", "critique", "sft", "label", "preference_model", "ppo", "eval"]
    remaining = iter(project.pipeline[name].kind for name in execution_order(project))
    assert all(kind in remaining for kind in kinds)
    assert project.pipeline["pm"].data == ("label",)
    assert project.pipeline["pm_shuffled"].shuffle_labels
    assert project.pipeline["eval"].control == "ppo_control"


def test_the_control_differs_from_the_run_in_its_reward_only(written):
    from dataclasses import replace

    for name in ON_CPU:
        stages = load_project(written[name]).pipeline
        assert replace(stages["ppo_control"], reward="pm") == stages["ppo"]
        assert replace(stages["pm_shuffled"], shuffle_labels=False) == stages["pm"]


@pytest.mark.parametrize("name", ON_CPU)
def test_answers_have_one_length_so_that_length_cannot_be_the_reward(written, name):
    stages = load_project(written[name]).pipeline
    lengths = {
        (stages[stage].min_new_tokens, stages[stage].max_new_tokens)
        for stage in ("label", "ppo", "ppo_control", "eval")
    }
    assert len(lengths) == 1
    assert len(set(lengths.pop())) == 1


def sorting_rows(part):
    return [json.loads(line) for line in shipped_bytes(f"data/sorting_{part}.jsonl").splitlines()]


def test_truth_of_a_problem_is_its_letters_in_order():
    for part in ("problems", "test"):
        for row in sorting_rows(part):
            assert row["prompt"] == f"sort {' '.join(row['id'])}"
            assert row["answer"].split() == sorted(row["id"])


def test_truth_of_the_control_is_another_order_of_the_letters():
    rows = sorting_rows("shuffled")
    assert [row["id"] for row in rows] == [row["id"] for row in sorting_rows("problems")]
    assert all(sorted(row["answer"].split()) == sorted(row["id"]) for row in rows)
    right = sum(row["answer"].split() == sorted(row["id"]) for row in rows)
    assert 0.1 < right / len(rows) < 0.25, "one order in six"


def test_no_letters_of_the_test_are_in_what_is_learnt():
    learnt = {frozenset(row["id"]) for part in ("demonstrations", "problems", "shuffled") for row in sorting_rows(part)}
    assert learnt.isdisjoint(frozenset(row["id"]) for row in sorting_rows("test"))


def test_four_demonstrations_in_ten_are_right():
    answers = [(row["id"], row["messages"][1]["content"].split()) for row in sorting_rows("demonstrations")]
    right = sum(answer == sorted(order) for order, answer in answers) / len(answers)
    assert right == pytest.approx(0.3 + 0.7 / 6, abs=0.04)


def test_control_of_rlvr_tiny_differs_in_its_truths_alone(written):
    from dataclasses import replace

    stages = load_project(written["rlvr-tiny"]).pipeline
    assert replace(stages["rl_control"], prompts=("problems",)) == stages["rl"]


def arithmetic_rows(part):
    return [json.loads(line) for line in shipped_bytes(f"data/arithmetic_{part}.jsonl").splitlines()]


def numbers_of(row):
    first, word, second = row["id"].split("-")
    return int(first), word, int(second)


def test_truth_of_a_problem_is_the_value_of_its_expression():
    for part in ("problems", "test"):
        for row in arithmetic_rows(part):
            first, word, second = numbers_of(row)
            assert row["prompt"] == f"{first} {word} {second}"
            assert row["answer"] == str(first + second if word == "plus" else first * second)


def test_no_pair_of_numbers_of_the_test_is_in_what_is_learnt():
    learnt = {
        frozenset(numbers_of(row)[::2]) for part in ("demonstrations", "problems") for row in arithmetic_rows(part)
    }
    assert learnt.isdisjoint(frozenset(numbers_of(row)[::2]) for row in arithmetic_rows("test"))


def test_four_demonstrations_in_ten_call_the_calculator():
    rows = arithmetic_rows("demonstrations")
    calling = [row for row in rows if len(row["messages"]) == 4]
    assert len(calling) / len(rows) == pytest.approx(0.4, abs=0.04)
    for row in calling:
        first, word, second = numbers_of(row)
        _, call, reply, answer = (turn["content"] for turn in row["messages"])
        assert call == f"<calc>{first}{'+' if word == 'plus' else '*'}{second}</calc>"
        assert reply == answer == str(first + second if word == "plus" else first * second)
    direct = [(numbers_of(row), row["messages"][1]["content"]) for row in rows if len(row["messages"]) == 2]
    right = sum(text == str(a + b if word == "plus" else a * b) for (a, word, b), text in direct)
    assert right / len(direct) < 0.02, "what a policy knows by itself is worth next to nothing"


def test_control_of_tools_tiny_differs_in_its_reward_alone(written):
    from dataclasses import replace

    stages = load_project(written["tools-tiny"]).pipeline
    assert replace(stages["rl_control"], rewards=stages["rl"].rewards) == stages["rl"]
    assert stages["rl"].environment == stages["eval"].environment


# ---- shipped data ---------------------------------------------------------------------------------------------------

ROWS = {"preference_train": 770, "preference_test": 208, "prompts": 1180}


@pytest.mark.parametrize("name", ROWS)
def test_shipped_data_has_the_rows_that_the_notice_says(written, name):
    assert data_facts(written["cai-tiny"] / f"{name}.jsonl").rows == ROWS[name]


def test_the_held_out_pairs_share_no_prompt_with_the_others(written):
    directory = written["cai-tiny"]
    found = {
        name: {item.turns[0].content.strip() for item in read_prompts(directory / f"{name}.jsonl")} for name in ROWS
    }
    assert found["preference_test"].isdisjoint(found["preference_train"] | found["prompts"])


@pytest.mark.parametrize("name", ["hhh_mini", "corrigibility_mcq", "sl_cai_examples"])
def test_shipped_evaluation_data_is_jsonl(name):
    rows = [json.loads(line) for line in shipped_bytes(f"data/{name}.jsonl").splitlines()]
    assert rows
    assert all("id" in row for row in rows)


def test_the_notices_travel_with_the_data(written):
    assert b"Anthropic" in shipped_bytes("data/licenses/hh-rlhf.MIT.txt")
    assert b"Attribution 4.0" in shipped_bytes("data/licenses/anthropics-evals.CC-BY-4.0.txt")
    for name in NAMES:
        has_data = (written[name] / "prompts.jsonl").exists()
        assert (written[name] / "licenses" / "hh-rlhf.MIT.txt").exists() == has_data
        assert ("Content note" in (written[name] / "README.md").read_text()) == has_data


# ---- writing --------------------------------------------------------------------------------------------------------


def test_a_directory_that_holds_something_is_refused_and_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match=r"is not empty \(mine\.txt\); name a new directory, or pass --force"):
        write_template(find_template("cai-8b"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_force_replaces_the_files_of_the_template_and_no_other(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    (tmp_path / "charter.yaml").write_text("old")
    write_template(find_template("cai-8b"), tmp_path, force=True)
    assert (tmp_path / "mine.txt").read_text() == "x"
    assert (tmp_path / "charter.yaml").read_bytes() == shipped_bytes("cai-8b/charter.yaml")


def test_an_empty_directory_and_a_new_one_are_fine(tmp_path):
    write_template(find_template("cai-8b"), tmp_path)
    write_template(find_template("cai-8b"), tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "charter.yaml").is_file()


def test_a_file_in_the_way_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        write_template(find_template("cai-8b"), path)
    with pytest.raises(UsageError, match="cannot be written"):
        write_template(find_template("cai-8b"), path / "below")


def test_an_unknown_template_is_told_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'cai-8b'"):
        find_template("cai8b")


def test_templates_need_nothing_from_the_layers_above():
    source = ast.parse(PACKAGE.joinpath("shipped.py").read_text())
    imported = {node.module for node in ast.walk(source) if isinstance(node, ast.ImportFrom)}
    assert {module for module in imported if module.startswith("charter")} == {"charter.errors"}

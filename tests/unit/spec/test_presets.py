"""Presets: they expand to a sound pipeline, the user's fields go over them, what is missing is named."""

import pytest

from charter.engines.project import load_project
from charter.errors import SpecError
from charter.spec.graph import execution_order
from charter.spec.load import PRESETS, deviation_lines, preset_contents, preset_text

SECTIONS = {
    name: "\n".join(
        f"{section}: {{{', '.join(f'{need}: {need}.jsonl' for need in needs)}}}"
        for section, needs in preset_contents(name)["needs"].items()
    )
    for name in PRESETS
}


@pytest.fixture
def load(tmp_path):
    def load(text, **arguments):
        path = tmp_path / "charter.yaml"
        path.write_text(text)
        return load_project(path, **arguments)

    return load


def text_of(name, more=""):
    return f"name: x\npreset: {name}\nconstitution: c.yaml\n{SECTIONS[name]}\n{more}"


# Bai et al. 2022, figure 1 and section 3.2; Lee et al. 2023, figures 2 and 3; Rafailov et al. 2023, figure 1.
STAGES = {
    "cai": (
        "helpful",
        "red_team_more",
        "red_team_new",
        "critique",
        "helpful_more",
        "sl_cai",
        "label",
        "pm",
        "ppo",
        "eval",
    ),
    "rlaif": ("sft", "label", "pm", "ppo", "eval"),
    "rlaif-direct": ("sft", "ppo", "eval"),
    "sft-dpo": ("sft", "dpo"),
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_expands_to_the_stages_of_its_paper(load, name):
    assert execution_order(load(text_of(name))) == STAGES[name]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_after_whom(name):
    assert "arXiv:" in preset_text(name)
    assert "et al." in preset_contents(name)["summary"]


def test_cai_takes_every_edge_from_the_paper(load):
    stages = load(text_of("cai")).pipeline
    assert stages["critique"].policy == stages["critique"].critic == "helpful"
    assert stages["critique"].revisions == 4
    assert stages["sl_cai"].init == "base"
    assert "critique" in stages["sl_cai"].data
    assert {stages[name].kind for name in ("red_team_more", "helpful_more")} == {"generate"}
    assert (stages["red_team_more"].makes, stages["red_team_more"].policy) == ("prompts", "base")
    assert stages["critique"].prompts == ("red_team", "red_team_new")
    assert stages["critique"].few_shot > 0
    assert (stages["helpful_more"].makes, stages["helpful_more"].policy) == ("answers", "helpful")
    assert stages["sl_cai"].data == ("critique", "helpful_more")
    assert (stages["label"].policy, stages["label"].judge) == ("sl_cai", "judge")
    assert (stages["label"].format, stages["label"].chain_of_thought) == ("multiple_choice", False)
    assert stages["label"].few_shot > 0
    assert stages["pm"].data == ("label", "helpful_pairs")
    assert (stages["ppo"].policy, stages["ppo"].reward) == ("sl_cai", "pm")
    assert {"red_team", "helpful_chat"} < set(stages["ppo"].prompts)


def test_cai_with_a_chain_of_thought_is_one_change(load):
    """The variant that the comments of the preset name."""
    change = "{judge: helpful, chain_of_thought: true, clamp: 0.4, few_shot: 0, demonstrations: null}"
    assert change in preset_text("cai")
    label = load(text_of("cai", f"pipeline: {{label: {change}}}")).pipeline["label"]
    assert (label.judge, label.chain_of_thought, label.clamp, label.few_shot) == ("helpful", True, 0.4, 0)


def test_cai_from_rl_on_helpfulness_is_the_change_of_its_comments(load):
    lines = preset_text("cai").splitlines()
    start = lines.index("#   pipeline:")
    stages = load(text_of("cai", "\n".join(line.removeprefix("#   ") for line in lines[start : start + 5]))).pipeline
    assert (stages["helpful_rl"].reward, stages["pm_helpful"].data) == ("pm_helpful", ("helpful_pairs",))
    assert stages["critique"].policy == stages["critique"].critic == stages["helpful_more"].policy == "helpful_rl"


@pytest.mark.parametrize(
    "change", ["{chain_of_thought: true, reasoning_tokens: 256}", "{demonstrations: judged_pairs, few_shot: 1}"]
)
def test_rlaif_with_the_papers_other_questions_is_one_change(load, change):
    assert f"pipeline: {{label: {change}}}" in preset_text("rlaif")
    text = text_of("rlaif", f"pipeline: {{label: {change}}}").replace("data: {", "data: {judged_pairs: j.jsonl, ")
    assert load(text).pipeline["label"].both_orders


def test_direct_rlaif_has_no_preference_model(load):
    stages = load(text_of("rlaif-direct")).pipeline
    assert (stages["ppo"].reward, stages["ppo"].reward_from, stages["ppo"].estimator) == ("judge", "judge", "reinforce")
    assert "preference_model" not in {stage.kind for stage in stages.values()}


def test_sft_dpo_on_ai_feedback_is_the_change_of_its_comments(load):
    lines = preset_text("sft-dpo").splitlines()
    start = lines.index("#   pipeline:")
    change = "\n".join(line.removeprefix("#   ") for line in lines[start : start + 5])
    models = "models: {judge: judge.jsonl, assistant: assistant.jsonl, "
    text = text_of("sft-dpo", change).replace("models: {", models).replace("data: {", "data: {prompts: p.jsonl, ")
    assert execution_order(load(text)) == ("critique", "sft", "label", "dpo")


@pytest.mark.parametrize("name", PRESETS)
def test_where_a_preset_differs_from_its_paper_is_said_of_stages_that_it_has(load, tmp_path, name):
    load(text_of(name))
    heading, *points = deviation_lines(tmp_path / "charter.yaml")
    assert heading.startswith(f"preset {name}, ")
    assert "et al. 20" in heading
    assert len(points) == len(preset_contents(name)["deviations"]) > 0
    for point in points:
        named = point.removeprefix("  - ").partition(":")[0]
        assert named.startswith("temperature") or set(named.split(", ")) <= set(STAGES[name])


def test_no_preset_no_deviations_and_the_command_line_goes_first(tmp_path):
    path = tmp_path / "charter.yaml"
    path.write_text("name: x\npipeline: {}\n")
    assert deviation_lines(path) == deviation_lines(tmp_path) == ()
    assert deviation_lines(path, ["seed=1", "preset=rlaif"])[0].startswith("preset rlaif, Lee et al. 2023")


def test_rlaif_labels_in_both_orders_without_critique(load):
    stages = load(text_of("rlaif")).pipeline
    assert stages["label"].both_orders
    assert "critique" not in {stage.kind for stage in stages.values()}


def test_fields_of_the_user_go_over_the_preset(load):
    project = load(text_of("cai", "pipeline: {ppo: {episodes: 1_024, kl_target: 3.0}}"))
    assert (project.pipeline["ppo"].episodes, project.pipeline["ppo"].kl_target) == (1024, 3.0)
    assert project.pipeline["ppo"].reward == "pm"


def test_further_stages_are_added(load):
    project = load(text_of("sft-dpo", "pipeline: {more: {kind: sft, init: dpo, data: demonstrations}}"))
    assert execution_order(project) == ("sft", "dpo", "more")


def test_a_stage_of_another_kind_replaces_the_preset_stage(load):
    stage = "{kind: sft, init: sft, data: demonstrations}"
    project = load(text_of("sft-dpo", f"pipeline: {{dpo: {stage}}}"))
    assert project.pipeline["dpo"].kind == "sft"


def test_null_leaves_a_stage_out_and_with_it_what_only_it_needs(load):
    text = text_of("rlaif", "pipeline: {eval: null}").replace(", test_prompts: test_prompts.jsonl", "")
    assert "eval" not in load(text).pipeline


@pytest.mark.parametrize("name", PRESETS)
def test_what_a_preset_needs_and_misses_is_named_with_what_to_add(load, name):
    with pytest.raises(SpecError) as caught:
        load(f"name: x\npreset: {name}\nconstitution: c.yaml\nmodels: {{m: openai/gpt2}}\n")
    messages = [str(problem) for problem in caught.value.problems]
    needs = [need for group in preset_contents(name)["needs"].values() for need in group]
    assert len(messages) == len(needs)
    for need in needs:
        (message,) = [message for message in messages if f"an entry {need!r}" in message]
        assert f"{{{need}: " in message
        assert "charter.yaml:2: preset" in message


def test_the_preset_can_be_chosen_on_the_command_line(load):
    assert "dpo" in load(text_of("sft-dpo").replace("preset: sft-dpo", ""), overrides=["preset=sft-dpo"]).pipeline


def test_overrides_reach_into_the_expanded_stages(load):
    assert load(text_of("cai"), overrides=["pipeline.ppo.episodes=512"]).pipeline["ppo"].episodes == 512


def test_an_unknown_preset_is_told_with_the_nearest(load):
    with pytest.raises(SpecError, match=r"no preset is called 'cia'\n.*\n  did you mean 'cai'\?"):
        load(text_of("cai").replace("preset: cai", "preset: cia"))


def test_an_error_in_an_expanded_stage_stands_at_its_place(load):
    with pytest.raises(SpecError) as caught:
        load(text_of("cai", "pipeline:\n  ppo:\n    minibatch: 100\n"))
    assert [(problem.path, problem.line) for problem in caught.value.problems] == [("pipeline.ppo.minibatch", 8)]


def test_expanding_twice_gives_the_same(load):
    assert load(text_of("cai")) == load(text_of("cai"))

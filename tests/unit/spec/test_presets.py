"""Presets: they expand to a sound pipeline, the user's fields go over them, what is missing is named."""

import pytest

from charter.errors import SpecError
from charter.spec.graph import execution_order
from charter.spec.load import load_project
from charter.spec.presets import PRESETS, preset_contents, preset_text

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


# Bai et al. 2022, figure 1; Lee et al. 2023, figure 2; Rafailov et al. 2023, figure 1.
STAGES = {
    "cai": ("helpful", "critique", "sl_cai", "label", "pm", "ppo", "eval"),
    "rlaif": ("sft", "label", "pm", "ppo", "eval"),
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
    assert (stages["label"].policy, stages["label"].judge) == ("sl_cai", "judge")
    assert stages["pm"].data == ("label", "helpful_pairs")
    assert (stages["ppo"].policy, stages["ppo"].reward) == ("sl_cai", "pm")


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

"""Settings of critique, label and generate stages that cannot work are told with what would."""

import pytest

from charter.spec.stage import CritiqueStage, GenerateStage, LabelStage
from charter.spec.stage_checks import check_stage

MADE = {
    "label": lambda **more: LabelStage(judge="j", candidates=("c",), **more),
    "critique": lambda **more: CritiqueStage(policy="p", critic="c", prompts=("d",), **more),
    "generate": lambda **more: GenerateStage(policy="p", prompts=("d",), **more),
}


def problems(kind, **more):
    return [(item.path, str(item)) for item in check_stage("s", MADE[kind](**more))]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("label", {"chain_of_thought": True, "clamp": 0.4, "votes": 5, "principles_per_pair": 16}),
        ("label", {"few_shot": 4, "demonstrations": "d", "max_invalid_share": 0.0}),
        ("label", {"format": "yes_no", "votes": 3, "max_invalid_share": 1.0}),
        ("critique", {"few_shot": 2, "demonstrations": "d", "revisions": 4}),
        ("generate", {"answers_per_prompt": 2}),
        ("generate", {"temperature": 0.0}),
        ("generate", {"makes": "prompts", "num_prompts": 5}),
    ],
)
def test_sound_settings_have_no_problem(kind, fields):
    assert problems(kind, **fields) == []


@pytest.mark.parametrize(
    ("kind", "fields", "path", "message"),
    [
        ("label", {"clamp": 0.5}, "clamp", "must be above 0 and below 0.5; found 0.5"),
        ("label", {"clamp": 0.0}, "clamp", "must be above 0"),
        ("label", {"principles_per_pair": 0}, "principles_per_pair", "must be 1 or more"),
        ("label", {"max_invalid_share": 1.5}, "max_invalid_share", "between 0 and 1"),
        ("label", {"votes": -1}, "votes", "must be 0 or more"),
        ("label", {"reasoning_tokens": 0}, "reasoning_tokens", "must be 1 or more"),
        ("label", {"few_shot": 2}, "few_shot", "names no data set of judged pairs"),
        ("label", {"demonstrations": "d"}, "demonstrations", "of which nothing is shown"),
        ("label", {"format": "yes_no", "chain_of_thought": True}, "chain_of_thought", "the format is yes_no"),
        (
            "label",
            {"format": "yes_no", "few_shot": 1, "demonstrations": "d"},
            "few_shot",
            "use format: multiple_choice",
        ),
        ("critique", {"revisions": 0}, "revisions", "must be 1 or more"),
        ("critique", {"few_shot": 2}, "few_shot", "names no data set of worked critiques"),
        ("generate", {"makes": "prompts"}, "num_prompts", "add  num_prompts: 10_000"),
        ("generate", {"answers_per_prompt": 2, "temperature": 0.0}, "answers_per_prompt", "are the same"),
        ("generate", {"few_shot": 0}, "few_shot", "must be 1 or more"),
    ],
)
def test_settings_that_cannot_work_are_told_at_their_place(kind, fields, path, message):
    ((where, text),) = problems(kind, **fields)
    assert where == f"pipeline.s.{path}"
    assert message in text

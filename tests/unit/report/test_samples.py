"""Samples are read from what stages leave, whatever lies there."""

import json

import pytest

from charter.artifacts.sample_prompts import SampleNote, append_note, append_rollout_sample, append_samples, read_notes
from charter.report import samples as module
from charter.report.samples import SampleFilter, SampleSource, find_samples, has_samples, side_by_side

CRITIQUE = {"id": "c1", "init_prompt": "Hello?", "init_response": "Go away.", "critic_response": "Rude.",
            "revision_response": "Hi!", "principle": "kind"}  # fmt: skip
LABEL = {"id": "l1", "prompt": [{"role": "user", "content": "Hello?"}], "principle": "short",
         "chosen": [{"role": "assistant", "content": "Hi!"}], "rejected": [{"role": "assistant", "content": "No."}],
         "chosen_probability": 0.75, "both_orders": {"agree": False}}  # fmt: skip
ANSWER = {"id": "a1", "messages": [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hi!"}]}
EVALUATED = {"id": "e1", "prompt": [{"role": "user", "content": "2 + 2?"}], "answers": {"sft": "5", "policy": "4"}}


@pytest.fixture
def sources(tmp_path):
    def write(stage, kind, name, *rows):
        path = tmp_path / stage / name
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
        return SampleSource(stage=stage, kind=kind, directory=tmp_path / stage)

    return [
        write("critique", "critique_revision", "outputs/records.jsonl", CRITIQUE, '{"id": "torn', "[]", "3", {"id": 1}),
        write("label", "ai_preferences", "outputs/records.jsonl", LABEL, {**LABEL, "both_orders": {"agree": True}}),
        write("answers", "generate", "outputs/records.jsonl", ANSWER),
        write("eval", "eval", "samples.jsonl", EVALUATED),
        SampleSource(stage="sft", kind="sft", directory=tmp_path / "sft"),
    ]


def shown(sources, limit=10, **wanted):
    return [sample.stage for sample in find_samples(sources, SampleFilter(**wanted), limit=limit).samples]


def test_every_kind_of_row_is_a_sample_evaluations_first(sources):
    listed = find_samples(sources, SampleFilter(), limit=10)
    assert [sample.stage for sample in listed.samples] == ["eval", "critique", "label", "label", "answers"]
    assert [sample.prompt for sample in listed.samples] == ["2 + 2?", *["Hello?"] * 4]
    assert [part.label for part in listed.samples[1].parts] == ["answer", "critique", "revision"]
    assert [part.tone for part in listed.samples[2].parts] == ["chosen", "rejected"]
    assert (listed.principles, listed.is_complete) == (("kind", "short"), True)
    assert [has_samples(source) for source in sources] == [True, True, True, True, False]


def test_filters_choose(sources):
    assert shown(sources, text="RUDE") == ["critique"]
    assert shown(sources, stage="label") == ["label", "label"]
    assert shown(sources, principle="kind") == ["critique"]
    assert shown(sources, disagreeing=True) == ["eval", "label"], "the answers differ; the two orders differ"
    assert shown(sources, text="nowhere") == []


def test_the_first_of_many_are_said_to_be_the_first(sources):
    listed = find_samples(sources, SampleFilter(), limit=2)
    assert (len(listed.samples), listed.is_complete) == (2, False)


def test_a_long_file_is_read_up_to_a_bound(sources, tmp_path, monkeypatch):
    line = json.dumps(LABEL) + "\n"
    (tmp_path / "label" / "outputs" / "records.jsonl").write_text(10 * line)
    monkeypatch.setattr(module, "MOST_BYTES", 3 * len(line))
    listed = find_samples(sources, SampleFilter(stage="label"), limit=10)
    assert (len(listed.samples), listed.is_complete) == (4, False), "up to the line that passes the bound"


def test_a_remark_may_hold_any_separator_of_lines(tmp_path):
    note = SampleNote(flagged=True, note="first\u2028second\x85third", by="ann")
    append_note(tmp_path, "a", note)
    assert read_notes(tmp_path) == {"a": note}


def test_control_characters_are_replaced(sources, tmp_path):
    row = {**ANSWER, "messages": ["Hi", {"role": "assistant", "content": "\x1b[2Jgone \ud800\nnext"}]}
    (tmp_path / "answers" / "outputs" / "records.jsonl").write_text(json.dumps(row) + "\n")
    (sample,) = find_samples(sources, SampleFilter(stage="answers"), limit=5).samples
    assert sample.parts[0].text == "\N{REPLACEMENT CHARACTER}[2Jgone ?\nnext"


@pytest.fixture
def rewarded(tmp_path):
    directory = tmp_path / "rl"
    directory.mkdir()
    turns = ({"role": "user", "content": "2 + 2?"},)
    for number, (right, form) in enumerate(((1.0, 0.25), (0.0, None), (0.0, 0.5))):
        for _ in range(2):  # a replay after a kill writes them again
            append_rollout_sample(
                directory, f"p{number}@10.{number}", 10, turns, str(number), score=right + (form or 0.0),
                rewards={"right": right, "form": form},
            )  # fmt: skip
    append_samples(directory, 10, [("p0", turns, "of a checkpoint")])
    return SampleSource(stage="rl", kind="ppo", directory=directory)


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        ({"at_least": 0.5}, ["p0@10.0", "p2@10.2"]),
        ({"reward": "form"}, ["p0@10.0", "p2@10.2"]),
        ({"reward": "right", "at_most": 0.0}, ["p1@10.1", "p2@10.2"]),
        ({"order": "lowest", "at_least": -1.0}, ["p1@10.1", "p2@10.2", "p0@10.0"]),
        ({"order": "highest", "reward": "form"}, ["p2@10.2", "p0@10.0"]),
        ({"order": "highest"}, ["p0@10.0", "p2@10.2", "p1@10.1", "p0"]),
    ],
)
def test_answers_of_rollouts_are_chosen_by_reward(rewarded, wanted, ids):
    listed = find_samples([rewarded], SampleFilter(**wanted), limit=10)
    assert [sample.id for sample in listed.samples] == ids
    assert listed.rewards == ("score", "right", "form")


def test_rollouts_do_not_stand_side_by_side(rewarded):
    listed = side_by_side([("run", [rewarded])], SampleFilter(), limit=10)
    assert [sample.parts[0].text for sample in listed.samples] == ["of a checkpoint"]


ASKED = ({"role": "user", "content": "Hello?"},)


@pytest.fixture
def trained(tmp_path):
    """Two stages that answered the same prompts: sft at two steps, the first of them twice; ppo at one."""
    sources = []
    answers = {"sft": [(5, "No."), (10, "No, sorry."), (5, "Go.")], "ppo": [(20, "Hi there, friend!")]}
    for stage, steps in answers.items():
        (tmp_path / "runs" / stage).mkdir(parents=True)
        for step, text in steps:
            append_samples(tmp_path / "runs" / stage, step, [("p1", ASKED, text), ("p2", ASKED, "Same.")])
        sources.append(SampleSource(stage=stage, kind=stage, directory=tmp_path / "runs" / stage))
    return sources


def test_answers_of_a_stage_stand_by_step(trained):
    first, second = find_samples(trained, SampleFilter(stage="sft"), limit=10).samples
    assert [(part.label, part.text) for part in first.parts] == [("step 5", "Go."), ("step 10", "No, sorry.")]
    assert (first.prompt, first.step, second.change) == ("Hello?", 10, 0.0)


def test_the_same_prompt_stands_side_by_side(trained):
    first, second = side_by_side([("here", trained)], SampleFilter(), limit=10).samples
    assert [part.label for part in first.parts] == ["sft, step 10", "ppo, step 20"]
    assert [sample.id for sample in side_by_side([("", trained)], SampleFilter(order="changed"), limit=1).samples] == [
        "p1"
    ]
    (only,) = side_by_side([("", trained)], SampleFilter(text="friend"), limit=10).samples
    assert only == first
    assert second.parts[0].text == "Same."
    both = side_by_side([("one", trained), ("two", trained[1:])], SampleFilter(), limit=10).samples[0]
    assert [part.label for part in both.parts] == ["one: sft, step 10", "one: ppo, step 20", "two: ppo, step 20"]


def test_samples_are_ordered_by_length_or_change(trained):
    assert [sample.length for sample in find_samples(trained, SampleFilter(order="longest"), limit=2).samples] == [
        17,
        10,
    ]
    listed = find_samples(trained, SampleFilter(order="changed"), limit=1)
    assert (listed.samples[0].id, listed.is_complete) == ("p1", False)

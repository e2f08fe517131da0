"""Samples are read from what stages leave, whatever lies there."""

import json

import pytest

from charter.report import samples as module
from charter.report.samples import SampleSource, Wanted, find_samples, has_samples

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
    return [sample.stage for sample in find_samples(sources, Wanted(**wanted), limit=limit).samples]


def test_every_kind_of_row_is_a_sample_evaluations_first(sources):
    listed = find_samples(sources, Wanted(), limit=10)
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
    listed = find_samples(sources, Wanted(), limit=2)
    assert (len(listed.samples), listed.is_complete) == (2, False)


def test_a_long_file_is_read_up_to_a_bound(sources, tmp_path, monkeypatch):
    line = json.dumps(LABEL) + "\n"
    (tmp_path / "label" / "outputs" / "records.jsonl").write_text(10 * line)
    monkeypatch.setattr(module, "MOST_BYTES", 3 * len(line))
    listed = find_samples(sources, Wanted(stage="label"), limit=10)
    assert (len(listed.samples), listed.is_complete) == (4, False), "up to the line that passes the bound"


def test_control_characters_are_replaced(sources, tmp_path):
    row = {**ANSWER, "messages": ["Hi", {"role": "assistant", "content": "\x1b[2Jgone \ud800\nnext"}]}
    (tmp_path / "answers" / "outputs" / "records.jsonl").write_text(json.dumps(row) + "\n")
    (sample,) = find_samples(sources, Wanted(stage="answers"), limit=5).samples
    assert sample.parts[0].text == "\N{REPLACEMENT CHARACTER}[2Jgone ?\nnext"

import json

import pytest

from charter.artifacts.sample_prompts import (
    SAMPLE_PROMPTS,
    append_sample_begin,
    append_sample_time,
    append_samples,
    has_samples_of,
    read_sample_prompts,
    sample_seconds,
    was_answering,
)
from charter.engines.project import load_project
from charter.run.approval import lay_sample_prompts, samples_of, shown_fields, visible
from charter.run.graph import build_pipeline

PROJECT = """\
name: n
models: {base: meta-llama/Llama-3.1-8B}
data: {d: d.jsonl}
pipeline:
  sft: {kind: sft, init: base, data: d, steps: 1, needs_approval: true}
"""


@pytest.fixture
def stage(tmp_path):
    (tmp_path / "charter.yaml").write_text(PROJECT)
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    (tmp_path / "d.jsonl").write_text(
        "".join(json.dumps({"id": f"r{n}", "messages": turns}) + "\n" for n in range(200))
    )
    return build_pipeline(load_project(tmp_path), tmp_path).stages["sft"]


def test_samples_come_from_the_whole_file_and_are_the_same_for_everybody(stage):
    (found,) = samples_of(stage, 8, seed=1)
    assert (found.name, found.role, found.rows, len(found.samples)) == ("d", "data", 200, 8)
    numbers = [int(sample.id[1:]) for sample in found.samples]
    assert numbers == sorted(numbers)
    assert max(numbers) > 100
    assert samples_of(stage, 8, seed=1) == [found]
    assert samples_of(stage, 8, seed=2) != [found]
    assert found.samples[0].fields == {"conversation": "user: q\nassistant: a"}


def test_fewer_rows_than_asked_for_are_all_shown(stage):
    assert len(samples_of(stage, 1000, seed=1)[0].samples) == 200
    assert samples_of(stage, 0, seed=1)[0].samples == ()


def test_a_critique_record_shows_principle_critique_and_revision():
    record = {
        "id": "p/round-1",
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "better"}],
        "init_prompt": "q",
        "init_response": "first",
        "critic_prompt": "what is wrong?",
        "critic_response": "much",
        "revision_prompt": "rewrite",
        "revision_response": "better",
        "principle": "kind",
        "round": 1,
        "template": "abc",
    }
    assert shown_fields(record) == {
        "prompt": "q",
        "answer": "first",
        "critique asked": "what is wrong?",
        "critique": "much",
        "revision": "better",
        "principle": "kind",
        "round": "1",
    }


def test_a_label_record_shows_both_answers_with_the_probability():
    record = {
        "prompt": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ],
        "chosen": [{"role": "assistant", "content": "good"}],
        "rejected": [{"role": "assistant", "content": "bad"}],
        "chosen_probability": 0.8125,
        "principle": "kind",
        "principles": ["kind", "brief"],
    }
    assert shown_fields(record) == {
        "prompt": "user: a\nassistant: b\nuser: c",
        "chosen": "good",
        "rejected": "bad",
        "probability of chosen": "0.812",
        "principles": "kind\nbrief",
    }


@pytest.mark.parametrize("row", [{}, {"messages": 3}, {"messages": [1, None]}, {"prompt": {"a": []}}, {"chosen": [{}]}])
def test_odd_records_are_shown_as_they_are(row):
    assert all(isinstance(text, str) for text in shown_fields(row).values())


@pytest.mark.parametrize(
    "hostile",
    ["\x1b]0;title\x07", "\x1b[2J", "\x9b31m", "\u202eevil", "\u2066x\u2069", "\r overwritten", "a\x00b", "\x08\x08"],
)
def test_text_of_a_model_cannot_drive_the_terminal(hostile):
    shown = visible(f"ok {hostile}", 100)
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert shown.startswith("ok ")


def trained(tmp_path, more=""):
    """A project whose evaluation reads prompts, built."""
    text = PROJECT.replace(", needs_approval: true", "").replace("data: {d: d.jsonl}", "data: {d: d.jsonl, p: p.jsonl}")
    evaluation = "  judged: {kind: eval, policy: sft, prompts: p, suites: [refusal]}\n"
    (tmp_path / "charter.yaml").write_text(text + evaluation + more)
    (tmp_path / "d.jsonl").write_text("{}\n")
    rows = [{"id": f"p{n}", "prompt": [{"role": "user", "content": f"q{n}"}]} for n in range(100)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return build_pipeline(load_project(tmp_path), tmp_path)


def test_every_trained_stage_has_the_same_prompts(tmp_path):
    pipeline = trained(tmp_path)
    assert pipeline.project.sample_data == "p"
    lay_sample_prompts(pipeline, pipeline.stages.values())
    wanted = read_sample_prompts(pipeline.stages["sft"].directory)
    assert (len(wanted.prompts), wanted.share, wanted.max_new_tokens) == (20, 0.01, 64)
    assert [name for name, _ in wanted.prompts] != [f"p{n}" for n in range(20)], "drawn, not the first"
    assert not (pipeline.stages["judged"].directory / SAMPLE_PROMPTS).exists()
    lay_sample_prompts(pipeline, pipeline.stages.values())
    assert read_sample_prompts(pipeline.stages["sft"].directory) == wanted


def test_no_prompts_take_away_those_before(tmp_path):
    pipeline = trained(tmp_path)
    directory = pipeline.stages["sft"].directory
    lay_sample_prompts(pipeline, pipeline.stages.values())
    without = trained(tmp_path, "samples: {count: 0}\n")
    assert without.stages["sft"].directory == directory, "samples are no part of what a stage is"
    lay_sample_prompts(without, without.stages.values())
    assert read_sample_prompts(directory) is None
    (directory / SAMPLE_PROMPTS).write_text("[]")
    assert read_sample_prompts(directory) is None


def test_the_last_answers_are_seen_whatever_they_say(tmp_path):
    assert not has_samples_of(tmp_path, 4)
    append_samples(tmp_path, 4, [("p0", [], "a line\u2028and another\x85")])
    assert (has_samples_of(tmp_path, 4), has_samples_of(tmp_path, 3)) == (True, False)
    append_sample_begin(tmp_path, 8)
    assert was_answering(tmp_path)
    append_sample_time(tmp_path, 8, 2.0)
    assert (was_answering(tmp_path), sample_seconds(tmp_path)) == (False, 2.0)

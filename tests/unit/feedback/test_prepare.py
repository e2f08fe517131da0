import json

import pytest
from prepare_case import prepared, results, stage_of

from charter.artifacts.batch_files import batch_paths, finished_batches
from charter.engines.project import load_project
from charter.errors import DataError, SpecError
from charter.feedback import prepare
from charter.feedback.prepare_rows import count_candidates
from charter.spec.project import DataSpec

QUESTION = "Which herbs grow well on a shady balcony that faces north in a cold and windy city"
OTHER = "How long should a loaf of sourdough rest before the second fold on a warm summer day"


def prompt(text, **more):
    return {"prompt": text, **more}


def pair(question, chosen, rejected, **more):
    return {"prompt": question, "chosen": chosen, "rejected": rejected, **more}


def conversation(asked, answered):
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]


def reasons(rejected):
    return {row["id"]: row["reason"] for row in rejected}


def test_rows_stay_as_they_are_whatever_their_format(tmp_path):
    rows = [
        prompt(QUESTION, id="a", note=[1, {"x": None}], ü="é\u2028"),
        {"messages": [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "nobody has answered this yet"}]},
        pair(OTHER, "an hour", "a day", chosen_probability=0.8),
        {"text": "plain text of a book about gardens"},
        {"prompt": [{"role": "user", "content": "and in turns?"}], "completion": "yes, in turns"},
    ]
    kept, rejected, summary = prepared(tmp_path / "s", [rows])
    assert (kept, rejected) == (rows, [])
    assert (summary["rows"], summary["records"], summary["rejected"]) == (6, 6, 0)
    assert summary["characters_max"] == len(OTHER + "an hour" + "a day")


def test_lengths_and_blank_texts(tmp_path):
    rows = [
        prompt("too short", id="short"),
        prompt("x" * 200, id="long"),
        pair("a question of good length", "an answer of good length", "no", id="short answer"),
        pair("a question of good length", "   ", "an answer of good length", id="blank"),
        {"id": "missing", "messages": [{"role": "user", "content": None}]},
        prompt("just about right here", id="kept"),
    ]
    kept, rejected, summary = prepared(tmp_path / "s", [rows], min_characters=10, max_characters=100)
    assert [row["id"] for row in kept] == ["kept"]
    assert reasons(rejected) == {
        "short": "too_short",
        "long": "too_long",
        "short answer": "too_short",
        "blank": "empty",
        "missing": "empty",
    }
    assert (summary["rejected_too_short"], summary["rejected_empty"], summary["rejected_too_long"]) == (2, 2, 1)


def test_exact_duplicates_by_case_spacing_and_width_name_the_first(tmp_path):
    first = [prompt("Where is the station?", id="a"), prompt("Where is the library?", id="b")]
    second = [
        prompt("  where IS\nthe station?", id="a"),
        prompt("Where is the station?", id="c"),
        prompt("\uff37here is the \u3000library?", id="d"),
        prompt("Where is the station", id="e"),
    ]
    kept, rejected, _ = prepared(tmp_path / "s", [first, second], near_duplicates=None)
    assert [row["id"] for row in kept] == ["a", "b", "e"]
    assert [(row["id"], row["source"], row["other_id"], row["other_source"]) for row in rejected] == [
        ("a", "data 2", "a", "data 1"),
        ("c", "data 2", "a", "data 1"),
        ("d", "data 2", "b", "data 1"),
    ]
    assert len(prepared(tmp_path / "all", [first, second], near_duplicates=None, exact_duplicates=False)[0]) == 6


def test_texts_that_only_meet_at_a_border_are_not_the_same(tmp_path):
    rows = [pair("a b", "c", "d"), pair("a", "b c", "d"), pair("a b", "c d", "x")]
    assert len(prepared(tmp_path / "s", [rows], near_duplicates=None)[0]) == 3


def test_a_pair_with_its_answers_exchanged_is_another_comparison(tmp_path):
    one, two = "plant mint and parsley in deep pots", "nothing at all will grow up there in winter"
    kept, rejected, _ = prepared(tmp_path / "s", [[pair(QUESTION, one, two), pair(QUESTION, two, one)]])
    assert (len(kept), rejected) == (2, [])


def test_near_duplicates_say_of_what_and_how_alike(tmp_path):
    rows = [prompt(QUESTION, id="a"), prompt(OTHER, id="b"), prompt(QUESTION + "!!", id="c")]
    rows.append(prompt(" ".join([QUESTION, OTHER]) + " please", id="d"))
    rows.append(prompt(" ".join([QUESTION, OTHER]) + " thanks", id="e"))
    kept, rejected, _ = prepared(tmp_path / "s", [rows])
    assert [row["id"] for row in kept] == ["a", "b", "d"]
    assert [(row["id"], row["reason"], row["other_id"]) for row in rejected] == [
        ("c", "near_duplicate", "a"),
        ("e", "near_duplicate", "d"),
    ]
    assert rejected[0]["similarity"] == 1.0
    # 30 of 32 runs are shared: 0.938; standard error 0.021, three of them.
    assert rejected[1]["similarity"] == pytest.approx(0.938, abs=0.064)


def test_a_row_is_measured_against_kept_rows_only(tmp_path):
    """Windows that slide by four words: next ones are 0.87 alike, the first and the third 0.75."""
    words = [f"w{number}" for number in range(68)]
    rows = [prompt(" ".join(words[start : start + 60]), id=str(start)) for start in (0, 4, 8)]
    kept, rejected, _ = prepared(tmp_path / "s", [rows])
    assert [row["id"] for row in kept] == ["0", "8"]
    assert [(row["id"], row["other_id"]) for row in rejected] == [("4", "0")]


def test_scripts_without_spaces_have_words_of_one_character(tmp_path):
    text = "我想知道在寒冷多风的城市里朝北的阴凉阳台上种什么香草最合适以及冬天应该怎样照顾它们才能安全过冬"
    rows = [prompt(text, id="a"), prompt(text + "呢", id="b"), prompt(text[::-1], id="c")]
    _, rejected, _ = prepared(tmp_path / "s", [rows])
    assert reasons(rejected) == {"b": "near_duplicate"}


def test_overlap_with_evaluation_sets(tmp_path):
    window = " ".join(OTHER.split()[2:15])
    almost = " ".join(OTHER.split()[2:14])
    rows = [
        prompt(f"Somebody asked: {window.upper()}, you know.", id="window"),
        prompt(f"Somebody asked: {almost} yesterday.", id="one word less"),
        pair("Tell me something.", "a good answer", f"well, {window}", id="in an answer"),
        prompt("Who are you?", id="whole"),
        {
            "id": "begins",
            "messages": conversation("who are YOU", "I am a model"),
        },
        pair("Do you like tea?", "Yes.", "No.", id="short answers"),
    ]
    held_out = [[pair("Is it late?", "Yes.", OTHER, id="t1")], [prompt("Who are you?", id="t2")]]
    kept, rejected, summary = prepared(tmp_path / "s", [rows], held_out)
    assert [row["id"] for row in kept] == ["one word less", "short answers"]
    assert [(row["id"], row["reason"], row["other_id"], row["other_source"]) for row in rejected] == [
        ("window", "overlap", "t1", "held_out 1"),
        ("in an answer", "overlap", "t1", "held_out 1"),
        ("whole", "overlap", "t2", "held_out 2"),
        ("begins", "overlap", "t2", "held_out 2"),
    ]
    assert summary["held_out_rows"] == 2


def test_at_most_so_many_rows_in_order(tmp_path):
    rows = [prompt(f"question number {number} of many", id=str(number)) for number in (1, 1, 2, 3)]
    kept, rejected, _ = prepared(tmp_path / "s", [rows], max_rows=2)
    assert [row["id"] for row in kept] == ["1", "2"]
    assert [row["reason"] for row in rejected] == ["duplicate", "beyond_max_rows"]


def test_the_column_of_a_data_set_says_which_answer_is_kept(tmp_path):
    stage = stage_of(tmp_path / "s", [[pair("how are you", "fine", "bad", id="p")]])
    spec = DataSpec(path="x", column="chosen")
    kept, _, _ = prepared(tmp_path / "column", [[pair("how are you", "fine", "bad", id="p")]], specs={0: spec})
    assert kept == [{"id": "p", "messages": conversation("how are you", "fine")}]
    assert count_candidates(stage.job.inputs["data"][0]) == 1


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("[]", "expected a JSON object"),
        ('{"prompt": "x", "weight": NaN}', "NaN is not a JSON value"),
        ('{"prompt": "x", "weight": 1e400}', "cannot be written as JSON"),
        ('{"prompt": "x", "note": "\\ud800"}', "half of a surrogate pair"),
        ('{"prompt": ' + "[" * 2000 + "]" * 2000 + "}", "nested too deeply|a turn"),
        ('{"prompt": "x", "id": {}}', "`id` must be a text"),
        ('{"other": "x"}', "no known format"),
        ('{"prompt": "x", "prompt": "y"}', "the key 'prompt' is given twice"),
        ('{"prompt": 3}', "must be a list of turns"),
    ],
)
def test_a_row_that_cannot_be_read_is_told_before_any_work_or_left_out(tmp_path, line, what):
    text = json.dumps(prompt(QUESTION)) + "\n" + line + "\n"
    with pytest.raises(DataError, match=what) as error:
        prepared(tmp_path / "fail", [text])
    assert ":2: " in str(error.value)
    assert finished_batches(tmp_path / "fail") == 0
    skip = {0: DataSpec(path="x", on_bad_row="skip")}
    kept, rejected, summary = prepared(tmp_path / "skip", [text], specs=skip)
    assert (kept, rejected, summary["skipped_rows"]) == ([prompt(QUESTION)], [], 1)


def test_nothing_left_is_an_error(tmp_path):
    with pytest.raises(DataError, match="kept none of its 1 rows"):
        prepared(tmp_path / "s", [[prompt("a question")]], [[prompt("A question?")]])


@pytest.fixture
def many(monkeypatch):
    monkeypatch.setattr(prepare, "ROWS_PER_BATCH", 4)
    return [prompt(f"question number {number % 9} of them all", id=str(number)) for number in range(22)]


def test_a_stopped_stage_goes_on_to_the_same_bits(tmp_path, many):
    whole = stage_of(tmp_path / "whole", [many])
    prepare.run(whole)
    asked = iter([False, False, True])
    stopped = stage_of(tmp_path / "parts", [many], should_stop=lambda: next(asked, True))
    prepare.run(stopped)
    assert (finished_batches(stopped.path), stopped.is_done) == (2, False)
    first = {path: path.stat().st_mtime_ns for path in batch_paths(stopped.path)}
    prepare.run(stage_of(tmp_path / "parts", [many]))
    assert {path: path.stat().st_mtime_ns for path in first} == first
    for name in ("records.jsonl", "rejected.jsonl", "summary.json"):
        assert (stopped.outputs / name).read_bytes() == (whole.outputs / name).read_bytes()
    assert len(results(whole.outputs)[0]) == 9
    steps = [json.loads(line)["step"] for line in (stopped.path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6, 6]


def test_a_damaged_batch_is_made_again_alone(tmp_path, many, capsys):
    asked = iter([False] * 5)
    stage = stage_of(tmp_path / "s", [many], should_stop=lambda: next(asked, True))
    prepare.run(stage)
    damaged = list(batch_paths(stage.path))[1]
    damaged.write_bytes(damaged.read_bytes().replace(b'"characters": 29', b'"characters": 30', 1))
    prepare.run(stage_of(tmp_path / "s", [many]))
    assert "is made again" in capsys.readouterr().out
    whole = stage_of(tmp_path / "whole", [many])
    prepare.run(whole)
    assert (stage.outputs / "records.jsonl").read_bytes() == (whole.outputs / "records.jsonl").read_bytes()


PROJECT = """\
name: n
models: {base: meta-llama/Llama-3.1-8B}
data: {a: a.jsonl, b: b.jsonl}
pipeline:
  clean: {kind: prepare, data: a, held_out: b%s}
"""


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (", near_duplicates: 0", r"near_duplicates: must be above 0 and at most 1; found 0"),
        (", near_duplicates: 1.5", r"must be above 0"),
        (", overlap_words: 0", r"overlap_words: must be 1 or more"),
        (", min_characters: 9, max_characters: 8", r"max_characters: 8 is less than min_characters, 9"),
        (", max_rows: 0", r"max_rows: must be 1 or more"),
    ],
)
def test_values_that_cannot_work_are_refused(tmp_path, more, what):
    (tmp_path / "charter.yaml").write_text(PROJECT % more)
    with pytest.raises(SpecError, match=what):
        load_project(tmp_path)


def test_data_that_is_held_out_too_is_refused(tmp_path):
    (tmp_path / "charter.yaml").write_text((PROJECT % "").replace("data: a,", "data: [a, b],"))
    with pytest.raises(SpecError, match="'b' is in held_out too"):
        load_project(tmp_path)

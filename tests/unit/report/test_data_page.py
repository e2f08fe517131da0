import json

import pytest
from hostile_texts import HOSTILE
from hypothesis import given
from hypothesis import strategies as st

from charter.errors import DataError
from charter.feedback.constitution import constitution_of
from charter.report.data_page.counting import LARGE_BYTES, count_rows, count_set_aside, sample_rows
from charter.report.data_page.records import (
    LONG_TEXT,
    LONGEST_BYTES,
    constitution_view,
    find_id,
    last_page,
    record_page,
    record_view,
    uses_of_summary,
)
from charter.report.data_stats import data_stats, stats_json
from charter.spec.project import DataSpec


def written(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def label(number, *, odds=(0.4, 0.2), first=True, **more):
    """A record as a label stage writes it: asked in both orders."""
    return {
        "id": f"p-{number}",
        "prompt": [{"role": "user", "content": f"What is {number}?"}],
        "chosen": [{"role": "assistant", "content": "a number"}],
        "rejected": [{"role": "assistant", "content": "no" * number}],
        "chosen_probability": 0.75,
        "principle": "truthful",
        "principles": ["truthful"],
        "both_orders": {"log_odds_chosen": list(odds), "chosen_shown_first": first, "agree": min(odds) > 0},
        "judgements": [
            {"chosen_shown_first": first, "log_odds_chosen": odds[0], "how": "log_probabilities", "attempts": 1},
            {
                "chosen_shown_first": not first,
                "log_odds_chosen": odds[1],
                "how": "votes",
                "attempts": 2,
                "bounded": True,
            },
        ],
        "source": "policy",
        "tokens": 12,
    } | more


def test_labels_are_counted_with_their_biases(tmp_path):
    # In the first two the answer shown first wins once of two questions; in the third it wins both.
    rows = [label(1), label(9, first=False), label(3, odds=(0.5, -0.5), principles=["privacy", "truthful"])]
    found = count_rows(written(tmp_path / "records.jsonl", rows))
    assert (found.rows, found.kinds, found.duplicates, found.blank) == (3, (("pair", 3),), 0, 0)
    labels = found.labels
    assert labels.position.value == pytest.approx(4 / 6)
    assert (labels.orders_agree.value, labels.orders_agree.count) == (pytest.approx(2 / 3), 3)
    assert labels.chosen_longer.value == pytest.approx(2 / 3), "a number (8) against no (2), no x 9 (18), no x 3 (6)"
    assert (labels.questions, labels.asked_again, labels.bounded) == (6, 3, 3)
    assert dict(labels.how) == {"log_probabilities": 3, "votes": 3}
    assert [(item.name, item.rows) for item in found.principles] == [("truthful", 3), ("privacy", 1)]
    assert found.generated_tokens.mean == 12
    assert sum(found.prompt_characters.counts) == 3
    assert sum(found.answer_characters.counts) == 6


def test_duplicates_and_bad_rows_are_counted(tmp_path):
    rows = [{"text": "Rice cooks."}, {"text": "rice  COOKS."}, {"text": "Tea."}, {"text": " "}]
    path = written(tmp_path / "texts.jsonl", rows)
    path.write_text(path.read_text() + "{not json\n")
    found = count_rows(path)
    assert (found.rows, found.duplicates, found.blank, found.bad) == (4, 1, 1, 1)
    assert "texts.jsonl:5" in found.bad_reasons[0]


def test_the_page_and_the_command_count_alike(tmp_path):
    rows = [label(1), label(9, first=False, chosen="no"), {"text": " "}]
    path = written(tmp_path / "records.jsonl", rows)
    page, command = count_rows(path), stats_json(data_stats(path))
    assert (page.rows, page.blank, dict(page.kinds)) == tuple(command[key] for key in ("rows", "blank_rows", "kinds"))
    assert page.answer_characters.mean == command["answer_characters"]["mean"]
    assert command["answer_characters"]["count"] == 4, "a blank text has no length"
    wins = command["labels"]["chosen_longer_share"] + command["labels"]["same_length_share"] / 2
    assert page.labels.chosen_longer.value == pytest.approx(wins)


def test_a_data_set_is_counted_as_stages_read_it(tmp_path):
    path = written(tmp_path / "texts.jsonl", [{"text": f"text {number}"} for number in range(50)])
    assert count_rows(path, DataSpec(path="texts.jsonl", limit=7)).rows == 7
    parts = [count_rows(path, DataSpec(path="texts.jsonl", part=f"{part}/3")).rows for part in (1, 2, 3)]
    assert sum(parts) == 50


def test_a_missing_or_empty_file_is_said(tmp_path):
    with pytest.raises(DataError):
        count_rows(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="holds no rows"):
        count_rows(tmp_path / "empty.jsonl")


def test_a_large_file_is_sampled_first(tmp_path):
    rows = [{"prompt": f"question {number}", "completion": "x" * (200 + 37 * number % 400)} for number in range(30_000)]
    path = written(tmp_path / "large.jsonl", rows)
    assert path.stat().st_size > LARGE_BYTES
    sample, whole = sample_rows(path), count_rows(path)
    assert sample.sampled == 2000
    assert sample.rows == pytest.approx(whole.rows, rel=0.05)
    assert sample.answer_characters.mean == pytest.approx(whole.answer_characters.mean, rel=0.05)
    assert sample.duplicates is None, "a sample cannot say"
    assert sample_rows(written(tmp_path / "small.jsonl", rows[:10])) is None


def test_reasons_of_what_was_set_aside(tmp_path):
    rows = [{"id": "1", "reason": "refused"}, {"id": "2", "reason": "refused"}, {"id": "3"}]
    assert count_set_aside(written(tmp_path / "set_aside.jsonl", rows)).reasons == (("refused", 2), ("not said", 1))


lines = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=30), min_size=1, max_size=60)


@given(lines, st.integers(1, 7))
def test_paging_forth_and_back_meets_every_record_once(tmp_path_factory, texts, rows):
    path = written(
        tmp_path_factory.mktemp("paged") / "r.jsonl", [{"id": str(n), "text": t} for n, t in enumerate(texts)]
    )
    seen, starts, at = [], [], 0
    while at is not None:
        page = record_page(path, at, rows)
        starts.append(page.records[0].offset)
        seen += [record.value["id"] for record in page.records]
        at = page.after
    assert seen == [str(number) for number in range(len(texts))]
    backwards = [starts[-1]]
    while (before := record_page(path, backwards[-1], rows).before) is not None:
        backwards.append(before)
    assert backwards[::-1] == starts
    assert record_page(path, last_page(path, rows), rows).after is None


@given(st.integers(-5, 400))
def test_any_place_gives_whole_records(tmp_path_factory, offset):
    path = written(tmp_path_factory.mktemp("any") / "r.jsonl", [{"id": str(n), "text": "é" * n} for n in range(12)])
    assert all(record.value is not None for record in record_page(path, offset).records)


def test_records_are_found_by_their_id(tmp_path):
    rows = [{"id": f"row-{number}", "text": f"speaks of row-{number + 1}"} for number in range(100)]
    rows += [{"id": 'naïve "one"', "text": "x"}, {"id": 7, "text": "a number"}]
    path = written(tmp_path / "r.jsonl", rows)
    for wanted in ("row-0", "row-63", 'naïve "one"', "7"):
        assert str(record_page(path, find_id(path, wanted), 1).records[0].value["id"]) == wanted
    assert find_id(path, "row-100") is None, "it is mentioned, and is no id"
    assert find_id(path, "row-") is None


def test_what_is_no_record_is_said_and_passed(tmp_path):
    path = tmp_path / "r.jsonl"
    long = json.dumps({"id": "long", "text": "x" * LONGEST_BYTES})
    path.write_text(f'{{"id": "1", "text": "a"}}\n{{broken\n[1]\n{long}\n{{"id": "2", "text": "b"}}\n')
    page = record_page(path, 0)
    assert [record.value and record.value["id"] for record in page.records] == ["1", None, None, None, "2"]
    assert page.records[3].problem == "too long to be shown here"
    assert page.records[3].length == len(long) + 1


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_records_keep_their_words_and_lose_control_characters(tmp_path, text):
    path = written(tmp_path / "r.jsonl", [{"id": text, "messages": [{"role": text, "content": text}], text: text}])
    found = record_view(record_page(path, 0).records[0])
    words = "".join(letter for letter in text if letter.isprintable() or letter == " ")
    for shown in (found.id, found.turns[0].text + found.turns[0].rest):
        assert "".join(letter for letter in shown if letter != "\N{REPLACEMENT CHARACTER}") == words
    assert not any(letter < " " and letter not in "\n\t" for letter in found.turns[0].text)


def test_texts_are_shown_by_turn_and_the_rest_is_provenance(tmp_path):
    row = label(3, chosen=[{"role": "assistant", "content": "x" * (LONG_TEXT + 5)}])
    found = record_view(record_page(written(tmp_path / "r.jsonl", [row]), 0).records[0])
    assert [(turn.role, turn.tone) for turn in found.turns] == [
        ("user", ""),
        ("chosen: assistant", "chosen"),
        ("rejected: assistant", "rejected"),
    ]
    assert len(found.turns[1].rest) == 5
    assert {"principle", "judgements", "source", "chosen_probability"} <= {name for name, _ in found.facts}


CONSTITUTION = {
    "name": "small",
    "version": 2,
    "principles": [
        {"id": "truthful", "critique": "c", "revision": "r", "compare": "q", "weight": 3.0},
        {"id": "privacy", "critique": "c", "revision": "r", "compare": "q"},
    ],
}


def test_principles_stand_beside_their_use():
    found = constitution_view(
        constitution_of(CONSTITUTION, origin="here"),
        {"label": uses_of_summary({"principle/truthful": 6, "ties": 1}), "critique": {"truthful": 1, "gone": 1}},
    )
    lines = {line.id: line for line in found.lines}
    assert lines["truthful"].used == (6, 1)
    assert lines["truthful"].wanted_share == pytest.approx(0.75)
    assert lines["truthful"].share == pytest.approx(7 / 8)
    assert found.unused == ("privacy",)
    assert lines["gone"].wanted_share is None, "used, and no longer in the constitution"

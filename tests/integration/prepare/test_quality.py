"""The shipped preference pairs with what should not be in them, against brute force over exact sets of word runs."""

import json
from importlib.resources import files

import pytest
from prepare_case import brute_runs, brute_similar, brute_words, prepared

from charter.artifacts.draws import draw_seed

THRESHOLD = 0.8
MARGIN = 0.1
"""Three standard errors of a signature of 128 permutations at 0.8: nearer to the threshold either verdict is right."""


def shipped(name):
    text = (files("charter.templates") / "data" / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def texts_of(row):
    """Prompt, chosen and rejected answer of a shipped pair."""
    return (
        "\n".join(turn["content"] for turn in row["prompt"]),
        row["chosen"][0]["content"],
        row["rejected"][0]["content"],
    )


def with_words_changed(row, share, number):
    """A copy in which so many of the words of every turn are others."""

    def changed(text, place):
        words = text.split()
        for at in range(len(words)):
            if draw_seed(number, place, at) % 1000 < share * 1000:
                words[at] = f"other{draw_seed(number, place, at, 'word') % 1000}"
        return " ".join(words)

    turns = {
        name: [{**turn, "content": changed(turn["content"], f"{name}{at}")} for at, turn in enumerate(row[name])]
        for name in ("prompt", "chosen", "rejected")
    }
    return {**row, **turns, "id": f"{row['id']}/near-{number}"}


def with_other_case(row):
    turns = {
        name: [{**turn, "content": "  " + turn["content"].upper().replace(" ", " \n ")} for turn in row[name]]
        for name in ("prompt", "chosen", "rejected")
    }
    return {**row, **turns, "id": f"{row['id']}/exact"}


@pytest.fixture(scope="module")
def polluted():
    """770 pairs; 60 again in other letters, 240 with up to a twentieth of their words changed, in another order."""
    rows = shipped("preference_train.jsonl")
    added = [with_other_case(row) for row in rows[:60]]
    added += [with_words_changed(rows[60 + n], 0.002 + 0.05 * n / 240, n) for n in range(240)]
    order = sorted(range(len(added)), key=lambda n: draw_seed(3, "order", n))
    return [*rows, *(added[n] for n in order)]


def test_exact_duplicates_are_all_found_and_nothing_else(tmp_path, polluted):
    _, rejected, summary = prepared(tmp_path / "s", [polluted], near_duplicates=None)
    asked = {row["id"] for row in polluted if row["id"].endswith("/exact")}
    evened = [tuple(" ".join(text.casefold().split()) for text in texts_of(row)) for row in polluted]
    assert {row["id"] for row in rejected} == asked | {
        row["id"] for at, row in enumerate(polluted) if evened[at] in evened[:at]
    }
    assert summary["rejected_duplicate"] >= 60


def test_near_duplicates_against_brute_force(tmp_path, polluted):
    """Recall and precision beyond the width of the estimate are 1; at the threshold itself both are above 0.9."""
    kept, rejected, _ = prepared(tmp_path / "s", [polluted], near_duplicates=THRESHOLD, exact_duplicates=False)
    runs = [brute_runs(texts_of(row)) for row in polluted]
    alike = brute_similar(runs, 0.3)
    places = {row["id"]: at for at, row in enumerate(polluted)}
    kept_places = {places[row["id"]] for row in kept}
    best = dict.fromkeys(range(len(polluted)), 0.0)
    for (earlier, later), similarity in alike.items():
        if earlier in kept_places:
            best[later] = max(best[later], similarity)
    found = {places[row["id"]] for row in rejected}
    wanted = {row for row, similarity in best.items() if similarity >= THRESHOLD}
    assert len(wanted) > 150
    assert {row for row in wanted if best[row] >= THRESHOLD + MARGIN} <= found
    assert all(best[row] >= THRESHOLD - MARGIN for row in found)
    recall, precision = len(found & wanted) / len(wanted), len(found & wanted) / len(found)
    assert min(recall, precision) > 0.9, f"recall {recall:.3f}, precision {precision:.3f} over {len(wanted)}"
    for row in rejected:
        pair = (places[row["other_id"]], places[row["id"]])
        assert row["similarity"] == pytest.approx(alike[pair], abs=4 * 0.045)


def test_overlap_with_a_test_set_is_what_brute_force_says(tmp_path):
    rows, held_out = shipped("preference_train.jsonl"), shipped("preference_test.jsonl")
    answers = [text for row in held_out for text in texts_of(row)[1:] if len(text.split()) > 40]
    for number, answer in enumerate(answers[:48]):
        words = answer.split()[5 : 5 + 10 + number % 8]
        row = rows[7 * number]
        last = row["chosen"][0]
        rows[7 * number] = {**row, "chosen": [{**last, "content": f"{last['content']} {' '.join(words)} indeed"}]}
    kept, rejected, _ = prepared(tmp_path / "s", [rows], [held_out], near_duplicates=None)
    runs, whole = long_runs(held_out), short_prompts(held_out)
    wanted = {row["id"] for row in rows if overlaps(row, runs, whole)}
    assert {row["id"] for row in rejected} == wanted
    assert 20 <= len(wanted) < len(rows) - 600
    ids = {row["id"] for row in held_out}
    assert all(row["reason"] == "overlap" and row["other_id"] in ids for row in rejected)
    assert len(kept) == len(rows) - len(wanted)


def windows(text, length=13):
    words = brute_words(text)
    return {tuple(words[at : at + length]) for at in range(len(words) - length + 1)}


def long_runs(rows):
    return set().union(*(windows(text) for row in rows for text in texts_of(row)))


def short_prompts(rows):
    found = (tuple(brute_words(texts_of(row)[0])) for row in rows)
    return {words for words in found if len(words) < 13}


def overlaps(row, runs, whole):
    opening = tuple(brute_words(row["prompt"][0]["content"]))
    prompt = tuple(brute_words(texts_of(row)[0]))
    return opening in whole or prompt in whole or any(windows(text) & runs for text in texts_of(row))


def test_the_same_rows_give_the_same_bits(tmp_path, polluted):
    for name in ("one", "two"):
        prepared(tmp_path / name, [polluted])
    for name in ("records.jsonl", "rejected.jsonl", "summary.json"):
        one, two = (tmp_path / run / "outputs" / name for run in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()

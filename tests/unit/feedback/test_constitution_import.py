import csv
import json

import pytest
import yaml

from charter.errors import DataError, UsageError
from charter.feedback.constitution import constitution_text, import_constitution, lint, load_constitution

CRITIC, REVISION = 'Is the reply rude to "anyone"?\u2028Say where.', "Make the reply polite: 3e-4, yes, ~ & 'no'."


def imported(tmp_path, content, name="source.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    found = import_constitution([path])
    out = tmp_path / "constitution.yaml"
    out.write_text(constitution_text(found, name="taken over"), encoding="utf-8")
    return load_constitution(out), found


LAYOUTS = {
    "handbook": {"constitutions": [{"critic": CRITIC, "revision": REVISION}], "system_chat": [{"role": "user"}]},
    "list": [{"critic": CRITIC, "revision": REVISION}],
    "chain": [{"name": "polite", "critique_request": CRITIC, "revision_request": REVISION}],
    "paper": {
        "harm0": {
            "prompt": [f"\n\nCritiqueRequest: {CRITIC}\n\nCritique:"],
            "edit_request": f"\n\nRevisionRequest: {REVISION}\n\nRevision:",
        }
    },
    "hardcoded": {"CritiqueRevision_0": {"hardcoded critique_request": CRITIC, "hardcoded revision_request": REVISION}},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_published_layouts_come_through_word_for_word(tmp_path, layout):
    constitution, found = imported(tmp_path, LAYOUTS[layout])
    (principle,) = constitution.principles
    assert (principle.critique, principle.revision) == (CRITIC, REVISION)
    assert principle.compare == f"Which answer gives less reason for this criticism? {CRITIC}"
    assert found.principles[0]["derived"] == ["compare"]
    assert constitution.name == "taken over"
    assert bool(found.notes) == (layout == "handbook")
    wanted = {"chain": "polite", "paper": "harm0", "hardcoded": "CritiqueRevision_0"}
    assert principle.id == wanted.get(layout, "source-0")


def test_comparison_instructions_and_several_files(tmp_path):
    first, second = tmp_path / "one.json", tmp_path / "two.json"
    first.write_text(json.dumps(LAYOUTS["paper"]))
    second.write_text(json.dumps(["\nPick the more polite reply. Options:", "Which reply is shorter?"]))
    found = import_constitution([first, second])
    assert [item["id"] for item in found.principles] == ["harm0", "two-0", "two-1"]
    compared = [item["compare"] for item in found.principles[1:]]
    assert compared == ["Pick the more polite reply.", "Which reply is shorter?"]
    assert found.principles[1]["derived"] == ["critique", "revision"]
    assert [item["source"] for item in found.principles] == ["one.json harm0", "two.json [0]", "two.json [1]"]
    written = yaml.safe_load(constitution_text(found, name="n"))
    assert [item["file"] for item in written["imported"]] == ["one.json", "two.json"]
    assert all(len(item["sha256"]) == 64 for item in written["imported"])
    derived = [item for item in lint(written) if "was made from the other wording" in item.message]
    assert len(derived) == 3


def test_csv(tmp_path):
    path = tmp_path / "list.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["ID", "critique", "revision", "compare", "weight", "tags"])
        writer.writerow(["a,b", "c\nd", 'say "r"', "which is kinder?", "2.5", "harm; tone"])
        writer.writerow(["", "c2", "r2", "which is drier?", "", ""])
    constitution, _ = imported(tmp_path, path.read_text(), "list.csv")
    one, two = constitution.principles
    assert (one.id, one.critique, one.revision) == ("a-b", "c\nd", 'say "r"')
    assert (one.weight, one.tags) == (2.5, ("harm", "tone"))
    assert (two.id, two.weight, two.tags) == ("list-3", 1.0, ())


def test_ids_are_made_unique(tmp_path):
    constitution, _ = imported(tmp_path, [{"name": "a b", "compare": "x"}, {"name": "a b", "compare": "y"}])
    assert [item.id for item in constitution.principles] == ["a-b", "a-b-2"]


def test_every_text_survives_the_yaml(tmp_path):
    texts = [
        "3e-4",
        "yes",
        "~",
        "null",
        "0x1F",
        "a: b # c",
        "'",
        '"',
        "\\n",
        "-",
        "é😀\u00a0\u2028x",
        "a\nb",
        "{a}",
        "1_0",
    ]
    constitution, _ = imported(tmp_path, [{"name": f"p{n}", "compare": text} for n, text in enumerate(texts)])
    assert [item.compare for item in constitution.principles] == texts


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", "is not JSON"),
        ("[1, 2]", "holds no principle"),
        ('{"a": 1}', "holds no principle"),
        ('[{"critic": "x", "critic": "y"}]', "the same key twice"),
        ('[{"critic": "x", "weight": NaN}]', "has the number NaN"),
        ('[{"critic": "x", "weight": 1e400}]', "beyond all bounds"),
        ("[" * 3000 + "]" * 3000, "nested too deep"),
        ('[{"text": "x"}]', "has none of the texts critique, critic"),
        ('[{"critic": "x", "weight": -1}]', "weight is the number -1"),
        ('[{"critic": "x", "tags": [[1]]}]', "tags must be a list of words"),
    ],
)
def test_what_cannot_be_taken_over_is_refused(tmp_path, content, what):
    with pytest.raises(DataError, match=what):
        imported(tmp_path, content)
    assert not (tmp_path / "constitution.yaml").exists()


@pytest.mark.parametrize("text", ["critique,weight\nx,heavy\n", 'critique\n"open\n', "nothing\nx\n", "\xff"])
def test_csv_that_cannot_be_taken_over_is_refused(tmp_path, text):
    path = tmp_path / "list.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"list\.csv"):
        import_constitution([path])


def test_a_missing_or_huge_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        import_constitution([tmp_path / "none.json"])
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(DataError, match="a constitution has at most"):
        import_constitution([huge])

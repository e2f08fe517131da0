import json

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import CharterError

CONSTITUTION = """\
schema: charter.constitution/v1
name: two
version: 3
principles:
  - {id: kind, tags: [tone], weight: 3, critique: "Where is it rude?", revision: Be kind., compare: "Which is kinder?"}
  - {id: brief, critique: "What can go?", revision: Shorten it., compare: "Which is shorter?"}
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONSTITUTION)
    (tmp_path / "charter.yaml").write_text(
        "name: n\nmodels: {base: meta-llama/Llama-3.1-8B}\nconstitution: c.yaml\ndata: {d: d.jsonl}\n"
        "pipeline: {clean: {kind: prepare, data: d}}\n"
    )

    def run(*arguments):
        done = CliRunner().invoke(app, ["data", "constitution", *arguments])
        code = done.exception.exit_code if isinstance(done.exception, CharterError) else done.exit_code
        return code, done.output, str(done.exception or "")

    return run


def test_list_shows_how_often_each_is_drawn(call):
    code, shown, _ = call("list")
    assert code == 0
    assert "two 3: 2 of 2 principles" in shown
    assert "75.0%" in shown
    rows = json.loads(call("list", "c.yaml", "--json")[1])["principles"]
    assert [(row["id"], row["drawn_share"]) for row in rows] == [("kind", 0.75), ("brief", 0.25)]


def test_list_by_tag(call):
    assert "1 of 2 principles" in call("list", "--tag", "tone")[1]
    code, _, error = call("list", "--tag", "law")
    assert (code, "the tags are tone" in error) == (2, True)


def test_lint_says_what_is_wrong_and_ends_with_2(call, tmp_path):
    assert call("lint")[0] == 0
    (tmp_path / "c.yaml").write_text(CONSTITUTION.replace("Which is kinder?", "Which is better?"))
    assert call("lint")[0] == 0
    assert "names no criterion" in call("lint")[1]
    assert call("lint", "--strict")[0] == 2
    (tmp_path / "c.yaml").write_text(CONSTITUTION.replace("weight: 3", "weight: 0"))
    code, shown, error = call("lint", "--json")
    assert (code, json.loads(shown)["findings"][0]["level"], "1 errors" in error) == (2, "error", True)
    (tmp_path / "c.yaml").write_text("a: [")
    assert call("lint")[0] == 2


def test_import_writes_a_constitution_that_loads(call, tmp_path):
    source = {"constitutions": [{"critic": "x?", "revision": "y."}], "system_chat": []}
    (tmp_path / "in.json").write_text(json.dumps(source))
    code, shown, _ = call("import", "in.json", "--out", "new.yaml")
    assert code == 0
    assert all(words in shown for words in ("wrote 1 principles", "`system_chat` was left out", "marked `derived`"))
    assert call("list", "new.yaml")[0] == 0
    code, _, error = call("import", "in.json", "--out", "new.yaml")
    assert (code, "--force" in error) == (2, True)
    assert call("import", "in.json", "--out", "new.yaml", "--force")[0] == 0


def test_a_project_without_one_is_told(call, tmp_path):
    text = (tmp_path / "charter.yaml").read_text()
    (tmp_path / "charter.yaml").write_text(text.replace("constitution: c.yaml\n", ""))
    code, _, error = call("list")
    assert (code, "names no constitution" in error) == (2, True)

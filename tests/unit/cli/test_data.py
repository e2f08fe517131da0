import json

import pytest
from typer.testing import CliRunner

from charter.cli.main import app
from charter.errors import CharterError

TURNS = [{"role": "user", "content": "q"}]


def label(n, principle, probability, agree, chosen="a longer one", rejected="short"):
    return {
        "id": f"l{n}",
        "prompt": [{"role": "user", "content": f"question {n}"}],
        "chosen": [{"role": "assistant", "content": chosen}],
        "rejected": [{"role": "assistant", "content": rejected}],
        "chosen_probability": probability,
        "principle": principle,
        "both_orders": {"agree": agree},
    }


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(verb, *arguments, rows=None):
        if rows is not None:
            lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
            (tmp_path / "d.jsonl").write_text("".join(f"{line}\n" for line in lines))
        done = CliRunner().invoke(app, ["data", verb, *arguments])
        code = done.exception.exit_code if isinstance(done.exception, CharterError) else done.exit_code
        return code, done.output, str(done.exception or "")

    return run


def test_check_names_the_lines_of_what_is_wrong(call):
    rows = [
        {"id": "a", "prompt": "Hello  there"},
        "{",
        {"id": "a", "prompt": "another"},
        {"prompt": "hello THERE"},
        {"prompt": " "},
        '{"prompt": NaN}',
        {"prompt": "x", "chosen": "y", "rejected": "z", "chosen_probability": 2},
    ]
    code, shown, error = call("check", "d.jsonl", rows=rows)
    assert (code, error) == (8, "4 rows of d.jsonl cannot be used")
    for line in (
        "d.jsonl: 7 rows: 4 of kind prompt, 3 bad",
        "error: 3 bad rows",
        "d.jsonl:2: not valid JSON",
        "d.jsonl:6: NaN is not a JSON value",
        "d.jsonl:7: `chosen_probability` must be a number from 0 to 1",
        "d.jsonl:5: a text is missing or blank",
        "d.jsonl:3: the id 'a' is that of line 1",
        "d.jsonl:4: says the same as line 1",
    ):
        assert line in shown
    found = json.loads(call("check", "d.jsonl", "--json")[1])
    assert (found["bad"]["count"], found["duplicates"]["count"], found["kinds"]) == (3, 1, {"prompt": 4})


def test_check_of_a_sound_file_and_of_many_faults(call):
    assert call("check", "d.jsonl", rows=[{"prompt": f"q{n}"} for n in range(30)])[0] == 0
    code, shown, _ = call("check", "d.jsonl", rows=["{"] * 30 + [{"prompt": "q"}, {"text": "t"}])
    assert (code, "and 10 more" in shown, "rows of several kinds" in shown) == (8, True, True)
    assert "there is no data set" in call("check", "none.jsonl")[2]


def test_check_of_a_project_reads_all_its_data(call, tmp_path):
    (tmp_path / "charter.yaml").write_text(
        "name: p\nmodels: {base: {model: gpt2}}\n"
        "data: {one: {path: d.jsonl}, half: {path: d.jsonl, limit: 1}}\n"
        "pipeline: {sft: {kind: sft, init: base, data: [one]}}\n"
    )
    code, shown, _ = call("check", "-C", ".", rows=[{"prompt": "q"}, {"prompt": "r"}])
    assert (code, "2 rows of kind prompt" in shown, "1 row of kind prompt" in shown) == (0, True, True)
    assert call("check", rows=["{"])[0] == 8
    (tmp_path / "d.jsonl").unlink()
    assert "there is no d.jsonl" in call("check", "-C", ".")[2]


def test_worked_critiques_are_a_kind_of_their_own(call):
    names = ("init_prompt", "init_response", "critic_prompt", "critic_response", "revision_prompt", "revision_response")
    code, shown, _ = call("check", "d.jsonl", rows=[{name: name for name in names}])
    assert (code, "1 row of kind worked critique" in shown) == (0, True)


def test_stats_of_labels(call):
    rows = [label(n, "kind", 0.75, n % 2 == 0) for n in range(4)] + [label(9, "brief", 1.0, True, chosen="x")]
    found = json.loads(call("stats", "d.jsonl", "--json", rows=rows)[1])
    assert (found["rows"], found["kinds"], found["turns"]) == (5, {"pair": 5}, {"1": 5})
    assert found["prompt_characters"]["p50"] == len("question 1")
    assert found["answer_characters"]["max"] == len("a longer one")
    assert found["principles"] == {
        "brief": {"rows": 1, "mean_chosen_probability": 1.0, "orders_agree_share": 1.0},
        "kind": {"rows": 4, "mean_chosen_probability": 0.75, "orders_agree_share": 0.5},
    }
    labels = found["labels"]
    assert (labels["hard_share"], labels["chosen_longer_share"], labels["count"]) == (0.2, 0.8, 5)
    assert labels["histogram"]["counts"] == [0, 0, 0, 0, 0, 0, 0, 4, 0, 1]
    code, shown, _ = call("stats", "d.jsonl")
    assert code == 0
    assert "chosen is the longer answer in 80.0%" in shown
    assert "█" in shown
    assert "kind          4  0.750  0.500" in shown


def test_stats_of_plain_data_leave_bad_rows_out(call):
    found = json.loads(call("stats", "d.jsonl", "--json", rows=[{"messages": TURNS}, "{", {"prompt": "x"}])[1])
    assert (found["rows"], found["skipped_rows"], found["labels"], found["principles"]) == (2, 1, None, {})
    assert "1 bad rows were left out" in call("stats", "d.jsonl")[1]


def test_convert(call, tmp_path):
    rows = [{"transcript": "\n\nHuman: a\n\nAssistant: b", "rating": 1}]
    code, shown, _ = call("convert", "d.jsonl", "out.jsonl", rows=rows)
    assert (code, "1 were in another layout" in shown, "'rating'" in shown) == (0, True, True)
    assert json.loads((tmp_path / "out.jsonl").read_text())["messages"][1] == {"role": "assistant", "content": "b"}
    assert "--force" in call("convert", "d.jsonl", "out.jsonl")[2]
    assert call("convert", "d.jsonl", "out.jsonl", "--force")[0] == 0
    assert "give another name" in call("convert", "d.jsonl", "d.jsonl", "--force")[2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.jsonl", "out.jsonl"]


def test_a_conversion_that_fails_leaves_nothing(call, tmp_path):
    (tmp_path / "out.jsonl").write_text("before")
    assert call("convert", "d.jsonl", "out.jsonl", "--force", rows=[{"prompt": "x"}, "{"])[0] == 8
    assert (tmp_path / "out.jsonl").read_text() == "before"
    assert call("convert", "d.jsonl", "none/out.jsonl")[0] == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.jsonl", "out.jsonl"]
    assert call("convert", "d.jsonl", "new.jsonl", "--skip-bad-rows")[0] == 0

import json

import pytest

from charter.data import convert
from charter.data.convert import Conversion, native_row, write_rows
from charter.data.rows import BadRowError, Row
from charter.errors import DataError, MissingExtraError, UsageError
from charter.spec.project import DataSpec


def native(**value):
    return native_row(Row(where="x.jsonl:1", number=1, value=value))


def turns(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


HELLO = "\n\nHuman: Hello\n\nAssistant: Hi there.\n\nI am here.\n\nHuman: How are you?\n\nAssistant:"
ASKED = turns(("user", "Hello"), ("assistant", "Hi there.\n\nI am here."), ("user", "How are you?"))


def test_pairs_of_hh_rlhf():
    found = native(chosen=f"{HELLO} Fine.", rejected=f"{HELLO} Bad: human nature.", id="a")
    assert found == {
        "id": "a",
        "prompt": ASKED,
        "chosen": turns(("assistant", "Fine.")),
        "rejected": turns(("assistant", "Bad: human nature.")),
    }


def test_transcripts_and_prompts_of_hh_rlhf():
    assert native(transcript=f"{HELLO} Fine.", rating=3.0) == {"messages": [*ASKED, *turns(("assistant", "Fine."))]}
    assert native(prompt=HELLO) == {"prompt": ASKED}
    assert native(prompt=HELLO, chosen=" Fine.", rejected=" Bad.")["chosen"] == turns(("assistant", "Fine."))


def test_a_text_that_only_mentions_the_frame_stays_text():
    value = {"prompt": "Write a play.\n\nHuman: enters\n\nAssistant: bows"}
    assert native(**value) == value


def test_conversations_of_nemo_and_sharegpt():
    said = [{"from": "User", "value": "Hello "}, {"from": "Assistant", "value": "Hi", "label": None}]
    assert native(system="Be kind.", mask="User", conversations=said) == {
        "messages": turns(("system", "Be kind."), ("user", "Hello"), ("assistant", "Hi"))
    }
    said = [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Hi"}]
    assert native(system="", conversations=said) == {"messages": turns(("user", "Hello"), ("assistant", "Hi"))}


SPOKEN = (("User", "Hello"), ("Assistant", "Hi"), ("User", "Again?"), ("Assistant", ""))
MARKED = "<extra_id_0>System\n\n" + "\n".join(f"<extra_id_1>{role}\n{text}" for role, text in SPOKEN)


def test_responses_of_nemo():
    found = native(prompt=MARKED, chosen_response="Yes\n<extra_id_1>", rejected_response="No", chosen_reward=1.0)
    assert found == {
        "prompt": turns(("user", "Hello"), ("assistant", "Hi"), ("user", "Again?")),
        "chosen": turns(("assistant", "Yes")),
        "rejected": turns(("assistant", "No")),
    }
    plain = native(prompt="Hello?", chosen_response="a", rejected_response="b")
    assert plain["prompt"] == turns(("user", "Hello?"))
    assert native(input="Hello?", output="a") == {"messages": turns(("user", "Hello?"), ("assistant", "a"))}


def test_rows_in_known_formats_pass_unchanged():
    value = {"prompt": "x", "extra": [1]}
    assert native(**value) == value
    pair = {"prompt": "x", "chosen": "a", "rejected": "b"}
    assert native(**pair) == pair


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"chosen": f"{HELLO} a", "rejected": "\n\nHuman: Other\n\nAssistant: b"}, "differ before their last turn"),
        ({"chosen": "\n\nHuman: a", "rejected": "\n\nHuman: b"}, "no common prompt"),
        (
            {"chosen": f"{HELLO} a\n\nHuman: x", "rejected": f"{HELLO} a\n\nHuman: y"},
            "must end with a turn of the assistant",
        ),
        ({"prompt": "\n\nHuman: \n\nAssistant: x\n\nHuman: y\n\nAssistant:"}, "a turn of the conversation is empty"),
        ({"prompt": "\n\nAssistant: x"}, "must end with a turn of the user"),
        ({"conversations": []}, "must be a list of turns, found an empty list"),
        ({"conversations": [{"from": "User"}]}, r"`conversations\[0\]` must be a turn"),
        ({"conversations": [{"from": "Bot", "value": "x"}]}, "the role 'Bot' is not known"),
        ({"input": "x", "output": ""}, "`output` must be a text that is not empty"),
        (
            {"prompt": f"stray {MARKED}", "chosen_response": "a", "rejected_response": "b"},
            "begins before its first turn",
        ),
        ({"other": 1}, "no known format"),
    ],
)
def test_what_cannot_be_taken_over_says_why(value, what):
    with pytest.raises(BadRowError, match=what):
        native(**value)


def write(tmp_path, rows, name, **spec):
    source = tmp_path / "in.jsonl"
    source.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    conversion = Conversion(source, DataSpec(path=str(source), **spec))
    write_rows(conversion.rows, tmp_path / name, tmp_path / name)
    return conversion.made


def test_a_file_becomes_jsonl_and_says_what_was_left_out(tmp_path):
    rows = [{"transcript": f"{HELLO} Fine.", "rating": 3, "tags": []}, {"prompt": "x", "n": 1}]
    made = write(tmp_path, rows, "out.jsonl")
    assert (made.rows, made.changed, dict(made.kinds)) == (2, 1, {"messages": 1, "prompt": 1})
    assert dict(made.dropped) == {"rating": 1, "tags": 1}
    assert [sorted(json.loads(line)) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [
        ["messages"],
        ["n", "prompt"],
    ]


def test_bad_rows_stop_it_or_are_counted(tmp_path):
    rows = [{"prompt": "x"}, "{", {"prompt": 1e400}, '{"prompt": "x", "w": 1e400}']
    with pytest.raises(DataError, match=r"in\.jsonl:2"):
        write(tmp_path, rows, "out.jsonl")
    assert write(tmp_path, rows, "out.jsonl", on_bad_row="skip").skipped.count == 3


def test_parquet_has_the_fields_of_every_row(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(convert, "ROWS_PER_GROUP", 2)
    rows = [
        {"prompt": "a"},
        {"prompt": "b", "score": 1},
        {"prompt": "c", "score": 2.5},
        {"prompt": "d", "notes": [{"x": "y"}]},
        {"prompt": "e", "notes": [{"z": 1}]},
    ]
    made = write(tmp_path, rows, "out.parquet")
    assert made.rows == 5
    back = [
        {k: v for k, v in row.items() if v is not None}
        for row in parquet.read_table(tmp_path / "out.parquet").to_pylist()
    ]
    assert [row["prompt"] for row in back] == list("abcde")
    assert [row.get("score") for row in back] == [None, 1, 2.5, None, None]
    assert back[4]["notes"][0]["z"] == 1
    assert parquet.ParquetFile(tmp_path / "out.parquet").num_row_groups == 3


def test_what_parquet_cannot_hold_is_said(tmp_path):
    pytest.importorskip("pyarrow")
    with pytest.raises(UsageError, match=r"one type per field, as Parquet needs: .*; convert to \.jsonl"):
        write(tmp_path, [{"prompt": "a", "n": 1}, {"prompt": "b", "n": "one"}], "out.parquet")
    with pytest.raises(UsageError, match=r"must end in \.jsonl or \.parquet"):
        write(tmp_path, [{"prompt": "a"}], "out.csv")


def test_without_pyarrow_it_says_what_to_install(tmp_path, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(convert, "import_module", missing)
    with pytest.raises(MissingExtraError, match="writing Parquet needs pyarrow: pip install"):
        write(tmp_path, [{"prompt": "a"}], "out.parquet")

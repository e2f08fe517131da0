"""JSONL in TRL's formats to values; parts, limits, columns; and one clear error for every kind of bad file."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import read_texts

from charter.data.dataset import (
    Conversation,
    Pair,
    Prompt,
    Turn,
    data_facts,
    read_conversations,
    read_pairs,
    read_prompts,
    selected_rows,
)
from charter.errors import DataError
from charter.spec.project import DataSpec


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


@pytest.fixture
def write(tmp_path):
    def write(*rows):
        path = tmp_path / "data.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return path

    return write


def spec(**fields):
    return DataSpec(path="data.jsonl", **fields)


PAIR = {"id": "p", "prompt": [user("Q")], "chosen": [assistant("good")], "rejected": [assistant("bad")]}
SYSTEM = {"role": "system", "content": "S"}

PAIRS = {
    "turns": PAIR,
    "texts": {"id": "p", "prompt": "Q", "chosen": "good", "rejected": "bad"},
    "mixed": {"id": "p", "prompt": [user("Q")], "chosen": "good", "rejected": [assistant("bad")]},
    "whole conversations": {
        "id": "p",
        "chosen": [user("Q"), assistant("good")],
        "rejected": [user("Q"), assistant("bad")],
    },
}


@pytest.mark.parametrize("form", PAIRS)
def test_pairs_are_read_in_every_form(write, form):
    assert read_pairs(write(PAIRS[form])) == (Pair("p", (Turn("user", "Q"),), "good", "bad", 1.0),)


def test_label_records_keep_their_probability(write):
    record = {**PAIR, "chosen_probability": 0.73, "principle": "privacy", "judge": "judge"}
    assert read_pairs(write(record))[0].chosen_probability == 0.73
    assert read_pairs(write({**PAIR, "chosen_probability": 0}))[0].chosen_probability == 0.0


def test_long_prompts_keep_all_their_turns(write):
    row = {**PAIR, "prompt": [SYSTEM, user("a"), assistant("b"), user("c")]}
    assert [turn.content for turn in read_pairs(write(row))[0].prompt] == ["S", "a", "b", "c"]


PROMPTS = {
    "text": {"id": "p", "prompt": "Q"},
    "turns": {"id": "p", "prompt": [user("Q")]},
    "preference row": PAIR,
    "conversation": {"id": "p", "messages": [user("Q"), assistant("A")]},
    "open conversation": {"id": "p", "messages": [user("Q")]},
    "prompt and completion": {"id": "p", "prompt": "Q", "completion": "A"},
}


@pytest.mark.parametrize("form", PROMPTS)
def test_prompts_are_read_in_every_form(write, form):
    assert read_prompts(write(PROMPTS[form])) == (Prompt("p", (Turn("user", "Q"),)),)


def test_conversations_are_read_from_messages_and_from_completions(write):
    path = write({"id": "a", "messages": [user("Q"), assistant("A")]}, {"id": "b", "prompt": "Q", "completion": "A"})
    turns = (Turn("user", "Q"), Turn("assistant", "A"))
    assert read_conversations(path) == (Conversation("a", turns), Conversation("b", turns))


def test_a_column_chooses_the_answer_of_a_pair(write):
    path = write(PAIR)
    chosen, rejected = ((Turn("user", "Q"), Turn("assistant", text)) for text in ("good", "bad"))
    assert read_conversations(path, spec(column="chosen")) == (Conversation("p", chosen),)
    assert read_conversations(path, spec(column="rejected")) == (Conversation("p", rejected),)
    both = (Conversation("p/chosen", chosen), Conversation("p/rejected", rejected))
    assert read_conversations(path, spec(column="both")) == both


def test_anything_is_text_to_pretrain_on(write):
    path = write(PAIR, {"text": "plain"}, {"prompt": "Q"}, {"messages": [user("Q"), assistant("A")]})
    found = read_texts(path)
    assert [turn.content for item in found for turn in item.turns] == ["Q", "good", "Q", "bad", "plain", "Q", "Q", "A"]
    assert found[2].turns[0].role == "text"


def test_ids_come_from_the_row_or_from_its_line(write):
    path = write({"prompt": "a"}, "", {"prompt": "b"}, {"id": 7, "prompt": "c"})
    assert [prompt.id for prompt in read_prompts(path)] == ["row-000001", "row-000003", "7"]


def test_blank_lines_and_crlf_and_a_byte_order_mark_are_allowed(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n   \n{"prompt": "b"}')
    assert [prompt.turns[0].content for prompt in read_prompts(path)] == ["a", "b"]


def test_a_limit_counts_rows_in_file_order_after_the_part(write):
    path = write(*({"id": str(number), "prompt": f"question {number}"} for number in range(40)))
    first = [prompt.id for prompt in read_prompts(path, spec(part="1/2"))]
    assert [prompt.id for prompt in read_prompts(path, spec(part="1/2", limit=3))] == first[:3]
    assert [prompt.id for prompt in read_prompts(path, spec(limit=3))] == ["0", "1", "2"]


def test_a_limit_above_the_file_takes_all_of_it(write):
    assert len(read_prompts(write({"prompt": "a"}), spec(limit=10))) == 1


questions = st.sampled_from(["a", "b", "c", "d", "e", " a", "b\n", "é", "q1", "q2", "q3", "q4"])
rows = st.one_of(
    questions.map(lambda text: {"prompt": text}),
    questions.map(lambda text: {"prompt": [SYSTEM, user(text), assistant("x"), user("later")]}),
    questions.map(lambda text: {"prompt": [user(text)], "chosen": "x", "rejected": "y"}),
    questions.map(lambda text: {"messages": [user(text), assistant("x")]}),
)


@settings(deadline=None)
@given(st.lists(rows, min_size=1, max_size=30), st.integers(1, 5))
def test_parts_share_no_first_user_turn_and_cover_every_row_in_order(tmp_path_factory, content, count):
    path = tmp_path_factory.mktemp("parts") / "data.jsonl"
    path.write_text("".join(json.dumps({"id": str(i), **row}) + "\n" for i, row in enumerate(content)))
    parts = []
    for index in range(1, count + 1):
        try:
            parts.append(list(selected_rows(path, spec(part=f"{index}/{count}"))))
        except DataError:
            parts.append([])
    places = [[int(row.id) for row in part] for part in parts]
    assert sorted(place for part in places for place in part) == list(range(len(content)))
    assert all(part == sorted(part) for part in places)
    keys = [{first_user_turn(row.value).strip() for row in part} for part in parts]
    assert sum(len(part) for part in keys) == len(set().union(*keys))


def first_user_turn(value):
    turns = value.get("messages") or value["prompt"]
    return turns if isinstance(turns, str) else next(turn["content"] for turn in turns if turn["role"] == "user")


def test_a_part_does_not_depend_on_the_file_the_row_is_in(write):
    """The same question as a prompt and as a preference row lies in the same part."""
    path = write(*({"prompt": f"q{n}"} for n in range(30)))
    prompts = {prompt.turns[0].content for prompt in read_prompts(path, spec(part="2/3"))}
    path = write(*({"prompt": [user(f"q{n}")], "chosen": "x", "rejected": "y"} for n in range(30)))
    assert {pair.prompt[0].content for pair in read_pairs(path, spec(part="2/3"))} == prompts


def test_a_quarter_lies_in_a_half(write):
    path = write(*({"prompt": f"q{n}"} for n in range(60)))
    halves = {i: {item.id for item in read_prompts(path, spec(part=f"{i}/2"))} for i in (1, 2)}
    quarters = {i: {item.id for item in read_prompts(path, spec(part=f"{i}/4"))} for i in (1, 2, 3, 4)}
    assert halves[1] == quarters[1] | quarters[3]
    assert halves[2] == quarters[2] | quarters[4]


# ---- bad input: file, line, what was found, what would work ---------------------------------------------------------

BAD_ROWS = {
    '{"prompt": "a"': "not valid JSON",
    '{"prompt": "a"} x': "Extra data at column 17",
    "prompt: a": "not valid JSON",
    "[": "the file looks like one JSON array",
    "[1]": "expected a JSON object ({...}), found a list",
    "3": "found the number 3",
    "null": "found null",
    '"text"': "found a text",
    '{"prompt": NaN}': "NaN is not a JSON value",
    '{"prompt": "a", "x": -Infinity}': "-Infinity is not a JSON value",
    "{}": "no known format: found no field",
    '{"question": "a"}': "no known format: found `question`; known: messages | prompt",
    '{"prompt": ""}': "`prompt` must be a text that is not empty, found an empty text",
    '{"prompt": 3}': "`prompt` must be a list of turns, found the number 3",
    '{"prompt": null}': "`prompt` must be a list of turns, found null",
    '{"prompt": []}': "found an empty list",
    '{"prompt": ["a"]}': "`prompt[0]` must be a turn like {role, content}, found a text",
    '{"prompt": [{"role": "human", "content": "a"}]}': "must be system, user or assistant, found 'human'",
    '{"prompt": "\\ud800"}': "half of a surrogate pair",
    '{"prompt": [{"content": "a"}]}': "found nothing",
    '{"prompt": [{"role": "user"}]}': "`prompt[0].content` is missing",
    '{"prompt": [{"role": "user", "content": null}]}': "found null",
    '{"prompt": [{"role": "user", "content": ["a"]}]}': "found a list",
    '{"prompt": [{"role": "assistant", "content": "a"}]}': "the last turn of the prompt must be the user's",
    '{"id": true, "prompt": "a"}': "`id` must be a text or a whole number, found true",
    '{"id": 1.5, "prompt": "a"}': "`id` must be",
    '{"text": "a"}': "a prompt needs `prompt` or `messages`",
    '{"messages": [{"role": "assistant", "content": "a"}]}': "the last turn of the prompt",
}


@pytest.mark.parametrize("text", BAD_ROWS)
def test_a_bad_row_is_named_by_file_and_line(write, text):
    path = write({"prompt": "fine"}, "", text)
    with pytest.raises(DataError) as caught:
        read_prompts(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert BAD_ROWS[text] in str(caught.value)


BAD_PAIRS = [
    ({"prompt": "Q", "chosen": "a"}, "`rejected` is missing"),
    ({"prompt": "Q", "rejected": "a"}, "`chosen` is missing"),
    ({"prompt": "Q"}, "is not a preference pair"),
    ({**PAIR, "chosen": []}, "`chosen` must be a list of turns, found an empty list"),
    ({**PAIR, "chosen": " "}, "`chosen` must be a text that is not empty"),
    ({**PAIR, "chosen": [user("a")]}, "`chosen` must be one assistant turn, found one user turn"),
    ({**PAIR, "chosen": [assistant("a"), user("b")]}, "found 2 turns"),
    ({**PAIR, "chosen_probability": 1.1}, "`chosen_probability` must be a number from 0 to 1"),
    ({**PAIR, "chosen_probability": True}, "found true"),
    ({**PAIR, "chosen_probability": "0.5"}, "found a text"),
    ({**PAIR, "chosen_probability": None}, "found null"),
    ({"chosen": [user("Q"), assistant("a")], "rejected": [user("R"), assistant("b")]}, "differ before their last turn"),
    ({"chosen": [assistant("a")], "rejected": [assistant("b")]}, "do not begin with one"),
    ({"chosen": [user("a")], "rejected": [user("b")]}, "must end with an assistant turn"),
]


@pytest.mark.parametrize(("row", "words"), BAD_PAIRS)
def test_a_bad_pair_says_what_is_wrong(write, row, words):
    with pytest.raises(DataError) as caught:
        read_pairs(write(row))
    assert words in str(caught.value)


def test_a_margin_is_kept_and_is_zero_where_none_is_given(write):
    assert read_pairs(write({**PAIR, "margin": 1.5}))[0].margin == 1.5
    assert read_pairs(write({**PAIR, "margin": 0}))[0].margin == 0.0
    assert read_pairs(write(PAIR))[0].margin == 0.0


@pytest.mark.parametrize("margin", ["-0.5", "1e7", "1e999", "1" + "0" * 400, "true", "null", '"1"', "NaN"])
def test_what_is_no_margin_is_refused(write, margin):
    with pytest.raises(DataError, match=r"number"):
        read_pairs(write(f'{{"prompt": "Q", "chosen": "a", "rejected": "b", "margin": {margin}}}'))


def test_a_number_beyond_floating_point_is_no_probability(write):
    with pytest.raises(DataError, match="from 0 to 1"):
        read_pairs(write('{"prompt": "Q", "chosen": "a", "rejected": "b", "chosen_probability": 1e999}'))


def test_pairs_are_not_conversations_without_a_column(write):
    with pytest.raises(DataError, match="say which answer to learn with `column: chosen`"):
        read_conversations(write(PAIR))


def test_a_column_is_for_pairs_only(write):
    with pytest.raises(DataError, match="this row is not one"):
        read_conversations(write({"messages": [user("Q"), assistant("A")]}), spec(column="chosen"))


def test_prompts_are_not_conversations(write):
    with pytest.raises(DataError, match="a conversation needs `messages`"):
        read_conversations(write({"prompt": "Q"}))


def test_an_opening_of_the_assistant_alone_is_no_answer(write):
    with pytest.raises(DataError, match="begins with its only assistant turn"):
        read_conversations(write({"messages": [assistant("Hello")]}))
    with_answer = {"messages": [assistant("Hello"), user("Q"), assistant("A")]}
    assert len(read_conversations(write(with_answer))[0].turns) == 3


def test_a_conversation_without_an_answer_teaches_nothing(write):
    with pytest.raises(DataError, match="no assistant turn"):
        read_conversations(write({"messages": [user("Q")]}))


@pytest.mark.parametrize("content", [b"", b"\n\n  \n"])
def test_an_empty_file_is_refused(tmp_path, content):
    path = tmp_path / "data.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match="holds no rows"):
        read_prompts(path)
    with pytest.raises(DataError, match="holds no rows"):
        data_facts(path)


def test_a_part_without_rows_is_refused(write):
    path = write({"prompt": "only one"})
    empty = [part for part in ("1/2", "2/2") if not _has_rows(path, part)]
    assert len(empty) == 1
    with pytest.raises(DataError, match="holds none of its 1 rows; use fewer parts"):
        read_prompts(path, spec(part=empty[0]))


def _has_rows(path, part):
    try:
        return bool(read_prompts(path, spec(part=part)))
    except DataError:
        return False


def test_a_missing_file_says_what_is_there(tmp_path):
    (tmp_path / "prompts.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"promts\.jsonl does not exist; did you mean 'prompts\.jsonl'\?"):
        read_prompts(tmp_path / "promts.jsonl")
    with pytest.raises(DataError, match=r"there are prompts\.jsonl, or correct `path`"):
        read_prompts(tmp_path / "unlike.jsonl")
    with pytest.raises(DataError, match=r"its directory .* does not exist either"):
        read_prompts(tmp_path / "no" / "x.jsonl")


def test_a_directory_is_no_data_set(tmp_path):
    with pytest.raises(DataError, match="is a directory; name one JSONL file"):
        read_prompts(tmp_path)


def test_text_that_is_not_utf8_is_named_by_line(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n')
    with pytest.raises(DataError, match=r":2: not UTF-8 text \(byte 16 of the line is 0xe9\)"):
        read_prompts(path)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_with_a_data_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("bytes") / "data.jsonl"
    path.write_bytes(content)
    for read in (read_prompts, read_pairs, read_conversations, read_texts, data_facts):
        with pytest.raises(DataError, match=r"data\.jsonl"):
            read(path)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["role", "content", "x"]), inner, max_size=3),
    ),
    max_leaves=6,
)
FIELDS = ["id", "prompt", "chosen", "rejected", "messages", "text", "completion", "chosen_probability", "margin"]


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), json_values))
def test_any_object_is_read_or_refused_with_a_data_error(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("objects") / "data.jsonl"
    path.write_text(json.dumps(value) + "\n")
    for read in (read_prompts, read_pairs, read_conversations, read_texts, data_facts):
        try:
            found = read(path)
        except DataError as error:
            assert str(path) in str(error)  # noqa: PT017
        else:
            assert found


# ---- facts for the planner ------------------------------------------------------------------------------------------


def test_facts_count_bytes_of_prompts_and_answers(write):
    facts = data_facts(write(PAIR, {**PAIR, "prompt": [user("äb")], "chosen": "1234567"}))
    assert (facts.rows, facts.kind, facts.responses) == (2, "pair", 4)
    assert (facts.mean_prompt_bytes, facts.max_prompt_bytes) == (2.0, 3)
    assert (facts.mean_response_bytes, facts.max_response_bytes) == ((4 + 3 + 7 + 3) / 4, 7)


def test_facts_follow_column_part_and_limit(write):
    path = write(PAIR, {**PAIR, "prompt": "another", "chosen": "1234567"})
    facts = data_facts(path, spec(column="chosen", limit=1))
    assert (facts.rows, facts.responses, facts.max_response_bytes) == (1, 1, 4)
    both = [data_facts(path, spec(part=f"{i}/1")).rows for i in (1,)]
    assert both == [2]


def test_facts_of_other_forms(write):
    prompts = data_facts(write({"prompt": "abc"}))
    assert (prompts.kind, prompts.mean_prompt_bytes, prompts.mean_response_bytes) == ("prompt", 3.0, 0.0)
    texts = data_facts(write({"text": "abcd"}))
    assert (texts.kind, texts.mean_prompt_bytes, texts.mean_response_bytes) == ("text", 0.0, 4.0)
    chat = data_facts(write({"messages": [user("ab"), assistant("c"), user("d"), assistant("efg")]}))
    assert (chat.kind, chat.mean_prompt_bytes, chat.mean_response_bytes) == ("messages", 4.0, 3.0)


@settings(deadline=None)
@given(st.lists(st.tuples(st.text(min_size=1, max_size=9), st.text(min_size=1, max_size=9)), min_size=1, max_size=9))
def test_facts_agree_with_what_the_readers_give(tmp_path_factory, texts):
    content = [{"prompt": f"q{prompt}", "chosen": f"a{answer}", "rejected": "no"} for prompt, answer in texts]
    path = tmp_path_factory.mktemp("facts") / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in content))
    facts, pairs = data_facts(path, spec(column="chosen")), read_pairs(path)
    sizes = [len(pair.chosen.encode()) for pair in pairs]
    assert facts.rows == len(pairs)
    assert facts.max_response_bytes == max(sizes)
    assert math.isclose(facts.mean_response_bytes, sum(sizes) / len(sizes))

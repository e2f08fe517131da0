import json

import pytest

from charter.data.dataset import Turn
from charter.inference.serve.protocol import (
    LEAST,
    Completion,
    RequestError,
    ServedToken,
    chat_reply,
    error_reply,
    read_request,
    text_reply,
)

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


def chat(**changes):
    return read_request(json.dumps(CHAT | changes).encode(), is_chat=True, model="m")


def completion(**changes):
    return read_request(json.dumps({"model": "m", "prompt": "One two"} | changes).encode(), is_chat=False, model="m")


def refused(call, **changes):
    with pytest.raises(RequestError) as caught:
        call(**changes)
    return caught.value


def test_a_chat_has_the_defaults_of_the_api():
    found = chat()
    assert found.turns == (Turn("user", "Hello"),)
    assert (found.temperature, found.top_p, found.max_new_tokens, found.seed, found.stop) == (1.0, 1.0, None, None, ())
    assert found.top_log_probabilities is None


def test_every_setting_is_read():
    found = chat(temperature=0, top_p=0.5, max_tokens=9, seed=-3, stop="\n", logprobs=True, top_logprobs=20)
    assert (found.temperature, found.top_p, found.max_new_tokens, found.seed, found.stop) == (0.0, 0.5, 9, -3, ("\n",))
    assert found.top_log_probabilities == 20
    assert chat(max_completion_tokens=5, max_tokens=9).max_new_tokens == 5
    assert chat(logprobs=True).top_log_probabilities == 0
    assert completion(logprobs=3).top_log_probabilities == 3
    assert completion().max_new_tokens == 16


def test_the_last_turn_of_the_assistant_is_continued_where_asked():
    messages = [*CHAT["messages"], {"role": "assistant", "content": "The answer ("}]
    found = chat(messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert found.turns == (Turn("user", "Hello"),)
    assert found.prefill == "The answer ("
    assert chat(messages=messages).turns[-1] == Turn("assistant", "The answer (")
    assert refused(chat, continue_final_message=True).parameter == "continue_final_message"
    assert refused(chat, messages=messages, continue_final_message=True, add_generation_prompt=True).status == 400


def test_content_may_be_parts_of_text():
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert chat(messages=[{"role": "developer", "content": parts}]).turns == (Turn("system", "Hello"),)
    image = [{"type": "image_url", "image_url": {"url": "http://example.org"}}]
    assert refused(chat, messages=[{"role": "user", "content": image}]).parameter == "messages.0.content"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.1),
        ("temperature", -0.1),
        ("temperature", True),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.5),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("max_tokens", 2**40),
        ("seed", 2**63),
        ("seed", "7"),
        ("stop", ""),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", [1]),
        ("min_tokens", -1),
        ("messages", []),
        ("messages", "Hello"),
        ("messages", [{"role": "user", "content": "x"}] * 1025),
        ("n", 2),
        ("stream", True),
        ("tools", [{"type": "function"}]),
        ("response_format", {"type": "json_object"}),
        ("logit_bias", {"5": 3}),
        ("frequency_penalty", 0.5),
        ("something_else", 1),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(name, value):
    error = refused(chat, **{name: value})
    assert (error.parameter, error.status) == (name, 400)


def test_fields_that_ask_for_nothing_are_taken():
    assert chat(n=1, stream=False, user="someone", logit_bias={}, frequency_penalty=0.0, tools=None) == chat()


def test_alternatives_are_at_most_twenty_and_need_logprobs():
    assert refused(chat, logprobs=True, top_logprobs=21).parameter == "top_logprobs"
    assert refused(chat, top_logprobs=5).parameter == "top_logprobs"
    assert refused(completion, logprobs=21).parameter == "logprobs"


def test_another_model_is_not_found():
    assert refused(chat, model="other").status == 404
    assert refused(chat, model=None).status == 404


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"model": "m", "model": "m"}',
        b'{"model": "m", "temperature": NaN}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "m", "messages": [{"role": "tool", "content": "x"}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": 5}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": "x", "tool_calls": []}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 1e400}',
        b"\xff\xfe{}",
        b"[" * 100_000,
    ],
)
def test_bodies_that_are_no_request_are_refused(body):
    with pytest.raises(RequestError):
        read_request(body, is_chat=True, model="m")


DONE = Completion(
    text="A.",
    tokens=(
        ServedToken(text="A", log_probability=-0.5, top=(("A", -0.5), ("B", -1.0))),
        ServedToken(text=".", log_probability=float("-inf"), top=((";", -0.1), (":", -2.0))),
    ),
    finish_reason="length",
    prompt_tokens=7,
    completion_tokens=2,
)


def test_a_chat_is_answered_in_its_layout():
    found = chat_reply(DONE, model="m", number="1")
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": "A.", "refusal": None}
    assert choice["finish_reason"] == "length"
    first, second = choice["logprobs"]["content"]
    assert first["top_logprobs"][1] == {"token": "B", "logprob": -1.0, "bytes": [66]}
    assert second["logprob"] == LEAST
    assert found["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    json.dumps(found, allow_nan=False)


def test_plain_text_is_answered_in_its_layout():
    (choice,) = text_reply(DONE, model="m", number="1")["choices"]
    assert choice["text"] == "A."
    assert choice["logprobs"] == {
        "tokens": ["A", "."],
        "token_logprobs": [-0.5, LEAST],
        "top_logprobs": [{"A": -0.5, "B": -1.0}, {";": -0.1, ":": -2.0, ".": LEAST}],
        "text_offset": [0, 1],
    }


def test_an_error_names_the_field():
    found = error_reply(RequestError("must be less", parameter="n"))
    assert found == {
        "error": {"message": "n: must be less", "type": "invalid_request_error", "param": "n", "code": None}
    }

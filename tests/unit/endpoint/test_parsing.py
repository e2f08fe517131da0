"""Replies of servers: valid ones in every layout, and hundreds of hostile ones, none of which may pass as an answer."""

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.data.dataset import Turn
from charter.inference.endpoint.call import CallRequest
from charter.inference.endpoint.parsing import (
    MOST_TOKENS,
    InvalidReplyError,
    message_in_error,
    most_bytes,
    parse_reply,
    refusal_in_error,
)
from charter.inference.endpoint.settling import from_stored, to_stored

CHAT = CallRequest(declared="m", model="m", turns=(Turn("user", "A or B?"),), top_log_probabilities=2, max_new_tokens=1)
TEXT = CallRequest(declared="m", model="m", prompt="A or B?", top_log_probabilities=2, max_new_tokens=1)
A, B = math.log(0.75), math.log(0.25)
USAGE = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}}
CHAT_REPLY: dict[str, Any] = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "judge-2024-08-06",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": " A", "refusal": None},
            "logprobs": {
                "content": [
                    {
                        "token": " A",
                        "logprob": A,
                        "bytes": [32, 65],
                        "top_logprobs": [{"token": " B", "logprob": B}, {"token": " A", "logprob": A}],
                    }
                ]
            },
            "finish_reason": "stop",
        }
    ],
    "usage": USAGE,
}
TEXT_REPLY: dict[str, Any] = {
    "id": "cmpl-1",
    "model": "judge-2024-08-06",
    "choices": [
        {
            "index": 0,
            "text": " A",
            "finish_reason": "length",
            "logprobs": {
                "tokens": [" A"],
                "token_logprobs": [A],
                "top_logprobs": [{" B": B, " A": A}],
                "text_offset": [7],
            },
        }
    ],
    "usage": USAGE,
}
LAYOUTS = [(CHAT, CHAT_REPLY), (TEXT, TEXT_REPLY)]
MESSAGE = replace(CHAT, top_log_probabilities=0, is_message=True)
MESSAGE_REPLY: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "judge-2024-08-06",
    "content": [{"type": "thinking", "thinking": "", "signature": "s"}, {"type": "text", "text": " A"}],
    "stop_reason": "end_turn",
    "stop_details": None,
    "usage": {
        "input_tokens": 5,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 1,
    },
}
NASTY = [None, True, -1, 0.5, -0.5, "", "x", [], {}, [[]], {"a": 1}, 10**12, "\ud800", 7e300, -7e300, ["a", "b"]]
LITERALS = ["NaN", "Infinity", "-Infinity", "1e400", "-1e999", "9" * 5000, "01", "0x10", "'a'", "undefined"]


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def changed(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    found = copy.deepcopy(value)
    holder = found
    for step in path[:-1]:
        holder = holder[step]
    if new is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = new
    return found


def hostile_bodies() -> Iterator[tuple[CallRequest, bytes]]:
    """Every value of a reply removed, replaced by each nasty one, or spelled as no number; texts cut and wrapped."""
    for request, reply in (*LAYOUTS, (MESSAGE, MESSAGE_REPLY)):
        for path in places(reply):
            yield request, encoded(changed(reply, path, ...))
            for new in NASTY:
                yield request, encoded(changed(reply, path, new))
            for literal in LITERALS:
                yield request, encoded(changed(reply, path, "@here@")).replace(b'"@here@"', literal.encode())
        body = encoded(reply)
        for end in range(0, len(body), 7):
            yield request, body[:end]
        for text in (b"Sure: " + body, body + b"!", body + body, b"```json\n" + body + b"\n```", b"[" + body + b"]"):
            yield request, text


def assert_sound(reply: Any) -> None:
    assert isinstance(reply.text, str)
    assert isinstance(reply.model, str)
    for text in (reply.text, reply.model, reply.finish_reason, reply.refusal):
        text.encode("utf-8")
    for count in (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens):
        assert type(count) is int
        assert count >= 0
    assert reply.cached_tokens <= reply.prompt_tokens
    for token in reply.log_probabilities:
        assert token.log_probability <= 0
        assert math.isfinite(token.log_probability)
        assert [value for _, value in token.top] == sorted((value for _, value in token.top), reverse=True)
        assert all(value <= 0 and math.isfinite(value) and isinstance(word, str) for word, value in token.top)


def is_answer(body: bytes, request: CallRequest) -> bool:
    try:
        parse_reply(body, request)
    except InvalidReplyError:
        return False
    return True


def test_every_hostile_body_is_refused_or_read_soundly():
    bodies = list(hostile_bodies())
    refused = 0
    for request, body in bodies:
        try:
            reply = parse_reply(body, request).reply
        except InvalidReplyError:
            refused += 1
        else:
            assert_sound(reply)
            assert from_stored(to_stored(reply)) == reply
    assert len(bodies) > 1500
    assert refused > 1000


HOPELESS = {
    "nothing": b"",
    "blanks": b" \n ",
    "null": b"null",
    "a number": b"3",
    "an empty object": b"{}",
    "HTML": b"<html>502</html>",
    "not UTF-8": b'{"id": "\xff\xfe"}',
    "UTF-16": '{"id": 1}'.encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a depth of 100,000": b"[" * 100_000,
    "objects 100,000 deep": b'{"a":' * 100_000,
    "equal keys": b'{"choices": [], "choices": []}',
    "equal keys below": encoded(CHAT_REPLY).replace(b'"index": 0', b'"index": 0, "index": 1'),
    "two choices": encoded({**CHAT_REPLY, "choices": CHAT_REPLY["choices"] * 2}),
    "no choice": encoded({**CHAT_REPLY, "choices": []}),
    "another choice": encoded(changed(CHAT_REPLY, ("choices", 0, "index"), 1)),
    "the user's turn": encoded(changed(CHAT_REPLY, ("choices", 0, "message", "role"), "user")),
    "no content": encoded(changed(CHAT_REPLY, ("choices", 0, "message", "content"), None)),
    "content of parts": encoded(changed(CHAT_REPLY, ("choices", 0, "message", "content"), [{"text": "A"}])),
    "half a surrogate pair": encoded(changed(CHAT_REPLY, ("choices", 0, "message", "content"), "\ud800")),
    "half a pair as token": encoded(
        changed(CHAT_REPLY, ("choices", 0, "logprobs", "content", 0, "token"), "\udfff"),
    ),
    "a log-probability above 0": encoded(
        changed(CHAT_REPLY, ("choices", 0, "logprobs", "content", 0, "logprob"), 0.7),
    ),
    "a log-probability as text": encoded(
        changed(CHAT_REPLY, ("choices", 0, "logprobs", "content", 0, "logprob"), "-0.1"),
    ),
    "no usage": encoded(changed(CHAT_REPLY, ("usage",), ...)),
    "negative tokens": encoded(changed(CHAT_REPLY, ("usage", "completion_tokens"), -1)),
    "tokens as text": encoded(changed(CHAT_REPLY, ("usage", "prompt_tokens"), "9")),
    "a share of a token": encoded(changed(CHAT_REPLY, ("usage", "prompt_tokens"), 9.5)),
    "true tokens": encoded(changed(CHAT_REPLY, ("usage", "prompt_tokens"), True)),
    "more cached than sent": encoded(
        changed(CHAT_REPLY, ("usage", "prompt_tokens_details", "cached_tokens"), 10),
    ),
    "more tokens than there are": encoded(changed(CHAT_REPLY, ("usage", "prompt_tokens"), 10**17)),
    "a model that is a number": encoded(changed(CHAT_REPLY, ("model",), 7)),
    "a name without end": encoded(changed(CHAT_REPLY, ("model",), "m" * 100_000)),
    "an error with status 200": b'{"error": {"message": "overloaded"}}',
}


def is_an_answer(body):
    try:
        parse_reply(body, CHAT)
    except InvalidReplyError:
        return False
    return True


def test_these_are_no_answers():
    assert [name for name, body in HOPELESS.items() if is_an_answer(body)] == []


@pytest.mark.parametrize(
    "logprobs",
    [
        {"tokens": [" A"], "token_logprobs": [], "top_logprobs": [{}]},
        {"tokens": [" A"], "token_logprobs": [A], "top_logprobs": [{}, {}]},
        {"tokens": [" A"], "token_logprobs": [None], "top_logprobs": [{}]},
        {"tokens": [" A"], "token_logprobs": [A], "top_logprobs": [[" A", A]]},
        {"tokens": [" A"], "token_logprobs": [A], "top_logprobs": [{" A": "x"}]},
        {"content": "A"},
        [],
    ],
)
def test_parallel_log_probabilities_have_one_length_and_type(logprobs):
    with pytest.raises(InvalidReplyError):
        parse_reply(encoded(changed(TEXT_REPLY, ("choices", 0, "logprobs"), logprobs)), TEXT)


@pytest.mark.parametrize(("request_", "body"), LAYOUTS, ids=["chat", "completions"])
def test_both_layouts_say_the_same(request_, body):
    reply = parse_reply(encoded(body), request_).reply
    assert (reply.text, reply.model, reply.prompt_tokens, reply.cached_tokens) == (" A", "judge-2024-08-06", 9, 4)
    assert [token.top for token in reply.log_probabilities] == [((" A", A), (" B", B))]
    assert from_stored(to_stored(reply)) == reply


def test_a_message_says_the_same_without_its_thoughts():
    reply = parse_reply(encoded(MESSAGE_REPLY), MESSAGE).reply
    assert (reply.text, reply.model, reply.finish_reason) == (" A", "judge-2024-08-06", "stop")
    assert (reply.prompt_tokens, reply.cached_tokens, reply.completion_tokens) == (9, 4, 1)
    for reason, finish in (("stop_sequence", "stop"), ("max_tokens", "length")):
        assert parse_reply(encoded({**MESSAGE_REPLY, "stop_reason": reason}), MESSAGE).reply.finish_reason == finish
    details = {"type": "refusal", "category": "cyber", "explanation": "I will not."}
    refused = {**MESSAGE_REPLY, "stop_reason": "refusal", "stop_details": details, "content": []}
    reply = parse_reply(encoded(refused), MESSAGE).reply
    assert (reply.text, reply.refusal) == ("", "I will not.")
    assert parse_reply(encoded({**refused, "stop_details": None}), MESSAGE).reply.refusal == "refusal"


@pytest.mark.parametrize(
    ("field", "value"),
    [("stop_reason", "tool_use"), ("stop_reason", None), ("role", "user"), ("content", ["A"]), ("content", None)],
)
def test_a_message_of_another_kind_is_billed_and_no_answer(field, value):
    with pytest.raises(InvalidReplyError) as refused:
        parse_reply(encoded({**MESSAGE_REPLY, field: value}), MESSAGE)
    assert refused.value.usage is not None


def test_the_layout_of_the_chat_is_read_for_plain_text_too():
    chat = CHAT_REPLY["choices"][0]["logprobs"]
    reply = parse_reply(encoded(changed(TEXT_REPLY, ("choices", 0, "logprobs"), chat)), TEXT).reply
    assert reply.log_probabilities[0].token == " A"


def test_a_server_without_log_probabilities_gives_none():
    for path, request in ((("choices", 0, "logprobs"), CHAT), (("choices", 0, "logprobs", "content"), CHAT)):
        assert parse_reply(encoded(changed(CHAT_REPLY, path, None)), request).reply.log_probabilities == ()


def test_a_refusal_is_an_answer_without_text():
    refused = changed(CHAT_REPLY, ("choices", 0, "message"), {"content": "Well...", "refusal": "I will not."})
    reply = parse_reply(encoded(refused), CHAT).reply
    assert (reply.text, reply.refusal) == ("", "I will not.")
    for request, body in LAYOUTS:
        filtered = changed(body, ("choices", 0, "finish_reason"), "content_filter")
        assert parse_reply(encoded(filtered), request).reply.refusal == "content_filter"


def test_the_words_of_a_refusal_stay_where_the_prompt_was_filtered_too():
    message = {"content": None, "refusal": "I will not."}
    filtered = changed(
        changed(CHAT_REPLY, ("choices", 0, "message"), message), ("choices", 0, "finish_reason"), "content_filter"
    )
    assert parse_reply(encoded(filtered), CHAT).reply.refusal == "I will not."


def test_all_of_a_prompt_may_be_cached_and_not_one_token_more():
    for cached, whole in ((9, True), (10, False)):
        body = encoded(changed(CHAT_REPLY, ("usage", "prompt_tokens_details", "cached_tokens"), cached))
        assert is_answer(body, CHAT) is whole


@pytest.mark.parametrize("kind", ["prompt_tokens", "completion_tokens"])
def test_counts_of_tokens_end_at_two_to_the_31(kind):
    for tokens, holds in ((MOST_TOKENS, True), (MOST_TOKENS + 1, False)):
        assert is_answer(encoded(changed(CHAT_REPLY, ("usage", kind), tokens)), CHAT) is holds


def test_log_probabilities_that_nobody_asked_for_are_not_read():
    for request, body in LAYOUTS:
        for found in (body["choices"][0]["logprobs"], {"content": "damaged"}):
            told = encoded(changed(body, ("choices", 0, "logprobs"), found))
            assert parse_reply(told, replace(request, top_log_probabilities=0)).reply.log_probabilities == ()


def test_a_model_that_was_cut_while_thinking_has_said_nothing():
    cut = changed(CHAT_REPLY, ("choices", 0, "message", "content"), None)
    assert parse_reply(encoded(changed(cut, ("choices", 0, "finish_reason"), "length")), CHAT).reply.text == ""


def test_an_invalid_reply_that_says_its_usage_is_billed():
    with pytest.raises(InvalidReplyError) as caught:
        parse_reply(encoded({**CHAT_REPLY, "choices": []}), CHAT)
    assert caught.value.usage is not None
    assert (caught.value.usage.prompt_tokens, caught.value.usage.completion_tokens) == (9, 1)


def test_errors_say_what_the_server_says_on_one_line():
    assert message_in_error(b'{"error": {"message": "too\\n\\u001b[31mlong"}}') == "too [31mlong"
    assert message_in_error(b"<h1>Bad gateway</h1>") == "<h1>Bad gateway</h1>"
    assert len(message_in_error(b"x" * 10_000)) == 300
    assert message_in_error(b'{"object": "error", "message": "a flat one"}') == "a flat one"
    assert message_in_error(b'{"error": "a text alone"}') == "a text alone"
    filtered = b'{"error": {"code": "content_filter", "message": "The response was filtered"}}'
    assert refusal_in_error(filtered) == "content_filter: The response was filtered"
    policy = b'{"error": {"code": "content_policy_violation", "message": "no"}}'
    assert refusal_in_error(policy) == "content_policy_violation: no"
    assert refusal_in_error(b'{"error": "prompt is too long"}') == "too long for the server: prompt is too long"
    too_long = b'{"error": {"code": "context_length_exceeded", "message": "m"}}'
    assert refusal_in_error(too_long) == "too long for the server: m"


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_cleanly(body):
    with pytest.raises(InvalidReplyError):
        parse_reply(body, CHAT)


@given(st.text(), st.integers(0, 1000))
def test_any_text_that_utf_8_holds_survives_the_wire_and_the_store(text, tokens):
    body = changed(CHAT_REPLY, ("choices", 0, "message", "content"), text)
    reply = parse_reply(encoded(changed(body, ("usage", "completion_tokens"), tokens)), CHAT).reply
    assert reply.text == text
    assert from_stored(to_stored(reply)) == reply


def test_more_alternatives_than_were_asked_for_are_no_answer():
    top = [{"token": f" {number}", "logprob": -1.0 - number} for number in range(4)]
    many = changed(CHAT_REPLY, ("choices", 0, "logprobs", "content", 0, "top_logprobs"), top)
    with pytest.raises(InvalidReplyError, match="4 alternatives, 2 were asked for"):
        parse_reply(encoded(many), CHAT)


def test_a_reply_that_is_too_long_is_not_taken_apart():
    body = encoded(changed(CHAT_REPLY, ("choices", 0, "message", "content"), "x" * most_bytes(CHAT)))
    with pytest.raises(InvalidReplyError, match="at most for what was asked") as refused:
        parse_reply(body, CHAT)
    assert refused.value.usage is None


@pytest.mark.parametrize(("field", "value"), [("finish_reason", "error"), ("error", {"code": 502, "message": "gone"})])
def test_a_generation_that_broke_off_is_no_answer(field, value):
    with pytest.raises(InvalidReplyError, match="broke off") as refused:
        parse_reply(encoded(changed(CHAT_REPLY, ("choices", 0, field), value)), CHAT)
    assert refused.value.usage is not None, "what it is billed is known"

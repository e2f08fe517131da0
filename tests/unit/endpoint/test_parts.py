"""The parts of the client alone: waiting, pacing, order, servers, money, keys. Times are passed in."""

import copy
import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.data.dataset import Turn
from charter.errors import DataError, UsageError
from charter.inference.endpoint import wanted
from charter.inference.endpoint.call import CallRequest, Prices, most_prompt_tokens
from charter.inference.endpoint.desk import AlphabetSweep
from charter.inference.endpoint.gate import Allowance, AtOnce
from charter.inference.endpoint.identity import ModelIds
from charter.inference.endpoint.lanes import LOAD_FACTOR, Lane, lane_for
from charter.inference.endpoint.rules import (
    FIRST_SECONDS,
    MOST_SECONDS,
    Answered,
    GiveUp,
    RequestTarget,
    TryAgain,
    step_after,
    told_seconds,
    wait_seconds,
)
from charter.inference.endpoint.settling import from_stored
from charter.inference.endpoint.transport import Received, TransportFailure, body_of, path_of, read_key
from charter.inference.endpoint.wanted import Counts

REQUEST = CallRequest(declared="m", model="m", prompt="hello", max_new_tokens=10)
ASKED = RequestTarget(name="judge", endpoint="http://judge/v1", key_reference="env:JUDGE_KEY")


# ---- what follows from a reply


@pytest.mark.parametrize(
    ("status", "cause", "cost"),
    [
        (429, "busy", "refused"),
        (503, "busy", "refused"),
        (408, "timeout", "unknown"),
        (409, "busy", "unknown"),
        (423, "busy", "unknown"),
        (425, "busy", "refused"),
        (529, "busy", "unknown"),
        (500, "server", "unknown"),
        (502, "server", "unknown"),
        (504, "server", "unknown"),
        (507, "server", "unknown"),
        (520, "server", "unknown"),
        (524, "server", "unknown"),
        (599, "server", "unknown"),
    ],
)
def test_these_statuses_are_asked_again(status, cause, cost):
    step = step_after(Received(status, b'{"error": "later"}', retry_after="3"), REQUEST, ASKED)
    assert isinstance(step, TryAgain)
    assert (step.cause, step.cost, step.retry_after) == (cause, cost, "3")


@pytest.mark.parametrize("status", [200, 201, 202, 203, 206])
def test_every_status_of_success_may_carry_an_answer(status):
    body = json.dumps(
        {
            "id": "1",
            "model": "m",
            "choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 2, "completion_tokens": 1},
        }
    )
    assert isinstance(step_after(Received(status, body.encode()), REQUEST, ASKED), Answered)
    empty = step_after(Received(status, b""), REQUEST, ASKED)
    assert isinstance(empty, TryAgain)
    assert (empty.cause, empty.cost) == ("invalid", "unknown")


@pytest.mark.parametrize(("was_sent", "cost"), [(False, "refused"), (True, "unknown")])
def test_what_was_sent_may_be_billed_and_what_was_not_is_not(was_sent, cost):
    step = step_after(TransportFailure("connect", "no", was_sent=was_sent), REQUEST, ASKED)
    assert isinstance(step, TryAgain)
    assert step.cost == cost


@pytest.mark.parametrize(
    ("status", "stops_all", "advice"),
    [
        (301, True, "put the right address into serving.judge.endpoint"),
        (401, True, "check the key at env:JUDGE_KEY"),
        (403, True, "check the key at env:JUDGE_KEY"),
        (404, True, "mostly ends in /v1"),
        (400, False, "does not know"),
        (422, False, "does not know"),
        (418, True, "no answer"),
        (402, True, "no credit left"),
    ],
)
def test_these_statuses_are_not_asked_again_and_say_what_to_do(status, stops_all, advice):
    body = b'{"error": {"message": "the words of the server"}}'
    step = step_after(Received(status, body, location="http://elsewhere/"), REQUEST, ASKED)
    assert isinstance(step, GiveUp)
    assert isinstance(step.error, DataError)
    assert step.stops_all is stops_all
    assert advice in str(step.error)
    assert str(status) in str(step.error)


@pytest.mark.parametrize(("tokens", "is_bill_known"), [(0, False), (3, True)])
def test_a_refusal_before_the_first_token_may_be_free(tokens, is_bill_known):
    body = {
        "role": "assistant", "model": "m", "content": [], "stop_reason": "refusal",
        "usage": {"input_tokens": 9, "output_tokens": tokens},
    }  # fmt: skip
    request = CallRequest(declared="m", model="m", turns=(Turn("user", "a"),), is_message=True)
    step = step_after(Received(200, json.dumps(body).encode()), request, ASKED)
    assert isinstance(step, Answered)
    assert (step.parsed.reply.refusal, step.is_bill_known) == ("refusal", is_bill_known)


def test_a_filtered_prompt_is_a_refusal():
    body = b'{"error": {"code": "content_filter", "message": "filtered"}}'
    step = step_after(Received(400, body), REQUEST, ASKED)
    assert isinstance(step, Answered)
    assert step.parsed.reply.refusal == "content_filter: filtered"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "This model's maximum context length is 512 tokens. However, you requested 565 tokens."),
        (400, "the request exceeds the available context size, try increasing it"),
        (422, "Input validation error: `inputs` must have less than 512 tokens. Given: 564"),
        (413, "The input (564 tokens) is longer than the model's context length (512 tokens)."),
        (400, "prompt: the model's context has 512 tokens; the prompt has 564, and 1 more are asked for"),
    ],
)
def test_one_prompt_that_is_too_long_stops_no_other(status, message):
    body = json.dumps({"error": {"message": message, "code": status}}).encode()
    step = step_after(Received(status, body), REQUEST, ASKED)
    assert isinstance(step, Answered)
    assert step.parsed.reply.refusal == f"too long for the server: {message}"


def test_a_wrong_field_is_no_refusal():
    body = b'{"error": {"message": "Unknown field: top_logprobs", "code": 400}}'
    assert isinstance(step_after(Received(400, body), REQUEST, ASKED), GiveUp)


# ---- waiting


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0),
        ("7", 7),
        (" 1.5 ", 1.5),
        ("86400", MOST_SECONDS),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 10),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("Fri, 31 Dec 2199 23:59:59 GMT", MOST_SECONDS),
        *((text, None) for text in ("", "soon", "-5", "1e9", "nan", "Thu, 99 Foo 1970", "9" * 100, "\u0665")),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_is_capped(header, seconds):
    assert told_seconds(header, 90.0) == seconds


def test_waits_double_are_capped_and_are_drawn_alike_every_time():
    for attempt in range(1, 40):
        waits = [wait_seconds(f"key {number}", attempt, "", 0.0) for number in range(50)]
        longest = min(MOST_SECONDS, FIRST_SECONDS * 2 ** (attempt - 1))
        assert waits == [wait_seconds(f"key {number}", attempt, "", 0.0) for number in range(50)]
        assert 0 <= min(waits) < 0.3 * longest
        assert 0.7 * longest < max(waits) <= longest


def test_nobody_comes_back_before_the_told_time_and_not_all_at_once():
    waits = {wait_seconds(f"key {number}", 1, "10", 0.0) for number in range(20)}
    assert min(waits) >= 10
    assert len(waits) == 20


# ---- pacing


def test_without_a_limit_nothing_waits():
    allowance = Allowance(None)
    allowance.take(1e12)
    assert allowance.seconds_until_open(0.0) == 0


@given(st.integers(1, 10_000), st.lists(st.floats(0.1, 50), min_size=1, max_size=60))
def test_never_more_than_the_rate_and_a_second_of_it_at_once(per_minute, amounts):
    allowance, now, taken = Allowance(per_minute), 0.0, 0.0
    for amount in amounts:
        while (pause := allowance.seconds_until_open(now)) > 0:
            now += pause
        before = taken
        allowance.take(amount)
        taken += amount
        assert before <= per_minute / 60 * now + max(1.0, per_minute / 60) + 1e-6


def test_what_was_not_used_is_given_back():
    allowance = Allowance(60)
    allowance.take(100)
    allowance.take(-99.5)
    assert allowance.seconds_until_open(0.0) == 0


def test_the_number_at_once_doubles_halves_and_then_grows_by_one_a_round():
    at_once = AtOnce(64)
    assert at_once.limit == 8
    for _ in range(100):
        at_once.answered()
    assert at_once.limit == 64
    at_once.too_much(began=1.0, now=2.0)
    at_once.too_much(began=1.5, now=2.1)
    assert at_once.limit == 32, "requests sent before the decrease say nothing new"
    for _ in range(32):
        at_once.answered()
    assert 32.9 < at_once.limit < 33.1
    for second in range(20):
        at_once.too_much(began=3.0 + second, now=3.5 + second)
    assert at_once.limit == 1


# ---- order and servers


@given(st.lists(st.text(max_size=4), max_size=40), st.integers(0, 40))
def test_a_sweep_gives_everything_once_and_in_the_order_of_the_alphabet(texts, late):
    sweep = AlphabetSweep()
    early, rest = texts[late:], texts[:late]
    for text in early:
        sweep.add(text, text)
    taken = [sweep.take() for _ in range(len(early) // 2)]
    for text in rest:
        sweep.add(text, text)
    taken += [sweep.take() for _ in range(len(sweep))]
    assert sorted(taken) == sorted(texts)
    falls = sum(first > second for first, second in pairwise(taken))
    assert falls <= 1, "all that came while a sweep was under way is taken in it or in the next"


def lanes(count=3, most=64):
    made = [Lane(f"http://host{number}/v1", most) for number in range(count)]
    for lane in made:
        lane.at_once.limit = most
    return made


def test_a_prefix_stays_with_its_server_and_prefixes_are_spread():
    three = lanes()
    chosen = {prefix: lane_for(prefix, three, 0.0) for prefix in map(str, range(300))}
    assert chosen == {prefix: lane_for(prefix, three, 0.0) for prefix in chosen}
    shares = [sum(lane is one for lane in chosen.values()) for one in three]
    assert min(shares) > 60
    without_one = [lane for lane in three if lane is not three[0]]
    moved = [prefix for prefix, lane in chosen.items() if lane_for(prefix, without_one, 0.0) is not lane]
    assert all(chosen[prefix] is three[0] for prefix in moved), "a lost server's prefixes move, no others"


def test_one_prefix_for_all_is_shared_among_the_servers():
    three = lanes()
    for _ in range(90):
        lane = lane_for("the same examples", three, 0.0)
        lane.in_flight += 1
    assert max(lane.in_flight for lane in three) <= LOAD_FACTOR * 90 / 3 + 1


def test_full_closed_and_absent_servers_are_left_out():
    first, second, third = lanes(most=2)
    first.in_flight = 2
    second.close_for(5.0, now=10.0)
    third.not_reached(10.0, "refused")
    assert lane_for("p", [first, second, third], 11.0) is None
    assert lane_for("p", [first, second, third], 15.0) is second
    third.reached()
    assert lane_for("p", [first, third], 20.0) is third


def test_a_late_look_holds_the_server_after_two_rounds():
    lane = Lane("http://host/v1", 8, look_every=4)
    assert not lane.has_room(0.0), "not before the first look"
    lane.is_known = True
    lane.unwatched = 7
    assert lane.has_room(0.0)
    lane.unwatched = 8
    assert not lane.has_room(0.0)
    lane.unwatched -= 4  # a look has ended, which covers the answers before it began
    assert lane.has_room(0.0)


def test_absent_servers_are_asked_ever_more_seldom():
    (lane,) = lanes(1)
    waits = []
    for _ in range(12):
        lane.not_reached(0.0, "refused")
        waits.append(lane.closed_until)
    assert waits[:4] == [1, 2, 4, 8]
    assert max(waits) == 30


def test_repeated_reply_is_noticed_unless_servers_reuse_ids():
    (lane,) = lanes(1)
    assert not lane.repeats("a", b"1")
    assert lane.repeats("a", b"1")
    assert not lane.repeats("", b"1")
    assert not lane.repeats("a", b"2"), "this server gives one id to all replies"
    assert not lane.repeats("a", b"1")


def test_another_model_in_the_middle_is_an_error_and_an_alias_is_none():
    models = ModelIds()
    models.check("judge", "judge-2024-08-06", "http://a")
    models.check("judge", "judge-2024-08-06", "http://b")
    models.check("judge", "", "http://b")
    models.check("critic", "critic-1", "http://b")
    with pytest.raises(DataError, match=r"http://b answers as 'judge-2025-01-01', where http://a was 'judge-2024"):
        models.check("judge", "judge-2025-01-01", "http://b")


# ---- money


def test_tokens_cost_what_the_prices_say():
    prices = Prices(is_billed=True, input=3.0, cached_input=0.3, output=15.0)
    assert prices.micro_usd(prompt_tokens=1000, cached_tokens=600, completion_tokens=10) == 400 * 3 + 180 + 150
    whole = Prices(is_billed=True, input=3.0, cached_input=None, output=15.0)
    assert whole.micro_usd(prompt_tokens=1000, cached_tokens=600, completion_tokens=10) == 3150


def test_without_prices_the_cost_is_not_known_and_unbilled_is_free():
    nothing = dict(prompt_tokens=1, cached_tokens=0, completion_tokens=1)
    unknown = Prices(is_billed=True, input=None, cached_input=None, output=None)
    assert (unknown.micro_usd(**nothing), unknown.most_micro_usd(REQUEST)) == (None, None)
    free = Prices(is_billed=False, input=None, cached_input=None, output=None)
    assert (free.micro_usd(**nothing), free.most_micro_usd(REQUEST)) == (0, 0)


@given(st.text(max_size=50), st.integers(1, 100), st.floats(0, 100), st.floats(0, 100))
def test_the_bound_covers_a_token_for_every_byte(text, tokens, price_in, price_out):
    prices = Prices(is_billed=True, input=price_in, cached_input=None, output=price_out)
    for request in (
        CallRequest(declared="m", model="m", prompt=text, max_new_tokens=tokens),
        CallRequest(declared="m", model="m", turns=(Turn("user", text), Turn("assistant", "x")), max_new_tokens=tokens),
    ):
        size = len(text.encode())
        assert most_prompt_tokens(request) >= size
        cost = prices.micro_usd(prompt_tokens=size, cached_tokens=0, completion_tokens=tokens)
        assert prices.most_micro_usd(request) >= cost


def test_the_bound_counts_bytes_where_a_character_has_several():
    assert most_prompt_tokens(CallRequest(declared="m", model="m", prompt="\u6f22" * 1000)) >= 3000


# ---- keys, requests, answers


def test_a_key_is_read_where_the_reference_says(monkeypatch, tmp_path):
    monkeypatch.setenv("JUDGE_KEY", " sk-0123456789\n")
    (tmp_path / "key").write_text("sk-0123456789\n")
    for reference in ("env:JUDGE_KEY", f"file:{tmp_path / 'key'}"):
        key = read_key(reference, of="judge")
        assert key.header() == {"Authorization": "Bearer sk-0123456789"}
        assert key.header(bare="x-api-key") == {"x-api-key": "sk-0123456789"}
        assert "sk-0123456789" not in f"{key!r} {key}"
        assert key.blotted("a sk-0123456789 b") == "a (hidden) b"
        with pytest.raises(TypeError):
            copy.copy(key)


@pytest.mark.parametrize(
    ("reference", "value", "message"),
    [
        ("env:NOT_THERE", None, "NOT_THERE is not set"),
        ("file:/nowhere/key", None, "not there, or empty"),
        ("sk-0123456789", None, "env:NAME or file:PATH"),
        ("env:KEY", "", "not set"),
        ("env:KEY", "two words-secret", "cannot be a key"),
        ("env:KEY", "secret\nX-Header: 1", "cannot be a key"),
        ("env:KEY", "sécret-0123", "cannot be a key"),
        ("env:KEY", "short", "fewer than 8"),
    ],
)
def test_a_key_that_is_not_there_is_said_without_its_value(monkeypatch, reference, value, message):
    if value is not None:
        monkeypatch.setenv("KEY", value)
    with pytest.raises(UsageError, match=message) as caught:
        read_key(reference, of="judge")
    assert not value or value not in str(caught.value)
    assert "0123456789" not in str(caught.value)


def test_requests_differ_in_key_when_anything_differs():
    base = dict(declared="m", model="m", turns=(Turn("user", "a"), Turn("assistant", "b")))
    changes = [
        {},
        dict(declared="n"),
        dict(model="n"),
        dict(turns=(Turn("user", "ab"), Turn("assistant", ""))),
        dict(turns=(), prompt="a"),
        dict(prefill="("),
        dict(max_new_tokens=1),
        dict(temperature=0.5),
        dict(top_p=0.5),
        dict(seed=1),
        dict(seed=0),
        dict(stop=("x",)),
        dict(top_log_probabilities=5),
    ]
    keys = [CallRequest(**(base | change)).key for change in changes]
    assert len(set(keys)) == len(keys)
    assert keys == [CallRequest(**(base | change)).key for change in changes]


def test_the_body_of_a_request_is_what_servers_expect():
    chat = CallRequest(declared="m", model="m", turns=(Turn("user", "a\ud800"),), prefill="(", seed=3, stop=("x",))
    assert path_of(chat) == "/chat/completions"
    assert body_of(chat) == (
        b'{"model":"m","max_tokens":512,"temperature":1.0,"top_p":1.0,"seed":3,"stop":["x"],'
        b'"messages":[{"role":"user","content":"a\\ud800"},{"role":"assistant","content":"("}],'
        b'"continue_final_message":true,"add_generation_prompt":false}'
    )
    text = CallRequest(declared="m", model="m", prompt="a", prefill="b", top_log_probabilities=5, max_new_tokens=1)
    assert path_of(text) == "/completions"
    assert b'"prompt":"ab","logprobs":5' in body_of(text)


def test_a_message_has_its_instructions_apart_and_no_defaults():
    turns = (Turn("system", "Be short."), Turn("user", "a"), Turn("assistant", "b"), Turn("user", "c"))
    plain = CallRequest(declared="m", model="m", turns=turns, prefill="( ", seed=3, stop=("x",), is_message=True)
    assert path_of(plain) == "/messages"
    assert body_of(plain) == (
        b'{"model":"m","max_tokens":512,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},'
        b'{"role":"user","content":"c"},{"role":"assistant","content":"("}],"system":"Be short.",'
        b'"stop_sequences":["x"]}'
    )
    drawn = body_of(replace(plain, temperature=0.0, top_p=0.9, turns=turns[1:2], prefill="", stop=()))
    assert drawn == (
        b'{"model":"m","max_tokens":512,"messages":[{"role":"user","content":"a"}],"temperature":0.0,"top_p":0.9}'
    )
    assert plain.key == replace(plain, is_message=False).key, "how a question is put is no part of it"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"text": 1, "other": 2}', '{"log_probabilities": [1]}'])
def test_a_damaged_stored_answer_is_an_error(text):
    with pytest.raises(DataError, match="stored answer"):
        from_stored(text)


@given(st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 7.0]), min_size=1, max_size=30), st.sampled_from([0.0, 0.5, 0.95]))
def test_a_latency_is_a_quantile_of_the_last_ones(latencies, share):
    counts = Counts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wanted, "REMEMBERED_LATENCIES", 8)
        for seconds in latencies:
            counts.answered(seconds)
    ordered = sorted(latencies[-8:])
    assert counts.latency(share) == ordered[min(len(ordered) - 1, int(share * len(ordered)))]

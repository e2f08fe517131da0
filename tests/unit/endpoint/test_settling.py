"""What is written of a request that was sent: its answer and bill, the bill alone, that nobody knows, or no cost."""

from dataclasses import asdict

import pytest

from charter.errors import DataError
from charter.inference.endpoint.call import CallReply, CallRequest, Prices, Usage
from charter.inference.endpoint.parsing import Parsed
from charter.inference.endpoint.rules import Answered, GiveUp, TryAgain
from charter.inference.endpoint.settling import LONGEST_NOTE, from_stored, new_call, settlement_of

PRICES = Prices(is_billed=True, input=2.0, cached_input=1.0, output=10.0)
REQUEST = CallRequest(declared="m", model="m", prompt="hello", max_new_tokens=10)
CALL = new_call(REQUEST, "http://judge/v1", 2, PRICES)
USAGE = Usage(prompt_tokens=30, cached_tokens=20, completion_tokens=5)
COST = 10 * 2 + 20 * 1 + 5 * 10


def money(settled):
    return settled.prompt_tokens, settled.cached_tokens, settled.completion_tokens, settled.micro_usd


def test_an_answer_is_kept_with_its_bill():
    reply = CallReply(
        text="A", finish_reason="stop", model="m", prompt_tokens=30, cached_tokens=20, completion_tokens=5
    )
    settled = settlement_of(CALL, Answered(parsed=Parsed(reply=reply, id="")), PRICES, REQUEST)
    assert (settled.call_id, settled.outcome) == (CALL.call_id, "answered")
    assert from_stored(settled.answer) == reply
    assert money(settled) == (30, 20, 5, COST)


@pytest.mark.parametrize(
    "step",
    [
        TryAgain(cause="invalid", detail="two choices", cost="answered", usage=USAGE),
        GiveUp(error=DataError("another model"), stops_all=True, usage=USAGE),
    ],
)
def test_a_useless_reply_is_billed_and_is_no_answer(step):
    settled = settlement_of(CALL, step, PRICES, REQUEST)
    assert (settled.outcome, settled.answer) == ("answered", None)
    assert money(settled) == (30, 20, 5, COST)
    assert settled.note in ("invalid: two choices", "another model")


def test_what_may_be_billed_is_neither_free_nor_priced():
    settled = settlement_of(CALL, TryAgain(cause="server", detail="status 500", cost="unknown"), PRICES, REQUEST)
    assert (settled.outcome, settled.note) == ("unknown", "server: status 500")
    assert money(settled) == (0, 0, 0, None)


@pytest.mark.parametrize(
    "step",
    [
        TryAgain(cause="busy", detail="x" * 1000, cost="refused"),
        GiveUp(error=DataError("x" * 1000), stops_all=False),
    ],
)
def test_what_was_refused_costs_nothing(step):
    settled = settlement_of(CALL, step, PRICES, REQUEST)
    assert (settled.outcome, settled.answer) == ("refused", None)
    assert money(settled) == (0, 0, 0, 0)
    assert len(settled.note) <= LONGEST_NOTE


def test_the_intent_says_what_is_asked_of_whom_and_what_it_can_cost():
    assert (CALL.model, CALL.endpoint, CALL.attempt) == ("m", "http://judge/v1", 2)
    assert CALL.most_micro_usd is not None
    assert CALL.most_micro_usd >= 10 * 10


@pytest.mark.parametrize(
    "usage",
    [
        Usage(prompt_tokens=2**31 - 1, cached_tokens=0, completion_tokens=1),
        Usage(prompt_tokens=30, cached_tokens=20, completion_tokens=500),
    ],
)
def test_a_usage_beyond_the_request_is_disputed(usage):
    reply = CallReply(text="A", finish_reason="stop", model="m", **asdict(usage))
    settled = settlement_of(CALL, Answered(parsed=Parsed(reply=reply, id="")), PRICES, REQUEST)
    assert (settled.outcome, money(settled)) == ("unknown", (0, 0, 0, None))
    assert settled.note.startswith("disputed: the server reports")
    assert from_stored(settled.answer) == reply, "the answer itself is as good as any other"
    useless = TryAgain(cause="invalid", detail="two choices", cost="answered", usage=usage)
    assert settlement_of(CALL, useless, PRICES, REQUEST).outcome == "unknown"

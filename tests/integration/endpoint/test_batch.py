"""Questions by file, by either interface: the answers and half the bill of questions one by one, whenever killed."""

import json
import subprocess
import sys
from dataclasses import replace

import batch_client
import pytest
from batch_client import asking, store
from batch_server import batch_server

from charter.artifacts.allowance import CallAllowance, allow
from charter.errors import DataError
from charter.inference.endpoint import batch_desk, rules
from charter.inference.endpoint.gate import SpendingGate
from charter.inference.endpoint.identity import Canaries, ModelChangedError
from charter.physics.identity_questions import QUESTIONS, REPEATS

HANG = 300
"""Seconds, only there to end a hang."""


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch):
    monkeypatch.setattr(rules, "FIRST_SECONDS", 0.002)
    monkeypatch.setattr(batch_desk, "GATHER_SECONDS", 0.01)


@pytest.fixture
def calls(tmp_path):
    with store(tmp_path) as opened:
        yield opened


@pytest.fixture(params=["chat", "messages"])
def provider(request):
    with batch_server(request.param) as (url, server):
        yield url, server


@pytest.fixture
def anthropic():
    with batch_server("messages") as (url, server):
        yield url, server


def question(number, server):
    return batch_client.question(number, server.api)


def ask(url, server, calls, place, numbers, **options):
    with asking(url, calls, place, api=server.api, **options) as pool:
        return pool.submit([question(number, server) for number in numbers]).result(HANG)


def begin(url, server, calls, place, count):
    """Have a batch begun that is under way when its client ends."""
    server.is_open = False
    with asking(url, calls, place, api=server.api) as pool:
        pool.submit([question(number, server) for number in range(count)])
        assert server.looked_at.wait(HANG)
    server.is_open = True


def lose_number(place):
    """Leave the slip as a process does that dies before the number of its batch is on disk."""
    (slip,) = (place / "slips").glob("*.json")
    slip.write_text(json.dumps({**json.loads(slip.read_text()), "batch_id": ""}))


def half_the_bill(server):
    return sum(100 * line["prompt_tokens"] + 400 * line["completion_tokens"] for line in server.requests)


def test_answers_are_those_of_single_questions_at_half_the_price(provider, calls, tmp_path):
    url, server = provider
    replies = ask(url, server, calls, tmp_path, range(40))
    assert ask(url, server, calls, tmp_path, range(40)) == replies, "stored answers are given without a request"
    assert len(server.batches) == 1
    sums = calls.totals().sums
    assert (sums.answered, sums.unknown, sums.settled_micro_usd) == (40, 0, half_the_bill(server))
    assert [route.endpoint for route in calls.totals().routes] == [f"{url}/batches"]
    (tmp_path / "single").mkdir()
    with store(tmp_path / "single") as single:
        one_by_one = ask(url, server, single, tmp_path, range(40), batch=False)
        assert single.totals().sums.settled_micro_usd == 2 * half_the_bill(server) - 2 * sums.settled_micro_usd
    assert [reply.text for reply in one_by_one] == [reply.text for reply in replies]
    assert list((tmp_path / "slips").iterdir()) == []


def test_a_batch_goes_on_without_the_process_that_began_it(provider, calls, tmp_path):
    url, server = provider
    begin(url, server, calls, tmp_path, 10)
    (slip,) = (tmp_path / "slips").glob("*.json")
    assert json.loads(slip.read_text())["batch_id"] in server.batches, "noted before it is waited for"
    assert len(ask(url, server, calls, tmp_path, range(12))) == 12
    assert (len(server.batches), len(server.requests)) == (2, 12)
    sums = calls.totals().sums
    assert (sums.answered, sums.unknown, sums.settled_micro_usd) == (12, 0, half_the_bill(server))
    assert list((tmp_path / "slips").iterdir()) == []


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_client_that_is_killed_asks_and_pays_once(provider, tmp_path, is_begun):
    url, server = provider
    server.is_open = False
    command = [sys.executable, batch_client.__file__, url, str(tmp_path), "20", server.api]
    client = subprocess.Popen(command)
    assert (server.looked_at if is_begun else server.begun).wait(HANG)
    client.kill()
    client.wait()
    if not is_begun:
        lose_number(tmp_path)
    server.is_open = True
    with store(tmp_path) as calls:
        assert len(ask(url, server, calls, tmp_path, range(20))) == 20
        assert (len(server.batches), len(server.requests)) == (1, 20)
        sums = calls.totals().sums
        assert (sums.answered, sums.unknown, sums.settled_micro_usd) == (20, 0, half_the_bill(server))
    assert list((tmp_path / "slips").glob("*.json")) == []


def test_a_file_that_was_never_handed_over_owes_nothing(provider, calls, tmp_path):
    url, server = provider
    begin(url, server, calls, tmp_path, 4)
    lose_number(tmp_path)
    server.batches.clear()
    ask(url, server, calls, tmp_path, range(4))
    sums = calls.totals().sums
    assert (sums.requests, sums.answered, sums.refused, sums.unknown) == (8, 4, 4, 0)
    assert sums.settled_micro_usd == half_the_bill(server)


def test_a_batch_whose_reply_is_lost_is_begun_once(provider, calls, tmp_path):
    url, server = provider
    server.loses_replies = 1
    ask(url, server, calls, tmp_path, range(5))
    assert (len(server.batches), len(server.requests)) == (1, 5)
    assert calls.totals().sums.settled_micro_usd == half_the_bill(server)


def test_a_batch_begun_twice_is_given_up_and_booked(calls, tmp_path, caplog):
    with batch_server("chat") as (url, server):
        server.loses_orders = 1
        ask(url, server, calls, tmp_path, range(5))
    assert (len(server.batches), server.cancelled) == (2, ["batch_0"])
    sums = calls.totals().sums
    assert (sums.requests, sums.answered, sums.unknown) == (10, 5, 5)
    assert sums.settled_micro_usd == half_the_bill(server)
    assert sums.most_micro_usd > 2 * sums.settled_micro_usd
    assert "the provider began the file twice; batch batch_0 is given up" in caplog.text


@pytest.mark.parametrize("is_own_there", [True, False])
def test_batches_of_others_are_not_taken_for_the_lost_one(provider, calls, tmp_path, monkeypatch, is_own_there):
    url, server = provider
    monkeypatch.setattr(batch_desk, "LISTED", 2)
    begin(url, server, calls, tmp_path, 4)
    lose_number(tmp_path)
    own = dict(server.batches)
    (tmp_path / "theirs").mkdir()
    with store(tmp_path / "theirs") as theirs:
        for first in (10, 20, 30):
            ask(url, server, theirs, tmp_path / "theirs", range(first, first + 4))
    if not is_own_there:
        del server.batches[next(iter(own))]
    server.requests.clear()
    ask(url, server, calls, tmp_path, range(4))
    assert len(server.batches) == 4
    sums = calls.totals().sums
    assert (sums.answered, sums.refused, sums.unknown) == (4, 0 if is_own_there else 4, 0)
    assert sums.settled_micro_usd == half_the_bill(server)


def test_what_a_batch_does_not_reach_or_fails_at_is_asked_again(provider, calls, tmp_path):
    url, server = provider
    server.answered_at_most, server.statuses = 6, {2: 429}
    server.errors = {2: {"type": "overloaded_error", "message": "Overloaded"}}
    replies = ask(url, server, calls, tmp_path, range(10))
    assert len({reply.text for reply in replies}) == 10
    server.requests = [line for line in server.requests if line["billed"]]
    assert len(server.requests) == 10
    sums = calls.totals().sums
    assert (sums.requests, sums.answered, sums.refused, sums.unknown) == (15, 10, 5, 0)
    assert sums.settled_micro_usd == half_the_bill(server)


def test_a_refused_file_owes_nothing_and_says_why(provider, calls, tmp_path):
    url, server = provider
    server.refuses = "no batches in your plan"
    with pytest.raises(DataError, match=r"no batches in your plan.*\n?.*leave serving.judge.batch out"):
        ask(url, server, calls, tmp_path, range(3))
    sums = calls.totals().sums
    assert (sums.refused, sums.unknown, sums.most_micro_usd) == (3, 0, 0)
    assert list((tmp_path / "slips").iterdir()) == []


def test_files_are_as_large_as_the_budget_allows(provider, calls, tmp_path):
    url, server = provider
    most = 100_000  # two requests at the most that they can cost
    allow(tmp_path, CallAllowance(micro_usd=most))
    gate = SpendingGate(tmp_path, spent_micro_usd=0)
    ask(url, server, calls, tmp_path, range(6), gate=gate)
    assert 1 < len(server.batches) <= 6
    assert calls.totals().sums.settled_micro_usd <= most


def test_a_busy_provider_says_when_to_hand_over_again(provider, calls, tmp_path, monkeypatch):
    url, server = provider
    server.busy, waits = 2, []
    monkeypatch.setattr(
        batch_desk, "wait_seconds", lambda key, attempt, retry_after, now: waits.append(retry_after) or 0.0
    )
    ask(url, server, calls, tmp_path, range(3))
    assert waits == ["17", "17"]
    assert len(server.batches) == 1


# ---- Anthropic's alone


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_nameless_batch_begun_twice_is_booked(anthropic, calls, tmp_path, caplog, has_ended):
    url, server = anthropic
    server.loses_orders, server.ends_late = 1, has_ended
    ask(url, server, calls, tmp_path, range(5))
    assert len(server.batches) == 2
    sums = calls.totals().sums
    assert (sums.requests, sums.answered, sums.unknown) == (10, 10 if has_ended else 5, 0 if has_ended else 5)
    assert sums.settled_micro_usd == half_the_bill(server)
    assert ("began the file twice" if has_ended else "may have begun the file twice") in caplog.text


def test_a_nameless_batch_of_others_is_not_booked(anthropic, calls, tmp_path):
    url, server = anthropic
    asked = {"model": "judge", "max_tokens": 8, "messages": [{"role": "user", "content": "theirs"}]}
    server.late = [{"requests": [{"custom_id": f"their-{number}", "params": asked} for number in range(5)]}]
    server.drops_orders, server.ends_late = 1, True
    ask(url, server, calls, tmp_path, range(5))
    assert len(server.batches) == 2
    server.requests = [line for line in server.requests if not line["id"].startswith("their-")]
    sums = calls.totals().sums
    assert (sums.requests, sums.answered, sums.unknown, sums.settled_micro_usd) == (5, 5, 0, half_the_bill(server))


def test_a_lost_order_among_those_of_others_is_unknown(anthropic, calls, tmp_path, caplog):
    url, server = anthropic
    (tmp_path / "theirs").mkdir()
    with store(tmp_path / "theirs") as theirs:
        ask(url, server, theirs, tmp_path / "theirs", range(10, 15))
    server.requests.clear()
    server.loses_orders = 1
    ask(url, server, calls, tmp_path, range(5))
    assert len(server.batches) == 3
    sums = calls.totals().sums
    assert (sums.requests, sums.answered, sums.unknown) == (10, 5, 5)
    assert sums.settled_micro_usd == half_the_bill(server)
    assert "no reply said whether the provider took it" in caplog.text


def test_a_prompt_refused_in_a_batch_costs_nothing(anthropic, calls, tmp_path):
    url, server = anthropic
    server.errors = {1: {"type": "invalid_request_error", "message": "prompt is too long: 250001 tokens > 200000"}}
    replies = ask(url, server, calls, tmp_path, range(3))
    assert [bool(reply.refusal) for reply in replies] == [False, True, False]
    sums = calls.totals().sums
    assert (sums.answered, sums.unknown, sums.settled_micro_usd) == (3, 0, half_the_bill(server))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"type": "invalid_request_error", "message": "`temperature` is deprecated for this model."}, "is deprecated"),
        ({"type": "billing_error", "message": "no means of payment"}, "no credit left"),
        ({"type": "permission_error", "message": "not for you"}, "says 403"),
    ],
)
def test_an_error_that_comes_again_ends_the_stage_unpaid(anthropic, calls, tmp_path, error, message):
    url, server = anthropic
    server.errors = dict.fromkeys(range(2), error)
    with pytest.raises(DataError, match=message):
        ask(url, server, calls, tmp_path, range(2))
    assert len(server.batches) == 1
    assert calls.totals().sums.most_micro_usd == 0


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_batch_with_lost_results_is_of_unknown_cost(anthropic, calls, tmp_path, caplog, is_lost):
    url, server = anthropic
    begin(url, server, calls, tmp_path, 4)
    if is_lost:
        lose_number(tmp_path)
    ((name, batch),) = server.batches.items()
    batch |= {"processing_status": "ended", "archived_at": batch["created_at"]}
    ask(url, server, calls, tmp_path, range(4))
    sums = calls.totals().sums
    assert (sums.answered, sums.unknown, sums.settled_micro_usd) == (4, 4, half_the_bill(server))
    assert sums.most_micro_usd > sums.settled_micro_usd
    assert f"{'it may have been' if is_lost else 'it was'} batch {name}" in caplog.text


def test_an_older_batch_is_not_waited_for(anthropic, calls, tmp_path):
    url, server = anthropic
    begin(url, server, calls, tmp_path, 5)
    lose_number(tmp_path)
    older = {"id": "old", "processing_status": "never ends", "request_counts": {"processing": 5}}
    server.batches = {"old": {**older, "created_at": "2026-01-01T00:00:00Z", "archived_at": None}}
    ask(url, server, calls, tmp_path, range(5))
    assert (len(server.batches), len(server.requests)) == (2, 5)


def test_identity_is_asked_directly_at_the_full_price(anthropic, calls, tmp_path):
    url, server = anthropic
    server.behaviour = replace(server.behaviour, weights="first")
    canaries = Canaries(
        declared="judge", served="judge", revision="ab" * 32, continues=False, is_message=True,
        gives_log_probabilities=False, directory=tmp_path / "models", every=50_000,
    )  # fmt: skip
    ask(url, server, calls, tmp_path, range(3), canaries=canaries)
    direct, by_file = sorted(calls.totals().routes, key=lambda route: route.endpoint)
    assert (direct.endpoint, direct.sums.requests) == (url, REPEATS * len(QUESTIONS))
    assert (by_file.endpoint, by_file.sums.requests) == (f"{url}/batches", 3)
    server.behaviour = replace(server.behaviour, weights="second")
    with pytest.raises(ModelChangedError):
        ask(url, server, calls, tmp_path, range(3, 6), canaries=canaries)
    assert len(server.batches) == 1, "nothing was put to the other model"

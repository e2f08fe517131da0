"""The client against a real server in a thread of this process: every fault, money, resume, secrets, hedging."""

import threading
import time
from concurrent.futures import CancelledError, wait
from dataclasses import replace

import pytest
from call_checks import unsettled
from fault_server import DRAWN, FAULTS, Behaviour, fault_server
from waiting import eventually

from charter.data.dataset import Turn
from charter.errors import DataError, StageError, UsageError
from charter.inference.endpoint import lanes, rules, settling
from charter.inference.endpoint import pool as pool_client
from charter.inference.endpoint.call import CallRequest
from charter.inference.endpoint.pool import QUEUE_PER_SLOT, EndpointPool
from charter.ledger.calls import CallStore
from charter.spec.project import Serving

PRICES = dict(usd_per_million_input_tokens=2.0, usd_per_million_output_tokens=8.0)
SECRET = "sk-9f8e7d6c5b4a"
HANG = 300
"""Seconds, only there to end a hang: a machine may stand still for seconds, and nothing here depends on its speed."""


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch):
    monkeypatch.setattr(rules, "FIRST_SECONDS", 0.002)
    monkeypatch.setattr(lanes, "FIRST_AWAY_SECONDS", 0.01)
    monkeypatch.setattr(lanes, "MOST_AWAY_SECONDS", 0.02)


@pytest.fixture
def calls(tmp_path):
    with CallStore.open(tmp_path / "calls.sqlite", run="r", stage="s", fingerprint="f") as store:
        yield store


def question(number, **fields):
    return CallRequest(
        declared="judge", model="judge", turns=(Turn("user", f"question {number}"),), max_new_tokens=8, **fields
    )


def ask(url, calls, requests, *, also=(), **fields):
    serving = Serving(endpoint=url, also_endpoints=also, **(PRICES | {"request_timeout": HANG} | fields))
    with EndpointPool.open("judge", serving, calls) as pool:
        return pool.submit(requests).result(HANG), pool.stats()


def bill(server):
    """What the provider's log comes to, in micro-USD."""
    return sum(2 * line["prompt_tokens"] + 8 * line["completion_tokens"] for line in server.requests)


def test_replies_come_in_the_order_of_the_requests_with_the_bill_to_the_micro_usd(calls):
    with fault_server() as (url, server):
        asked = [question(number) for number in range(40)]
        replies, stats = ask(url, calls, asked)
        again = ask(url, calls, [*asked[::-1], asked[0]])[0]
    assert len({reply.text for reply in replies}) == 40
    assert again == [*replies[::-1], replies[0]], "stored answers are given without a request"
    assert len(server.requests) == 40
    assert len({line["id"] for line in server.requests}) == 40
    sums = calls.totals().sums
    assert (sums.answered, sums.unknown, sums.settled_micro_usd) == (40, 0, bill(server))
    assert (stats.answers, stats.requests, stats.micro_usd) == (40, 40, bill(server))


def test_equal_requests_are_asked_once(calls):
    with fault_server() as (url, server):
        replies, _ = ask(url, calls, [question(1)] * 5)
    assert len(replies) == 5
    assert len(server.requests) == 1


def test_plain_text_and_log_probabilities(calls):
    with fault_server() as (url, _):
        text = CallRequest(
            declared="judge", model="judge", prompt="A or B? (", max_new_tokens=1, top_log_probabilities=5
        )
        replies, _ = ask(url, calls, [text, question(1, top_log_probabilities=5), question(2)])
    for reply in replies[:2]:
        assert {token for token, _ in reply.log_probabilities[0].top} == {" A", " B"}
    assert replies[2].log_probabilities == ()


@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in ("hang", "slow-loris")])
def test_after_a_fault_the_same_question_is_asked_again(calls, tmp_path, fault):
    with fault_server() as (url, _):
        wanted = ask(url, calls, [question(1)])[0]
    with (
        fault_server(Behaviour(script=["ok", fault])) as (url, server),
        CallStore.open(tmp_path / "other.sqlite", run="r", stage="s", fingerprint="f") as fresh,
    ):
        replies, stats = ask(url, fresh, [question(0), question(1)], concurrency=1)
        sums = fresh.totals().sums
    assert replies[1] == wanted[0]
    assert (len(server.requests), sum(stats.retries.values())) == (3, 1)
    assert stats.micro_usd == sums.settled_micro_usd, "a useless reply that is billed counts here too"
    assert sums.settled_micro_usd <= bill(server) <= sums.most_micro_usd
    assert (sums.requests, sums.answered + sums.refused + sums.unknown) == (3, 3)


@pytest.mark.parametrize("fault", ["hang", "slow-loris"])
def test_the_deadline_of_a_call_is_a_whole_one(calls, fault):
    with fault_server(Behaviour(script=[fault])) as (url, server):
        replies, stats = ask(url, calls, [question(1)], request_timeout=1.0, max_attempts=50)
    assert replies[0].text
    assert server.requests[0]["fault"] == fault
    # Once; more often only where the machine itself stands still for as long.
    assert calls.totals().sums.unknown == stats.retries["timeout"] >= 1
    assert set(stats.retries) <= {"timeout", "connect"}


@pytest.mark.parametrize("fault", ["endless", "swollen"])
def test_a_reply_longer_than_what_was_asked_for_is_not_read(calls, fault):
    with fault_server(Behaviour(script=[fault])) as (url, _):
        replies, stats = ask(url, calls, [question(1)])
    assert replies[0].text
    assert stats.retries == {"oversize": 1}


def test_a_fifth_of_errors_changes_no_answer(calls, tmp_path):
    asked = [question(number) for number in range(120)]
    with fault_server() as (url, _):
        wanted, _ = ask(url, calls, asked)
    with (
        fault_server(Behaviour(faults=0.2, seed=7)) as (url, server),
        CallStore.open(tmp_path / "other.sqlite", run="r", stage="s", fingerprint="f") as other,
    ):
        found, stats = ask(url, other, asked, max_attempts=12)
        sums = other.totals().sums
    assert found == wanted
    assert len({line["fault"] for line in server.requests}) > len(DRAWN) / 2
    assert sum(stats.retries.values()) == sums.requests - 120 > 15
    # A server that closes a connection while a request is on its way never sees that request: it counts as sent.
    lost = sums.requests - len(server.requests)
    assert 0 <= lost <= stats.retries["broken"]
    assert sums.settled_micro_usd <= bill(server) <= sums.most_micro_usd


def test_a_reply_that_comes_twice_is_not_taken_for_the_next_one(calls, tmp_path):
    asked = [question(number) for number in range(4)]
    with fault_server() as (url, _):
        wanted, _ = ask(url, calls, asked)
    with (
        fault_server(Behaviour(script=["late-echo"])) as (url, _),
        CallStore.open(tmp_path / "other.sqlite", run="r", stage="s", fingerprint="f") as other,
    ):
        found, stats = ask(url, other, asked, concurrency=1)
    assert found == wanted
    assert stats.invalid <= 1


def test_a_connection_that_is_one_reply_behind_is_closed(calls, tmp_path):
    asked = [question(number) for number in range(6)]
    with fault_server() as (url, _):
        wanted, _ = ask(url, calls, asked)
    with (
        fault_server(Behaviour(lags=True)) as (url, _),
        CallStore.open(tmp_path / "other.sqlite", run="r", stage="s", fingerprint="f") as other,
    ):
        found, stats = ask(url, other, asked, concurrency=1)
    assert found == wanted
    assert stats.invalid >= 2


def test_the_newer_name_of_the_limit_of_tokens_is_learnt(calls):
    with fault_server(Behaviour(limit_name="max_completion_tokens")) as (url, server):
        replies, stats = ask(url, calls, [question(number) for number in range(6)], concurrency=2)
    assert len(replies) == 6
    assert 1 <= stats.retries["spelling"] <= 2
    assert len(server.requests) == 6 + stats.retries["spelling"]


def test_requests_with_a_common_beginning_are_sent_one_after_the_other(calls):
    texts = [f"{beginning} {number}" for number in range(6) for beginning in ("one", "two", "three")]
    asked = [
        CallRequest(declared="judge", model="judge", turns=(Turn("user", text),), max_new_tokens=8) for text in texts
    ]
    with fault_server() as (url, server):
        replies, _ = ask(url, calls, asked, concurrency=1)
    assert server.prompts == sorted(texts)
    assert len({reply.text for reply in replies}) == len(texts)


def test_a_busy_server_is_given_less_at_once(calls):
    script = ["ok"] * 30 + ["429"] * 10
    with fault_server(Behaviour(script=script, seconds=0.002)) as (url, server):
        _, stats = ask(url, calls, [question(number) for number in range(60)], concurrency=16, max_attempts=20)
    assert stats.retries == {"busy": 10}
    assert stats.highest_at_once <= 16
    assert server.most_in_flight <= 16
    assert calls.totals().sums.refused == 10


@pytest.mark.parametrize(("fault", "is_less"), [("ok", False), ("429", True), ("hang", True)])
def test_a_server_that_turns_away_or_times_out_is_given_half(calls, fault, is_less):
    timeout = 1.0 if fault == "hang" else HANG
    with fault_server(Behaviour(script=["ok"] * 40 + [fault])) as (url, _):
        serving = Serving(endpoint=url, concurrency=16, request_timeout=timeout, max_attempts=50)
        with EndpointPool.open("judge", serving, calls) as pool:
            pool.submit([question(number) for number in range(42)]).result(HANG)
            (lane,) = pool._desk.lanes
            assert (lane.at_once.limit < 16) == is_less


@pytest.mark.parametrize(("fault", "is_closed"), [("429", False), ("429-after", True)])
def test_a_server_that_says_when_to_come_back_is_left_alone_by_all(calls, fault, is_closed):
    with (
        fault_server(Behaviour(script=[fault])) as (url, _),
        EndpointPool.open("judge", Serving(endpoint=url), calls) as pool,
    ):
        pool.submit([question(1)]).result(HANG)
        (lane,) = pool._desk.lanes
        assert (lane.closed_until > float("-inf")) == is_closed


def test_nothing_more_is_paid_for_a_batch_that_has_failed(calls):
    with fault_server(Behaviour(script=["400"])) as (url, server):
        with EndpointPool.open("judge", Serving(endpoint=url, concurrency=1), calls) as pool:
            with pytest.raises(DataError, match="the request is wrong"):
                pool.submit([question(number) for number in range(100)]).result(HANG)
            assert pool.submit([CallRequest(declared="judge", model="judge", prompt="later", max_new_tokens=8)]).result(
                HANG
            )
        assert len(server.requests) < 50, "those sent before the failure was on disk, and the later one"


def test_another_model_in_the_middle_stops_the_stage_and_its_answer_is_not_kept(calls):
    with fault_server(Behaviour(script=["ok", "wrong-model"])) as (url, server):
        with pytest.raises(DataError, match=r"'another-model', where .* was 'fault-judge-1' before"):
            ask(url, calls, [question(number) for number in range(5)], concurrency=1)
        assert len(server.requests) == 2
        sums = calls.totals().sums
        assert (sums.answered, sums.settled_micro_usd) == (2, bill(server))
        assert len(ask(url, calls, [question(number) for number in range(5)])[0]) == 5


def test_the_model_of_stored_answers_counts_too(calls):
    with fault_server() as (url, _):
        ask(url, calls, [question(1)])
    with fault_server(Behaviour(model="newer")) as (url, _), pytest.raises(DataError, match="the store of answers was"):
        ask(url, calls, [question(1), question(2)])


def test_refusals_are_answers(calls):
    with fault_server(Behaviour(script=["filtered", "refusal", "content-filter"])) as (url, server):
        replies, _ = ask(url, calls, [question(number) for number in range(3)], concurrency=1)
    assert [bool(reply.refusal) for reply in replies] == [True] * 3
    assert [reply.text for reply in replies] == [""] * 3
    assert len(server.requests) == 3
    sums = calls.totals().sums
    assert (sums.unknown, sums.refused) == (1, 0), "an error names no usage, and Azure may bill a filtered prompt"
    assert sums.settled_micro_usd < bill(server) <= sums.most_micro_usd


@pytest.mark.parametrize(("fault", "words"), [("400", "the request is wrong"), ("401", "api_key"), ("404", "/v1")])
def test_what_cannot_succeed_is_not_asked_again(calls, fault, words):
    with fault_server(Behaviour(script=[fault] * 9)) as (url, server):
        with pytest.raises(DataError, match=words):
            ask(url, calls, [question(1)])
        assert len(server.requests) == 1
    assert calls.totals().sums.refused == 1


def test_anthropics_messages_are_answered_and_billed(calls, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    turns = (Turn("system", "Be short."), Turn("user", "one"))
    asked = CallRequest(declared="judge", model="judge", turns=turns, max_new_tokens=8, is_message=True)
    with fault_server(Behaviour(script=["status-529", "ok"])) as (url, server):
        (reply,), stats = ask(url, calls, [asked], api="messages", api_key="env:JUDGE_KEY")
        assert reply.text.startswith("Answer ")
        assert [line["has_key"] for line in server.requests] == [True, True]
        assert stats.cached_tokens > 0
        sums = calls.totals().sums
        assert (sums.answered, sums.unknown, sums.settled_micro_usd) == (1, 1, bill(server))


def test_a_redirect_is_not_followed_with_the_key(calls, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    with fault_server() as (elsewhere, thief):
        with (
            fault_server(Behaviour(script=["redirect"], elsewhere=elsewhere)) as (url, server),
            pytest.raises(DataError, match="redirects are not followed"),
        ):
            ask(url, calls, [question(1)], api_key="env:JUDGE_KEY")
        assert server.requests[0]["has_key"]
        assert not thief.requests


def test_a_key_in_the_address_of_a_redirect_is_not_shown(calls, monkeypatch):
    """A proxy that wants people to sign in may send the whole request along."""
    key = "correct-horse-battery"  # nothing that any pattern knows
    monkeypatch.setenv("JUDGE_KEY", key)
    with (
        fault_server(Behaviour(script=["redirect"], elsewhere=f"http://sso.test/{key}")) as (url, _),
        pytest.raises(DataError, match="points to http://sso") as caught,
    ):
        ask(url, calls, [question(1)], api_key="env:JUDGE_KEY")
    assert key not in str(caught.value)


def test_a_question_without_an_answer_fails_the_stage_and_says_why(calls):
    with fault_server(Behaviour(faults=1.0)) as (url, server):
        with pytest.raises(StageError, match="gave no answer in 3 requests"):
            ask(url, calls, [question(1)], max_attempts=3)
        assert len(server.requests) == 3


def test_a_dead_server_is_left_out_and_its_work_goes_to_the_other(calls):
    with fault_server() as (url, server):
        replies, stats = ask("http://127.0.0.1:9/v1", calls, [question(n) for n in range(30)], also=(url,))
    assert len(replies) == 30
    assert len(server.requests) == 30
    assert set(stats.retries) <= {"connect"}
    assert calls.totals().sums.unknown == 0, "what was never sent is not billed"


def test_when_no_server_is_left_the_stage_fails(calls):
    with pytest.raises(StageError, match=r"no server answers for judge: http://127.0.0.1:9/v1 \(Client"):
        ask("http://127.0.0.1:9/v1", calls, [question(1)], max_attempts=3)


def test_a_server_that_comes_back_is_used_again(calls):
    with fault_server(Behaviour(script=["reset"] * 6)) as (url, server):
        replies, _ = ask(url, calls, [question(n) for n in range(6)], concurrency=2)
    assert len(replies) == 6
    assert server.seen["models"] >= 1, "its health was asked for"


@pytest.mark.parametrize("billed", [True, False])
def test_slow_requests_are_sent_twice_only_where_that_costs_nothing(calls, billed, monkeypatch):
    monkeypatch.setattr(pool_client, "LOOK_SECONDS", 0.02)
    behaviour = Behaviour(slow_every=30, slow_seconds=0.5 if billed else HANG / 2)
    with fault_server(behaviour) as (url, server):
        replies, stats = ask(url, calls, [question(number) for number in range(45)], concurrency=4, billed=billed)
    assert len(replies) == 45
    sums = calls.totals().sums
    if billed:
        assert (stats.hedges, len(server.requests)) == (0, 45)
    else:
        assert stats.hedges >= 1
        assert sums.requests == 45 + stats.hedges
        assert (sums.answered + sums.unknown + sums.refused, sums.most_micro_usd) == (sums.requests, 0)
        # A second request whose first one is answered before it is sent never reaches the server.
        assert 45 <= len(server.requests) <= sums.requests - sums.refused


def test_the_slower_of_two_requests_is_given_up_at_once(calls, monkeypatch):
    monkeypatch.setattr(pool_client, "LOOK_SECONDS", 0.02)
    with fault_server(Behaviour(slow_every=30, slow_seconds=10 * HANG)) as (url, _):
        serving = Serving(endpoint=url, concurrency=4, billed=False, request_timeout=10 * HANG)
        with EndpointPool.open("judge", serving, calls) as pool:
            pool.submit([question(number) for number in range(45)]).result(HANG)
            eventually(lambda: unsettled(calls) == (), "while the pool is open", seconds=HANG)
            assert pool.stats().hedges >= 1


def test_a_second_request_is_an_attempt_like_any_other(calls, monkeypatch):
    monkeypatch.setattr(pool_client, "LOOK_SECONDS", 0.02)
    with fault_server(Behaviour(slow_every=30, slow_seconds=0.5)) as (url, server):
        asked = [question(number) for number in range(45)]
        _, stats = ask(url, calls, asked, concurrency=4, billed=False, max_attempts=1)
    assert (stats.hedges, len(server.requests)) == (0, 45)


def test_what_is_given_up_before_it_was_sent_costs_nothing(calls, monkeypatch):
    begun, may_go_on, record = threading.Event(), threading.Event(), calls.record

    def slow(*rows):
        begun.set()
        assert may_go_on.wait(HANG)
        record(*rows)

    monkeypatch.setattr(calls, "record", slow)
    with fault_server() as (url, server):
        pool = EndpointPool.open("judge", Serving(endpoint=url, **PRICES), calls)
        future = pool.submit([question(1)])
        assert begun.wait(HANG)
        closing = threading.Thread(target=pool.close)
        closing.start()
        wait([future], HANG)
        may_go_on.set()
        closing.join()
        assert not server.requests
    sums = calls.totals().sums
    assert (sums.requests, sums.refused, sums.unknown) == (1, 1, 0)


def test_closing_gives_up_what_is_under_way_and_records_it_as_unknown(calls):
    with fault_server(Behaviour(script=["ok"] + ["hang"] * 9)) as (url, server):
        pool = EndpointPool.open("judge", Serving(endpoint=url, **PRICES), calls)
        assert pool.submit([question(0)]).result(HANG)
        future = pool.submit([question(number) for number in range(3)])
        eventually(lambda: len(server.requests) >= 3)
        pool.close()
        pool.close()
        with pytest.raises(CancelledError):
            future.result(0)
        with pytest.raises(UsageError, match="closed"):
            pool.submit([question(9)])
    sums = calls.totals().sums
    assert (sums.answered, sums.unknown) == (1, 2)
    assert unsettled(calls) == ()


def test_whoever_asks_faster_than_is_answered_has_to_wait(calls):
    serving = Serving(concurrency=1)
    with (
        fault_server(Behaviour(seconds=0.001)) as (url, _),
        EndpointPool.open("judge", replace(serving, endpoint=url), calls) as pool,
    ):
        last = [pool.submit([question(8 * batch + place) for place in range(8)]) for batch in range(6)][-1]
        assert pool.stats().answers >= 8 * 6 - QUEUE_PER_SLOT
        assert len(last.result(HANG)) == 8


@pytest.mark.parametrize("limit", [{"requests_per_minute": 600}, {"tokens_per_minute": 600 * 12}])
def test_a_limit_per_minute_is_kept(calls, limit):
    began = time.monotonic()
    with fault_server() as (url, _):
        replies, _ = ask(url, calls, [question(number) for number in range(14)], **limit)
    assert len(replies) == 14
    assert time.monotonic() - began > 0.2, "10 may be sent at once, the others one every tenth of a second"


def test_nothing_is_asked_when_the_intent_cannot_be_written(calls, monkeypatch):
    def full(*_):
        raise DataError("the disk is full")

    monkeypatch.setattr(calls, "record", full)
    with fault_server() as (url, server), pytest.raises(DataError, match="the disk is full"):
        ask(url, calls, [question(1)])
    assert not server.requests


def test_a_fault_of_our_own_is_told_to_all_who_wait(calls, monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(settling, "settlement_of", broken)
    with fault_server() as (url, _):
        pool = EndpointPool.open("judge", Serving(endpoint=url), calls)
        futures = [pool.submit([question(number)]) for number in range(3)]
        for future in futures:
            with pytest.raises(RuntimeError, match="a bug"):
                future.result(HANG)
        pool.close()


def test_a_stored_answer_that_cannot_be_read_is_an_error(calls, monkeypatch):
    monkeypatch.setattr(calls, "answers", lambda keys: dict.fromkeys(keys, "{}"))
    with fault_server() as (url, server), pytest.raises(DataError, match="a stored answer cannot be read"):
        ask(url, calls, [question(1)])
    assert not server.requests


def test_a_key_is_in_no_file_no_message_and_no_answer(calls, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("JUDGE_KEY", SECRET)
    serving = Serving(endpoint="http://127.0.0.1:9/v1", api_key="env:JUDGE_KEY", **PRICES)
    said = [repr(serving)]
    with fault_server(Behaviour(secret=SECRET, script=["ok", "500", "truncated"])) as (url, server):
        replies, stats = ask(url, calls, [question(number) for number in range(5)], api_key="env:JUDGE_KEY")
        assert all(line["has_key"] for line in server.requests)
    said += [repr(replies), repr(stats)]
    with fault_server(Behaviour(script=["401"])) as (url, _), pytest.raises(DataError) as caught:
        ask(url, calls, [question(9)], api_key="env:JUDGE_KEY")
    said += [str(caught.value), *capfd.readouterr()]
    assert "env:JUDGE_KEY" in said[3]
    calls.close()
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert any(b"(hidden)" in content for content in files), "the server repeated the key in its answers"
    for text in [*said, *(content.decode("latin-1") for content in files)]:
        assert SECRET not in text


def test_a_pool_needs_an_address_and_its_key(calls):
    with pytest.raises(UsageError, match="names no endpoint"):
        EndpointPool.open("judge", Serving(), calls)
    with pytest.raises(UsageError, match="NOT_THERE is not set"):
        EndpointPool.open("judge", Serving(endpoint="http://x/v1", api_key="env:NOT_THERE"), calls)


def test_signs_of_life_are_given_and_an_empty_batch_is_done_at_once(calls):
    told = []
    with fault_server() as (url, _):
        serving = Serving(endpoint=url, requests_per_minute=60_000, tokens_per_minute=6e6)
        with EndpointPool.open("judge", serving, calls, tell=lambda: told.append(1)) as pool:
            assert pool.submit([]).result(0) == []
            pool.submit([question(number) for number in range(20)]).result(HANG)
    assert told

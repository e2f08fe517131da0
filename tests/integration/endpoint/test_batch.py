"""Questions by file: the answers and half the bill of questions one by one, whenever the client is killed."""

import subprocess
import sys

import batch_client
import pytest
from batch_client import asking, question, store
from batch_server import batch_server

from charter.artifacts.allowance import allow
from charter.errors import DataError
from charter.inference.endpoint import batch_desk, rules
from charter.inference.endpoint.gate import SpendingGate

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


def ask(url, calls, place, numbers, **options):
    with asking(url, calls, place, **options) as pool:
        return pool.submit([question(number) for number in numbers]).result(HANG)


def half_the_bill(server):
    return sum(100 * line["prompt_tokens"] + 400 * line["completion_tokens"] for line in server.requests)


def test_answers_are_those_of_single_questions_at_half_the_price(calls, tmp_path):
    with batch_server() as (url, server):
        replies = ask(url, calls, tmp_path, range(40))
        assert ask(url, calls, tmp_path, range(40)) == replies, "stored answers are given without a request"
        assert len(server.batches) == 1
        sums = calls.totals().sums
        assert (sums.answered, sums.unknown, sums.settled_micro_usd) == (40, 0, half_the_bill(server))
        assert [route.endpoint for route in calls.totals().routes] == [f"{url}/batches"]
        (tmp_path / "single").mkdir()
        with store(tmp_path / "single") as single:
            assert [reply.text for reply in ask(url, single, tmp_path, range(40), batch=False)] == [
                reply.text for reply in replies
            ]
    assert list((tmp_path / "slips").iterdir()) == []


def test_a_batch_goes_on_without_the_process_that_began_it(calls, tmp_path):
    with batch_server() as (url, server):
        server.is_open = False
        with asking(url, calls, tmp_path) as pool:
            pool.submit([question(number) for number in range(10)])
            assert server.looked_at.wait(HANG)
        server.is_open = True
        assert len(ask(url, calls, tmp_path, range(12))) == 12
        assert (len(server.batches), len(server.requests)) == (2, 12)
        sums = calls.totals().sums
        assert (sums.answered, sums.unknown, sums.settled_micro_usd) == (12, 0, half_the_bill(server))
    assert list((tmp_path / "slips").iterdir()) == []


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_client_that_is_killed_asks_and_pays_once(tmp_path, is_begun):
    with batch_server() as (url, server):
        server.is_open = False
        client = subprocess.Popen([sys.executable, batch_client.__file__, url, str(tmp_path), "20"])
        assert (server.looked_at if is_begun else server.begun).wait(HANG)
        client.kill()
        client.wait()
        if not is_begun:  # as if it had died before the number was on disk
            (slip,) = (tmp_path / "slips").glob("*.json")
            slip.write_text(slip.read_text().replace("batch_0", ""))
        server.is_open = True
        with store(tmp_path) as calls:
            assert len(ask(url, calls, tmp_path, range(20))) == 20
            assert (len(server.batches), len(server.requests)) == (1, 20)
            sums = calls.totals().sums
            assert (sums.answered, sums.unknown, sums.settled_micro_usd) == (20, 0, half_the_bill(server))


def test_a_file_that_was_never_handed_over_owes_nothing(calls, tmp_path):
    with batch_server() as (url, server):
        server.is_open = False
        with asking(url, calls, tmp_path) as pool:
            pool.submit([question(number) for number in range(4)])
            assert server.looked_at.wait(HANG)
        (slip,) = (tmp_path / "slips").glob("*.json")
        slip.write_text(slip.read_text().replace("batch_0", ""))
        server.batches.clear()
        server.is_open = True
        ask(url, calls, tmp_path, range(4))
        sums = calls.totals().sums
        assert (sums.requests, sums.answered, sums.refused, sums.unknown) == (8, 4, 4, 0)
        assert sums.settled_micro_usd == half_the_bill(server)


def test_a_batch_whose_reply_is_lost_is_begun_once(calls, tmp_path):
    with batch_server() as (url, server):
        server.loses_replies = 1
        ask(url, calls, tmp_path, range(5))
        assert (len(server.batches), len(server.requests)) == (1, 5)
        assert calls.totals().sums.settled_micro_usd == half_the_bill(server)


def test_what_a_batch_does_not_reach_or_fails_at_is_asked_again(calls, tmp_path):
    with batch_server() as (url, server):
        server.answered_at_most, server.statuses = 6, {2: 429}
        replies = ask(url, calls, tmp_path, range(10))
        assert len({reply.text for reply in replies}) == 10
        billed = [line for line in server.requests if line["billed"]]
        assert len(billed) == 10
        sums = calls.totals().sums
        server.requests = billed
        assert (sums.requests, sums.answered, sums.refused, sums.unknown) == (15, 10, 5, 0)
        assert sums.settled_micro_usd == half_the_bill(server)


def test_a_refused_file_owes_nothing_and_says_why(calls, tmp_path):
    with batch_server() as (url, server):
        server.refuses = "no batches in your plan"
        with pytest.raises(DataError, match=r"no batches in your plan.*\n?.*leave serving.judge.batch out"):
            ask(url, calls, tmp_path, range(3))
    sums = calls.totals().sums
    assert (sums.refused, sums.unknown, sums.most_micro_usd) == (3, 0, 0)
    assert list((tmp_path / "slips").iterdir()) == []


def test_files_are_as_large_as_the_budget_allows(calls, tmp_path):
    most = 80_000  # two requests at the most that they can cost
    allow(tmp_path, most)
    with batch_server() as (url, server):
        gate = SpendingGate(tmp_path, spent_micro_usd=0)
        ask(url, calls, tmp_path, range(6), gate=gate)
        assert 1 < len(server.batches) <= 6
    assert calls.totals().sums.settled_micro_usd <= most

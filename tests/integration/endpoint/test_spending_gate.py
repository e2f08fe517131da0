"""Requests stop before an allowance is passed, in truth and in the ledger, and go on where more is allowed."""

import pytest
from call_checks import checked_totals
from fault_server import Behaviour, fault_server

from charter.artifacts.checkpoints import allow, allowance
from charter.data.dataset import Turn
from charter.errors import BudgetError
from charter.inference.endpoint import gate, lanes, rules
from charter.inference.endpoint.call import CallRequest
from charter.inference.endpoint.gate import SpendingGate
from charter.inference.endpoint.pool import EndpointPool
from charter.ledger.calls import CallStore
from charter.spec.project import Serving

PRICES = {"usd_per_million_input_tokens": 2.0, "usd_per_million_output_tokens": 8.0}
QUESTIONS = [
    CallRequest(declared="judge", model="judge", turns=(Turn("user", f"question {number}"),), max_new_tokens=8)
    for number in range(40)
]
SECONDS = 120


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch):
    monkeypatch.setattr(gate, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(gate, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(rules, "FIRST_SECONDS", 0.002)
    monkeypatch.setattr(lanes, "FIRST_AWAY_SECONDS", 0.01)


@pytest.fixture
def calls(tmp_path):
    with CallStore.open(tmp_path / "calls.sqlite", run="r", stage="s", fingerprint="f") as store:
        yield store


def bill(server):
    """What the provider's log comes to, in micro-USD."""
    return sum(2 * line["prompt_tokens"] + 8 * line["completion_tokens"] for line in server.requests)


def ask(url, calls, directory):
    serving = Serving(endpoint=url, concurrency=8, max_attempts=30, **PRICES)
    passing = SpendingGate(directory, spent_micro_usd=calls.totals().sums.most_micro_usd)
    with EndpointPool.open("judge", serving, calls, gate=passing) as pool:
        return pool.submit(QUESTIONS).result(SECONDS)


@pytest.mark.parametrize("faults", [0.0, 0.3])
def test_calls_never_pass_their_allowance(calls, tmp_path, faults):
    with fault_server(Behaviour(faults=faults, seed=3)) as (url, server):
        for limit in (300, 500, 1_000):
            allow(tmp_path, limit)
            with pytest.raises(BudgetError, match="that the budget leaves them"):
                ask(url, calls, tmp_path)
            sums = checked_totals(calls).sums
            assert sums.settled_micro_usd <= bill(server) <= limit
            assert sums.most_micro_usd <= limit
        assert bill(server) > 0
        allow(tmp_path, None)
        assert len(ask(url, calls, tmp_path)) == len(QUESTIONS)
        sums = checked_totals(calls).sums
        assert sums.requests == len(server.requests), "a request that was turned away leaves no trace"
        assert sums.settled_micro_usd <= bill(server) <= sums.most_micro_usd


def test_more_is_spent_as_soon_as_it_is_allowed(calls, tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "GRACE_SECONDS", SECONDS)
    allow(tmp_path, 1_000)
    serving = Serving(concurrency=8, **PRICES)
    with fault_server() as (url, _):
        passing = SpendingGate(tmp_path, spent_micro_usd=0)
        given = Serving(**{**serving.__dict__, "endpoint": url})
        with EndpointPool.open("judge", given, calls, gate=passing) as pool:
            replies = pool.submit(QUESTIONS)
            assert not replies.done()
            allow(tmp_path, 1_000_000)
            assert len(replies.result(SECONDS)) == len(QUESTIONS)


def test_without_a_bound_that_can_be_read_there_is_none(tmp_path):
    assert allowance(tmp_path) is None
    (tmp_path / "allowance.json").write_text("[]")
    assert allowance(tmp_path) is None

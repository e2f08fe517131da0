"""More than seventy kinds of faults: no answer is wrong, and the provider's bill is within the ledger's interval."""

import pytest
from call_checks import checked_totals
from fault_server import (
    FAULTS,
    LAST_STATUSES,
    STATUSES,
    STATUSES_OF_ANSWERS,
    STATUSES_OF_REFUSAL,
    Behaviour,
    fault_server,
)

from charter.data.dataset import Turn
from charter.errors import CharterError
from charter.inference.endpoint import lanes, rules
from charter.inference.endpoint.call import CallRequest
from charter.inference.endpoint.pool import EndpointPool
from charter.ledger.calls import CallStore
from charter.spec.project import Serving

KINDS = (*(name for name in FAULTS if name not in ("hang", "slow-loris")), *STATUSES, *STATUSES_OF_ANSWERS)
KINDS = (*KINDS, *STATUSES_OF_REFUSAL, *LAST_STATUSES)
SAMPLE = (
    "no-usage",
    "status-203-billed",
    "status-409-billed",
    "status-500-billed",
    "status-503",
    "status-525",
    "status-422",
)
PRICES = {"usd_per_million_input_tokens": 2.0, "usd_per_million_output_tokens": 8.0}
QUESTIONS = [
    CallRequest(declared="judge", model="judge", turns=(Turn("user", f"question {number}"),), max_new_tokens=8)
    for number in range(12)
]


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch):
    monkeypatch.setattr(rules, "FIRST_SECONDS", 0.002)
    monkeypatch.setattr(lanes, "FIRST_AWAY_SECONDS", 0.01)
    monkeypatch.setattr(lanes, "MOST_AWAY_SECONDS", 0.02)


def texts(url, calls):
    serving = Serving(endpoint=url, concurrency=3, max_attempts=30, **PRICES)
    with EndpointPool.open("judge", serving, calls) as pool:
        return [reply.text for reply in pool.submit(QUESTIONS).result(120)]


def outcome(kind, path, wanted):
    """Whether an answer is wrong, and whether the provider's bill lies outside the ledger's interval."""
    script = [kind if number % 3 == 1 else "ok" for number in range(15)]
    with (
        fault_server(Behaviour(script=script)) as (url, server),
        CallStore.open(path, run="r", stage="s", fingerprint="f") as calls,
    ):
        try:
            is_wrong = texts(url, calls) != wanted
            assert kind not in LAST_STATUSES
        except CharterError:
            is_wrong = kind not in LAST_STATUSES
        truth = sum(2 * line["prompt_tokens"] + 8 * line["completion_tokens"] for line in server.requests)
        sums = checked_totals(calls).sums
    return is_wrong, not sums.settled_micro_usd <= truth <= sums.most_micro_usd


@pytest.mark.parametrize(
    "kinds", [pytest.param(SAMPLE, id="sample"), pytest.param(KINDS, id="all", marks=pytest.mark.thorough)]
)
def test_no_fault_makes_a_wrong_answer_or_a_wrong_bill(kinds, tmp_path):
    assert len(KINDS) > 70
    with (
        fault_server() as (url, _),
        CallStore.open(tmp_path / "good.sqlite", run="r", stage="s", fingerprint="f") as calls,
    ):
        wanted = texts(url, calls)
    ends = {kind: outcome(kind, tmp_path / f"{kind}.sqlite", wanted) for kind in kinds}
    assert [kind for kind, (is_wrong, _) in ends.items() if is_wrong] == []
    assert [kind for kind, (_, is_outside) in ends.items() if is_outside] == []

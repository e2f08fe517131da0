"""Budgets in real runs: stopped at a checkpoint and never before one, held, told by a real webhook once."""

import json
import os

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("aiosmtpd")

from alert_servers import webhook

from charter.ledger import Ledger
from charter.run.alerts import AlertBook

DEAR = "resources: {price: 100000}\n"
"""27.8 USD per second."""
ELSEWHERE = "e" * 64


def write(work, text):
    with (work.root / "charter.yaml").open("a") as file:
        file.write(text)


def events(work, kind):
    path = work.root / "run" / "events.jsonl"
    whole = path.read_text().split("\n")[:-1] if path.exists() else []
    return [event for event in map(json.loads, whole) if event["event"] == kind]


def spend(work, usd):
    """An hour of another machine, as an attempt that has ended: it counts like any other."""
    with Ledger.open(work.root / "run" / "ledger.sqlite") as ledger:
        attempt = ledger.begin(
            run="count", stage="a", kind="pretrain", fingerprint=ELSEWHERE, at=0.0,
            price_micro_usd_per_hour=usd * 1_000_000,
        )  # fmt: skip
        ledger.end(attempt, at=3600.0, outcome="killed", step=0)


def outcomes(work):
    with Ledger.open(work.root / "run" / "ledger.sqlite") as ledger:
        ledger.check_sums()
        rows = [it for it in ledger.attempts() if it.fingerprint != ELSEWHERE]
        return [(it.stage, it.outcome, it.last_step, it.kept_step) for it in rows]


def test_a_budget_waits_for_a_checkpoint_though_the_grace_is_over(work):
    write(work, "resources: {price: 1}\nbudget: {limit: 20}\n")
    work.edit("data: chat, steps: 6, checkpoint_every: 2}\n  b:", "data: chat, steps: 6, checkpoint_every: 9}\n  b:")
    process = work.start("--grace", "0", COUNTING_SECONDS_PER_STEP="3")
    work.wait_for(lambda: any((work.root / "run" / "stages").glob("a-*/progress.json")))
    spend(work, 30)
    over = work.wait(process)
    assert over.code == 4, over.err
    ((stage, outcome, last, kept),) = outcomes(work)
    assert (stage, outcome in ("interrupted", "killed")) == ("a", True)  # when it has saved, the grace is over
    assert kept == last > 0  # a kill at once, as the grace of 0 s asks, would lose the step that it is at


def test_a_stage_over_its_own_limit_ends_the_run_with_its_name(work):
    write(work, f"{DEAR}budget: {{limit: 1000000, stages: {{a: 30}}}}\n")
    over = work.run(COUNTING_HOLD="a:3")
    assert over.code == 4
    assert "stage a has cost" in over.err
    assert "raise budget.stages.a" in over.err


def test_owner_and_tags_are_in_every_row_and_their_limits_bind(work):
    write(work, f"owner: ann\ntags: {{team: a}}\n{DEAR}budget: {{limit: 1000000, owners: {{ann: 30}}}}\n")
    over = work.run(COUNTING_HOLD="a:3")
    assert over.code == 4
    assert "owner ann has cost" in over.err
    with Ledger.open(work.root / "run" / "ledger.sqlite") as ledger:
        assert {(it.owner, it.tags) for it in ledger.attempts()} == {("ann", '{"team": "a"}')}
        assert [part.key for part in ledger.sums(by=["owner", "tag:team"])] == [{"owner": "ann", "tag:team": "a"}]


def test_alerts_of_a_run_arrive_once_though_it_is_started_again(work):
    with webhook() as hook:
        os.environ["CHARTER_TEST_HOOK"] = hook.url
        try:
            write(work, f"{DEAR}budget: {{limit: 50}}\nalerts: {{webhook: 'env:CHARTER_TEST_HOOK'}}\n")
            assert work.run(COUNTING_HOLD="a:3").code == 4
            assert work.run().code == 4
            hook.wait_for(3)
            work.wait_for(lambda: not AlertBook(work.root / "run").unsent(("webhook",)))
        finally:
            del os.environ["CHARTER_TEST_HOOK"]
        shares = [body for body in hook.posted if body["event"] == "budget_warning"]
        assert len({body["key"] for body in hook.posted}) == len(hook.posted)
        assert 1 <= len(shares) <= 4
        assert any(body["event"] == "run_stopped" and "over its limit" in body["text"] for body in hook.posted)
    files = [path for path in (work.root / "run").rglob("*") if path.is_file()]
    assert not any(b"SECRET-PATH" in path.read_bytes() for path in files)


def test_on_exceed_warn_only_tells(work):
    write(work, f"{DEAR}budget: {{limit: 1, on_exceed: warn}}\n")
    process = work.start(COUNTING_HOLD="a:3")
    work.wait_for(lambda: events(work, "budget_warning"))
    work.release("a")
    assert work.wait(process).code == 0
    assert not events(work, "budget_hold")

"""Budgets in real runs: stopped at a checkpoint and never before one, held, told by a real webhook once."""

import json
import os

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("aiosmtpd")

from alert_servers import webhook

from charter.ledger import Ledger

DEAR = "resources: {price: 100000}\n"
"""27.8 USD per second."""


def write(work, text):
    with (work.root / "charter.yaml").open("a") as file:
        file.write(text)


def events(work, kind):
    lines = (work.root / "run" / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def outcomes(work):
    with Ledger.open(work.root / "run" / "ledger.sqlite") as ledger:
        ledger.check_sums()
        return [(it.stage, it.outcome, it.last_step, it.kept_step) for it in ledger.attempts()]


def test_a_budget_waits_for_a_checkpoint_though_the_grace_is_over(work):
    write(work, f"{DEAR}budget: {{limit: 20}}\n")
    over = work.run("--grace", "0", COUNTING_SECONDS_PER_STEP="3")
    assert over.code == 4, over.err
    ((stage, outcome, last, kept),) = outcomes(work)
    assert (stage, outcome) == ("a", "interrupted")
    assert kept == last  # a kill at once, as the grace of 0 s asks, would lose the step that it is at


def test_a_stage_over_its_own_limit_ends_the_run_with_its_name(work):
    write(work, f"{DEAR}budget: {{limit: 1000000, stages: {{a: 30}}}}\n")
    over = work.run(COUNTING_SECONDS_PER_STEP="1")
    assert over.code == 4
    assert "stage a has cost" in over.err
    assert "raise budget.stages.a" in over.err


def test_owner_and_tags_are_in_every_row_and_their_limits_bind(work):
    write(work, f"owner: ann\ntags: {{team: a}}\n{DEAR}budget: {{limit: 1000000, owners: {{ann: 30}}}}\n")
    over = work.run(COUNTING_SECONDS_PER_STEP="1")
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
            assert work.run(COUNTING_SECONDS_PER_STEP="1").code == 4
            assert work.run().code == 4
            hook.wait_for(3)
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
    assert work.run(COUNTING_SECONDS_PER_STEP="0.6").code == 0
    assert events(work, "budget_warning")
    assert not events(work, "budget_hold")

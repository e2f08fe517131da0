"""What a run that pays for calls promises, wherever its ledger is; a test module gives `paying` and imports all."""

import csv
import json

CALL, BOUND, STEPS, STAGES = 400_000, 1_000_000, 6, 3


def report(work):
    done = work.charter("cost", "report", "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)


def run(work, *arguments, **environment):
    log = work.root / "provider.jsonl"
    return work.run(*arguments, COUNTING_MODULE="calling_stage", CALLING_LOG=str(log), **environment)


def billed(work):
    """What the provider has billed, in micro-USD."""
    lines = (work.root / "provider.jsonl").read_text().splitlines()
    return round(sum(json.loads(line)["cost_usd"] for line in lines) * 1e6)


def test_calls_are_in_the_report_the_export_and_the_sums(paying):
    done = run(paying)
    assert done.code == 0, done.err
    found = report(paying)
    calls = found["actual"]["calls"]
    assert (calls["requests"], calls["answered"], calls["unknown"]) == (STAGES * STEPS, STAGES * STEPS, 0)
    assert (calls["prompt_tokens"], calls["cached_tokens"]) == (1800, 1080)
    assert found["actual"]["micro_usd"] == found["actual"]["micro_usd_most"] == STAGES * STEPS * CALL == billed(paying)
    parts = [*found["attempts"], *found["calls"]]
    assert sum(part["micro_usd"] or 0 for part in parts) == found["actual"]["micro_usd"]
    assert sum(stage["actual"]["micro_usd"] for stage in found["stages"]) == found["actual"]["micro_usd"]
    target = paying.root / "focus.csv"
    assert paying.charter("cost", "export", "--focus", str(target)).code == 0
    rows = list(csv.DictReader(target.open()))
    assert sum(row["PricingUnit"] == "Tokens" for row in rows) == STAGES
    assert round(sum(float(row["EffectiveCost"] or 0) for row in rows) * 1e6) == billed(paying)
    assert "Calls to servers" in paying.charter("cost", "report").out


def test_after_a_kill_the_bill_lies_in_its_interval_and_reconciling_makes_it_exact(paying):
    done = run(paying, CALLING_KILL="b:3")
    assert done.code == 0, done.err
    assert done.names("stage_restart") == ["b"]
    actual = report(paying)["actual"]
    assert actual["calls"]["unknown"] == 1
    assert actual["micro_usd_most"] - actual["micro_usd"] == BOUND
    assert actual["micro_usd"] <= billed(paying) <= actual["micro_usd_most"]
    assert billed(paying) == (STAGES * STEPS + 1) * CALL
    log = str(paying.root / "provider.jsonl")
    dry = json.loads(paying.charter("cost", "reconcile", log, "--dry-run", "--json").out)
    assert (dry["changed"], dry["after"]) == (False, dry["before"])
    told = json.loads(paying.charter("cost", "reconcile", log, "--json").out)
    assert {item["kind"]: item["count"] for item in told["differences"]} == {"agrees": 18, "unknown_billed": 1}
    assert told["after"]["micro_usd"] == told["after"]["micro_usd_most"] == billed(paying)
    assert report(paying)["actual"]["micro_usd"] == billed(paying)
    again = json.loads(paying.charter("cost", "reconcile", log, "--json").out)
    assert (again["changed"], again["before"]) == (False, told["after"])


def test_a_run_that_goes_on_asks_only_what_has_no_answer(paying):
    assert run(paying, CALLING_KILL="b:3").code == 0
    paid = billed(paying)
    (paying.stage_dir("c") / "record.json").unlink()
    again = run(paying)
    assert (again.code, again.names("stage_started")) == (0, ["c"])
    assert billed(paying) == paid


def test_the_budget_counts_calls_and_what_unknown_ones_can_cost(paying):
    assert run(paying, "--only", "a", CALLING_KILL="a:6").code == 0
    settled, most = STEPS * CALL / 1e6, (STEPS * CALL + BOUND) / 1e6
    limit = 3.1
    assert settled < limit < most
    paying.edit("name: count", f"name: count\nbudget: {{limit: {limit}}}")
    before = billed(paying)
    second = run(paying)
    assert second.code == 4, second.err
    assert f"may have cost more than its limit of $3.10: ${settled:.2f}, and at most $3.40" in second.err
    assert billed(paying) == before


def test_a_limit_is_heeded_while_a_stage_is_calling(paying):
    paying.edit("name: count", "name: count\nbudget: {limit: 0.5}")
    done = run(paying, COUNTING_HOLD="a:3")
    assert done.code == 4, done.err
    assert billed(paying) < STEPS * CALL


def test_the_log_of_somebody_else_is_refused(paying):
    assert run(paying).code == 0
    log = paying.root / "other.csv"
    log.write_text("request_id,cost_usd\nabc,1.0\n")
    done = paying.charter("cost", "reconcile", str(log))
    assert done.code == 2
    assert "none of the 1 requests in other.csv is a call of this run" in done.err
    assert report(paying)["actual"]["micro_usd"] == billed(paying)

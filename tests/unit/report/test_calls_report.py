"""Calls to servers in the cost report: part of the cost, with the interval that the bill lies in."""

import io
from dataclasses import replace

from rich.console import Console

from charter.ledger import ApiUsage
from charter.ledger.call import CallSums, RouteTotals
from charter.report.cost import cost_json
from charter.report.cost_text import print_cost
from charter.report.overview import overview
from charter.report.read import read_run


def usage(stage, *, settled, unknown=0, unpriced=0, endpoint="http://a/v1"):
    sums = CallSums(
        requests=10, answered=9, unknown=1, unpriced=unpriced, prompt_tokens=1000, cached_tokens=600,
        completion_tokens=50, settled_micro_usd=settled, unknown_micro_usd=unknown,
    )  # fmt: skip
    route = RouteTotals(endpoint=endpoint, model="m", first_at=1.0, last_at=2.0, sums=sums)
    return ApiUsage(run="cai-tiny", stage=stage, fingerprint="f", store_id="1", route=route)


def with_calls(path, *items, limit=None):
    return replace(read_run(path), usage=items, budget_limit_usd=limit)


def text_of(run):
    output = io.StringIO()
    print_cost(overview(run), Console(file=output, width=140))
    return output.getvalue()


def test_attempts_and_calls_add_up_to_stages_and_the_total(finished):
    calls = [
        usage("label", settled=250_000, unknown=40_000),
        usage("label", settled=1, endpoint="http://b/v1"),
        usage("critique", settled=7),
    ]
    run = with_calls(finished, *calls)
    found, without = cost_json(overview(run), run.accounted, run.usage), cost_json(overview(read_run(finished)), ())
    assert found["actual"]["micro_usd"] == without["actual"]["micro_usd"] + 250_008
    assert found["actual"]["micro_usd_most"] == found["actual"]["micro_usd"] + 40_000
    assert sum(part["micro_usd"] or 0 for part in (*found["attempts"], *found["calls"])) == found["actual"]["micro_usd"]
    for name in ("micro_usd", "micro_usd_most"):
        assert sum(stage["actual"][name] or 0 for stage in found["stages"]) == found["actual"][name]
    assert [call["endpoint"] for call in found["calls"]] == ["http://a/v1", "http://b/v1", "http://a/v1"]
    assert found["forecast"]["micro_usd"] == found["actual"]["micro_usd"]


def test_a_stage_that_the_plan_does_not_know_is_shown_with_its_calls(finished):
    run = with_calls(finished, usage("gone", settled=5))
    assert overview(run).stages[-1].name == "gone"


def test_calls_without_a_price_are_no_cost_of_zero(unpriced):
    run = with_calls(unpriced, usage("label", settled=0, unpriced=10))
    found = cost_json(overview(run), run.accounted, run.usage)
    assert found["calls"][0]["usd"] is None
    assert found["actual"]["usd"] is None


def test_the_budget_counts_unknown_calls_and_the_text_says_so(finished):
    run = with_calls(finished, usage("label", settled=1_000_000, unknown=2_000_000), limit=3.0)
    view = overview(run)
    budget = cost_json(view, run.accounted, run.usage)["budget"]
    assert budget["state"] == "exceeded"
    assert round(budget["spent_usd_most"] - budget["spent_usd"], 6) == 2.0
    text = text_of(run)
    assert "Calls to servers" in text
    assert "and at most $2.00 for calls that are not settled" in text


def test_without_calls_there_is_no_table_of_them(finished):
    assert "Calls to servers" not in text_of(read_run(finished))

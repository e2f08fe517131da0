import time

import pytest

from charter.errors import BudgetError
from charter.ledger import ApiUsage, Ledger
from charter.ledger.call import CallSums, RouteTotals
from charter.pipeline.attempt import price_micro_usd_per_hour
from charter.pipeline.budget import check_budget, limit_passed, share_warning, spent_usd, stops_at_limit
from charter.pipeline.events import Events
from charter.spec.project import Budget, Project, Resources


def project(limit=None, on_exceed="checkpoint_and_stop", **resources):
    budget = None if limit is None else Budget(limit=limit, on_exceed=on_exceed)
    return Project(name="p", models={}, pipeline={}, budget=budget, resources=Resources(**resources))


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "ledger.sqlite") as opened:
        yield opened


def spend(ledger, *, hours, price_usd):
    price = None if price_usd is None else round(price_usd * 1e6)
    now = time.time()
    attempt = ledger.begin(
        run="p", stage="s", kind="sft", fingerprint="f", at=now, monotonic=0.0, price_micro_usd_per_hour=price
    )
    ledger.end(attempt, at=now, monotonic=hours * 3600, outcome="done")


def test_what_was_spent_is_the_sum_over_attempts(ledger):
    spend(ledger, hours=2, price_usd=3)
    spend(ledger, hours=1, price_usd=4)
    assert spent_usd(project(), ledger) == 10.0


def test_without_a_price_nothing_is_known_and_no_limit_is_passed(ledger):
    spend(ledger, hours=2, price_usd=None)
    assert spent_usd(project(limit=1), ledger) is None
    assert not limit_passed(project(limit=1), None)


def call_usage(*, settled, unknown):
    sums = CallSums(requests=1, settled_micro_usd=round(settled * 1e6), unknown_micro_usd=round(unknown * 1e6))
    route = RouteTotals(endpoint="http://a/v1", model="m", first_at=1.0, last_at=2.0, sums=sums)
    return ApiUsage(run="p", stage="s", fingerprint="f", store_id="1", route=route)


def test_calls_count_with_the_most_that_unknown_ones_can_cost(ledger, tmp_path):
    ledger.record_usage([call_usage(settled=2, unknown=0.5)])
    assert spent_usd(project(), ledger) == 2.5
    spend(ledger, hours=1, price_usd=3)
    assert spent_usd(project(), ledger) == 5.5
    with pytest.raises(BudgetError, match=r"p has cost \$5.50, over its limit of \$5.00"):
        check_budget(project(limit=5), ledger, Events(tmp_path, []))


def test_calls_without_a_price_leave_the_cost_unknown(ledger):
    ledger.record_usage([call_usage(settled=0, unknown=0)])
    assert spent_usd(project(limit=1), ledger) is None


def test_a_run_does_not_start_over_its_limit(ledger, tmp_path):
    spend(ledger, hours=2, price_usd=3)
    events = Events(tmp_path, [])
    check_budget(project(limit=6), ledger, events)
    with pytest.raises(BudgetError, match=r"p has cost \$6.00, over its limit of \$5.00"):
        check_budget(project(limit=5), ledger, events)
    check_budget(project(limit=5, on_exceed="warn"), ledger, events)


def test_each_share_of_the_limit_is_told_once():
    told, messages = 0.0, []
    for spent in (None, 1.0, 4.9, 5.0, 6.0, 9.5, 9.9, 10.0, 10.1):
        warning = share_warning(project(limit=10), spent, told)
        if warning is not None:
            told, message = warning
            messages.append(message)
    assert messages == [
        f"p has cost {usd}, {share} % of its limit or more" for usd, share in (("$5.00", 50), ("$9.50", 90))
    ]
    assert share_warning(project(), 5.0, 0.0) is None


def test_only_the_asked_for_policy_stops():
    assert stops_at_limit(project(limit=1))
    assert not stops_at_limit(project(limit=1, on_exceed="warn"))
    assert not stops_at_limit(project())


def test_stages_side_by_side_do_not_bill_the_machine_twice():
    assert price_micro_usd_per_hour(project(price=3.0)) == 3_000_000
    assert price_micro_usd_per_hour(project(price=3.0, max_parallel_stages=2)) == 1_500_000
    assert price_micro_usd_per_hour(project()) is None

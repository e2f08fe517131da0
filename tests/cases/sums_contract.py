"""What the kept sums of a ledger promise, on any database; a test module gives `where` and imports all of it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charter.errors import DataError, UsageError
from charter.ledger import ApiUsage, Ledger, stage_totals
from charter.ledger.call import CallSums, RouteTotals
from charter.ledger.stored import OtherCharge
from charter.ledger.sums import total_of

DAY = 86_400.0
STAGE = dict(run="demo", stage="sft", kind="sft", fingerprint="f" * 64)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["sft", "ppo"]),
        st.none() | st.integers(0, 2),
        st.sampled_from(["done", "failed", "interrupted", "killed", None]),
        st.integers(0, 100),
        st.none() | st.integers(0, 10**8),
        st.floats(0, 3 * DAY),
        st.none() | st.integers(0, 10**9),
        st.sampled_from([None, "ann", "ben"]),
        st.booleans(),
    ),
    max_size=8,
)


@pytest.fixture
def ledger(where):
    with Ledger.open(where) as opened:
        yield opened


def usage(*, settled, unknown=0, requests=1, last_at=10.0, **changes):
    sums = CallSums(requests=requests, settled_micro_usd=settled, unknown_micro_usd=unknown)
    route = RouteTotals(endpoint="http://judge:8000/v1", model="m", first_at=1.0, last_at=last_at, sums=sums)
    return ApiUsage(run="demo", stage="label", fingerprint="f", store_id="1", route=route, **changes)


def test_sums_are_those_of_the_attempts_whatever_happened(ledger):
    @settings(max_examples=20, deadline=None)
    @given(STEPS)
    def check(history):
        run = f"run {len(ledger.attempts())}"
        for index, (stage, shard, outcome, step, price, seconds, idle, owner, settled) in enumerate(history):
            at = index * 10.0
            attempt = ledger.begin(
                **STAGE | {"stage": stage, "run": run}, at=at, first_step=step // 2, price_micro_usd_per_hour=price,
                shard=shard, owner=owner, count=1 + index,
            )  # fmt: skip
            ledger.heartbeat(attempt, at=at + seconds, step=step, idle_milliseconds=idle, energy_joules=idle)
            if outcome is not None:
                ledger.end(attempt, at=at + seconds, outcome=outcome, step=step, tokens=step)
            if outcome is not None and settled:
                ledger.settle(attempt, started_at=at + 1, duration_milliseconds=round(seconds) * 1000)
        expected = ledger.totals(run=run)
        assert ledger.total(run=run).totals == expected
        for by in (["stage"], ["day"], ["owner", "day"], ["outcome"], ["accelerator", "stage", "fingerprint"]):
            assert total_of(ledger.sums(run=run, by=by)).totals == expected
        by_stage = {part.key["stage"]: part.totals for part in ledger.sums(run=run, by=["stage"])}
        assert by_stage == stage_totals(ledger.accounted(run=run))
        ledger.check_sums()
        kept = ledger.sums(run=run, by=["day"])
        ledger.rebuild_sums()
        assert ledger.sums(run=run, by=["day"]) == kept

    check()


def test_an_attempt_over_midnight_counts_on_both_days(ledger):
    attempt = ledger.begin(**STAGE, at=DAY - 3600.0, price_micro_usd_per_hour=3_000_000, tags={"team": "a"})
    ledger.end(attempt, at=DAY + 7200.0, outcome="done", step=3, tokens=300)
    days = [(part.key["day"], part.micro_usd, part.totals.tokens) for part in ledger.sums(by=["day"])]
    assert days == [("1970-01-01", 3_000_000, 100), ("1970-01-02", 6_000_000, 200)]
    (first,) = ledger.sums(until="1970-01-01")
    assert first.usd == 3.0
    assert total_of(ledger.sums(since="1970-01-02")).usd == 6.0
    assert [dict(part.key) for part in ledger.sums(by=["tag:team"])] == [{"tag:team": "a"}]


def test_a_running_attempt_counts_up_to_its_last_heartbeat_on_the_days_it_ran(ledger):
    attempt = ledger.begin(**STAGE, at=DAY - 3600.0, price_micro_usd_per_hour=3_000_000, owner="ann")
    ledger.heartbeat(attempt, at=DAY + 3600.0, step=1)
    assert [part.micro_usd for part in ledger.sums(by=["day"])] == [3_000_000, 3_000_000]
    assert total_of(ledger.sums(owner="ann", since="1970-01-02")).micro_usd == 3_000_000
    assert ledger.sums(owner="ben") == ledger.sums(with_running=False) == ()
    assert ledger.attempt_counts(run="demo") == {("sft", "f" * 64): 1}
    assert [item.attempt_id for item in ledger.running()] == [attempt]


def test_shards_do_not_make_each_other_lost(ledger):
    for shard in range(3):
        attempt = ledger.begin(**STAGE, at=0.0, shard=shard)
        ledger.end(attempt, at=10.0, outcome="killed", step=10, kept_step=5)
    again = ledger.begin(**STAGE, at=20.0, shard=1, first_step=5)
    ledger.end(again, at=25.0, outcome="done", step=10)
    assert [item.lost_milliseconds for item in ledger.accounted()] == [5000, 5000, 5000, 0]
    assert ledger.total().totals.lost_to_kills_milliseconds == 15_000
    assert [item.attempt.number for item in ledger.recent(limit=2)] == [3, 4]
    assert ledger.recent(limit=2)[0].lost_milliseconds == 5000


def test_an_engines_record_takes_the_place_of_what_was_measured(ledger):
    attempt = ledger.begin(**STAGE, at=1000.4, count=4, price_micro_usd_per_hour=2_000_000)
    with pytest.raises(UsageError, match="still runs"):
        ledger.settle(attempt, started_at=1000.0, duration_milliseconds=1)
    ledger.end(attempt, at=1003.9, outcome="done", step=1)
    for _ in range(2):
        ledger.settle(attempt, started_at=1000.0, duration_milliseconds=3_600_000, job_id="17", nodes="node[1-4]")
    (found,) = ledger.accounted()
    assert (found.attempt.clock, found.attempt.job_id, found.attempt.nodes) == ("engine", "17", "node[1-4]")
    assert (found.attempt.ended_at, found.cost_micro_usd) == (4600.0, 8_000_000)
    assert ledger.total().micro_usd == 8_000_000
    ledger.check_sums()
    with pytest.raises(UsageError, match="has no attempt 99"):
        ledger.settle(99, started_at=0.0, duration_milliseconds=1)
    with pytest.raises(UsageError, match="cannot have taken -1 ms"):
        ledger.settle(attempt, started_at=0.0, duration_milliseconds=-1)


def test_calls_count_on_the_day_they_came_to_be_known(ledger):
    ledger.record_usage([usage(settled=5, unknown=2)])
    ledger.record_usage([usage(settled=5, unknown=2)])
    ledger.record_usage([usage(settled=9, requests=2, last_at=DAY + 5, owner="ann", tags='{"team": "a"}')])
    ledger.record_usage([usage(settled=9, requests=2, last_at=DAY + 5, owner="ann", tags='{"team": "a"}')])
    (all_of,) = ledger.sums()
    assert (all_of.micro_usd, all_of.most_micro_usd, all_of.calls.requests) == (9, 9, 2)
    assert [part.key["infra"] for part in ledger.sums(by=["infra"])] == ["judge"]
    assert total_of(ledger.sums(by=["tag:team"])).micro_usd == 9
    (found,) = ledger.usage()
    assert (found.owner, found.tags) == ("ann", '{"team": "a"}')
    ledger.check_sums()


def test_other_charges_are_part_of_the_sums(ledger):
    disk = OtherCharge(
        run="demo", category="Storage", service="Object storage", provider="aws", resource="s3://bucket",
        started_at=0.0, ended_at=DAY, quantity="1.5", unit="GB-Months", micro_usd=34_500, owner="ann",
    )  # fmt: skip
    ledger.record_other([disk])
    assert ledger.other_charges(run="demo") == (disk,)
    (part,) = ledger.sums(by=["market", "owner"])
    assert (dict(part.key), part.micro_usd) == ({"market": "storage", "owner": "ann"}, 34_500)
    ledger.check_sums()


def test_sums_that_have_changed_are_noticed_and_can_be_made_anew(ledger):
    attempt = ledger.begin(**STAGE, at=0.0, price_micro_usd_per_hour=3_600_000)
    ledger.end(attempt, at=10.0, outcome="done", step=1)
    with ledger._database.transaction() as connection:
        connection.exec_driver_sql("UPDATE spend_sums SET micro_usd = micro_usd + 64")
    with pytest.raises(DataError, match="do not match their check"):
        ledger.sums()
    with ledger._database.transaction() as connection:
        connection.exec_driver_sql("UPDATE spend_sums SET stage = 'sfu', micro_usd = micro_usd - 64")
    with pytest.raises(DataError, match="not those of its rows"):
        ledger.check_sums()
    ledger.rebuild_sums()
    ledger.check_sums()
    assert ledger.total().micro_usd == 10_000


def test_what_is_not_kept_is_said(ledger):
    with pytest.raises(UsageError, match=r"no sums by 'gpu'; it keeps them by .*accelerator.*tag:NAME"):
        ledger.sums(by=["gpu"])

"""What samples of stored bytes promise, on any database; a test module gives `where` and imports all of it."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from charter.errors import DataError
from charter.ledger import Ledger
from charter.ledger.stored import (
    MILLISECONDS_PER_MONTH,
    RUN_DIRECTORY,
    StoredSample,
    by_place,
    charges_by_month,
    micro_usd_of,
)
from charter.ledger.sums import total_of
from charter.units import GB

DAY = 86_400_000
BUCKET = "s3://bucket/path"
SAMPLES = st.lists(
    st.builds(
        StoredSample,
        run=st.sampled_from(["demo", "other"]),
        place=st.sampled_from([RUN_DIRECTORY, BUCKET]),
        at_milliseconds=st.integers(0, 70).map(lambda day: day * DAY // 2 + day % 3),
        bytes=st.integers(0, 10**15),
        sent_bytes=st.integers(0, 10**12),
        price_micro_usd_per_gb_month=st.sampled_from([None, 0, 23_000, 12_345]),
        owner=st.sampled_from(["", "ann"]),
    ),
    max_size=12,
)


def sample(**changes):
    values = dict(run="demo", place=BUCKET, at_milliseconds=0, bytes=GB, price_micro_usd_per_gb_month=23_000)
    return StoredSample(**values | dict(provider="aws", price_source="list") | changes)


@pytest.fixture
def ledger(where):
    with Ledger.open(where) as opened:
        yield opened


def test_a_month_of_a_gigabyte_costs_its_price(ledger):
    ledger.record_stored([sample(), sample(at_milliseconds=MILLISECONDS_PER_MONTH, bytes=0)])
    (part,) = ledger.sums(by=["market", "infra"])
    assert dict(part.key) == {"market": "storage", "infra": "aws"}
    assert part.micro_usd == sum(day.micro_usd for day in ledger.sums(by=["day"])) == 30 * 756 + 315
    assert abs(part.micro_usd - 23_000) <= 31 / 2, "each of 31 days is rounded once"
    ledger.check_sums()


def test_what_nobody_has_looked_at_since_is_not_charged(ledger):
    ledger.record_stored([sample()])
    assert total_of(ledger.sums()).micro_usd == 0
    assert [item.bytes for item in ledger.stored(run="demo")] == [GB]


def test_a_resumed_run_on_another_machine_goes_on_with_the_same_directory(ledger):
    month = MILLISECONDS_PER_MONTH
    there = dict(place=RUN_DIRECTORY, price_micro_usd_per_gb_month=1_000_000)
    ledger.record_stored([sample(**there, host="a"), sample(**there, host="b", at_milliseconds=month)])
    ledger.record_stored([sample(**there, host="b", at_milliseconds=2 * month)])
    assert ledger.total(run="demo").micro_usd == pytest.approx(2_000_000, abs=31), (
        "one GB for two months, not one on each machine"
    )


def test_samples_are_a_set_whatever_their_order_and_however_often_they_come(ledger):
    @settings(max_examples=8, deadline=None, phases=(Phase.generate,))  # shrinking would fill the same ledger for ever
    @given(SAMPLES, st.randoms(use_true_random=False), st.integers(1, 4))
    def check(samples, random, parts):
        run = f"run {len(ledger.stored())}"
        ours = [StoredSample(**{**vars(item), "run": f"{run} {item.run}"}) for item in samples]
        shuffled = [*ours, *ours]
        random.shuffle(shuffled)
        for start in range(parts):
            ledger.record_stored(shuffled[start::parts])
        for name in {item.run for item in ours}:
            mine = {item for item in ours if item.run == name}
            assert set(ledger.stored(run=name)) == mine
            truth = sum(micro_usd_of(series) for series in by_place(mine).values())
            assert ledger.total(run=name).micro_usd == truth
            assert sum(part.micro_usd for part in ledger.sums(run=name, by=["day", "owner"])) == truth
            assert sum(charge.micro_usd or 0 for charge in charges_by_month(mine)) == truth
        ledger.check_sums()
        kept = ledger.sums(by=["day", "run"])
        ledger.rebuild_sums()
        assert ledger.sums(by=["day", "run"]) == kept

    check()


def test_a_day_whose_money_comes_to_nothing_is_in_no_sum(ledger):
    """A later look that says that nothing was held takes the day's money off again."""
    ledger.record_stored([sample(), sample(at_milliseconds=DAY, bytes=0)])
    assert [part.micro_usd for part in ledger.sums(by=["day"])] == [756]
    ledger.record_stored([sample(at_milliseconds=1, bytes=0)])
    assert ledger.sums(by=["day"]) == ()
    ledger.rebuild_sums()
    assert ledger.sums(by=["day"]) == ()


def test_a_sample_that_has_changed_is_noticed(ledger):
    ledger.record_stored([sample()])
    with ledger._database.transaction() as connection:
        connection.exec_driver_sql("UPDATE stored_samples SET bytes = bytes + 1")
    with pytest.raises(DataError, match="does not match its check"):
        ledger.stored()
    with pytest.raises(DataError, match="does not match its check"):
        ledger.record_stored([sample(at_milliseconds=5)])

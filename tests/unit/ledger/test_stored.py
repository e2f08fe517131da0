"""Stored bytes over time: the step function, its cuts, its charges, and the samples in a file."""

import csv
import io
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sqlalchemy")

from stored_contract import *  # noqa: F403
from stored_contract import BUCKET, DAY, SAMPLES, sample

from charter.ledger.focus import Account, rows_of_other
from charter.ledger.focus_check import check_focus, to_csv
from charter.ledger.stored import (
    PRICED_BYTE_MILLISECONDS,
    RUN_DIRECTORY,
    by_place,
    byte_milliseconds,
    charges_by_month,
    days_of,
    micro_usd_of,
    next_month,
    steps,
)
from charter.units import GB

MOMENTS = st.integers(-DAY, 80 * DAY)


@pytest.fixture
def where(tmp_path):
    return tmp_path / "ledger.sqlite"


@given(SAMPLES, st.lists(MOMENTS, min_size=2, max_size=6))
def test_bytes_over_time_are_the_same_however_time_is_cut(samples, moments):
    cuts = sorted(moments)
    for series in by_place(samples).values():
        parts = [byte_milliseconds(series, since=a, until=b) for a, b in pairwise(cuts)]
        assert sum(parts) == byte_milliseconds(series, since=cuts[0], until=cuts[-1])


@given(SAMPLES, st.randoms(use_true_random=False))
def test_they_are_what_adding_up_moment_by_moment_gives(samples, random):
    samples = [replaced(item, at_milliseconds=item.at_milliseconds % 40) for item in samples]
    random.shuffle(samples)
    for series in by_place(samples).values():
        told = {at: max((it.bytes for it in series if it.at_milliseconds == at), default=None) for at in range(60)}
        held, now = 0, 0
        for at in range(60):
            now = now if told[at] is None else told[at]
            held += now
        assert byte_milliseconds(series, since=0, until=60) == held


@given(SAMPLES)
def test_days_add_up_and_each_is_rounded_once(samples):
    for series in by_place(samples).values():
        found = days_of(series)
        first, last = steps(series)[0].at_milliseconds, steps(series)[-1].at_milliseconds
        assert sum(day.byte_milliseconds for day in found) == byte_milliseconds(series, since=first, until=last)
        assert all(day.start_milliseconds // DAY == (day.end_milliseconds - 1) // DAY for day in found)
        exact = sum(
            Fraction((day.terms.price_micro_usd_per_gb_month or 0) * day.byte_milliseconds, PRICED_BYTE_MILLISECONDS)
            for day in found
        )
        assert abs(micro_usd_of(series) - exact) <= Fraction(len(found), 2)


@given(SAMPLES)
def test_charges_are_rows_of_focus_that_keep_its_rules(samples):
    charges = list(charges_by_month(samples))
    rows = list(rows_of_other(charges, Account(identifier="demo")))
    header, *lines = csv.reader(io.StringIO(to_csv(rows)))
    assert check_focus(header, [dict(zip(header, line, strict=True)) for line in lines]) == () or not rows
    assert {row["ServiceCategory"] for row in rows} <= {"Storage", "Networking"}
    stored = [row for row in rows if row["ServiceCategory"] == "Storage"]
    truth = sum(
        byte_milliseconds(series, since=series[0].at_milliseconds, until=series[-1].at_milliseconds)
        for series in by_place(samples).values()
    )
    counted = sum(Decimal(str(row["PricingQuantity"])) for row in stored)
    assert abs(counted - Decimal(truth) / PRICED_BYTE_MILLISECONDS) <= Decimal("1e-9") * len(stored)
    sent = sum(Decimal(str(row["PricingQuantity"])) for row in rows if row["ServiceCategory"] == "Networking")
    assert sent * GB == sum(item.sent_bytes for item in {*samples} if item.place == BUCKET)


def test_a_charge_is_divided_at_the_month_and_says_where_its_price_is_from():
    end_of_january = next_month(0)
    charges = charges_by_month(
        [
            sample(at_milliseconds=end_of_january - 10 * DAY, price_source="list", price_as_of="2026"),
            sample(at_milliseconds=end_of_january + 20 * DAY, bytes=0),
        ]
    )
    january, february = charges
    assert (january.ended_at, february.started_at) == (end_of_january / 1000, end_of_january / 1000)
    assert (february.micro_usd or 0) == pytest.approx(2 * (january.micro_usd or 0), abs=30)
    assert (january.price_source, january.price_as_of, january.service) == ("list", "2026", "Object storage")


def test_without_a_price_bytes_are_charged_at_nothing_and_say_so():
    rows = list(
        rows_of_other(
            charges_by_month(
                sample(place=RUN_DIRECTORY, at_milliseconds=at, price_micro_usd_per_gb_month=None) for at in (0, DAY)
            ),
            Account(identifier="demo"),
        )
    )
    (row,) = rows
    assert (row["x_IsPriced"], row["EffectiveCost"], row["ServiceSubcategory"]) == ("false", 0, "File Storage")


def replaced(item, **changes):
    return type(item)(**{**vars(item), **changes})

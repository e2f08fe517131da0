"""What calls cost in the ledger: replaced, never added twice; a store that has lost calls is noticed."""

import csv
import io
from dataclasses import replace
from decimal import Decimal

import pytest

pytest.importorskip("sqlalchemy")

from call_contract import SCOPE, answered, call

from charter.errors import DataError
from charter.ledger import CallBooks, Ledger
from charter.ledger.calls import CallStore
from charter.ledger.focus import Account, rows_of_usage, stage_usage, usage_charge, usage_sums
from charter.ledger.focus_check import to_csv


def usage_of(path, numbers, *, settled):
    """The usage after these calls, of which some are settled."""
    with CallStore.open(path, **SCOPE) as store:
        store.intend([call(number) for number in numbers])
        store.settle([answered(number) for number in numbers if number in settled])
    with CallBooks.open(path) as books:
        return books.usage(checked=True)


def test_newer_totals_replace_older_ones(tmp_path):
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        for settled in ({1}, {1, 2}, {1, 2}):
            usage = usage_of(tmp_path / "calls.sqlite", [1, 2, 3], settled=settled)
            ledger.record_usage(usage)
            assert ledger.usage() == usage
        sums = usage_sums(ledger.usage(run="demo"))
        assert (sums.settled_micro_usd, sums.unknown_micro_usd, sums.requests) == (80, 100, 3)
        assert ledger.usage(run="another") == ()
        assert stage_usage(ledger.usage()) == {"label": sums}


def test_a_store_that_is_made_anew_adds_to_what_the_one_before_it_cost(tmp_path):
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.record_usage(usage_of(tmp_path / "calls.sqlite", [1], settled={1}))
        (tmp_path / "calls.sqlite").unlink()
        ledger.record_usage(usage_of(tmp_path / "calls.sqlite", [1], settled={1}))
        assert usage_sums(ledger.usage()).settled_micro_usd == 80


def test_a_store_with_fewer_calls_than_it_had_is_refused(tmp_path):
    usage = usage_of(tmp_path / "calls.sqlite", [1, 2], settled=set())
    before = (tmp_path / "calls.sqlite").read_bytes()
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.record_usage(usage_of(tmp_path / "calls.sqlite", [3], settled=set()))
        (tmp_path / "calls.sqlite").write_bytes(before)
        with pytest.raises(DataError, match="are 2 by their own record, and were 3 before"):
            ledger.record_usage(usage)


def test_the_charge_is_in_focus_columns_and_exact(tmp_path):
    (usage,) = usage_of(tmp_path / "calls.sqlite", [1, 2], settled={1})
    (row,) = csv.DictReader(io.StringIO(to_csv(list(rows_of_usage([usage], Account(identifier="p"))))))
    assert (row["ChargeCategory"], row["PricingUnit"], row["PricingQuantity"]) == ("Usage", "Tokens", "35")
    assert (row["EffectiveCost"], row["x_UnknownMicroUsd"]) == ("0.000040", "100")
    assert round(Decimal(row["ContractedCost"]), 9) == Decimal("0.000040")
    assert (row["ProviderName"], row["SkuId"], row["x_EstimateOrActual"]) == ("a", "m", "estimate")


def test_what_is_priced_counts_beside_calls_without_a_price(tmp_path):
    (usage,) = usage_of(tmp_path / "calls.sqlite", [1, 2], settled={1, 2})
    for unpriced, settled, cost in ((0, 80, 80), (1, 40, 40), (2, 0, None), (0, 0, 0)):
        sums = replace(usage.route.sums, unpriced=unpriced, settled_micro_usd=settled)
        charge = usage_charge(replace(usage, route=replace(usage.route, sums=sums)))
        assert (charge["EffectiveCost"], charge["ListCost"], charge["x_Unpriced"]) == (cost, cost, unpriced)

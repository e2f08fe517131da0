from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from charter.catalog.offer import Market, Offer, read_offers
from charter.catalog.price_book import PriceBook, offers, read_price_book
from charter.catalog.price_lists import difference
from charter.catalog.rows import Provenance
from charter.errors import CatalogError
from charter.plan.project_plan import price_book

TODAY = date(2026, 11, 20)
HEADER = "cloud,instance_type,accelerator,count,region,ondemand_usd_h,as_of,confidence,source,valid_from,valid_until"


def offer(
    price=23.5, *, as_of="2026-11-01", confidence="seen", cloud="lambda", kind="gpu_8x_h100_sxm5", **more
) -> Offer:
    facts = {
        "accelerator": "H100-SXM-80GB",
        "count": 8,
        "region": "all",
        "on_demand_usd_per_hour": price,
        "spot_usd_per_hour": None,
        "spot_min_usd_per_hour": None,
        "reserved_1y_usd_per_hour": None,
        "reserved_3y_usd_per_hour": None,
        "vcpus": None,
        "host_memory_bytes": None,
        "network_bytes_per_second": None,
        "local_disk_bytes": None,
        "note": "",
        "provenance": Provenance(source="test", as_of=as_of, confidence=confidence),
    }
    return Offer(cloud=cloud, instance_type=kind, **(facts | more))


def on_demand(book: PriceBook, **narrow) -> dict[str, float | None]:
    return {o.instance_type: o.on_demand_usd_per_hour for o in book.offers("H100", **narrow)}


def test_bundled_book_holds_all_offers_and_storage():
    book = PriceBook.bundled()
    assert len(book.rows) == 139
    assert book.offers("H100", cloud="aws") == offers("H100", cloud="aws")
    assert len(book.storage) == 63
    assert book.issues == ()


def test_prices_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "prices.csv").write_bytes(b"\x9f" + HEADER.encode())
    for read in (lambda: read_price_book(tmp_path / "prices.csv", today=TODAY), lambda: price_book(tmp_path, None)):
        with pytest.raises(CatalogError, match="is not UTF-8 text"):
            read()


def test_a_newer_row_replaces_the_same_offer_and_an_older_one_does_not():
    book = PriceBook.bundled()
    assert on_demand(book.with_rows([offer()]), cloud="lambda")["gpu_8x_h100_sxm5"] == 23.5
    assert on_demand(book.with_rows([offer(as_of="2024-01-01")]), cloud="lambda")["gpu_8x_h100_sxm5"] == 31.92
    assert len(book.with_rows([offer()]).rows) == len(book.rows) + 1, "history is kept"


@given(st.permutations([2023, 2024, 2025, 2026]))
def test_the_newest_date_wins_in_whatever_order_rows_come(years):
    rows = [offer(float(year), as_of=f"{year}-06-01", kind="new") for year in years]
    book = PriceBook.bundled().with_rows(rows)
    assert on_demand(book, cloud="lambda")["new"] == 2026.0


def test_a_newer_snapshot_without_spot_is_not_offered_as_spot():
    before = offer(spot_usd_per_hour=8.0, as_of="2026-01-01", cloud="new")
    book = PriceBook.bundled().with_rows([before, offer(cloud="new")])
    assert book.offers("H100", cloud="new", market=Market.SPOT) == ()


def test_a_contract_takes_the_place_of_list_prices_in_its_market_only():
    contract = offer(8 * 2.35, cloud="aws", kind="by contract", confidence="contract")
    found = {o.instance_type: o for o in PriceBook.bundled().with_rows([contract]).offers("H100", cloud="aws")}
    assert found["by contract"].is_contract
    assert found["p5.48xlarge"].on_demand_usd_per_hour is None
    assert found["p5.48xlarge"].spot_usd_per_hour is not None
    assert found["p5.4xlarge"].on_demand_usd_per_hour is not None, "another count is another machine"


def test_a_contract_for_one_region_leaves_the_others():
    contract = offer(18.8, cloud="aws", kind="p5.48xlarge", confidence="contract", region="us-east-1")
    book = PriceBook.bundled().with_rows([contract])
    by_region = {o.region: o.on_demand_usd_per_hour for o in book.offers("H100", cloud="aws") if o.count == 8}
    assert by_region["us-east-1"] == 18.8
    assert by_region["us-east-2"] == 55.04


def test_a_contract_outside_its_dates_is_left_out_and_told():
    ended = offer(1.0, confidence="contract", kind="ended", valid_until="2026-11-19")
    coming = offer(1.0, confidence="contract", kind="coming", valid_from="2027-01-01")
    valid = offer(18.8, confidence="contract", kind="valid", valid_from="2026-01-01", valid_until="2026-11-20")
    book = PriceBook.bundled().with_rows([ended, coming, valid], today=TODAY)
    assert {"ended", "coming"}.isdisjoint(on_demand(book, cloud="lambda"))
    assert on_demand(book, cloud="lambda")["valid"] == 18.8
    assert sorted(issue.message.split(";")[0] for issue in book.issues) == [
        "the contract begins on 2027-01-01",
        "the contract ended on 2026-11-19",
    ]


def test_an_added_row_keeps_the_network_of_its_machine():
    added = offer(60.0, cloud="aws", kind="p5.48xlarge", region="sa-east-1")
    (found,) = PriceBook.bundled().with_rows([added]).offers("H100", cloud="aws", region="sa-east-1")
    assert found.network_bytes_per_second == 400e9
    assert found.vcpus == 192


@pytest.mark.parametrize(
    ("as_of", "stale"),
    [("2026-11-01", False), ("2026-09-21", False), ("2026-09-20", True), ("2026", True), ("undated", True)],
)
def test_old_and_undated_prices_are_stale_after_60_days(as_of, stale):
    added = offer(as_of=as_of, cloud="new")
    assert (added in PriceBook.bundled().with_rows([added]).stale(TODAY)) is stale


def test_a_contract_is_stale_only_once_it_has_ended():
    contract = offer(confidence="contract", as_of="2020-01-01", valid_until="2026-12-31")
    assert not contract.is_stale(TODAY, 60)
    assert contract.is_stale(date(2027, 1, 1), 60)


@given(st.integers(0, 4000), st.integers(0, 400))
def test_what_is_stale_stays_stale(day, later):
    book, first = PriceBook.bundled(), date(2024, 1, 1) + timedelta(days=day)
    assert set(book.stale(first)) <= set(book.stale(first + timedelta(days=later)))


def test_an_estimate_is_marked_where_its_source_calls_it_one():
    estimated = [o for o in PriceBook.bundled().offers() if o.is_estimate]
    assert [(o.cloud, o.accelerator) for o in estimated] == [("crusoe", "B200-SXM-180GB")]


def test_a_projects_price_list_is_added_to_the_bundled_one(tmp_path):
    file = tmp_path / "prices.csv"
    assert read_price_book(file, today=TODAY) == PriceBook.bundled()
    file.write_text(f"{HEADER}\nlambda,gpu_8x_h100_sxm5,H100,8,all,23.5,2026-11-01,seen,mail,,\n")
    book = read_price_book(file, today=TODAY)
    assert on_demand(book, cloud="lambda")["gpu_8x_h100_sxm5"] == 23.5
    assert "prices.csv" in book.source
    assert book.as_of == "2026-11-01"


def test_a_difference_has_old_new_ratio_and_dates():
    old, new = PriceBook.bundled(), PriceBook.bundled().with_rows([offer(63.84), offer(1.0, kind="other")])
    found = difference(old, new)
    (change,) = found.changed
    assert (change.old_usd_per_hour, change.new_usd_per_hour, change.ratio) == (31.92, 63.84, 2.0)
    assert change.new.provenance.as_of == "2026-11-01"
    assert [o.instance_type for o in found.only_in_new] == ["other"]
    assert found.only_in_old == ()


def test_a_price_that_is_gone_has_no_ratio():
    gone = offer(None, spot_usd_per_hour=9.0)
    (on_demand_change, spot_change) = difference(PriceBook.bundled(), PriceBook.bundled().with_rows([gone])).changed
    assert (on_demand_change.new_usd_per_hour, on_demand_change.ratio) == (None, None)
    assert (spot_change.old_usd_per_hour, spot_change.ratio) == (None, None)


def test_a_list_with_reserved_prices_only_is_an_offer():
    header = "cloud,instance_type,accelerator,count,region,reserved_1y_usd_h,as_of,confidence,source"
    (found,) = read_offers(f"{header}\naws,p5,H100,8,all,30,2026-11-01,contract,mail\n", "x.csv")
    assert found.usd_per_accelerator_hour(Market.RESERVED_1Y) == 3.75

import pytest

from charter.catalog.price_book import Market, PriceBook, as_of_key, offers
from charter.errors import UsageError


def test_offers_narrow_by_accelerator_cloud_region_and_market():
    found = offers("H100", cloud="aws", region="us-east-2", market=Market.SPOT)
    assert {(o.accelerator, o.cloud, o.region) for o in found} == {("H100-SXM-80GB", "aws", "us-east-2")}
    assert all(o.spot_usd_per_hour for o in found)


def test_an_offer_for_all_regions_is_in_each_region():
    assert offers("H100", cloud="lambda", region="us-west-1") == offers("H100", cloud="lambda")


def test_the_latest_snapshot_replaces_older_ones():
    prices = {o.instance_type: o.on_demand_usd_per_hour for o in offers("H100", cloud="lambda")}
    assert prices["gpu_8x_h100_sxm5"] == 31.92
    history = [o.on_demand_usd_per_hour for o in offers("H100", cloud="lambda", latest=False)]
    assert 23.92 in history
    spot = [o.spot_usd_per_hour for o in offers("A100", cloud="gcp", region="us-central1") if o.count == 1]
    assert spot == [2.12081]


def test_spot_is_never_above_on_demand_in_the_snapshot():
    both = [o for o in PriceBook.bundled().rows if o.on_demand_usd_per_hour and o.spot_usd_per_hour]
    assert len(both) > 80
    assert all(o.spot_usd_per_hour <= o.on_demand_usd_per_hour for o in both)


def test_prices_without_the_host_are_marked():
    assert any(not o.whole_machine for o in offers("H200", cloud="gcp"))
    assert all(o.whole_machine for o in offers("H100", cloud="aws"))


def test_unknown_accelerators_are_refused():
    with pytest.raises(UsageError, match="did you mean"):
        offers("H1000")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("2026 (inferred from schema v9)", (2026, 0, 0)),
        ("2026-08 (static table)", (2026, 8, 0)),
        ("2025-03-06", (2025, 3, 6)),
        ("2024-2025", (2025, 0, 0)),
        ("undated", (0, 0, 0)),
    ],
)
def test_date_texts_have_an_order(text, key):
    assert as_of_key(text) == key

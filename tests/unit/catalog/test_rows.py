import pytest

from charter.catalog import rows
from charter.catalog.price_book import PriceBook, read_offers
from charter.catalog.rows import DATA, Provenance
from charter.errors import CatalogError

HEADER = (DATA / "prices.csv").read_text().splitlines()[0]
GOOD = {
    "cloud": "aws",
    "instance_type": "p5.48xlarge",
    "accelerator": "H100",
    "count": "8",
    "region": "us-east-1",
    "ondemand_usd_h": "55.04",
    "ondemand_usd_per_acc_h": "6.88",
    "spot_usd_h_min_az": "17",
    "spot_usd_h_median_az": "18",
    "as_of": "2026-08-20",
    "confidence": "seen",
    "source": "a price list",
}


def offers_of(**changes):
    cells = GOOD | changes
    line = ",".join(cells.get(column, "") for column in HEADER.split(","))
    return read_offers(f"{HEADER}\n{line}\n", "mine.csv")


def test_a_good_row_is_read_in_base_units():
    (offer,) = offers_of(network_gbit_s="3200", ram_gib="2048", local_nvme_gb="30400", vcpu="192")
    assert offer.accelerator == "H100-SXM-80GB"
    assert offer.network_bytes_per_second == 400e9
    assert offer.host_memory_bytes == 2048 * 2**30
    assert offer.local_disk_bytes == 30.4e12
    assert offer.usd_per_accelerator_hour("spot") == 18 / 8


@pytest.mark.parametrize("column", ["source", "as_of", "confidence", "cloud", "region", "count"])
def test_a_row_without_a_needed_cell_names_file_row_and_column(column):
    with pytest.raises(CatalogError, match=rf"mine\.csv, row 2, column {column}"):
        offers_of(**{column: ""})


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"spot_usd_h_median_az": "60"}, "spot_usd_h_median_az"),
        ({"spot_usd_h_min_az": "19"}, "spot_usd_h_min_az"),
        ({"ondemand_usd_per_acc_h": "55.04"}, "ondemand_usd_per_acc_h"),
        ({"ondemand_usd_h": "0"}, "ondemand_usd_h"),
        ({"ondemand_usd_h": "-1"}, "ondemand_usd_h"),
        ({"ondemand_usd_h": "cheap"}, "ondemand_usd_h"),
        ({"ondemand_usd_h": "nan"}, "ondemand_usd_h"),
        ({"count": "0"}, "count"),
        ({"ondemand_usd_h": "", "spot_usd_h_median_az": "", "spot_usd_h_min_az": ""}, "ondemand_usd_h"),
    ],
)
def test_a_contradictory_row_is_refused(changes, column):
    with pytest.raises(CatalogError, match=rf"mine\.csv, row 2, column {column}"):
        offers_of(**changes)


def test_a_ragged_row_is_refused():
    with pytest.raises(CatalogError, match="row 2: has not as many columns"):
        read_offers(f"{HEADER}\naws,p5\n", "mine.csv")


def test_a_missing_price_is_none_and_not_zero():
    (offer,) = offers_of(ondemand_usd_h="", ondemand_usd_per_acc_h="")
    assert offer.usd_per_hour("on_demand") is None
    assert offer.usd_per_accelerator_hour("on_demand") is None


def test_every_bundled_table_loads_with_provenance():
    tables = (PriceBook.bundled().rows, rows.storage_prices(), rows.onprem_assumptions())
    assert [len(table) for table in tables] == [139, 63, 16]
    for table in tables:
        assert all(row.provenance.source and row.provenance.as_of for row in table)
        assert not any(row.provenance.source.startswith(("same", "...")) for row in table)


def test_doubtful_rows_stay_visible():
    assert Provenance(source="a page", as_of="2026", confidence="seen").verified
    assert not Provenance(source="x", as_of="2026", confidence="from memory, verify").verified
    assert any(not offer.provenance.verified for offer in PriceBook.bundled().rows)


def test_on_premises_scenarios_are_inputs_only():
    assert not any(item.parameter.startswith("RESULT") for item in rows.onprem_assumptions())


def test_one_price_per_storage_row():
    egress = [p.usd for p in PriceBook.bundled().storage_prices("aws", "egress") if p.tier.startswith("internet")]
    assert egress == [0.09, 0.085, 0.07, 0.05]

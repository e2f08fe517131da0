"""Every defect that was seen in a public catalog is found when its row is read."""

from datetime import date

import pytest

from charter.catalog.price_book import PriceBook
from charter.catalog.price_checks import GAP, check_rows, outliers, reference_of
from charter.catalog.price_import import read_prices
from charter.catalog.price_row import Import, PriceRow, Severity, resolve
from charter.catalog.rows import DATA

TODAY = date(2026, 11, 20)


def row(accelerator="H100", count=8, number=2, **changes) -> PriceRow:
    name, known = resolve(accelerator)
    facts = {
        "cloud": "aws",
        "instance_type": "machine",
        "region": "us-east-1",
        "as_of": "2026-11-01",
        "confidence": "seen",
        "source": "a catalog",
    }
    return PriceRow(number=number, accelerator=name, known=known, count=count, **(facts | changes))


def found(*rows, reference=None) -> dict[str, Severity]:
    return {item.rule: item.severity for item in check_rows(rows, reference=reference or {}, today=TODAY)}


def test_a_plain_row_has_no_findings():
    assert found(row(on_demand=55.04, spot=18.0, usd_per_accelerator_hour=6.88, memory_mib=81559)) == {}


@pytest.mark.parametrize(
    ("accelerator", "on_demand", "spot"),
    [("TPU-v4", 3.22, 3.686), ("TPU-v3", 2.00, 2.64), ("TPU-v2", 1.50, 1.53)],
)
def test_spot_above_on_demand_as_in_a_static_tpu_table(accelerator, on_demand, spot):
    assert found(row(accelerator, 1, on_demand=on_demand, spot=spot)) == {"spot-above-on-demand": Severity.ERROR}


def h100_zones() -> list[PriceRow]:
    """29 zones of one machine: 16 at 4.20 per GPU, in 8 of which spot is above; 13 at 9.80-12.70."""
    zones = []
    for index in range(29):
        each = 4.20 if index < 16 else 9.80 + 2.9 * (index - 16) / 12
        spot = 5.34 if index < 8 else 2.0
        zones.append(row(number=index + 2, zone=f"z{index}", region=f"r{index}", on_demand=8 * each, spot=8 * spot))
    return zones


def test_reservation_listed_as_on_demand_is_reported_in_16_zones():
    findings = check_rows(h100_zones(), reference={})
    by_rule = {rule: {f.row for f in findings if f.rule == rule} for rule in {f.rule for f in findings}}
    assert by_rule["on-demand-outlier"] == set(range(2, 18))
    assert by_rule["spot-above-on-demand"] == set(range(2, 10))
    assert "$9.80-12.70 in the 13 other rows" in next(f.message for f in findings if f.rule == "on-demand-outlier")


def test_without_spot_the_usual_cloud_price_shows_the_wrong_side():
    zones = [row(number=2 + i, on_demand=8 * each) for i, each in enumerate((4.2, 4.2, 4.2, 10.0, 11.0))]
    assert {f.row for f in outliers(zones, {("aws", "H100-SXM-80GB"): 10.5})} == {2, 3, 4}
    assert {f.row for f in outliers(zones, {("aws", "H100-SXM-80GB"): 4.0})} == {5, 6}
    assert {f.row for f in outliers(zones, {})} == {5, 6}, "without any evidence: the side with fewer rows"


def test_a_wrong_price_in_every_zone_is_far_from_the_known_one():
    reference = reference_of(PriceBook.bundled().offers(cloud="gcp"))
    rows = [row(cloud="gcp", region=f"r{i}", on_demand=8 * 4.20) for i in range(3)]
    assert found(*rows, reference=reference) == {"far-from-known-price": Severity.WARNING}
    assert found(row(cloud="gcp", on_demand=8 * 10.3), reference=reference) == {}


def test_an_h200_reservation_below_its_spot_price_is_found():
    assert found(row("H200", on_demand=36.60, spot=44.59))["spot-above-on-demand"] is Severity.ERROR


def test_prices_that_vary_by_region_are_no_outliers():
    aws_p5 = (55.04, 58.8928, 63.296, 66.048, 68.8, 71.552, 75.9552)
    assert outliers([row(number=i, on_demand=price) for i, price in enumerate(aws_p5, start=2)], {}) == []
    assert max(aws_p5) / min(aws_p5) < GAP


def test_snapshots_of_different_dates_are_not_compared_as_regions():
    assert outliers([row(on_demand=20.0, as_of="2025-01-01"), row(on_demand=60.0, as_of="2026-01-01")], {}) == []


def test_hosts_of_a_marketplace_name_their_own_prices():
    zones = [row(cloud="vast", number=2 + i, on_demand=8 * each) for i, each in enumerate((1.0, 1.1, 1.2, 4.0))]
    assert [(f.row, f.severity) for f in outliers(zones, {})] == [(5, Severity.WARNING)]


@pytest.mark.parametrize(
    ("accelerator", "price"), [("H100", 55.04), ("A100-80GB", 1.39), ("H100-NVL", 6.98)], ids=["aws", "runpod", "azure"]
)
def test_spot_equal_to_on_demand_is_read_as_no_spot_offer(accelerator, price):
    same = row(accelerator, 1 if price < 10 else 8, on_demand=price, spot=price)
    assert found(same) == {"spot-is-on-demand": Severity.NOTE}
    assert not same.has_own_spot


@pytest.mark.parametrize(("accelerator", "count", "price"), [("B200", 8, 0.08), ("A100", 1, 0.01), ("H100", 8, 2.35)])
def test_floor_bids_and_mistaken_unit_prices_are_implausible(accelerator, count, price):
    assert found(row(accelerator, count, on_demand=price)) == {"implausible-price": Severity.ERROR}


def test_instance_price_taken_as_accelerator_price_is_doubted():
    assert found(row(count=1, on_demand=55.04)) == {"implausible-price": Severity.WARNING}


def test_no_price_of_the_snapshot_is_called_implausible():
    for offer in PriceBook.bundled().rows:
        prices = {"on_demand": offer.on_demand_usd_per_hour, "spot": offer.spot_usd_per_hour}
        assert "implausible-price" not in found(row(offer.accelerator, offer.count, **prices)), offer.key


def test_12_accelerators_in_a_machine_of_8_are_impossible():
    assert found(row(count=12, on_demand=98.32)) == {"impossible-count": Severity.ERROR}


@pytest.mark.parametrize(("accelerator", "count"), [("A100", 16), ("GB200", 72), ("Inferentia2", 12), ("L4", 1)])
def test_counts_that_are_rented_are_possible(accelerator, count):
    assert found(row(accelerator, count, on_demand=4.0 * count)) == {}


@pytest.mark.parametrize(("count", "severity"), [(0.125, Severity.ERROR), (0, Severity.ERROR), (5, Severity.WARNING)])
def test_fractions_are_refused_and_odd_counts_doubted(count, severity):
    assert found(row("L4", count, on_demand=2.0))["impossible-count"] is severity


def test_a_slice_of_a_pod_may_have_any_count():
    assert found(row("TPU-v5p", 1856, on_demand=7795.2, is_slice=True)) == {}


@pytest.mark.parametrize(
    ("accelerator", "gib"), [("B200", 80), ("H200", 80), ("GH200", 80), ("MI325X", 288)], ids=lambda value: str(value)
)
def test_memory_that_is_not_the_accelerators_is_found(accelerator, gib):
    count = 1 if accelerator == "GH200" else 8
    assert found(row(accelerator, count, on_demand=4.0 * count, memory_mib=gib * 1024)) == {
        "memory-mismatch": Severity.ERROR
    }


@pytest.mark.parametrize(
    ("accelerator", "mib"),
    [("H200", 144384), ("B200", 183359), ("B200", 184320), ("B300", 275040), ("L4", 24576), ("T4", 16384)],
)
def test_memory_as_clouds_report_it_is_accepted(accelerator, mib):
    assert found(row(accelerator, 1, on_demand=2.0, memory_mib=mib)) == {}


def test_the_cause_of_a_wrong_memory_is_guessed():
    (total,) = check_rows([row(on_demand=50.0, memory_mib=8 * 81920)], reference={})
    assert "the sum over 8 accelerators?" in total.message
    (gib,) = check_rows([row(on_demand=50.0, memory_mib=80)], reference={})
    assert "gigabytes in a column of mebibytes?" in gib.message


@pytest.mark.parametrize("note", ["source says ESTIMATED, not published", "from the ratio to H200"])
def test_an_estimated_price_stays_marked(note):
    assert found(row("B200", 1, on_demand=7.25, note=note)) == {"estimated-price": Severity.WARNING}


def test_a_missing_on_demand_price_is_null_and_a_zero_is_refused():
    assert found(row("H200", spot=14.8)) == {"no-on-demand-price": Severity.NOTE}
    assert found(row("H200", on_demand=0.0, spot=14.8)) == {"zero-price": Severity.ERROR}
    assert found(row("H200"))["no-price"] is Severity.ERROR


def test_the_parts_must_give_the_price_per_accelerator():
    assert found(row(on_demand=55.04, usd_per_accelerator_hour=55.04)) == {"arithmetic": Severity.ERROR}


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"source": ""}, "no-provenance"),
        ({"as_of": ""}, "no-provenance"),
        ({"cloud": ""}, "missing-cell"),
        ({"spot": 18.0, "spot_min": 19.0}, "spot-min-above-median"),
        ({"reserved_1y": 60.0}, "reserved-above-on-demand"),
        ({"as_of": "2026"}, "stale-price"),
        ({"as_of": "undated"}, "stale-price"),
        ({"as_of": "2026-13-45"}, "impossible-date"),
        ({"as_of": "2026-02-30 (list)"}, "impossible-date"),
        ({"as_of": "2099-01-01"}, "impossible-date"),
        ({"as_of": "2126-01-31"}, "impossible-date"),
        ({"instance_type": "a3 (GPU part only)"}, "part-of-a-machine"),
        ({"is_contract": True, "valid_until": "2026-11-19"}, "contract-dates"),
    ],
)
def test_other_rules(changes, rule):
    assert rule in found(row(on_demand=55.04, **changes))


def test_an_unknown_accelerator_is_an_error_and_not_dropped():
    assert found(row("K80", 1, on_demand=0.9)) == {"unknown-accelerator": Severity.ERROR}


def test_two_prices_for_one_offer_are_told_with_the_line_of_the_first():
    (finding,) = check_rows([row(on_demand=50.0), row(on_demand=51.0, number=3)], reference={})
    assert (finding.rule, finding.row) == ("two-prices", 3)
    assert "line 2" in finding.message


def test_the_bundled_snapshot_has_the_findings_that_the_docs_list():
    text = (DATA / "prices.csv").read_text()
    checked = read_prices(text, Import(file="prices.csv", imported_on=TODAY), today=TODAY)
    rules = [finding.rule for finding in checked.findings]
    assert checked.errors == ()
    assert {rule: rules.count(rule) for rule in set(rules)} == {
        "no-on-demand-price": 5,
        "part-of-a-machine": 4,
        "estimated-price": 1,
        "stale-price": 1,
    }
    (age,) = (finding.message for finding in checked.findings if finding.rule == "stale-price")
    assert "139 of 139 prices" in age, "the age of a list is told once"
    assert "the newest are of 2026-08-20" in age


def test_the_reference_price_is_the_median_of_a_cloud():
    assert reference_of(PriceBook.bundled().offers("B200", cloud="aws"))[("aws", "B200-SXM-180GB")] == 14.2416
